"""Derivatives along the first argument, of functions of the table and of a program's own, by series."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .functions import FUNCTIONS
from .number import Arithmetic, Array
from .rounding import rounded
from .taylor import Series, Taylor
from .tree import Call, Cast, Define, Expression, Number, Read

#: The tolerance of a derivative, in units of its formula's largest terms, and the size of terms that may cancel.
_OFF = 64.0
#: The tolerance of each term of a series, in units in the last place.
_TERM = 8.0
_LARGEST_TERM = 100.0
#: Beyond, terms of a formula overflow that do not matter.
_FAR = 1000.0


@dataclass(frozen=True)
class Derivatives:
    """Derivatives of calls, with ``t`` for how far they may be off."""

    defines: Mapping[str, Define]
    t: Arithmetic

    def __call__(self, call: Call, x: Array, constants: Sequence[float]) -> tuple[Array, Array]:
        """``f''(x, constants)`` and where it is in doubt: at kinks, where x is far, where one of them is no number."""
        taylor = self.taylor(call)
        with np.errstate(all="ignore"):
            series = self.called(taylor, call, taylor.variable(x), [taylor.number(each) for each in constants])
            values = self.moved(call, series)
            values = np.where(np.abs(values) > self.t.largest, np.inf, values)
            known = (np.abs(x) <= _FAR).all(0) & np.isfinite(values).all(0)
            if call.function in self.defines:  # whose quotients are derived as they stand, by powers of divisors
                known = known & (taylor.size ** (2.0**call.primes) < self.t.largest)
        return np.where(np.isfinite(values), values, 0.0), taylor.kinks | ~known

    def taylor(self, call: Call) -> Taylor:
        """Return the arithmetic of a call's series, where a program's function is differentiated part by part."""
        return Taylor(call.primes + 1, self.off, self.near if call.function in self.defines else lambda slope: slope)

    def near(self, slope: Array) -> Array:
        """Return a derivative of an elementary function, moved by the error of a formula with terms as large as 1."""
        moved = slope + _TERM * self.t.unit * self.t.signs(slope.shape[1:]) * (np.abs(slope) + 1.0)
        moved[0] = slope[0]
        return moved

    def off(self, term: Array) -> Array:
        """Return a term of a sum, moved by its tolerance."""
        moved = term * (1.0 + _TERM * self.t.unit * self.t.signs(term.shape[1:]))
        moved[0] = term[0]
        return moved

    def moved(self, call: Call, series: Series) -> Array:
        """Return the derivative of a series, moved by the tolerance of a formula for it.

        That is more than a few units of the result: formulas have terms as large as 1 or x that cancel.
        """
        value, following = (series.c[each] * math.factorial(each) for each in (call.primes, call.primes + 1))
        x = np.abs(series.t.at)
        terms = np.abs(value) + x * np.abs(following) + np.minimum(x, _LARGEST_TERM) + 1.0
        moved = value + self.t.signs(value.shape[1:]) * np.nan_to_num(_OFF * self.t.unit * terms)
        moved[0] = value[0]
        return moved

    def called(self, t: Taylor, call: Call, x: Series, rest: Sequence[Series]) -> Series:
        """Return a function of a series, without the call's primes."""
        if call.function in self.defines:
            define = self.defines[call.function]
            return self.series(t, define.body, dict(zip(define.parameters, (x, *rest), strict=True)))
        row = FUNCTIONS[call.function]
        return t.number(row.meaning(t, *row.bind((x, *rest), call.names)))

    def series(self, t: Taylor, node: Expression, scope: Mapping[str, Series]) -> Series:
        """Return the body of a function."""
        match node:
            case Number():
                return t.number(node.value)
            case Read(name):
                return scope[name]
            case Cast(dtype, x):  # a rounding counts as the identity, as in PyTorch
                inner = self.series(t, x, scope)
                return t.series([rounded(dtype, inner.c[0]), *inner.c[1:]])
            case Call(arguments=arguments, primes=primes):
                first, *rest = (self.series(t, each, scope) for each in arguments)
                return self.slope(t, node, first, rest) if primes else self.called(t, node, first, rest)
        raise AssertionError(node)

    def slope(self, t: Taylor, call: Call, x: Series, rest: Sequence[Series]) -> Series:
        """Return a derivative within a function that is derived: its own derivative has one prime more."""

        def value(at: Array) -> Array:
            inner = self.taylor(call)
            series = self.called(inner, call, inner.variable(at), [inner.constant(each.c[0]) for each in rest])
            t.collect(inner)
            return self.moved(call, series)

        higher = replace(call, primes=call.primes + 1)
        return t.lift(value, [lambda lower, u: self.slope(lower, higher, u, rest)], x)


def varies(call: Call, defines: Mapping[str, Define]) -> bool:
    """Return whether a derivative varies at a few points: the type of a constant is unspecified."""
    x = np.array([-2.3, -1.3, -0.6, -0.2, 0.3, 0.45, 0.8, 1.4, 2.7, 7.1]).reshape(1, 1, 1, -1)
    constants = [each.value for each in call.arguments[1:] if isinstance(each, Number)]
    exact = Derivatives(defines, Arithmetic(False, 0.0, np.random.default_rng(0)))
    values, doubt = exact(call, x, constants)
    return len(set(values[0][~np.broadcast_to(doubt, values[0].shape)].tolist())) > 1
