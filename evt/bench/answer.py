"""What is right: random data with the oracle's answer to it, ``oracle(case, device) -> Answer``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from evt.bench.case import Case, Data, draw
from evt.bench.tensors import as_numbers
from evt.diagnostics import Diagnostic
from evt.errors import ArgumentError
from evt.ir import Cast
from evt.ir.dtype import BF16, E4M3, E5M2, F16, F32, F64, I32, TF32

#: The largest relative error that rounding explains, by the coarsest type a value is rounded to; where a type has
#: few values, of one in a hundred that come out as its neighbour. f32 operands are multiplied as tf32.
_LIMITS = {F64: 1e-9, BF16: 1e-2, F16: 2e-3, F32: 2e-3, TF32: 2e-3, I32: 2e-3}
#: Those that operands add: products of 8-bit floats are summed with fewer bits than f32 has, integers exactly.
_OF_OPERANDS = {E4M3: 1e-2, E5M2: 1e-2}
_COARSEST = 1e-1
#: PyTorch rounds every step to the tensors' type: it may be further off, and only nonsense is refused.
_SLACK = 10


@dataclass(frozen=True)
class Answer:
    """The oracle's outputs in float64, with the data they belong to and the error that rounding explains."""

    case: Case
    data: Data
    outputs: tuple[torch.Tensor, ...]
    limit: float

    def error(self, outputs: Sequence[torch.Tensor]) -> float:
        """The largest relative error of the outputs, infinite where one is not finite."""
        numbers = _numbers(self.case, outputs)
        return max(relative_error(output, right) for output, right in zip(numbers, self.outputs, strict=True))

    def refusal(self, error: float, *, stepwise: bool = False) -> str:
        """Why outputs with this error are wrong, or nothing. ``stepwise``: every step was rounded."""
        limit = self.limit * (_SLACK if stepwise else 1)
        return "" if error <= limit else f"wrong: relative error {error:.1e}, rounding explains {limit:.0e}"


def oracle(case: Case, device: torch.device | str, seed: int = 0) -> Answer:
    """Random data, and the answer to it; positive data where normal data has no finite answer.

    Raises ArgumentError (E0607) when that has none either: nothing could be compared.
    """
    for positive in (False, True):
        data = draw(case, device, seed, positive=positive)
        result = case.program.reference(data.A, data.B, float64=True, **data.inputs)
        outputs = _numbers(case, (result,) if isinstance(result, torch.Tensor) else result)
        if all(bool(output.isfinite().all()) for output in outputs):
            return Answer(case, data, outputs, _limit(case))
    raise ArgumentError(
        Diagnostic("E0607", "the program gives NaN or infinity on random data, which cannot be compared")
    )


def relative_error(output: torch.Tensor, right: torch.Tensor) -> float:
    """||output - right|| / ||right||; infinity when an element is not finite."""
    distance, norm = float((output.double() - right).norm()), float(right.norm())
    if not math.isfinite(distance):
        return math.inf
    return distance / norm if norm else math.inf if distance else 0.0


def _numbers(case: Case, outputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Outputs as numbers: bits unpacked."""
    return tuple(
        as_numbers(tensor, output.dtype, case.dims("n")[-1])
        for tensor, output in zip(outputs, case.dag.outputs, strict=True)
        if output.dtype is not None
    )


def _limit(case: Case) -> float:
    dag = case.dag
    casts = [op.dtype for op in (dag[node] for node in range(len(dag))) if isinstance(op, Cast)]
    outputs = [output.dtype for output in dag.outputs if output.dtype is not None]
    operands = [operand.dtype for operand in dag.operands]
    return max(
        *(_LIMITS.get(dtype, _COARSEST) for dtype in (*casts, *outputs)),
        *(_OF_OPERANDS.get(dtype, _LIMITS.get(dtype, 0.0)) for dtype in operands),
    )
