"""Conversions between all types: the reference's and the constants', against the definition of each type."""

from __future__ import annotations

import math
from bisect import bisect_left
from fractions import Fraction
from functools import cache

import pytest
import torch

from evt.ir.dtype import DType
from evt.optimise.rounding import is_exact, round_constant
from evt.reference.rounding import round_to
from tests.support.depth import in_depth
from tests.support.patterns import SOURCES, TARGETS, patterns

#: The types with few numbers, as IEEE 754 and OCP 8-bit floats define them: bits of exponent and fraction, bias.
_CODES = {"f16": (5, 10, 15), "bf16": (8, 7, 127), "e4m3": (4, 3, 7), "e5m2": (5, 2, 15)}


@cache
def numbers(name: str) -> tuple[list[float], bool]:
    """Return the finite numbers of a type from 0 on, by code; and whether larger ones become infinite."""
    exponents, fraction, bias = _CODES[name]
    found = []
    for code in range(1 << (exponents + fraction)):
        exponent, digits = code >> fraction, code & ((1 << fraction) - 1)
        largest = (1 << (exponents + fraction)) - 1
        special = code == largest if name == "e4m3" else exponent == (1 << exponents) - 1
        if not special:
            leading = Fraction(digits, 1 << fraction) + (exponent > 0)
            found.append(float(leading * Fraction(2) ** (max(exponent, 1) - bias)))
    return found, name in ("f16", "bf16")


def exactly(dtype: DType, value: float) -> float:
    """Return the nearest number of the type by definition; of two, the one whose code is even."""
    if dtype.name == "f64" or (dtype.is_float and math.isnan(value)):
        return value
    if dtype.name == "b1":
        return float(value != 0)
    if not dtype.is_float:
        least, most = {"i32": (-(2**31), 2**31 - 1), "i8": (-128, 127), "u8": (0, 255)}[dtype.name]
        if math.isnan(value):
            return 0.0
        return float(max(least, min(most, round(value) if math.isfinite(value) else math.copysign(2**40, value))))
    single = nearest_binary(value, 23)
    if dtype.name == "f32":
        return single
    if dtype.name == "tf32":
        return nearest_binary(single, 10)
    values, infinite = numbers(dtype.name)
    size = abs(single)
    above = bisect_left(values, size)
    if above == len(values):
        last, before = values[-1], values[-2]
        overflows = infinite and size >= last + (last - before) / 2
        result = math.inf if overflows else last
    elif values[above] == size:
        result = size
    else:
        low, high = values[above - 1], values[above]
        middle = (low + high) / 2
        up = size > middle or (size == middle and above % 2 == 0)
        result = high if up else low
    return math.copysign(result, single)


def nearest_binary(value: float, fraction: int) -> float:
    """Return the nearest number with f32's exponents and ``fraction`` bits of fraction, in rational arithmetic."""
    if not value or math.isinf(value):
        return value
    return math.copysign(_nearest_size(abs(value), fraction), value)


@cache
def _nearest_size(size: float, fraction: int) -> float:
    step = Fraction(2) ** (max(math.frexp(size)[1] - 1, -126) - fraction)
    rounded = round(Fraction(size) / step) * step
    return float(rounded) if rounded < 2**128 else math.inf


def alike(found: list[float], expected: list[float]) -> list[int]:
    """Return the places where two lists of numbers differ, all NaN being one and the zeros two."""
    pairs = enumerate(zip(found, expected, strict=True))
    return [
        place
        for place, (x, y) in pairs
        if not (x == y and math.copysign(1, x) == math.copysign(1, y)) and not (x != x and y != y)
    ]


@pytest.mark.parametrize("step", in_depth([1, 7], quick=[7]))
@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_every_type_to_every_type(source: DType, target: DType, step: int) -> None:
    given = patterns(source)
    given = given[::step] if len(given) > 1000 else given
    values = given.to(torch.float64 if given.dtype.itemsize > 1 else torch.float32).tolist()
    rounded = round_to(target, given)
    assert rounded.dtype == (torch.bool if target.name == "b1" else getattr(torch, target.torch))
    expected = [exactly(target, value) for value in values]
    found = rounded.to(torch.float32 if rounded.dtype.itemsize == 1 else torch.float64).tolist()
    wrong = alike(found, [value if target.is_float else value + 0.0 for value in expected])
    assert not wrong, [(values[i], found[i], expected[i]) for i in wrong[:5]]
    some = slice(None, None, 1 + len(values) // 10_000)
    constants = [round_constant(target, value) for value in values[some]]
    wrong = alike(constants, expected[some])
    assert not wrong, [(values[some][i], constants[i], expected[some][i]) for i in wrong[:5]]


@pytest.mark.parametrize("step", in_depth([1, 7], quick=[7]))
@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_rounding_twice_changes_nothing(target: DType, step: int) -> None:
    for value in patterns(SOURCES[0])[::step].tolist():
        rounded = round_constant(target, value)
        assert alike([round_constant(target, rounded)], [rounded]) == []
        assert is_exact(target, rounded) == (not math.isnan(rounded))


@pytest.mark.parametrize("source", ["bool", "float64"])
def test_a_single_value_is_rounded_too(source: str) -> None:
    one = torch.tensor(1, dtype=getattr(torch, source))
    for target in TARGETS:
        assert round_to(target, one).to(torch.float32).item() == 1.0
        assert round_to(target, one).dim() == 0
