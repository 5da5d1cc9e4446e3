"""The expected results: random data with the oracle's results, ``oracle(case, device) -> Answer``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from evt.bench.case import Case, Data, draw
from evt.diagnostics import Diagnostic
from evt.errors import ArgumentError
from evt.ir import Cast
from evt.reference.compare import error, limit

#: The tolerance of PyTorch, which rounds every step to the tensors' type: it refuses nonsense only.
_SLACK = 10


@dataclass(frozen=True)
class Answer:
    """The oracle's outputs, floats in f64, with their data and the error that rounding explains."""

    case: Case
    data: Data
    outputs: tuple[torch.Tensor, ...]
    limit: float

    def error(self, outputs: Sequence[torch.Tensor]) -> float:
        """Return the largest error of the outputs, infinite if one is not finite."""
        types = [output.dtype for output in self.case.dag.outputs if output.dtype is not None]
        columns = self.case.dims("n")[-1]
        return max(error(*each, columns) for each in zip(outputs, self.outputs, types, strict=True))

    def refusal(self, error: float, *, stepwise: bool = False) -> str:
        """Return the reason that outputs with this error are wrong, or "". ``stepwise`` means that every step was
        rounded.
        """
        limit = self.limit * (_SLACK if stepwise else 1)
        return "" if error <= limit else f"wrong: relative error {error:.1e}, rounding explains {limit:.0e}"


def oracle(case: Case, device: torch.device | str, seed: int = 0) -> Answer:
    """Return the oracle's results for random data; for positive data if the results for normal data are not finite.

    Raise ArgumentError (E0607) if the results for positive data are not finite either.
    """
    for positive in (False, True):
        data = draw(case, device, seed, positive=positive)
        result = case.program.reference(data.A, data.B, float64=True, **data.inputs, **data.held(case.dag))
        outputs = (result,) if isinstance(result, torch.Tensor) else tuple(result)
        if all(bool(output.isfinite().all()) for output in outputs):
            return Answer(case, data, outputs, _limit(case))
    raise ArgumentError(
        Diagnostic("E0607", "the program gives NaN or infinity on random data, which cannot be compared")
    )


def _limit(case: Case) -> float:
    dag = case.dag
    casts = [op.dtype for op in (dag[node] for node in range(len(dag))) if isinstance(op, Cast)]
    outputs = [output.dtype for output in dag.outputs if output.dtype is not None]
    return limit((*casts, *outputs), [operand.dtype for operand in dag.operands])
