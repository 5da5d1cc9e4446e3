"""Exact algebra of truth values and of the selection between two values."""

from __future__ import annotations

from evt.functions import TABLE
from evt.ir.dag import TypedDag
from evt.ir.dtype import B1
from evt.ir.node import Apply, Cast, Node
from evt.optimise.rewrite import TypedBuilder, comparison_of, is_zero, on, rewrite


def logic(dag: TypedDag) -> TypedDag:
    """Apply the rules to every node."""
    return rewrite(dag, negation, junction, truth, comparison, choice, floor_of_zero)


@on("logical_not")
def negation(builder: TypedBuilder, op: Node, operands: tuple[int, ...]) -> int | None:
    """Rewrite ``!!x -> x``, ``!(x == y) -> x != y``. Not ``!(x < y) -> x >= y``: both are false for NaN."""
    inner, arguments = builder[operands[0]], builder.arguments(operands[0])
    if inner == Apply("logical_not"):
        return arguments[0]
    compared = comparison_of(inner)
    if compared is not None and not compared.chosen:
        return builder.apply(compared.opposite, *arguments)
    return None


@on("logical_and", "logical_or")
def junction(builder: TypedBuilder, op: Node, operands: tuple[int, ...]) -> int | None:
    """Rewrite ``x && x -> x``, ``x && true -> x``, ``x && false -> false``, ``x && !x -> false``, and the same rules of
    ``||``.
    """
    neutral = op == Apply("logical_and")
    if operands[0] == operands[1]:
        return operands[0]
    for x, y in (operands, operands[::-1]):
        if (value := builder.constant(y)) is not None:
            return x if bool(value) is neutral else _truth(builder, not neutral)
        if builder[y] == Apply("logical_not") and builder.arguments(y)[0] == x:
            return _truth(builder, not neutral)
    return None


@on(Cast, "eq", "ne")
def truth(builder: TypedBuilder, op: Node, operands: tuple[int, ...]) -> int | None:
    """Rewrite ``b1(i32(c)) -> c``, ``c != 0 -> c``, ``c == 0 -> !c``, ``c == 1 -> c`` for a truth value."""
    if isinstance(op, Cast):
        inner = builder[operands[0]]
        if op.dtype == B1 and isinstance(inner, Cast) and _is_truth(builder, builder.arguments(operands[0])[0]):
            return builder.arguments(operands[0])[0]
        return None
    for x, y in (operands, operands[::-1]):
        value = builder.constant(y)
        if value not in (0.0, 1.0) or not isinstance(builder[x], Cast):
            continue
        condition = builder.arguments(x)[0]
        if _is_truth(builder, condition):
            same = (value == 1.0) is (op == Apply("eq"))
            return condition if same else builder.apply("logical_not", condition)
    return None


@on("logical_or", *(name for name, row in TABLE.items() if row.comparison is not None))
def comparison(builder: TypedBuilder, op: Apply, operands: tuple[int, ...]) -> int | None:
    """Rewrite ``y > x -> x < y``, operands in id order; ``x < x -> false``; ``x < y || x == y -> x <= y``."""
    if op == Apply("logical_or"):
        for one, two in (operands, operands[::-1]):
            strict, pair = builder[one], builder.arguments(one)
            same = builder[two] == Apply("eq") and builder.arguments(two) in (pair, pair[::-1])
            if same and strict in (Apply("lt"), Apply("gt")):
                return builder.apply("le" if strict == Apply("lt") else "ge", *pair)
        return None
    if operands[0] == operands[1] and op.function in ("lt", "gt"):
        return _truth(builder, False)
    compared = comparison_of(op)
    if compared is not None and operands[0] > operands[1]:
        return builder.apply(compared.converse, operands[1], operands[0])
    return None


@on("where")
def choice(builder: TypedBuilder, op: Node, operands: tuple[int, ...]) -> int | None:
    """Rewrite ``where(c, x, x) -> x``, ``where(true, x, y) -> x``, ``where(!c, x, y) -> where(c, y, x)``.

    Also ``where(c, where(c, x, y), z) -> where(c, x, z)``, and likewise below ``else``.
    """
    condition, x, y = operands
    if x == y:
        return x
    if (value := builder.constant(condition)) is not None:
        return x if value else y
    if builder[condition] == Apply("logical_not"):
        return builder.apply("where", builder.arguments(condition)[0], y, x)
    if builder[x] == op and builder.arguments(x)[0] == condition:
        return builder.apply("where", condition, builder.arguments(x)[1], y)
    if builder[y] == op and builder.arguments(y)[0] == condition:
        return builder.apply("where", condition, x, builder.arguments(y)[2])
    return None


@on("where")
def floor_of_zero(builder: TypedBuilder, op: Node, operands: tuple[int, ...]) -> int | None:
    """Rewrite ``where(x <= 0, 0, x) -> relu(x)``: NaN remains, -0 becomes 0.

    Not ``where(x > 0, x, 0)``, which is 0 for NaN.
    """
    if not is_zero(builder.constant(operands[1])):
        return None
    condition, arguments = builder[operands[0]], builder.arguments(operands[0])
    for function, x, bound in (("le", 0, 1), ("ge", 1, 0)):
        if condition == Apply(function) and arguments[x] == operands[2] and builder.constant(arguments[bound]) == 0.0:
            return builder.apply("relu", operands[2])
    return None


def _truth(builder: TypedBuilder, value: bool) -> int:
    return builder.number(float(value))


def _is_truth(builder: TypedBuilder, node: int) -> bool:
    return builder.types[node].dtype.compute == B1
