"""Comparison of an output with the oracle: ``judge(output, out, answers, n, slack) -> OutputResult``.

Floats of 16 bits and more are compared by their norm. Types of few values (bits, integers, 8-bit floats) are compared
step by step. A different order of summation may move an element across a threshold or to a neighbouring value.
Therefore an element may differ by as much as the oracle differs for an equally perturbed accumulator.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from evt.cli.answers import Answers
from evt.ir import Output
from evt.ir.dtype import B1, F32, DType
from evt.reference.compare import as_numbers, as_steps, compared, is_quantised, ratio, relative_error, unit
from evt.reference.rounding import round_to

#: The relative error of the f32 operations of an epilogue.
_ROUNDING = 4 * unit(F32)
#: The largest number of steps of an 8-bit float between a number and its double.
_STEPS = {"e4m3": 8, "e5m2": 4}


@dataclass(frozen=True)
class OutputResult:
    """The result for one output: its distance from the oracle, ||out - ref|| / ||ref||, and the bound from rounding.

    ``unexpected`` counts elements that are NaN or infinite but should not be; the distance is inf then. In outputs
    compared step by step, ``unequal`` counts the elements that no answer of the oracle explains. ``allowed`` counts the
    elements among them that the rounding of the epilogue explains. ``unexpected`` then counts elements that are further
    off.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    relative_error: float
    bound: float
    unexpected: int
    unequal: int | None = None
    allowed: int | None = None

    @property
    def ok(self) -> bool:
        if self.unequal is None or self.allowed is None:
            return self.relative_error <= self.bound
        return self.unequal <= self.allowed and not self.unexpected


def judge(output: Output, out: torch.Tensor, answers: Answers, n: int, slack: float) -> OutputResult:
    """Compare an output with the answers. ``slack`` is the relative error from a different order of f32 sums."""
    assert output.dtype is not None
    dtype, shape = output.dtype, tuple(out.shape)
    if is_quantised(dtype):
        distance = relative_error(as_numbers(out, dtype, n), as_numbers(answers.precise, dtype, n))
        unequal, allowed, unexpected = _by_steps(dtype, out, answers, n, slack)
        return OutputResult(output.name, str(dtype), shape, distance, math.inf, unexpected, unequal, allowed)
    precise, rounded = answers.precise, answers.rounded
    bound = 2 * relative_error(rounded, precise, rounded) + slack
    if answers.shaken:
        spread = _spread(precise, answers.shaken)
        out = torch.where(spread.isinf(), rounded, out)
        explained = torch.minimum((out.double() - precise).abs(), spread)
        usual = rounded.isfinite() & precise.isfinite() & explained.isfinite()
        bound += ratio(torch.where(usual, explained, 0.0), torch.where(usual, precise, 0.0))
    error = relative_error(out, precise, rounded)
    unexpected = int((~compared(out, precise, rounded)[0].isfinite()).sum())
    if answers.magnitude is not None:
        norm = float(answers.precise.norm())
        bound += slack * float(answers.magnitude.norm()) / norm if norm else math.inf
    return OutputResult(output.name, str(dtype), shape, error, bound, unexpected)


def _by_steps(dtype: DType, out: torch.Tensor, answers: Answers, n: int, slack: float) -> tuple[int, int, int]:
    """Return the numbers of unequal elements, of allowed ones, and of elements further off than rounding explains."""

    def steps(precise: torch.Tensor) -> torch.Tensor:
        return as_steps(round_to(dtype, precise) if dtype.is_float else precise, dtype, n)

    wanted, got = steps(answers.precise), as_steps(out, dtype, n)
    if not slack:
        unequal = int((got != wanted).sum())
        return unequal, 0, unequal
    low = high = wanted
    for other in (as_steps(answers.rounded, dtype, n), *map(steps, answers.shaken)):
        low, high = torch.minimum(low, other), torch.maximum(high, other)
    distance = torch.maximum(low - got, got - high).clamp(min=0)
    if dtype.compute == B1:
        scale = 1.0
    else:
        scale = float(_STEPS[dtype.name]) if dtype.is_float else max(1.0, float(wanted.double().square().mean().sqrt()))
    allowed = int(wanted.numel() * min(1.0, 2 * _ROUNDING * scale))  # near a midpoint between two steps
    return int((distance > 0).sum()), allowed, int((distance > 1 + int(8 * slack * scale)).sum())


def _spread(precise: torch.Tensor, shaken: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Return the range of each element over the answers; infinite if only some of the answers are NaN."""
    furthest = torch.zeros_like(precise)
    for other in shaken:
        difference, _ = compared(other, precise, precise)
        furthest = torch.maximum(furthest, difference.abs().nan_to_num(nan=math.inf, posinf=math.inf))
    return furthest
