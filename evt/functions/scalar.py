"""The part of the `torch` namespace that the function table uses, on Python floats.

A definition in the table is one formula that runs over `torch` on tensors and over this module on floats. Every
function is total, as in IEEE 754: infinity or NaN where Python raises.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable

Unary = Callable[[float], float]


def _total(function: Unary, pole: float = math.nan) -> Unary:
    """Return `function` extended to all floats: +inf on overflow, -inf at its pole, and NaN elsewhere outside its
    domain.
    """

    def total(x: float) -> float:
        try:
            return function(x)
        except OverflowError:
            return math.inf
        except ValueError:
            return -math.inf if x == pole else math.nan

    return total


def _odd(function: Unary, pole: float = math.nan) -> Unary:
    """Return an odd `function` extended to all floats: infinite on overflow and at its pole, NaN outside its domain."""
    positive = _total(lambda x: math.inf if x == pole else function(x))
    return lambda x: math.copysign(positive(math.fabs(x)), x)


def _whole(function: Callable[[float], int]) -> Unary:
    """Return `function` on floats; infinities, NaN and the sign of zero are preserved."""
    return lambda x: math.copysign(function(x), x) if math.isfinite(x) else x


def _order(x: float) -> tuple[float, float]:
    return x, math.copysign(1.0, x)


exp = _total(math.exp)
exp2 = _total(lambda x: math.pow(2.0, x))
expm1 = _total(math.expm1)
log = _total(math.log, pole=0.0)
log1p = _total(math.log1p, pole=-1.0)
log2 = _total(math.log2, pole=0.0)
log10 = _total(math.log10, pole=0.0)
sqrt = _total(math.sqrt)
sin = _total(math.sin)
cos = _total(math.cos)
tan = _total(math.tan)
asin = _total(math.asin)
acos = _total(math.acos)
atan = math.atan
atan2 = math.atan2
sinh = _odd(math.sinh)
cosh = _total(math.cosh)
tanh = math.tanh
asinh = math.asinh
acosh = _total(math.acosh)
atanh = _odd(math.atanh, pole=1.0)
erf = math.erf
erfc = math.erfc
abs = math.fabs
floor = _whole(math.floor)
ceil = _whole(math.ceil)
round = _whole(builtins.round)
trunc = _whole(math.trunc)
hypot = math.hypot
copysign = math.copysign
isnan = math.isnan
isinf = math.isinf
isfinite = math.isfinite


def where(condition: bool, x: float, y: float) -> float:
    return x if condition else y


def logical_and(x: float, y: float) -> bool:
    return bool(x) and bool(y)


def logical_or(x: float, y: float) -> bool:
    return bool(x) or bool(y)


def logical_not(x: float) -> bool:
    return not x


def maximum(x: float, y: float) -> float:
    """Return the maximum of IEEE 754-2019: NaN if either is NaN, +0 above -0."""
    return math.nan if x != x or y != y else max(x, y, key=_order)


def minimum(x: float, y: float) -> float:
    """Return the minimum of IEEE 754-2019: NaN if either is NaN, -0 below +0."""
    return math.nan if x != x or y != y else min(x, y, key=_order)


def clamp(x: float, lower: float, upper: float) -> float:
    return minimum(maximum(x, lower), upper)


def relu(x: float) -> float:
    return maximum(x, 0.0)


def sign(x: float) -> float:
    """Return the sign, 0 for NaN as in PyTorch."""
    return float((x > 0.0) - (x < 0.0))


def frac(x: float) -> float:
    return x - trunc(x)


def fmod(x: float, y: float) -> float:
    try:
        return math.fmod(x, y)
    except ValueError:
        return math.nan


def remainder(x: float, y: float) -> float:
    """Return the remainder with the sign of `y`; a zero has the sign of `x`."""
    rest = fmod(x, y)
    return rest + y if rest and (rest < 0.0) != (y < 0.0) else rest


def true_divide(x: float, y: float) -> float:
    return x / y if y else x * math.copysign(math.inf, y)


def div(x: float, y: float, *, rounding_mode: str) -> float:
    """Return the quotient rounded towards zero, or rounded down in PyTorch's steps."""
    if rounding_mode == "trunc":
        return trunc(true_divide(x, y))
    if not y:
        return true_divide(x, y)
    rest = fmod(x, y)
    quotient = true_divide(x - rest, y)
    if rest and (rest < 0.0) != (y < 0.0):
        quotient = quotient - 1.0
    if not quotient:
        return copysign(0.0, true_divide(x, y))
    whole = floor(quotient)
    return whole + 1.0 if quotient - whole > 0.5 else whole


def reciprocal(x: float) -> float:
    return true_divide(1.0, x)


def rsqrt(x: float) -> float:
    return reciprocal(sqrt(x))


def sigmoid(x: float) -> float:
    return 1.0 / (1.0 + exp(-x))


def logit(x: float) -> float:
    return log(true_divide(x, 1.0 - x))


def logaddexp(x: float, y: float) -> float:
    return x if x == y and math.isinf(x) else maximum(x, y) + log1p(exp(-abs(x - y)))


def xlogy(x: float, y: float) -> float:
    return math.nan if y != y else x * log(y) if x else 0.0


def sinc(x: float) -> float:
    """Return sin(pi x) / (pi x), which is 0 for every whole number but 0."""
    if not x or not math.isfinite(x):
        return 1.0 if x == 0 else math.nan
    rest = math.remainder(math.fabs(x), 2.0)
    near = math.copysign(1.0, rest) - rest if math.fabs(rest) > 0.5 else rest
    return math.sin(math.pi * near) / (math.pi * math.fabs(x))


def pow(x: float, y: float) -> float:
    try:
        return math.pow(x, y)
    except OverflowError:
        size = math.inf
    except ValueError:
        size = math.nan if x else math.inf
    odd = math.fabs(math.fmod(y, 2.0)) == 1.0
    return math.copysign(size, x) if odd else size
