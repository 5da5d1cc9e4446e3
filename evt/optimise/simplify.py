"""Exact algebra: rules whose two sides agree for every f32 input, NaN, infinities and -0 included.

``x + 0 -> x`` is not here (it turns -0 into 0 the wrong way round); ``x + -0.0 -> x`` is.
"""

from __future__ import annotations

import math

from evt.functions import TABLE, Fact
from evt.ir.dag import Builder, TypedDag
from evt.ir.node import Apply, Cast, Const, Node
from evt.optimise.fold import fold_constants
from evt.optimise.rewrite import rewrite


def simplify(dag: TypedDag) -> TypedDag:
    """Apply the exact rules to every node."""
    rules = (identity, repeated, division, small_power, squaring, clamping, casting, order)
    return rewrite(dag, fold_constants, *rules)


def identity(builder: Builder, op: Node, operands: tuple[int, ...]) -> int | None:
    """``x * 1 -> x``, ``x / 1 -> x``, ``x - 0 -> x``, ``x + -0.0 -> x``, ``x * -1 -> -x``, ``--x -> x``."""
    if op == Apply("neg") and builder[operands[0]] == Apply("neg"):
        return builder.arguments(operands[0])[0]
    for value, x in _constant_operand(builder, op, operands):
        match op:
            case Apply("mul" | "div") if value == 1.0:
                return x
            case Apply("mul" | "div") if value == -1.0:
                return builder.add(Apply("neg"), x)
            case Apply("sub") if _is(value, 0.0):
                return x
            case Apply("add") if _is(value, -0.0):
                return x
    return None


def repeated(builder: Builder, op: Node, operands: tuple[int, ...]) -> int | None:
    """``relu(relu(x)) -> relu(x)``, ``max(x, x) -> x``, for functions whose facts say so.

    Hyper-parameters have to be the same: ``clamp(clamp(x, 0, 1), 2, 3)`` is not ``clamp(x, 0, 1)``.
    """
    if isinstance(op, Apply):
        facts, inner = TABLE[op.function].facts, operands[0]
        same = builder[inner] == op and builder.arguments(inner)[1:] == operands[1:]
        if Fact.IDEMPOTENT in facts and same:
            return inner
        if Fact.IDEMPOTENT_BINARY in facts and operands[0] == operands[1]:
            return operands[0]
    return None


def division(builder: Builder, op: Node, operands: tuple[int, ...]) -> int | None:
    """``x / 2**k -> x * 2**-k``, where both powers are normal f32 numbers; ``1 / x -> rcp(x)``."""
    if op != Apply("div"):
        return None
    numerator, denominator = builder[operands[0]], builder[operands[1]]
    if isinstance(denominator, Const) and abs(math.frexp(denominator.value)[0]) == 0.5:
        if 2.0**-125 <= abs(denominator.value) <= 2.0**125:
            return builder.add(Apply("mul"), operands[0], builder.add(Const.of(1 / denominator.value)))
    elif numerator == Const.of(1.0):
        return builder.add(Apply("rcp"), operands[1])
    return None


def small_power(builder: Builder, op: Node, operands: tuple[int, ...]) -> int | None:
    """``x**1 -> x``, ``x**2 -> square(x)``, ``x**3 -> x*square(x)``, ``x**-1 -> rcp(x)``, as in PyTorch."""
    if op != Apply("pow") or not isinstance(exponent := builder[operands[1]], Const):
        return None
    x = operands[0]
    match exponent.value:
        case 1.0:
            return x
        case 2.0:
            return builder.add(Apply("square"), x)
        case 3.0:
            return builder.add(Apply("mul"), x, builder.add(Apply("square"), x))
        case -1.0:
            return builder.add(Apply("rcp"), x)
    return None


def clamping(builder: Builder, op: Node, operands: tuple[int, ...]) -> int | None:
    """``max(x, 0) -> relu(x)``; ``min(relu(x), 6)``, ``relu(min(x, 6))``, ``clamp(x, 0, 6) -> relu6(x)``."""
    if op in (Apply("clamp"), Apply("hardtanh")):
        bounds = [builder[operand] for operand in operands[1:]]
        return builder.add(Apply("relu6"), operands[0]) if bounds == [Const.of(0.0), Const.of(6.0)] else None
    if op == Apply("relu"):
        inner = operands[0]
        pairs = _constant_operand(builder, builder[inner], builder.arguments(inner))
        x = next((x for value, x in pairs if builder[inner] == Apply("min") and value == 6.0), None)
        return None if x is None else builder.add(Apply("relu6"), x)
    for value, x in _constant_operand(builder, op, operands):
        if op == Apply("max") and _is(value, 0.0):
            return builder.add(Apply("relu"), x)
        if op == Apply("min") and value == 6.0 and builder[x] == Apply("relu"):
            return builder.add(Apply("relu6"), builder.arguments(x)[0])
    return None


def squaring(builder: Builder, op: Node, operands: tuple[int, ...]) -> int | None:
    """``x * x -> square(x)``."""
    if op == Apply("mul") and operands[0] == operands[1]:
        return builder.add(Apply("square"), operands[0])
    return None


def casting(builder: Builder, op: Node, operands: tuple[int, ...]) -> int | None:
    """``f16(f16(x)) -> f16(x)``, and ``f32(x) -> x`` of a value that is f32 or narrower anyway."""
    if isinstance(op, Cast) and (op.dtype.name == "f32" or builder[operands[0]] == op):
        return operands[0]
    return None


def order(builder: Builder, op: Node, operands: tuple[int, ...]) -> int | None:
    """``b + a -> a + b``: commutative operands in id order, so that both spellings are one node."""
    if isinstance(op, Apply) and Fact.COMMUTATIVE in TABLE[op.function].facts and operands[0] > operands[1]:
        return builder.add(op, operands[1], operands[0])
    return None


def _constant_operand(builder: Builder, op: Node, operands: tuple[int, ...]) -> list[tuple[float, int]]:
    """(constant, other operand) of a binary node; on the left only where the function commutes."""
    if not isinstance(op, Apply) or len(operands) != 2:
        return []
    pairs = [(operands[1], operands[0])]
    if Fact.COMMUTATIVE in TABLE[op.function].facts:
        pairs.append((operands[0], operands[1]))
    return [(c.value, x) for i, x in pairs if isinstance(c := builder[i], Const)]


def _is(value: float, constant: float) -> bool:
    """Equality that tells -0.0 from 0.0."""
    return value == constant and math.copysign(1, value) == math.copysign(1, constant)
