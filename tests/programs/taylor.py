"""Derivatives of the functions' meanings by Taylor arithmetic: a meaning is computed on series in h.

A series is the values f, f', f''/2, ... along one variable. Only the elementary functions have a formula of their
derivative here.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .number import ELEMENTARY, WIDE, Array, deviation, raised, straddles


@dataclass(frozen=True, eq=False)
class Series:
    """Coefficients of the powers of h, which are arrays of variants as in a number; or a truth value, which has one."""

    c: tuple[Array, ...]
    t: Taylor
    is_truth: bool = False

    def __add__(self, other: Series | float) -> Series:
        return self.t.each(np.add, self, other)

    __radd__ = __add__

    def __sub__(self, other: Series | float) -> Series:
        return self.t.each(np.subtract, self, other)

    def __rsub__(self, other: float) -> Series:
        return self.t.number(other) - self

    def __neg__(self) -> Series:
        return self.t.series(-c for c in self.c)

    def __mul__(self, other: Series | float) -> Series:
        a, b, off = self.c, self.t.number(other).c, self.t.off
        zero: Array = np.zeros(())
        return self.t.series(sum((off(a[i] * b[k - i]) for i in range(k + 1)), zero) for k in range(self.t.order + 1))

    __rmul__ = __mul__

    def __truediv__(self, other: Series | float) -> Series:
        a, b, off = self.c, self.t.number(other).c, self.t.off
        self.t.meet(1.0 / b[0])
        self.t.kinks = self.t.kinks | straddles(b[0])
        quotient: list[Array] = []
        for k in range(self.t.order + 1):
            quotient.append((off(a[k]) - sum(off(quotient[i] * b[k - i]) for i in range(k))) / b[0])
        return self.t.series(quotient)

    def __rtruediv__(self, other: float) -> Series:
        return self.t.number(other) / self

    def __lt__(self, other: Series | float) -> Series:
        return self.t.compare(operator.lt, self, other)

    def __le__(self, other: Series | float) -> Series:
        return self.t.compare(operator.le, self, other)

    def __gt__(self, other: Series | float) -> Series:
        return self.t.compare(operator.gt, self, other)

    def __ge__(self, other: Series | float) -> Series:
        return self.t.compare(operator.ge, self, other)


class Taylor:
    """Arithmetic on series up to h**order, by the method names of :class:`.number.Arithmetic`.

    ``off`` moves the terms of sums by their tolerance, since derivatives are sums of terms that may cancel. ``near``
    moves the derivative of an elementary function by the tolerance of another formula.
    ``kinks`` collects where a decision is at its very point, or may be: a derivative there is a convention. ``size`` is
    the largest magnitude of any value on the way, and of any divisor's reciprocal.
    """

    # The elementary functions, which the end of the module defines.
    exp: Callable[[Series], Series]
    exp2: Callable[[Series], Series]
    sin: Callable[[Series], Series]
    cos: Callable[[Series], Series]
    sinh: Callable[[Series], Series]
    cosh: Callable[[Series], Series]

    def __init__(self, order: int, off: Callable[[Array], Array], near: Callable[[Array], Array]) -> None:
        self.order = order
        self.off = off
        self.near = near
        self.kinks: Array = np.zeros((1, 1, 1), dtype=bool)
        self.size: Array = np.zeros((1, 1, 1))
        self.at: Array = np.zeros((1, 1, 1, 1))  # the variable's values

    def series(self, coefficients: Iterable[Array]) -> Series:
        found = tuple(coefficients)
        self.meet(found[0])
        return Series(found, self)

    def meet(self, values: Array) -> None:
        self.size = np.fmax(self.size, np.abs(values).max(0))

    def collect(self, other: Taylor) -> None:
        """Add the kinks and the size of another arithmetic."""
        self.kinks, self.size = self.kinks | other.kinks, np.fmax(self.size, other.size)

    def number(self, value: Series | float) -> Series:
        """Return a constant."""
        if isinstance(value, Series):
            return value
        return self.constant(np.full((1, 1, 1, 1), float(value)))

    def constant(self, values: Array) -> Series:
        return self.series([values] + [np.zeros((1, 1, 1, 1))] * self.order)

    def variable(self, values: Array) -> Series:
        self.at = values
        rest = [np.ones((1, 1, 1, 1))] + [np.zeros((1, 1, 1, 1))] * self.order
        return self.series([values, *rest[: self.order]])

    def each(self, f: Callable[[Array, Array], Array], a: Series | float, b: Series | float) -> Series:
        return self.series(f(x, y) for x, y in zip(self.number(a).c, self.number(b).c, strict=True))

    def lift(self, f: Callable[..., Array], partials: Sequence[Callable[..., Series]], *args: Series | float) -> Series:
        """Return a smooth function by its partial derivatives: k f_k is the sum of j u_j (df/du)_(k-j)."""
        arguments = [self.number(each) for each in args]
        first = f(*(each.c[0] for each in arguments))
        if not self.order:
            return self.series([first])
        lower = Taylor(self.order - 1, self.off, self.near)
        slopes = [partial(lower, *(lower.series(each.c[:-1]) for each in arguments)) for partial in partials]
        self.collect(lower)
        found = [first]
        for k in range(1, self.order + 1):
            terms = (
                self.off(j * u.c[j] * self.near(slope.c[k - j]))
                for u, slope in zip(arguments, slopes, strict=True)
                for j in range(1, k + 1)
            )
            found.append(sum(terms) / k)
        return self.series(found)

    # Decisions

    def compare(self, f: Callable[..., Array], a: Series | float, b: Series | float) -> Series:
        x, y = self.number(a).c[0], self.number(b).c[0]
        difference = x - y
        self.kinks = self.kinks | ~(np.abs(difference) > WIDE * deviation(difference)).all(0)  # or is no number
        return replace(self.constant(f(x, y).astype(float)), is_truth=True)

    def where(self, condition: Series | float, a: Series | float, b: Series | float) -> Series:
        chosen = self.truth(condition).c[0] != 0
        return self.each(lambda x, y: np.where(chosen, x, y), a, b)

    def truth(self, x: Series | float) -> Series:
        return x if isinstance(x, Series) and x.is_truth else self.compare(operator.ne, x, 0.0)

    def max(self, a: Series | float, b: Series | float) -> Series:
        return self.where(self.number(a) > b, a, b)

    def min(self, a: Series | float, b: Series | float) -> Series:
        return self.where(self.number(a) < b, a, b)

    def any_zero(self, value: Series) -> Series:
        return value

    def without_overflow(self, value: Series, near: Series) -> Series:
        return value

    # The parts that functions are made of

    def abs(self, x: Series | float) -> Series:
        return self.where(self.number(x) < 0.0, -self.number(x), x)

    def sign(self, x: Series | float) -> Series:
        return self.where(self.number(x) > 0.0, 1.0, self.where(self.number(x) < 0.0, -1.0, 0.0))

    def stairs(self, f: Callable[[Array], Array], x: Series | float) -> Series:
        return self.constant(f(self.number(x).c[0]))

    def floor(self, x: Series | float) -> Series:
        return self.stairs(np.floor, x)

    def ceil(self, x: Series | float) -> Series:
        return self.stairs(np.ceil, x)

    def round(self, x: Series | float) -> Series:
        return self.stairs(np.rint, x)

    def trunc(self, x: Series | float) -> Series:
        return self.stairs(np.trunc, x)

    def isnan(self, x: Series | float) -> Series:
        return self._class(np.isnan, x)

    def isinf(self, x: Series | float) -> Series:
        return self._class(np.isinf, x)

    def _class(self, f: Callable[[Array], Array], x: Series | float) -> Series:
        return replace(self.constant(f(self.number(x).c[0]).astype(float)), is_truth=True)

    def sqrt(self, x: Series | float) -> Series:
        return self.lift(np.sqrt, [lambda t, x: 0.5 / t.sqrt(x)], x)

    def rsqrt(self, x: Series | float) -> Series:
        return self.lift(lambda x: 1.0 / np.sqrt(x), [lambda t, x: -0.5 / (x * t.sqrt(x))], x)

    def pow(self, x: Series | float, y: Series | float) -> Series:
        y = self.number(y)
        if all(not c.any() for c in y.c[1:]):  # a constant exponent, of a base of either sign
            return self.lift(lambda x: raised(x, y.c[0]), [lambda t, x: t.power_slope(x, y.c[0])], x)
        return self.lift(raised, [lambda t, x, y: y * t.pow(x, y - 1.0), lambda t, x, y: t.pow(x, y) * t.log(x)], x, y)

    def power_slope(self, x: Series, exponent: Array) -> Series:
        slope = self.constant(exponent) * self.pow(x, self.constant(exponent - 1.0))
        return self.where(self.constant(exponent), slope, 0.0)

    def atan2(self, y: Series | float, x: Series | float) -> Series:
        return self.lift(np.arctan2, [lambda t, y, x: x / (x * x + y * y), lambda t, y, x: -y / (x * x + y * y)], y, x)

    def hypot(self, x: Series | float, y: Series | float) -> Series:
        return self.lift(np.hypot, [lambda t, x, y: x / t.hypot(x, y), lambda t, x, y: y / t.hypot(x, y)], x, y)

    def copysign(self, x: Series | float, y: Series | float) -> Series:
        size = self.abs(x)
        return self.where(self.number(y) < 0.0, -size, size)

    def fmod(self, x: Series | float, y: Series | float) -> Series:
        x, y = self.number(x), self.number(y)
        return x - self.constant(np.trunc(x.c[0] / y.c[0])) * y


#: The derivatives of the elementary functions.
_SLOPES: dict[str, Callable[[Taylor, Series], Series]] = {
    "exp": lambda t, x: t.exp(x),
    "exp2": lambda t, x: math.log(2.0) * t.exp2(x),
    "expm1": lambda t, x: t.exp(x),
    "log": lambda t, x: 1.0 / x,
    "log1p": lambda t, x: 1.0 / (1.0 + x),
    "log2": lambda t, x: 1.0 / (x * math.log(2.0)),
    "log10": lambda t, x: 1.0 / (x * math.log(10.0)),
    "sin": lambda t, x: t.cos(x),
    "cos": lambda t, x: -t.sin(x),
    "tan": lambda t, x: 1.0 / (t.cos(x) * t.cos(x)),
    "asin": lambda t, x: 1.0 / t.sqrt(1.0 - x * x),
    "acos": lambda t, x: -1.0 / t.sqrt(1.0 - x * x),
    "atan": lambda t, x: 1.0 / (1.0 + x * x),
    "sinh": lambda t, x: t.cosh(x),
    "cosh": lambda t, x: t.sinh(x),
    "tanh": lambda t, x: 1.0 / (t.cosh(x) * t.cosh(x)),
    "asinh": lambda t, x: 1.0 / t.sqrt(x * x + 1.0),
    "acosh": lambda t, x: 1.0 / (t.sqrt(x - 1.0) * t.sqrt(x + 1.0)),
    "atanh": lambda t, x: 1.0 / ((1.0 - x) * (1.0 + x)),
    "erf": lambda t, x: (2.0 / math.sqrt(math.pi)) * t.exp(-(x * x)),
    "erfc": lambda t, x: (-2.0 / math.sqrt(math.pi)) * t.exp(-(x * x)),
}


def _elementary(f: Callable[[Array], Array], slope: Callable[[Taylor, Series], Series]):
    return lambda t, x: t.lift(f, [slope], x)


for _name, (_f, _) in ELEMENTARY.items():
    setattr(Taylor, _name, _elementary(_f, _SLOPES[_name]))
