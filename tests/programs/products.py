"""Sums and products of many terms, whose order nobody promises: the accumulator, and reductions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .call import Data, scaled_elements
from .number import NO_DOUBT, Arithmetic, Array, Number
from .rounding import FLOATS, grain
from .tree import Geometry, Program


def accumulated(
    program: Program, data: Data, t: Arithmetic, formulas: Mapping[str, Number], off: float = 0.0
) -> Number:
    """Return the product of A and B after their mainloop fusions, [l, m, n]; off by a part of the sum of magnitudes.

    Doubt in an operand is doubt in all of it.
    """
    stored = {"A": data.a, "B": data.b}
    stored |= {each.operand: scaled_elements(program, data, each.operand) for each in program.factors}
    a, b = (formulas.get(name, Number(x[None], NO_DOUBT, t)) for name, x in stored.items())
    multiply: Callable[[Array, Array], Array] = _matrices
    terms = data.sizes["k"]
    if (g := program.geometry) is not None:
        multiply, terms = convolution(g), data.a.size + data.b.size
        if "A" in formulas:  # whose channels come last
            a = replace(a, x=np.moveaxis(a.x.reshape(len(a.x), g.images, *g.pixels, g.channels), -1, 2))
    count = max(len(a.x), len(b.x))
    pairs = [(a.x[min(i, len(a.x) - 1)], b.x[min(i, len(b.x) - 1)]) for i in range(count)]
    with np.errstate(all="ignore"):
        exact = np.stack([multiply(x, y) for x, y in pairs])
        sizes = np.stack([multiply(_size(x), _size(y)) for x, y in pairs])
    doubt = NO_DOUBT | bool(a.doubt.any() or b.doubt.any())
    if off and t.single:
        doubt = doubt | _turned(multiply, a.x, b.x)
    step = grain(a.x) * grain(b.x) if count == 1 and not off else 0.0
    return summed(t, exact, sizes, doubt, terms, step, off)


def _turned(multiply: Callable[[Array, Array], Array], a: Array, b: Array) -> Array:
    """Return where operands that are rounded to tf32 may make another infinity or NaN.

    A number below tf32's least becomes 0, and 0 times infinity is NaN; one above its largest becomes infinite.
    """
    (small_a, large_a, infinite_a), (small_b, large_b, infinite_b) = map(_ends, (a, b))
    doubt = NO_DOUBT
    for one, two in (
        (small_a, infinite_b),
        (infinite_a, small_b),
        (large_a, np.ones_like(large_b)),
        (np.ones_like(large_a), large_b),
    ):
        if one.any() and two.any():
            doubt = doubt | (multiply(one, two) > 0)
    return doubt


def _ends(x: Array) -> tuple[Array, Array, Array]:
    """Return 1 where a value of any variant is not 0 but below tf32's least, finite but above its largest, infinite."""
    fraction, exponent, largest, _ = FLOATS["tf32"]
    least, size = 2.0 ** (exponent - fraction), np.abs(x)
    found = (size > 0) & (size < least), np.isfinite(x) & (size > largest), np.isinf(x)
    small, large, infinite = (each.any(0).astype(float) for each in found)
    return small, large, infinite


def _matrices(a: Array, b: Array) -> Array:
    """[l, m, k] times [l, n, k]."""
    return np.einsum("lmk,lnk->lmn", a, b)


def summed(
    t: Arithmetic, exact: Array, sizes: Array, doubt: Array, terms: int, step: float, off: float = 0.0
) -> Number:
    """Return a sum from its exact value and its terms' magnitudes; a sum of multiples of ``step`` may be exact."""
    with np.errstate(all="ignore"):
        precise = (sizes < step * 2.0 ** (24 if t.single else 53)) | (sizes == 0)
        reach = (2 + np.log2(max(terms, 1))) * (t.unit * sizes + t.least) + off * sizes
        reach = np.where(precise, 0.0, reach)
        doubt = doubt | (sizes * (1 + off) > t.largest).any(0)  # which order overflows on the way
        x = t.nearest(exact[:1])
        if len(exact) > 1 or reach.any():
            x = exact + t.signs(exact.shape[1:]) * np.where(np.isfinite(exact), reach, 0.0)
            x[0] = t.nearest(exact[0])
    return t.any_zero(Number(x, doubt, t))


def total(t: Arithmetic, value: Number, axes: tuple[int, ...]) -> Number:
    """Return the sum over axes of [variant, l, m, n], which stay with one element."""
    with np.errstate(all="ignore"):
        sizes = _size(value.x).sum(axes, keepdims=True)
        exact = value.x.astype(np.longdouble).sum(axes, keepdims=True).astype(float)  # numpy adds one after the other
    doubtful = np.broadcast_to(value.doubt, value.x.shape[1:])
    doubt: Array = np.any(doubtful, tuple(axis - 1 for axis in axes), keepdims=True)
    terms = int(np.prod([value.x.shape[axis] for axis in axes]))
    return summed(t, exact, sizes, doubt, terms, grain(value.x) if len(value.x) == 1 else 0.0)


def _size(x: Array) -> Array:
    """Magnitudes of finite values: infinities and NaN have the same sum in every order."""
    return np.where(np.isfinite(x), np.abs(x), 0.0)


def convolution(geometry: Geometry) -> Callable[[Array, Array], Array]:
    """Return the product of A and B [N, C, ...] as [m, n], tap by tap.

    x is the activation, w the filters and y the output. x at pixel p*stride + tap*dilation - padding meets w at the tap
    and y at p. Each operator forms one of the three from the others.
    """
    g = geometry
    results = g.results

    def multiply(a: Array, b: Array) -> Array:
        per = g.channels // g.groups, g.filters // g.groups
        activation = (g.images, g.groups, per[0], *g.pixels)
        output = (g.images, g.groups, per[1], *results)
        weight = (g.groups, per[1], per[0], *g.filter)
        if g.operator == "fprop":
            x, w, y = a.reshape(activation), b.reshape(weight), np.zeros(output)
        elif g.operator == "dgrad":
            x, w, y = np.zeros(activation), b.reshape(weight), a.reshape(output)
        else:
            x, w, y = b.reshape(activation), np.zeros(weight), a.reshape(output)
        for tap in itertools.product(*map(range, g.filter)):
            at_y, at_x = _meeting(g, tap)
            at_w: Any = (..., *tap)
            if g.operator == "fprop":
                y[at_y] += np.einsum("ngc...,gkc->ngk...", x[at_x], w[at_w])
            elif g.operator == "dgrad":
                x[at_x] += np.einsum("ngk...,gkc->ngc...", y[at_y], w[at_w])
            else:
                flat = [each.reshape(*each.shape[:3], -1) for each in (y[at_y], x[at_x])]
                w[at_w] += np.einsum("ngkp,ngcp->gkc", *flat)
        if g.operator == "wgrad":  # [K, C, R, S] -> [K, (R, S, C)]
            return np.moveaxis(w.reshape(g.filters, per[0], *g.filter), 1, -1).reshape(1, g.filters, -1)
        result = (
            y.reshape(g.images, g.filters, *results)
            if g.operator == "fprop"
            else x.reshape(g.images, g.channels, *g.pixels)
        )
        return np.moveaxis(result, 1, -1).reshape(1, -1, result.shape[1])

    return multiply


def _meeting(g: Geometry, tap: Sequence[int]) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Return the output pixels that a tap reaches, and the activation's pixels that it reads for them, as slices."""
    at_y: list[slice] = [slice(None)] * 3
    at_x: list[slice] = [slice(None)] * 3
    for dim, offset in enumerate(tap):
        stride, start = g.stride[dim], offset * g.dilation[dim] - g.padding[dim][0]
        inside = [p for p in range(g.results[dim]) if 0 <= p * stride + start < g.pixels[dim]]
        first, count = (inside[0], len(inside)) if inside else (0, 0)
        at_y.append(slice(first, first + count))
        begin = first * stride + start if inside else 0
        at_x.append(slice(begin, begin + (count - 1) * stride + 1 if count else begin, stride))
    return tuple(at_y), tuple(at_x)
