"""Values of every type, as doubles: ``rounded(name, values)``. Integer arithmetic on scaled numbers, and no torch."""

from __future__ import annotations

import numpy as np

#: Bits of the fraction, least exponent of a normal number, largest finite value, and whether larger ones become that.
FLOATS = {
    "f32": (23, -126, (2 - 2**-23) * 2.0**127, False),
    "tf32": (10, -126, (2 - 2**-10) * 2.0**127, False),
    "f16": (10, -14, 65504.0, False),
    "bf16": (7, -126, (2 - 2**-7) * 2.0**127, False),
    "e4m3": (3, -6, 448.0, True),
    "e5m2": (2, -14, 57344.0, True),
}
#: For i64, the numbers that doubles represent.
RANGES = {"i64": (-(2**63), 2**63 - 1024), "i32": (-(2**31), 2**31 - 1), "i8": (-128, 127), "u8": (0, 255)}
RANGES |= {"i4": (-8, 7), "u4": (0, 15)}


def rounded(name: str, values: np.ndarray) -> np.ndarray:
    """Doubles rounded to a type: to nearest, halves to even. 8-bit floats and integers saturate; NaN is the integer 0.

    b1 and bool are "not zero", NaN included. Values of i64 are integers already.
    """
    if name in ("f64", "i64"):
        return values
    if name == "f32":
        with np.errstate(over="ignore", invalid="ignore"):
            return values.astype(np.float32).astype(np.float64)
    if name in ("b1", "bool"):
        return (values != 0).astype(np.float64)
    if name in RANGES:
        whole = _nearest(np.nan_to_num(values, nan=0.0, posinf=2.0**40, neginf=-(2.0**40)).clip(-(2.0**40), 2.0**40))
        return whole.clip(*RANGES[name]).astype(np.float64)
    fraction, least, largest, saturates = FLOATS[name]
    finite = np.isfinite(values)
    number = np.where(finite, values, 0.0)
    step = np.maximum(np.frexp(number)[1] - 1, least) - fraction  # the exponent of the last bit
    whole = _nearest(np.ldexp(np.abs(number), -step))
    size = np.ldexp(whole.astype(np.float64), step)
    size = np.where(size > largest, largest if saturates else np.inf, size)
    result = np.copysign(np.where(finite, size, np.abs(values)), values)
    return np.where(np.isinf(result), np.copysign(largest, result), result) if saturates else result


def _nearest(values: np.ndarray) -> np.ndarray:
    """Return the whole numbers nearest to values below 2**53, halves to even."""
    below = np.floor(values)
    rest = values - below
    whole = below.astype(np.int64)
    return whole + ((rest > 0.5) | ((rest == 0.5) & (whole & 1 == 1)))


def wrapped(values: np.ndarray) -> np.ndarray:
    """64-bit integers in the range of i32, as 32 bits wrap."""
    return (values + 2**31) % 2**32 - 2**31


def grain(values: np.ndarray) -> float:
    """Return the largest power of two that divides every finite value; infinity if all are 0."""
    some = values[np.isfinite(values) & (values != 0)]
    if some.size == 0:
        return np.inf
    mantissa, exponent = np.frexp(some)
    bits = np.ldexp(mantissa, 53).astype(np.int64)
    return float(np.ldexp((bits & -bits).astype(np.float64), exponent - 53).min())
