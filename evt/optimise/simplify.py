"""Exact algebra: rules whose two sides agree for every f32 input, NaN, infinities and -0 included.

``x + 0 -> x`` is not among them, because -0 + 0 is 0; ``x + -0.0 -> x`` is.
"""

from __future__ import annotations

import math

from evt.functions import TABLE, Fact
from evt.ir.dag import TypedDag
from evt.ir.dtype import E5M2, I32
from evt.ir.node import Apply, Cast, Node
from evt.optimise.fold import fold_constants, unmark
from evt.optimise.rewrite import TypedBuilder, constant_operand, is_zero, on, rewrite


def simplify(dag: TypedDag) -> TypedDag:
    """Apply the exact rules to every node."""
    rules = (identity, repeated, symmetric, division, small_power, squaring, clamping, casting, order)
    return rewrite(dag, fold_constants, unmark, *rules)


@on("neg", "mul", "div", "sub", "add")
def identity(builder: TypedBuilder, op: Node, operands: tuple[int, ...]) -> int | None:
    """Rewrite ``x * 1 -> x``, ``x / 1 -> x``, ``x - 0 -> x``, ``x + -0.0 -> x``, ``x * -1 -> -x``, ``--x -> x``."""
    if op == Apply("neg") and builder[operands[0]] == Apply("neg"):
        return builder.arguments(operands[0])[0]
    for value, x in constant_operand(builder, op, operands):
        match op:
            case Apply("mul" | "div") if value == 1.0:
                return x
            case Apply("mul" | "div") if value == -1.0:
                return builder.apply("neg", x)
            case Apply("sub") if is_zero(value):
                return x
            case Apply("add") if is_zero(value, -1.0):
                return x
    return None


@on(Fact.IDEMPOTENT, Fact.IDEMPOTENT_BINARY)
def repeated(builder: TypedBuilder, op: Apply, operands: tuple[int, ...]) -> int | None:
    """Rewrite ``relu(relu(x)) -> relu(x)``, ``max(x, x) -> x``, for functions with such facts.

    Hyper-parameters must be equal: ``clamp(clamp(x, 0, 1), 2, 3)`` is not ``clamp(x, 0, 1)``.
    """
    facts, inner = TABLE[op.function].facts, operands[0]
    same = builder[inner] == op and builder.arguments(inner)[1:] == operands[1:]
    if Fact.IDEMPOTENT in facts and same:
        return inner
    return inner if Fact.IDEMPOTENT_BINARY in facts and inner == operands[1] else None


@on(Fact.EVEN, "abs", "sub", "add")
def symmetric(builder: TypedBuilder, op: Apply, operands: tuple[int, ...]) -> int | None:
    """Rewrite ``cos(-x) -> cos(x)``, ``square(abs(x)) -> square(x)``, ``abs(exp(x)) -> exp(x)``, for functions with
    such facts.

    Also ``x + -y -> x - y``, ``x - -y -> x + y``.
    """
    inner, arguments = builder[operands[0]], builder.arguments(operands[0])
    if Fact.EVEN in TABLE[op.function].facts and inner in (Apply("neg"), Apply("abs")):
        return builder.add(op, arguments[0], *operands[1:])
    if op == Apply("abs") and isinstance(inner, Apply) and Fact.NON_NEGATIVE in TABLE[inner.function].facts:
        return operands[0]
    if op == Apply("sub") and builder[operands[1]] == Apply("neg"):
        return builder.apply("add", operands[0], builder.arguments(operands[1])[0])
    if op == Apply("add"):
        for x, y in (operands, operands[::-1]):
            if builder[y] == Apply("neg"):
                return builder.apply("sub", x, builder.arguments(y)[0])
    return None


@on("div")
def division(builder: TypedBuilder, op: Node, operands: tuple[int, ...]) -> int | None:
    """Rewrite ``x / 2**k -> x * 2**-k``, if both powers are normal f32 numbers; ``1 / x -> rcp(x)``."""
    numerator, denominator = map(builder.constant, operands)
    if denominator is not None and abs(math.frexp(denominator)[0]) == 0.5:
        if 2.0**-125 <= abs(denominator) <= 2.0**125:
            return builder.apply("mul", operands[0], builder.number(1 / denominator))
    elif numerator == 1.0:
        return builder.apply("rcp", operands[1])
    return None


@on("pow")
def small_power(builder: TypedBuilder, op: Apply, operands: tuple[int, ...]) -> int | None:
    """Rewrite ``x**1 -> x``, ``x**2 -> square(x)``, ``x**3 -> x*square(x)``, ``x**-1 -> rcp(x)``, as in PyTorch."""
    x = operands[0]
    match builder.constant(operands[1]):
        case 1.0:
            return x
        case 2.0:
            return builder.apply("square", x)
        case 3.0:
            return builder.apply("mul", x, builder.apply("square", x))
        case -1.0 if builder.domain(op.function, operands) != I32:
            return builder.apply("rcp", x)
    return None


@on("clamp", "hardtanh", "relu", "max", "min")
def clamping(builder: TypedBuilder, op: Node, operands: tuple[int, ...]) -> int | None:
    """Rewrite ``max(x, 0) -> relu(x)``; ``min(relu(x), 6)``, ``relu(min(x, 6))``, ``clamp(x, 0, 6) -> relu6(x)``."""
    if op in (Apply("clamp"), Apply("hardtanh")):
        lower, upper = map(builder.constant, operands[1:])
        return builder.apply("relu6", operands[0]) if is_zero(lower) and upper == 6.0 else None
    if op == Apply("relu"):
        inner = operands[0]
        pairs = constant_operand(builder, builder[inner], builder.arguments(inner))
        x = next((x for value, x in pairs if builder[inner] == Apply("min") and value == 6.0), None)
        return None if x is None else builder.apply("relu6", x)
    for value, x in constant_operand(builder, op, operands):
        if op == Apply("max") and is_zero(value):
            return builder.apply("relu", x)
        if op == Apply("min") and value == 6.0 and builder[x] == Apply("relu"):
            return builder.apply("relu6", builder.arguments(x)[0])
    return None


@on("mul")
def squaring(builder: TypedBuilder, op: Node, operands: tuple[int, ...]) -> int | None:
    """Rewrite ``x * x -> square(x)``."""
    return builder.apply("square", operands[0]) if operands[0] == operands[1] else None


@on(Cast)
def casting(builder: TypedBuilder, op: Cast, operands: tuple[int, ...]) -> int | None:
    """Rewrite ``f16(f16(x)) -> f16(x)``, ``f32(x) -> x`` for a float that is no wider; likewise for i32 and b1.

    An input of e5m2 may be infinite, but the cast to e5m2 is finite.
    """
    have = builder.types[operands[0]]
    if builder.constant(operands[0]) is not None:  # marked with its type
        return None
    same = have.dtype == op.dtype and (op.dtype != E5M2 or isinstance(builder[operands[0]], Cast))
    if same or (have.dtype.compute == op.dtype and not have.constant):
        return operands[0]
    return None


@on(Fact.COMMUTATIVE)
def order(builder: TypedBuilder, op: Apply, operands: tuple[int, ...]) -> int | None:
    """Rewrite ``b + a -> a + b``: commutative operands in id order, so that both spellings are one node."""
    return builder.add(op, operands[1], operands[0]) if operands[0] > operands[1] else None
