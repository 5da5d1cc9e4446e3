"""Numbers with their tolerances.

A kernel and PyTorch may round differently and both be right. So a value is computed :data:`COUNT` times: once by
definition, and then with every inexact result moved up or down by its tolerance. The distance of the variants is the
error of the program, cancellation included. An element is in doubt if its variants straddle a decision (a comparison, a
sign, the edge of a domain): it is counted, and not checked.

Arrays are [variant, l, m, n], of one variant where a value is exact; doubts are [l, m, n].
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .rounding import rounded

COUNT = 8
#: The tolerance of a result, as a multiple of the largest deviation found.
WIDE = 3.0
#: The tolerance of a function, and of an operation of a formula, in units in the last place.
FUNCTION, OPERATION = 4.0, 1.0
LARGEST = (2 - 2**-23) * 2.0**127
NO_DOUBT = np.zeros((1, 1, 1), dtype=bool)
Array = np.ndarray


@dataclass(frozen=True, eq=False)
class Number:
    """Values in an arithmetic, and where they are in doubt; ``exact`` values of a product that overflows."""

    x: Array
    doubt: Array
    t: Arithmetic
    exact: Array | None = None

    def __add__(self, other: Number | float) -> Number:
        return self.t.sum(np.add, self, other)

    def __radd__(self, other: float) -> Number:
        return self.t.sum(np.add, other, self)

    def __sub__(self, other: Number | float) -> Number:
        return self.t.sum(np.subtract, self, other)

    def __rsub__(self, other: float) -> Number:
        return self.t.sum(np.subtract, other, self)

    def __mul__(self, other: Number | float) -> Number:
        return self.t.product(self, other)

    def __rmul__(self, other: float) -> Number:
        return self.t.product(other, self)

    def __truediv__(self, other: Number | float) -> Number:
        return self.t.divide(self, other)

    def __rtruediv__(self, other: float) -> Number:
        return self.t.divide(other, self)

    def __neg__(self) -> Number:
        return Number(-self.x, self.doubt, self.t, None if self.exact is None else -self.exact)

    def __lt__(self, other: Number | float) -> Number:
        return self.t.compare(operator.lt, self, other)

    def __le__(self, other: Number | float) -> Number:
        return self.t.compare(operator.le, self, other)

    def __gt__(self, other: Number | float) -> Number:
        return self.t.compare(operator.gt, self, other)

    def __ge__(self, other: Number | float) -> Number:
        return self.t.compare(operator.ge, self, other)


class Arithmetic:
    """Floating-point arithmetic in f32 (``single``) or f64, and the functions that it is made of.

    ``slack`` is the tolerance of an operation in units in the last place. 0 is IEEE's arithmetic to the bit; a formula
    has :data:`OPERATION`, since it may be computed in another way. ``finite``: infinities and NaN are in doubt.
    ``function`` is the tolerance of a function.
    """

    def __init__(
        self,
        single: bool,
        slack: float,
        random: np.random.Generator,
        finite: bool = False,
        function: float = FUNCTION,
    ) -> None:
        self.single = single
        self.slack = slack
        self.finite = finite
        self.ulps = function
        self.random = random
        self.unit = 2.0**-23 if single else 2.0**-52
        self.least = 2.0**-149 if single else 5e-324
        self.largest = LARGEST if single else float(np.finfo(np.float64).max)

    def number(self, value: Number | float) -> Number:
        """Return a value in this arithmetic; a constant of a formula may be rounded at another place than here."""
        if not isinstance(value, Number):
            constant = np.full((1, 1, 1, 1), float(value))
            loose = self.nearest(constant) != constant if self.slack else constant != constant
            return self.settle(constant, NO_DOUBT, loose, OPERATION)
        if not self.single or value.t.single:
            exact = value.exact if value.t.single == self.single else None
            return value if value.t is self else Number(value.x, value.doubt, self, exact)
        return Number(np.concatenate([self.nearest(value.x[:1]), value.x[1:]]), value.doubt, self)

    def nearest(self, x: Array) -> Array:
        return rounded("f32", x) if self.single else x

    # Results and how far they may be off

    def operation(self, f: Callable[..., Array], *operands: Number | float, inexact: Array | bool = False) -> Number:
        """Return an operation that IEEE's arithmetic rounds correctly; ``inexact``: another one may take its place."""
        numbers = [self.number(each) for each in operands]
        with np.errstate(all="ignore"):
            exact = f(*(each.x for each in numbers))
        loose = rounded("f32", exact[:1]) != exact[:1]  # a result of few bits is exact
        moved = (exact != exact[:1]).any(0)
        loose = loose | moved | inexact if self.slack else moved
        return self.settle(exact, doubts(*numbers), loose, OPERATION)

    def product(self, a: Number | float, b: Number | float) -> Number:
        """Return a product, with its exact values where it overflows and may be contracted with a sum.

        It is in doubt where a factor is infinite and the other one may be 0.
        """
        a, b = self.number(a), self.number(b)
        found = self.operation(np.multiply, a, b)
        zeros = (straddles(a.x) & np.isinf(b.x[0])) | (straddles(b.x) & np.isinf(a.x[0]))
        found = replace(found, doubt=found.doubt | zeros)
        if not self.slack or not (np.isinf(found.x[0]) & np.isfinite(a.x[0]) & np.isfinite(b.x[0])).any():
            return found
        return replace(found, exact=a.x[:1].astype(np.longdouble) * b.x[:1])

    def sum(self, f: Callable[..., Array], a: Number | float, b: Number | float) -> Number:
        """Return a sum or a difference; in doubt where a contracted product does not overflow on the way."""
        a, b = self.number(a), self.number(b)
        found = self.operation(f, a, b)
        doubt = found.doubt
        for one, two, product in ((a.exact, b.x[:1], a), (a.x[:1], b.exact, b)):
            if one is not None and two is not None:
                with np.errstate(all="ignore"):
                    contracted = self.nearest(f(one, two).astype(float))
                doubt = doubt | (np.isinf(product.x[0]) & differs(contracted, found.x[:1]))
        return replace(found, doubt=doubt)

    def divide(self, a: Number | float, b: Number | float) -> Number:
        """Return a quotient; in doubt where the divisor may be on either side of 0, or a zero of either sign."""
        a, b = self.number(a), self.number(b)
        by_reciprocal = self.finite & (np.abs(np.frexp(b.x[0])[0]) != 0.5)  # which is exact for powers of two
        quotient = self.operation(np.divide, a, b, inexact=by_reciprocal)
        return Number(quotient.x, quotient.doubt | straddles(b.x) | _open_zeros(b.x), self)

    def function(self, f: Callable[..., Array], *operands: Number | float, edges: Sequence[float] = ()) -> Number:
        """Return a function that is off by a few units in the last place; ``edges`` bound its domain."""
        numbers = [self.number(each) for each in operands]
        with np.errstate(all="ignore"):
            exact = f(*(each.x for each in numbers))
        doubt = doubts(*numbers) | ((np.abs(exact) > self.largest / 8) & np.isfinite(exact)).any(0)
        for edge in edges:
            doubt = doubt | straddles(numbers[0].x - edge)
        return self.settle(exact, doubt, exact[:1] != 0, self.ulps)

    def settle(self, exact: Array, doubt: Array, loose: Array, ulps: float) -> Number:
        """Round, and move ``loose`` values by some units in the last place."""
        central = self.nearest(exact[:1])
        if self.finite:
            doubt = doubt | ~np.isfinite(central[0])
        loose = loose & np.isfinite(exact[:1])
        if len(exact) == 1 and not loose.any():
            return Number(central, doubt, self)
        with np.errstate(all="ignore"):
            loose = loose & np.isfinite(exact) & (exact != 0)  # a zero gets no sign
            reach = np.where(loose, ulps * (self.unit * np.abs(exact) + self.least), 0.0)
            x = exact + self.signs(exact.shape[1:]) * reach
            x = np.where(np.abs(x) > self.largest, np.copysign(np.inf, x), x)
        x[0] = central[0]
        return Number(x, doubt, self)

    def signs(self, shape: tuple[int, ...]) -> Array:
        """Which way and how far each variant moves: not, all up, all down, at random as far, at random less far."""
        signs = self.random.random((COUNT, *shape)) * 2.0 - 1.0
        for variant, sign in enumerate((0.0, 1.0, -1.0)):
            signs[variant] = sign
        signs[3:-2] = np.sign(signs[3:-2])
        return signs

    # Decisions

    def compare(self, f: Callable[..., Array], a: Number | float, b: Number | float) -> Number:
        """Return a truth value, 0 or 1."""
        a, b = self.number(a), self.number(b)
        outcome = f(a.x, b.x)
        with np.errstate(all="ignore"):
            difference = a.x - b.x
        doubt = doubts(a, b) | straddles(difference) | (outcome != outcome[:1]).any(0)
        if self.finite:
            doubt = doubt | np.isnan(difference).any(0)
        return Number(outcome[:1].astype(float), doubt, self)

    def stairs(self, f: Callable[[Array], Array], x: Number | float) -> Number:
        """Return a function that ascends in steps, such as a rounding."""
        x = self.number(x)
        with np.errstate(all="ignore"):
            y = f(x.x)
            reach = WIDE * deviation(x.x)
            if len(y) > 1:
                y = np.array(np.broadcast_to(y, (COUNT, *y.shape[1:])))
                for variant, end in ((1, x.x[0] + reach), (2, x.x[0] - reach)):
                    y[variant] = np.where(reach > 0, f(end), y[variant])
        return Number(y, x.doubt, self)

    def where(self, condition: Number | float, a: Number | float, b: Number | float) -> Number:
        c, a, b = self.truth(condition), self.number(a), self.number(b)
        chosen = c.x[:1] != 0
        doubt = np.where(chosen[0], a.doubt, b.doubt) | (c.doubt & (differs(a.x, b.x) | a.doubt | b.doubt))
        return Number(np.where(chosen, a.x, b.x), doubt, self)

    def truth(self, x: Number | float) -> Number:
        return self.compare(operator.ne, x, 0.0)

    def max(self, a: Number | float, b: Number | float) -> Number:
        return self._extreme(np.maximum, a, b)

    def min(self, a: Number | float, b: Number | float) -> Number:
        return self._extreme(np.minimum, a, b)

    def _extreme(self, f: Callable[..., Array], a: Number | float, b: Number | float) -> Number:
        a, b = self.number(a), self.number(b)
        return self.any_zero(Number(f(a.x, b.x), doubts(a, b), self), (a.x == 0) & (b.x == 0))

    def any_zero(self, value: Number, where: Array | bool = True) -> Number:
        """Return a zero of either sign, where PyTorch leaves it open."""
        zero = (value.x == 0) & where
        if not zero.any():
            return value
        x = np.array(np.broadcast_to(value.x, (COUNT, *value.x.shape[1:])))
        zero = np.broadcast_to(zero, x.shape)
        x[1][zero[1]], x[2][zero[2]] = 0.0, -0.0
        return Number(x, value.doubt, self)

    def without_overflow(self, value: Number, near: Number) -> Number:
        """Return a value in doubt where its formula overflows, and another form of it gives ``near``."""
        overflows = (np.isinf(value.x) & np.isfinite(near.x)).any(0)
        return Number(np.where(overflows, near.x, value.x), doubts(value, near) | overflows, self)

    # The parts that functions are made of

    def abs(self, x: Number | float) -> Number:
        x = self.number(x)
        return Number(np.abs(x.x), x.doubt, self)

    def sign(self, x: Number | float) -> Number:
        return self.where(
            self.compare(operator.gt, x, 0.0), 1.0, self.where(self.compare(operator.lt, x, 0.0), -1.0, 0.0)
        )

    def floor(self, x: Number | float) -> Number:
        return self.stairs(np.floor, x)

    def ceil(self, x: Number | float) -> Number:
        return self.stairs(np.ceil, x)

    def round(self, x: Number | float) -> Number:
        return self.stairs(np.rint, x)

    def trunc(self, x: Number | float) -> Number:
        return self.stairs(np.trunc, x)

    def isnan(self, x: Number | float) -> Number:
        return self._class(np.isnan, x)

    def isinf(self, x: Number | float) -> Number:
        return self._class(np.isinf, x)

    def _class(self, f: Callable[[Array], Array], x: Number | float) -> Number:
        x = self.number(x)
        outcome = f(x.x)
        return Number(outcome[:1].astype(float), x.doubt | (outcome != outcome[:1]).any(0), self)

    def sqrt(self, x: Number | float) -> Number:
        """Correctly rounded in f32; PyTorch's for doubles may not be."""
        x = self.number(x)
        root = self.operation(np.sqrt, x) if self.single else self.function(np.sqrt, x)
        return Number(root.x, root.doubt | straddles(x.x), self)

    def rsqrt(self, x: Number | float) -> Number:
        """Return 1/sqrt(x) within 2 ulp, the bound of CUDA's ``rsqrtf`` (CUDA C++ Programming Guide)."""
        x = self.number(x)
        root = self.function(lambda x: 1.0 / np.sqrt(x), x)
        return Number(root.x, root.doubt | straddles(x.x), self)

    def pow(self, x: Number | float, y: Number | float) -> Number:
        x, y = self.number(x), self.number(y)
        power = self.function(raised, x, y, edges=(0.0,))
        with np.errstate(all="ignore"):
            whole = straddles(y.x - np.rint(y.x[:1])) & (x.x[0] < 0)
        return Number(power.x, power.doubt | whole | _open_zeros(x.x), self)

    def atan2(self, y: Number | float, x: Number | float) -> Number:
        y, x = self.number(y), self.number(x)
        angle = self.function(np.arctan2, y, x)
        doubt = (straddles(y.x) & (x.x.min(0) <= 0)) | _open_zeros(x.x) | _open_zeros(y.x)
        return Number(angle.x, angle.doubt | doubt, self)

    def hypot(self, x: Number | float, y: Number | float) -> Number:
        return self.function(np.hypot, x, y)

    def copysign(self, x: Number | float, y: Number | float) -> Number:
        x, y = self.number(x), self.number(y)
        signs = np.copysign(1.0, y.x)
        doubt = doubts(x, y) | straddles(y.x) | (signs != signs[:1]).any(0) | np.isnan(y.x).any(0)
        return Number(np.copysign(x.x, signs[:1]), doubt, self)

    def fmod(self, x: Number | float, y: Number | float) -> Number:
        """Exact; in doubt where the quotient is nearly whole and may be on either side."""
        x, y = self.number(x), self.number(y)
        with np.errstate(all="ignore"):
            rest, quotient = np.fmod(x.x, y.x), x.x / y.x
            doubt = doubts(x, y) | straddles(quotient - np.rint(quotient[:1]))
        return Number(self.nearest(rest), doubt, self)


def _elementary(
    f: Callable[[Array], Array], edges: Sequence[float] = ()
) -> Callable[[Arithmetic, Number | float], Number]:
    return lambda t, x: t.function(f, x, edges=edges)


def _periodic(
    f: Callable[[Array], Array], room: Callable[[Array], Array]
) -> Callable[[Arithmetic, Number | float], Number]:
    """Return a function in doubt where its argument may be off by more than there is ``room`` for."""

    def value(t: Arithmetic, x: Number | float) -> Number:
        x = t.number(x)
        with np.errstate(all="ignore"):
            reach, found = WIDE * deviation(x.x), t.function(f, x)
            doubt = (reach > 0) & ~(reach < room(x.x[0]))
        return Number(found.x, found.doubt | doubt, t)

    return value


#: Functions of one argument, with the edges of their domains.
ELEMENTARY: dict[str, tuple[Callable[[Array], Array], tuple[float, ...]]] = {
    "exp": (np.exp, ()),
    "exp2": (np.exp2, ()),
    "expm1": (np.expm1, ()),
    "log": (np.log, (0.0,)),
    "log1p": (np.log1p, (-1.0,)),
    "log2": (np.log2, (0.0,)),
    "log10": (np.log10, (0.0,)),
    "sin": (np.sin, ()),
    "cos": (np.cos, ()),
    "tan": (np.tan, ()),
    "asin": (np.arcsin, (-1.0, 1.0)),
    "acos": (np.arccos, (-1.0, 1.0)),
    "atan": (np.arctan, ()),
    "sinh": (np.sinh, ()),
    "cosh": (np.cosh, ()),
    "tanh": (np.tanh, ()),
    "asinh": (np.arcsinh, ()),
    "acosh": (np.arccosh, (1.0,)),
    "atanh": (np.arctanh, (-1.0, 1.0)),
    "erf": (np.vectorize(math.erf, otypes=[float]), ()),
    "erfc": (np.vectorize(math.erfc, otypes=[float]), ()),
}
for _name, (_f, _edges) in ELEMENTARY.items():
    setattr(Arithmetic, _name, _elementary(_f, _edges))
#: The tolerance of a periodic function's argument: far less than a period, and not to a pole.
_ROOM: dict[str, Callable[[Array], Array]] = {
    "sin": np.ones_like,
    "cos": np.ones_like,
    "tan": lambda x: np.abs(np.cos(x)),
}
for _name, _room in _ROOM.items():
    setattr(Arithmetic, _name, _periodic(ELEMENTARY[_name][0], _room))


def raised(x: Array, y: Array) -> Array:
    """Return the power as IEEE 754 has it; numpy's takes the square root for an exponent of 0.5, of infinities too."""
    size = np.power(np.abs(x), y)
    whole, odd = np.rint(y) == y, np.fmod(y, 2.0) != 0
    negative = np.where(
        whole, np.where(odd & np.isfinite(y), -size, size), np.where(np.isinf(x) | (x == 0), size, np.nan)
    )
    return np.where(np.signbit(x) & ~np.isnan(x) & (y != 0), negative, size)


def doubts(*numbers: Number) -> Array:
    doubt = NO_DOUBT
    for each in numbers:
        doubt = doubt | each.doubt
    return doubt


def differs(x: Array, y: Array) -> Array:
    """Return the elements in which a variant of two values differs; NaN is one value."""
    return ~((x == y) | (np.isnan(x) & np.isnan(y))).all(0)


def deviation(x: Array) -> Array:
    """Return the distance of the variants from the first, [l, m, n]; infinity if only some are NaN."""
    if len(x) == 1:
        return np.zeros(x.shape[1:])
    with np.errstate(all="ignore"):
        same = (x == x[:1]) | (np.isnan(x) & np.isnan(x[:1]))
        distance = np.where(same, 0.0, np.abs(x - x[:1]))
    return np.where(np.isnan(distance), np.inf, distance).max(0)


def straddles(x: Array) -> Array:
    """Return the elements that may be on either side of 0."""
    if len(x) == 1:
        return NO_DOUBT
    reach = deviation(x)
    return (reach > 0) & ~(np.abs(x[0]) > WIDE * reach)


def _open_zeros(x: Array) -> Array:
    """Return the elements that are a zero of unspecified sign."""
    if len(x) == 1:
        return NO_DOUBT
    zero, sign = x == 0, np.signbit(x)
    return (zero & sign).any(0) & (zero & ~sign).any(0)
