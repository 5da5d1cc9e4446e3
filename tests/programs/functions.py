"""The functions of the language, each a formula over numbers; written from the manual's table and PyTorch's docs.

``t`` is an arithmetic of :mod:`.number` or :mod:`.taylor`. A new function of the language is a new row here: its
parameters by name, with the defaults that the manual gives them. A row that is ``exact`` is correctly rounded, a
formula of operations in the order that everybody computes it; other rows may be off by some units of their formula's
operations.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from .rounding import wrapped

_ROOT_HALF = math.sqrt(0.5)
_SELU = 1.6732632423543772, 1.0507009873554805


@dataclass(frozen=True)
class ExactFunction:
    """A function: its meaning over numbers, and over 64-bit integers if it maps i32 to i32."""

    meaning: Callable[..., Any]
    exact: bool = False
    predicate: bool = False
    conditions: frozenset[int] = frozenset()
    integers: Callable[..., Any] | None = None

    @cached_property
    def parameters(self) -> tuple[tuple[str, float | None], ...]:
        """Names and defaults."""
        given = list(inspect.signature(self.meaning).parameters.values())[1:]
        return tuple((each.name, None if each.default is each.empty else each.default) for each in given)

    def bind(self, arguments: tuple[Any, ...], names: tuple[str, ...]) -> list[Any]:
        """Arguments in the order of the parameters, the last ``names`` by keyword; defaults are floats."""
        values = dict(self.parameters)
        positional = len(arguments) - len(names)
        known = [name for name, _ in self.parameters]
        values.update(zip(known, arguments[:positional]))  # noqa: B905
        values.update(zip(names, arguments[positional:], strict=True))
        return [values[name] for name in known]


def _elementary(name: str) -> Callable[..., Any]:
    return lambda t, x: getattr(t, name)(x)


def _relu(t: Any, x: Any) -> Any:
    return t.any_zero(t.max(x, 0.0))


def _sigmoid(t: Any, x: Any) -> Any:
    return 1.0 / (1.0 + t.exp(-x))


def _gelu_tanh_slope(t: Any, x: Any) -> Any:
    near = t.where(t.abs(x) < 1000.0, x, 0.0)  # beyond, the limits: 0 and 1
    exponent, slope = math.sqrt(8 / math.pi) * (x + 0.044715 * x * x * x), 1.0 + 0.134145 * near * near
    gate = _sigmoid(t, exponent)
    return gate + gate * near * _sigmoid(t, -exponent) * (math.sqrt(8 / math.pi) * slope)


def _softplus(t: Any, x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    """Return PyTorch's formula; kernels, with another one, have no overflow below a large threshold."""
    z = x * beta
    return t.where(z > threshold, x, t.without_overflow(t.log1p(t.exp(z)), z) / beta)


def _logaddexp(t: Any, x: Any, y: Any) -> Any:
    equal = (t.isinf(x), t.sign(x) * t.sign(y))
    return t.where(equal[0], t.where(equal[1] > 0.0, t.max(x, y), _log_sum(t, x, y)), _log_sum(t, x, y))


def _log_sum(t: Any, x: Any, y: Any) -> Any:
    return t.max(x, y) + t.log1p(t.exp(-t.abs(x - y)))


def _xlogy(t: Any, x: Any, y: Any) -> Any:
    return t.where(t.isnan(y), math.nan, t.where(x, x * t.log(y), t.where(t.isnan(x), math.nan, 0.0)))


def _sinc(t: Any, x: Any) -> Any:
    rest = x - 2.0 * t.round(x * 0.5)
    near = t.where(rest > 0.5, 1.0 - rest, t.where(rest < -0.5, -1.0 - rest, rest))
    return t.where(x, t.sin(math.pi * near) / (math.pi * x), 1.0)


def _remainder(t: Any, x: Any, y: Any) -> Any:
    rest = t.fmod(x, y)
    other = t.where(rest < 0.0, y > 0.0, y < 0.0)
    return t.where(rest, t.where(other, rest + y, rest), rest)


def _floor_divide(t: Any, x: Any, y: Any) -> Any:
    rest = t.fmod(x, y)
    near = (x - rest) / y
    other = t.where(rest < 0.0, y > 0.0, y < 0.0)
    quotient = t.where(rest, t.where(other, near - 1.0, near), near)
    return t.where(y, t.any_zero(t.round(quotient)), x / y)


def _wrap(t: Any, x: Any, limit: float) -> Any:
    """Return a number without its fraction, modulo 256 below a limit; PyTorch leaves the sign of a zero open."""
    whole = t.trunc(x)
    rest = whole - 256.0 * t.floor(whole * (1 / 256))
    return t.any_zero(t.where(rest < limit, rest, rest - 256.0))


def _quotient(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return integers divided, rounded down; 0 where the divisor is 0."""
    return np.where(y == 0, 0, x // np.where(y == 0, 1, y))


def _modulo(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the remainder of a quotient that is rounded down."""
    return x - _quotient(x, y) * y


def _power(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the power of integers as 32 bits wrap; 0 where it is a fraction."""
    x, y = np.broadcast_arrays(x, y)
    result, base = np.ones_like(x), x
    for bit in range(31):
        result = np.where((y >> bit) & 1 == 1, wrapped(result * base), result)
        base = wrapped(base * base)
    fraction = np.where(np.abs(x) == 1, np.where(y % 2 == 0, 1, x), 0)
    return np.where(y < 0, fraction, result)


def _clamp(t: Any, x: Any, low: Any, high: Any) -> Any:
    return t.min(t.max(x, low), high)


def _compare(symbol: Callable[..., Any], integers: Callable[..., Any]) -> ExactFunction:
    return ExactFunction(symbol, exact=True, predicate=True, integers=integers)


def _not(t: Any, x: Any) -> Any:
    return t.where(x, 0.0, 1.0)


FUNCTIONS: Mapping[str, ExactFunction] = {
    # arithmetic
    "add": ExactFunction(lambda t, x, y: x + y, exact=True, integers=lambda x, y: wrapped(x + y)),
    "sub": ExactFunction(lambda t, x, y: x - y, exact=True, integers=lambda x, y: wrapped(x - y)),
    "mul": ExactFunction(lambda t, x, y: x * y, exact=True, integers=lambda x, y: wrapped(x * y)),
    "div": ExactFunction(lambda t, x, y: x / y, exact=True),
    "neg": ExactFunction(lambda t, x: -x, exact=True, integers=lambda x: wrapped(-x)),
    "fma": ExactFunction(lambda t, a, b, c: a * b + c, integers=lambda a, b, c: wrapped(wrapped(a * b) + c)),
    "pow": ExactFunction(lambda t, x, y: t.pow(x, y), integers=lambda x, y: _power(x, y)),
    "min": ExactFunction(lambda t, x, y: t.min(x, y), exact=True, integers=np.minimum),
    "max": ExactFunction(lambda t, x, y: t.max(x, y), exact=True, integers=np.maximum),
    "clamp": ExactFunction(
        lambda t, x, min, max: _clamp(t, x, min, max),
        exact=True,
        integers=lambda x, low, high: np.minimum(np.maximum(x, low), high),
    ),
    "abs": ExactFunction(lambda t, x: t.abs(x), exact=True, integers=lambda x: wrapped(np.abs(x))),
    "sign": ExactFunction(lambda t, x: t.any_zero(t.sign(x)), exact=True, integers=np.sign),
    "square": ExactFunction(lambda t, x: x * x, exact=True, integers=lambda x: wrapped(x * x)),
    "sqrt": ExactFunction(lambda t, x: t.sqrt(x), exact=True),
    "rsqrt": ExactFunction(lambda t, x: t.rsqrt(x)),
    "rcp": ExactFunction(lambda t, x: 1.0 / x, exact=True),
    "lerp": ExactFunction(
        lambda t, a, b, weight: t.where(t.abs(weight) < 0.5, a + weight * (b - a), b - (b - a) * (1.0 - weight))
    ),
    "copysign": ExactFunction(lambda t, x, y: t.copysign(x, y), exact=True),
    "heaviside": ExactFunction(
        lambda t, x, values: t.where(x, t.where(x > 0.0, 1.0, 0.0), values),
        exact=True,
        integers=lambda x, values: np.where(x == 0, values, x > 0),
    ),
    "fmod": ExactFunction(
        lambda t, x, y: t.fmod(x, y), exact=True, integers=lambda x, y: np.sign(x) * _modulo(np.abs(x), np.abs(y))
    ),
    "remainder": ExactFunction(_remainder, integers=lambda x, y: _modulo(x, y)),
    "floor_divide": ExactFunction(_floor_divide, integers=lambda x, y: wrapped(_quotient(x, y))),
    "trunc_divide": ExactFunction(
        lambda t, x, y: t.trunc(x / y),
        exact=True,
        integers=lambda x, y: wrapped(np.sign(x) * np.sign(y) * _quotient(np.abs(x), np.abs(y))),
    ),
    # rounding
    "floor": ExactFunction(lambda t, x: t.floor(x), exact=True, integers=lambda x: x),
    "ceil": ExactFunction(lambda t, x: t.ceil(x), exact=True, integers=lambda x: x),
    "round": ExactFunction(lambda t, x: t.round(x), exact=True, integers=lambda x: x),
    "trunc": ExactFunction(lambda t, x: t.trunc(x), exact=True, integers=lambda x: x),
    "frac": ExactFunction(lambda t, x: x - t.trunc(x), exact=True),
    "wrap_i8": ExactFunction(lambda t, x: _wrap(t, x, 128.0), exact=True, integers=lambda x: (x + 128) % 256 - 128),
    "wrap_u8": ExactFunction(lambda t, x: _wrap(t, x, 256.0), exact=True, integers=lambda x: x % 256),
    # elementary
    **{
        name: ExactFunction(_elementary(name))
        for name in (
            *("exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "sin", "cos", "tan", "asin", "acos", "atan"),
            *("sinh", "cosh", "asinh", "acosh", "atanh", "erf", "erfc"),
        )
    },
    "logaddexp": ExactFunction(_logaddexp),
    "xlogy": ExactFunction(_xlogy),
    "logit": ExactFunction(lambda t, x: t.log(x / (1.0 - x))),
    "hypot": ExactFunction(lambda t, x, y: t.hypot(x, y)),
    "atan2": ExactFunction(lambda t, y, x: t.atan2(y, x)),
    "sinc": ExactFunction(_sinc),
    # activations
    "relu": ExactFunction(_relu, exact=True, integers=lambda x: np.maximum(x, 0)),
    "leaky_relu": ExactFunction(lambda t, x, negative_slope=0.01: t.where(x > 0.0, x, x * negative_slope), exact=True),
    "prelu": ExactFunction(lambda t, x, weight: t.where(x > 0.0, x, x * weight), exact=True),
    "rrelu": ExactFunction(
        lambda t, x, lower=1 / 8, upper=1 / 3: t.where(x > 0.0, x, x * ((t.number(lower) + upper) * 0.5)), exact=True
    ),
    "relu6": ExactFunction(
        lambda t, x: t.any_zero(_clamp(t, x, 0.0, 6.0)), exact=True, integers=lambda x: x.clip(0, 6)
    ),
    "threshold": ExactFunction(
        lambda t, x, threshold, value: t.where(x <= threshold, value, x),
        exact=True,
        integers=lambda x, threshold, value: np.where(x <= threshold, value, x),
    ),
    "elu": ExactFunction(lambda t, x, alpha=1.0: t.where(x < 0.0, alpha * t.expm1(x), x)),
    "celu": ExactFunction(lambda t, x, alpha=1.0: t.where(x < 0.0, alpha * t.expm1(x / alpha), x)),
    "selu": ExactFunction(lambda t, x: _SELU[1] * t.where(x < 0.0, _SELU[0] * t.expm1(x), x)),
    "gelu": ExactFunction(lambda t, x: 0.5 * x * (1.0 + t.erf(x * _ROOT_HALF))),  # evt's error is 2^-22 of x
    "gelu_slope": ExactFunction(  # infinities have the limits, 0 and 1
        lambda t, x: (
            0.5 * (1.0 + t.erf(x * _ROOT_HALF))
            + t.where(t.abs(x) < math.inf, x, 0.0) * (t.exp(-0.5 * x * x) * (2 * math.pi) ** -0.5)
        )
    ),
    "gelu_tanh": ExactFunction(lambda t, x: x * _sigmoid(t, math.sqrt(8 / math.pi) * (x + 0.044715 * x * x * x))),
    "gelu_tanh_slope": ExactFunction(_gelu_tanh_slope),
    "sigmoid": ExactFunction(_sigmoid),
    "logsigmoid": ExactFunction(lambda t, x: t.min(x, 0.0) - t.log1p(t.exp(-t.abs(x)))),
    "silu": ExactFunction(lambda t, x: x * _sigmoid(t, x)),
    "mish": ExactFunction(lambda t, x: x * t.tanh(t.log1p(t.exp(x)))),
    "softplus": ExactFunction(_softplus),
    "softsign": ExactFunction(lambda t, x: x / (1.0 + t.abs(x))),
    "tanh": ExactFunction(lambda t, x: t.tanh(x)),
    "hardtanh": ExactFunction(
        lambda t, x, min_val=-1.0, max_val=1.0: _clamp(t, x, min_val, max_val),
        exact=True,
        integers=lambda x, low, high: np.minimum(np.maximum(x, low), high),
    ),
    "hardsigmoid": ExactFunction(lambda t, x: _clamp(t, x + 3.0, 0.0, 6.0) / 6.0),
    "hardswish": ExactFunction(lambda t, x: x * _clamp(t, x + 3.0, 0.0, 6.0) / 6.0),
    "tanhshrink": ExactFunction(lambda t, x: x - t.tanh(x)),
    "hardshrink": ExactFunction(
        lambda t, x, lambd=0.5: t.where(x >= -lambd, t.where(x <= lambd, 0.0, x), x), exact=True
    ),
    "softshrink": ExactFunction(
        lambda t, x, lambd=0.5: t.where(x > lambd, x - lambd, t.where(x < -lambd, x + lambd, t.any_zero(x * 0.0))),
        exact=True,
    ),
    # logic
    "lt": _compare(lambda t, x, y: x < y, np.less),
    "le": _compare(lambda t, x, y: x <= y, np.less_equal),
    "gt": _compare(lambda t, x, y: x > y, np.greater),
    "ge": _compare(lambda t, x, y: x >= y, np.greater_equal),
    "eq": _compare(lambda t, x, y: t.compare(np.equal, x, y), np.equal),
    "ne": _compare(lambda t, x, y: t.compare(np.not_equal, x, y), np.not_equal),
    "logical_and": ExactFunction(lambda t, x, y: t.where(x, t.truth(y), 0.0), True, True, frozenset({0, 1})),
    "logical_or": ExactFunction(lambda t, x, y: t.where(x, 1.0, t.truth(y)), True, True, frozenset({0, 1})),
    "logical_not": ExactFunction(_not, True, True, frozenset({0})),
    "where": ExactFunction(
        lambda t, condition, x, y: t.where(condition, x, y),
        exact=True,
        conditions=frozenset({0}),
        integers=lambda condition, x, y: np.where(condition != 0, x, y),
    ),
    "isnan": ExactFunction(lambda t, x: t.isnan(x), True, True),
    "isinf": ExactFunction(lambda t, x: t.isinf(x), True, True),
    "isfinite": ExactFunction(lambda t, x: _not(t, t.where(t.isnan(x), 1.0, t.isinf(x))), True, True),
}

#: Functions that compare with numbers, which eager PyTorch rounds to the tensor's type.
COMPARING = ("hardshrink", "softshrink", "threshold")
#: Functions whose own formula in eager PyTorch has a larger error, or other values: the sign of sinc(1) is that of a
#: rounded product; celu with alpha 0, which torch.celu refuses, is NaN at 0.
EAGER: Mapping[str, ExactFunction] = {
    "celu": ExactFunction(lambda t, x, alpha=1.0: t.where(x > 0.0, x, alpha * t.expm1(x * (1.0 / alpha)))),
    "sinc": ExactFunction(lambda t, x: t.where(x, t.sin(math.pi * x) / (math.pi * x), 1.0)),
}
