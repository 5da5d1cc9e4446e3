"""The mirror of `torch` on f32 numbers: :mod:`evt.functions.scalar` with every result rounded to f32.

The reference computes f32 values likewise: an operator in f32, a function of `torch` in f64 and then rounded.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import cache
from typing import Any

from evt.functions import scalar

_BEYOND = 2.0**128


def nearest(value: float, fraction: int, least_exponent: int) -> float:
    """Return the nearest number with ``fraction`` bits of fraction and an exponent of at least ``least_exponent``.

    Ties go to even. The computation uses integers, which are right even if the processor flushes denormal f32 numbers.
    """
    if not value or not math.isfinite(value):
        return value
    step = max(math.frexp(value)[1] - 1, least_exponent) - fraction
    return math.copysign(math.ldexp(round(math.ldexp(value, -step)), step), value)


def round_f32(value: float) -> float:
    """Return the f32 number nearest to a number, possibly infinite."""
    rounded = nearest(value, 23, -126) if abs(value) < _BEYOND else value
    return math.copysign(math.inf, rounded) if abs(rounded) >= _BEYOND else rounded


def shortest(value: float) -> str:
    """Return the shortest decimal that reads back as the given finite f32 number."""
    texts = (f"{value:.{digits}g}" for digits in range(1, 10))
    return next(text for text in texts if round_f32(float(text)) == value)


_Binary = Callable[[float, float], float]


def _forward(function: _Binary) -> Callable[[Single, float], Single]:
    return lambda self, other: Single(function(float(self), round_f32(other)))


def _backward(function: _Binary) -> Callable[[Single, float], Single]:
    return lambda self, other: Single(function(round_f32(other), float(self)))


class Single(float):
    """An f32 number whose arithmetic rounds to f32; a double operand is rounded first."""

    __slots__ = ()

    def __new__(cls, value: float) -> Single:
        return super().__new__(cls, round_f32(value))

    def __neg__(self) -> Single:
        return Single(-float(self))

    def __abs__(self) -> Single:
        return Single(math.fabs(self))

    # A double has more than twice the digits of an f32, so rounding the double gives the result of f32 arithmetic.
    __add__, __radd__ = _forward(operator.add), _backward(operator.add)
    __sub__, __rsub__ = _forward(operator.sub), _backward(operator.sub)
    __mul__, __rmul__ = _forward(operator.mul), _backward(operator.mul)
    __truediv__, __rtruediv__ = _forward(scalar.true_divide), _backward(scalar.true_divide)
    __pow__, __rpow__ = _forward(scalar.pow), _backward(scalar.pow)  # type: ignore[assignment]


def div(x: float, y: float, *, rounding_mode: str) -> Single:
    return Single(scalar.div(Single(x), Single(y), rounding_mode=rounding_mode))


@cache
def __getattr__(name: str) -> Callable[..., Any]:
    function = getattr(scalar, name)

    def rounded(*arguments: float) -> Any:
        result = function(*map(float, arguments))
        return result if isinstance(result, bool) else Single(result)

    return rounded
