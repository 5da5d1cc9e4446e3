"""Exact algebra of i32, which wraps: a ring, so constants of sums and products may be combined."""

from __future__ import annotations

from evt.functions import Fact
from evt.ir.dag import TypedDag
from evt.ir.dtype import I32
from evt.ir.node import Apply, Cast, Node
from evt.optimise.rewrite import Rule, TypedBuilder, chosen, comparison_of, constant_operand, on, rewrite
from evt.optimise.rounding import is_exact


def integers(dag: TypedDag) -> TypedDag:
    """Apply the rules to every operation on i32."""
    return rewrite(dag, *map(_over_i32, (zero, gather, whole, comparison, choice)))


def _over_i32(rule: Rule) -> Rule:
    def guarded(builder: TypedBuilder, op: Apply, operands: tuple[int, ...]) -> int | None:
        if op.function != "logical_not" and builder.domain(op.function, operands) != I32:
            return None
        return rule.apply(builder, op, operands)

    return Rule(rule.keys, guarded)


@on("add", "mul", "sub")
def zero(builder: TypedBuilder, op: Node, operands: tuple[int, ...]) -> int | None:
    """Rewrite ``x + 0 -> x``, ``0 - x -> -x``, ``x * 0 -> 0``, ``x - x -> 0``."""
    for value, x in constant_operand(builder, op, operands):
        if value == 0.0 and op == Apply("add"):
            return x
        if value == 0.0 and op == Apply("mul"):
            return _number(builder, 0.0)
    if op == Apply("sub") and builder.constant(operands[0]) == 0.0:
        return builder.apply("neg", operands[1])
    if op == Apply("sub") and operands[0] == operands[1]:
        return _number(builder, 0.0)
    return None


@on("add", "mul", "sub")
def gather(builder: TypedBuilder, op: Node, operands: tuple[int, ...]) -> int | None:
    """Rewrite ``x + 2 + 3 -> x + 5``, ``x * 2 * 3 -> x * 6``, ``x - 2 -> x + -2``."""
    for value, x in constant_operand(builder, op, operands):
        if op == Apply("sub"):
            opposite = -value if value != I32.least else value  # which wraps to itself
            return builder.apply("add", x, builder.number(opposite)) if value else x
        for inner, y in constant_operand(builder, builder[x], builder.arguments(x)):
            if op == builder[x] and op in (Apply("add"), Apply("mul")):
                result = value + inner if op == Apply("add") else value * inner
                if is_exact(I32, result):
                    return builder.add(op, y, builder.number(result))
    return None


@on(Fact.WHOLE)
def whole(builder: TypedBuilder, op: Node, operands: tuple[int, ...]) -> int | None:
    """Rewrite ``floor(x) -> x``."""
    return operands[0]


@on("logical_not")
def comparison(builder: TypedBuilder, op: Node, operands: tuple[int, ...]) -> int | None:
    """Rewrite ``!(x < y) -> x >= y``: there is no NaN."""
    inner, arguments = builder[operands[0]], builder.arguments(operands[0])
    compared = comparison_of(inner)
    if isinstance(inner, Apply) and compared is not None and builder.domain(inner.function, arguments) == I32:
        return builder.apply(compared.opposite, *arguments)
    return None


@on("where")
def choice(builder: TypedBuilder, op: Node, operands: tuple[int, ...]) -> int | None:
    """Rewrite ``where(x < y, x, y) -> min(x, y)``, ``where(x > 0, x, 0) -> max(x, 0)``."""
    condition, arguments = builder[operands[0]], builder.arguments(operands[0])
    if not isinstance(condition, Apply) or builder.domain(condition.function, arguments) != I32:
        return None
    if None not in map(builder.constant, arguments):
        return None
    return chosen(builder, operands)


def _number(builder: TypedBuilder, value: float) -> int:
    """Return a constant that remains an integer."""
    return builder.add(Cast(I32), builder.number(value))
