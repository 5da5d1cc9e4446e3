"""Constant folding, in the compute type of the kernel."""

from __future__ import annotations

import math

from evt.functions import TABLE
from evt.ir.dag import TypedDag
from evt.ir.dtype import B1, F32, I32, DType
from evt.ir.node import Apply, Cast, Const
from evt.ir.value_types import cast_constant_type
from evt.optimise.rewrite import TypedBuilder, on, rewrite
from evt.optimise.rounding import is_exact, round_constant


def fold(dag: TypedDag) -> TypedDag:
    """Fold ``f(constants) -> constant``, rounding each step as the kernel would; constants are rounded first."""
    return rewrite(dag, round_constants, fold_constants, fold_casts, unmark)


@on(Const)
def round_constants(builder: TypedBuilder, op: Const, operands: tuple[int, ...]) -> int | None:
    """Round constants: ``0.1 -> f32(0.1)`` in a program that computes in f32.

    Equal constants become one node, without modes.
    """
    rounded = op.value if builder.wide or op.is_integer else round_constant(F32, op.value)
    return builder.number(rounded if math.isfinite(rounded) else op.value)


@on(Apply)
def fold_constants(builder: TypedBuilder, op: Apply, operands: tuple[int, ...]) -> int | None:
    """Fold ``mul(2, 3) -> 6``. Results that are not finite, or that wrap, remain unfolded."""
    values = [value for operand in operands if (value := builder.constant(operand)) is not None]
    if len(values) != len(operands):
        return None
    row, dtype = TABLE[op.function], builder.domain(op.function, operands)
    values = [round_constant(B1 if slot in row.conditions else dtype, value) for slot, value in enumerate(values)]
    try:
        result = row.fold_f32(*values) if dtype == F32 else row.fold(*values)
    except (ArithmeticError, ValueError):  # for a user's function
        return None
    if row.result == "predicate":
        return builder.number(result)
    if dtype == I32:
        return builder.literal(result + 0.0, I32) if is_exact(I32, result + 0.0) else None  # 0 has no sign
    return builder.literal(result, dtype) if math.isfinite(result) else None


@on(Cast)
def fold_casts(builder: TypedBuilder, op: Cast, operands: tuple[int, ...]) -> int | None:
    """Fold ``f16(0.1) -> 0.0999755859375``; ``i8(2.5) -> i32(2)``, a constant that remains an integer."""
    if (value := builder.constant(operands[0])) is None:
        return None
    result = round_constant(op.dtype, round_constant(cast_constant_type(builder.types[operands[0]], op.dtype), value))
    if not math.isfinite(result):
        return None
    return builder.number(result) if op.dtype == B1 else builder.literal(result, op.dtype.compute)


@on(Apply)
def unmark(builder: TypedBuilder, op: Apply, operands: tuple[int, ...]) -> int | None:
    """Rewrite ``x + f32(3) -> x + 3``: a constant takes the type of its operation."""
    for slot, operand in enumerate(operands):
        value = builder.constant(operand)
        if value is None or isinstance(builder[operand], Const):
            continue
        plain = (*operands[:slot], builder.number(value), *operands[slot + 1 :])
        if _dtype(builder, op, plain) == _dtype(builder, op, operands):
            return builder.add(op, *plain)
    return None


def _dtype(builder: TypedBuilder, op: Apply, operands: tuple[int, ...]) -> DType:
    return builder.domain(op.function, operands)
