"""The ``torch`` namespace for rows of the function table: bitwise equal in every release and on every device.

The results of PyTorch's f32 functions depend on the release, the processor and the tensor's strides; some lose the last
bit of a square root, or all of a remainder. This namespace evaluates a function of f32 numbers in f64 and rounds, and
orders zeros as IEEE 754-2019 and kernels do. relu and clamp are exceptions, which use the device: on a CPU they keep
-0. Operators on tensors are exact, and remain PyTorch's. Integers wrap, and nothing raises. :mod:`evt.functions.single`
is the equivalent for constants.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

#: Functions that PyTorch does not round to the nearest f32 number.
_ROUNDED = frozenset(
    {
        *("exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "logaddexp", "xlogy", "logit", "hypot"),
        *("sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "asinh", "acosh", "atanh"),
        *("erf", "erfc", "sigmoid", "tanh", "sqrt", "rsqrt"),
    }
)


def maximum(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the larger, NaN if either is NaN; +0 is above -0."""
    larger = torch.maximum(x, y)
    return torch.where((x == 0) & (y == 0), x + y, larger) if larger.is_floating_point() else larger


def minimum(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the smaller, NaN if either is NaN; -0 is below +0."""
    return -maximum(-x, -y) if x.is_floating_point() else torch.minimum(x, y)


def clamp(x: torch.Tensor, lower: torch.Tensor | float, upper: torch.Tensor | float) -> torch.Tensor:
    low, high = (
        bound.to(x) if isinstance(bound, torch.Tensor) else torch.full((), bound, dtype=x.dtype, device=x.device)
        for bound in (lower, upper)
    )
    return torch.clamp(x, low, high)


def fmod(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the remainder, exact even if the quotient exceeds f64 and PyTorch may return NaN."""
    return _rest(x, y).to(x.dtype)


def remainder(x: torch.Tensor, y: torch.Tensor | int) -> torch.Tensor:
    y = y if isinstance(y, torch.Tensor) else torch.full((), y, dtype=x.dtype, device=x.device)
    rest = _rest(x, y)
    other = (rest != 0) & ((rest < 0) != (y < 0))
    return torch.where(other, rest + y, rest).to(x.dtype)


def div(x: torch.Tensor, y: torch.Tensor, *, rounding_mode: str) -> torch.Tensor:
    """Return the quotient rounded towards zero, or down in PyTorch's steps; 0 for an integer and 0."""
    if not x.is_floating_point():
        wide = y.to(torch.int64)  # the smallest i32 divided by -1 has a result
        quotient = torch.div(x.to(torch.int64), torch.where(wide == 0, 1, wide), rounding_mode=rounding_mode)
        return torch.where(wide == 0, 0, quotient).to(x.dtype)
    if rounding_mode == "trunc":
        return torch.trunc(x / y)
    rest = fmod(x, y)
    quotient = (x - rest) / y
    quotient = torch.where((rest != 0) & ((rest < 0) != (y < 0)), quotient - 1, quotient)
    whole = torch.floor(quotient)
    whole = torch.where(quotient - whole > 0.5, whole + 1, whole)
    whole = torch.where(quotient == 0, torch.copysign(torch.zeros_like(whole), x / y), whole)
    return torch.where(y == 0, x / y, whole)


def pow(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the power; for integers by squaring, which wraps, and 0 where it is a fraction.

    The number of steps is the number of bits of an i32, for all exponents, so that PyTorch can trace it.
    """
    if x.is_floating_point():
        return torch.pow(x.to(torch.float64), y.to(torch.float64)).to(x.dtype)
    base, rest = x, y.clamp(min=0)
    result = torch.ones_like(base * rest)
    for _ in range(31):
        result = torch.where(rest % 2 == 1, result * base, result)
        base, rest = base * base, rest // 2
    sign = torch.where(y % 2 == 0, 1, x)
    return torch.where(y < 0, torch.where(x.abs() == 1, sign, 0), result).to(x.dtype)


def _rest(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the remainder of x in f64, in steps that each keep the quotient small: first by multiples of y.

    The remainder of an integer and 0 is the integer.
    """
    if not x.is_floating_point():
        return x.to(torch.int64) - div(x, y, rounding_mode="trunc").to(torch.int64) * y
    rest, step = x.to(torch.float64), y.to(torch.float64)
    for multiple in (step * 2.0**700 * 2.0**700, step * 2.0**700):
        rest = torch.where(multiple.isfinite(), torch.fmod(rest, multiple), rest)
    return torch.fmod(rest, step)


def sinc(x: torch.Tensor) -> torch.Tensor:
    """Return sin(pi x) / (pi x), which is 0 for every whole number but 0.

    PyTorch rounds pi * x before it takes the sine.
    """
    size = x.to(torch.float64).abs()
    rest = size - 2 * torch.round(size / 2)  # exact, in [-1, 1]
    near = torch.where(rest.abs() > 0.5, torch.copysign(torch.ones_like(rest), rest) - rest, rest)
    result = torch.sin(math.pi * near) / (math.pi * size)
    return torch.where(size == 0, torch.ones_like(size), result).to(x.dtype)


@cache
def __getattr__(name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(torch, name)
    if name not in _ROUNDED:
        return function

    def rounded(*arguments: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = function(*(argument.to(torch.float64) for argument in arguments))
        return result.to(arguments[0].dtype)

    return rounded
