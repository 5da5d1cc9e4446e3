"""Rounding of constants to every type, as kernels and the reference round values. Pure Python, without torch."""

from __future__ import annotations

import math

from evt.functions.single import nearest, round_f32
from evt.ir.dtype import B1, F32, F64, DType


def round_constant(dtype: DType, value: float) -> float:
    """Return a number rounded to a type, ties to even; floats narrower than f32 are rounded by way of f32.

    8-bit types and integers saturate; other floats become infinite. NaN becomes the integer 0.
    """
    if dtype == F64:
        return value
    if dtype == B1:
        return float(value != 0.0)
    if not dtype.is_float:
        return float(min(max(_whole(value), dtype.least), dtype.largest))
    rounded = round_f32(value)
    if dtype != F32:
        rounded = nearest(rounded, dtype.format.fraction, dtype.format.least_exponent)
    if math.isnan(rounded) or abs(rounded) <= dtype.largest:
        return rounded
    return math.copysign(dtype.largest if dtype.saturates else math.inf, rounded)


def is_exact(dtype: DType, value: float) -> bool:
    """Return whether a type represents a number exactly, -0.0 included."""
    rounded = round_constant(dtype, value)
    return rounded == value and math.copysign(1.0, rounded) == math.copysign(1.0, value)


def _whole(value: float) -> float:
    if math.isinf(value):
        return value
    return 0 if math.isnan(value) else round(value)
