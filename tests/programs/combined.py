"""Numbers that may be one of two, and reductions of numbers."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from .number import COUNT, Array, Number, deviation
from .products import total
from .rounding import wrapped


def either(number: Number, other: Array) -> Number:
    """Return a number that may be another one too."""
    differ = ~((number.x[:1] == other) | (np.isnan(number.x[:1]) & np.isnan(other)))
    if not differ.any():
        return number
    x = np.array(np.broadcast_to(number.x, (COUNT, *number.x.shape[1:])))
    x[3] = np.where(differ, other, x[3])[0]
    return replace(number, x=x)


def folded(kind: str, value: Number, axes: tuple[int, ...], dtype: str) -> Number:
    """Return a reduction over axes, which stay with one element. NaN wins in max and min; of nothing, the identity."""
    doubt = np.broadcast_to(value.doubt, value.x.shape[1:]).any(tuple(axis - 1 for axis in axes), keepdims=True)
    if kind == "sum" and dtype == "i32":
        doubt = doubt | (deviation(value.x) > 0).any(tuple(axis - 1 for axis in axes), keepdims=True)
        sums = value.x[:1].astype(np.int64).sum(axes, keepdims=True)
        return Number(wrapped(sums).astype(float), doubt, value.t)
    if kind == "sum":
        return total(value.t, value, axes)
    identity = {"f32": math.inf, "f64": math.inf, "i32": 2.0**31}[dtype] * (-1 if kind == "max" else 1)
    if dtype == "i32" and kind == "min":
        identity -= 1
    with np.errstate(invalid="ignore"):
        extreme = (np.max if kind == "max" else np.min)(value.x, axis=axes, keepdims=True, initial=identity)
    return value.t.any_zero(Number(extreme, doubt, value.t))
