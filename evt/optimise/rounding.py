"""Rounding of constants to every type, as kernels and the reference round values. Pure Python, without torch."""

from __future__ import annotations

import math
import struct

from evt.ir.dtype import B1, F32, F64, DType

#: Of the floats narrower than f32: bits of the fraction, least exponent of a normal number, largest finite value.
_FLOATS = {
    "tf32": (10, -126, (2 - 2**-10) * 2.0**127),
    "f16": (10, -14, 65504.0),
    "bf16": (7, -126, (2 - 2**-7) * 2.0**127),
    "e4m3": (3, -6, 448.0),
    "e5m2": (2, -14, 57344.0),
}
_SATURATING = frozenset({"e4m3", "e5m2"})
_RANGE = {"i32": (-(2**31), 2**31 - 1), "i8": (-128, 127), "u8": (0, 255)}


def round_constant(dtype: DType, value: float) -> float:
    """A finite number rounded to a type, halves to even. It may become infinite; 8-bit types and integers saturate."""
    if dtype == F64:
        return value
    if dtype == B1:
        return float(value != 0.0)
    if dtype.name in _RANGE:
        low, high = _RANGE[dtype.name]
        return float(min(max(round(value), low), high))
    single = round_f32(value)
    if dtype == F32 or not single or math.isinf(single):
        return _saturated(dtype, single)
    fraction, least, largest = _FLOATS[dtype.name]
    exponent = max(math.frexp(single)[1] - 1, least) - fraction
    rounded = math.copysign(math.ldexp(round(math.ldexp(abs(single), -exponent)), exponent), single)
    return _saturated(dtype, rounded if abs(rounded) <= largest else math.copysign(math.inf, rounded))


def round_f32(value: float) -> float:
    """The f32 nearest to a number."""
    try:
        rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
    return rounded


def is_exact(dtype: DType, value: float) -> bool:
    """Whether a type has a number, -0.0 included."""
    rounded = round_constant(dtype, value)
    return rounded == value and math.copysign(1.0, rounded) == math.copysign(1.0, value)


def _saturated(dtype: DType, value: float) -> float:
    if dtype.name in _SATURATING and math.isinf(value):
        return math.copysign(_FLOATS[dtype.name][2], value)
    return value
