"""Numbers that may be one of two, and reductions of numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from .number import COUNT, NO_DOUBT, WIDE, Array, Number, deviation
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


def or_zero(variance: Number) -> Number:
    """Return a variance that may be 0: the mean of equal values may differ from them by its rounding."""
    small = variance.x[:1] <= WIDE * deviation(variance.x)
    return either(variance, np.where(small, 0.0, variance.x[:1]))


def squared(variance: Number, values: Number, axes: Sequence[int]) -> Number:
    """Return a variance that is in doubt where squared differences of its values overflow, or their sum does.

    A kernel squares differences from one of the values, which are larger than those from the mean.
    """
    x = values.x[:1]
    with np.errstate(all="ignore"):
        least, greatest = (
            f(axis=tuple(axes), keepdims=True, initial=end) for f, end in ((x.min, np.inf), (x.max, -np.inf))
        )
        spread = greatest - least
        large = math.prod(x.shape[axis] for axis in axes) * spread * spread > values.t.largest
    return replace(variance, doubt=variance.doubt | large[0])


def finite(number: Number) -> Number:
    """Return a number that is in doubt where it is infinite or NaN."""
    return replace(number, doubt=number.doubt | ~np.isfinite(number.x).all(0))


def aligned(numbers: Sequence[Number], least: int) -> list[Number]:
    """Return numbers that broadcast: a value of each block of columns stands for the block's columns.

    Numbers of more than one column get ``least`` or more: a single value beside them may stand for all of these.
    """
    columns = max(each.x.shape[3] for each in numbers)
    if columns > 1:
        columns = max(columns, least)

    def widened(number: Number) -> Number:
        if {number.x.shape[3], number.doubt.shape[2]} <= {0, 1, columns}:
            return number
        x, doubt = (
            array if array.shape[-1] in (0, 1) else array.repeat(columns // array.shape[-1], -1)
            for array in (number.x, number.doubt)
        )
        return Number(x, doubt, number.t)

    return [widened(each) for each in numbers]


def place(kind: str, value: Number, axis: int) -> Number:
    """Return where along an axis the first of the largest or smallest values is, or the first NaN; of nothing 0."""
    x = value.x[0] if kind == "argmax" else -value.x[0]
    if not x.shape[axis - 1]:
        return Number(np.zeros_like(value.x[:1].sum(axis, keepdims=True)), NO_DOUBT, value.t)
    found = x.argmax(axis - 1, keepdims=True)
    reach = np.broadcast_to(WIDE * deviation(value.x), x.shape)
    best, off = (np.take_along_axis(each, found, axis - 1) for each in (x, reach))
    others = np.arange(x.shape[axis - 1]).reshape([-1 if each == axis - 1 else 1 for each in range(3)]) != found
    with np.errstate(invalid="ignore"):
        near = others & (reach + off > 0) & ~(x + reach < best - off)
    doubt = np.broadcast_to(value.doubt, x.shape) | near
    return Number(found[None].astype(float), doubt.any(axis - 1, keepdims=True), value.t)


def interleaved(x: Array, y: Array, half: int, distance: int) -> Array:
    """Return the columns of two arrays [..., n/2] together, in pairs that lie a distance apart; a single column is all.

    A column of a block stands for all columns of the block.
    """
    shape = np.broadcast_shapes(x.shape[:-1], y.shape[:-1])
    blocks = (each.repeat(half // each.shape[-1], -1) if each.shape[-1] > 1 else each for each in (x, y))
    parts = [np.broadcast_to(each, (*shape, half)) for each in blocks]
    pairs = [each.reshape(*shape, half // distance, distance) for each in parts]
    return np.stack(pairs, -2).reshape(*shape, 2 * half)


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
