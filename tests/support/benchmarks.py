"""Cases for tests of the benchmark, a clock that makes its times up, and a result of such times."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import evt.bench.epilogue
import evt.bench.suites
from evt.bench import Case, CaseResult, VersionResult, convolution_case, summarise
from evt.bench.case import draw
from evt.diagnostics import Source
from evt.eager import straight_line
from evt.program import Program
from evt.reference.compare import relative_error
from evt.request import Shapes

CPU = torch.device("cpu")
FORMULAS = {
    "residual": "D = relu(alpha*acc + beta*C) + residual",
    "bias gelu": "D = gelu(acc + bias)",
    "gelu_tanh": "D = gelu_tanh(acc + bias)",
    "row and column scale": "in scale_a: f32[m], scale_b: f32[n]\nD = scale_a * (scale_b * acc)",
    "transposed output": "out D: f32[n, m]\nD = silu(acc) + C",
    "transposed input": "in T: f32[n, m]\nD = acc * T - 1",
    "casts": "z = bf16(acc + bias)\nD = z + C",
    "outputs": "out D, Z, E: f16[m, n]\nZ = acc + bias\nD = mish(Z)\nE = Z * 0.5",
    "output apart from acc": "out D, E, F: f32[n, m]\nD = acc\nE = bias * 2\nF = C",
    "constant output": "out D, E\nD = acc\nE = 0.5 + 0.25",
    "numbers in every place": "D = min(max(acc, -0.5), 0.5) + 1 / (2 + abs(C)) + pow(2, C) + max(0.1, acc)",
    "mixed limits": "D = clamp(acc, -1, abs(C))",
    "scalars alone": "D = acc * sqrt(alpha * 2) + relu(beta)",
    "parameters": "D = leaky_relu(acc, 0.2) + softplus(acc, beta=2) + hardtanh(C, -2, 2) + elu(acc)",
    "default": "in gain: f32 = 1.5\nD = fma(gain, acc, C) ** 2",
    "keywords of Python": "D = acc + lambda * class + torch",
    "header": "gemm(A: f32[k, m], B: f32[n, k])\nD = acc + bias",
}
#: Convolutions: (operation, shapes of A and B, geometry).
CONVOLUTIONS: dict[str, tuple[str, Shapes, dict[str, Any]]] = {
    "1x1": ("conv2d", ((2, 8, 5, 6), (16, 8, 1, 1)), {}),
    "3x3": ("conv2d", ((2, 8, 5, 6), (16, 8, 3, 3)), {"padding": 1}),
    "strided": ("conv2d", ((2, 8, 9, 7), (16, 8, 3, 2)), {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2)}),
    "uneven": ("conv2d", ((2, 8, 5, 6), (16, 8, 3, 3)), {"padding": ((0, 1), (2, 1))}),
    "same": ("conv2d", ((2, 8, 5, 6), (16, 8, 2, 4)), {"padding": "same"}),
    "groups": ("conv2d", ((2, 8, 5, 6), (16, 4, 3, 3)), {"groups": 2}),
    "rows": ("conv1d", ((3, 8, 11), (16, 8, 3)), {"padding": 1}),
    "volumes": ("conv3d", ((2, 8, 3, 4, 5), (16, 8, 1, 3, 3)), {"padding": (0, 1, 1)}),
    "dgrad": ("conv2d_dgrad", ((2, 8, 3, 4), (8, 16, 3, 3)), {"stride": 2, "padding": 1, "output_padding": (1, 0)}),
    "uneven dgrad": ("conv2d_dgrad", ((2, 8, 5, 6), (8, 16, 3, 3)), {"padding": ((0, 1), (2, 1))}),
    "same dgrad": ("conv1d_dgrad", ((2, 8, 5), (8, 16, 4)), {"padding": "same"}),
    "wgrad": ("conv2d_wgrad", ((2, 8, 5, 6), (2, 16, 5, 6)), {"padding": 1, "kernel_size": 3}),
    "uneven wgrad": ("conv2d_wgrad", ((2, 8, 6, 6), (2, 16, 7, 7)), {"padding": ((1, 0), (0, 1)), "kernel_size": 3}),
}


def make(text: str, *, dtype: str | None = "f32", l: int = 1, op: str = "gemm") -> Case:  # noqa: E741
    program = Program(Source(text), op)
    n = 32 if re.search(r"%16|, 8\)", text) else 20
    return Case("case", program, 12, n, 28, l, None if program.request.dag.operands else dtype)


def both(case: Case) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the results of the straight-line function and the reference, output by output."""
    data = draw(case, CPU, seed=3)
    function = straight_line(case.dag, case.scalars, batched=case.batched, problem=case.problem)
    results = function(data.A, data.B, *data.tensors.values())
    right = case.program.reference(data.A, data.B, **data.inputs)
    one = isinstance(right, torch.Tensor)
    return list(zip((results,) if one else results, (right,) if one else right, strict=True))


def check(case: Case, limit: float) -> None:
    for output, right in both(case):
        assert output.shape == right.shape
        assert output.dtype == right.dtype
        assert case.shapes is not None or output.is_contiguous()
        assert relative_error(output, right.double()) <= limit


def make_convolution(
    text: str, op: str, shapes: Shapes, geometry: dict[str, Any] | None = None, dtype: str | None = "f32"
) -> Case:
    return convolution_case("case", Program(Source(text), op, **(geometry or {})), shapes, dtype=dtype)


def result(**times: float) -> CaseResult:
    case = Case("case", Program(Source("D = acc")), 1000, 1000, 1000, dtype="bf16", bar=0.7)
    rows = [VersionResult(name.replace("_", " "), summarise([time])) for name, time in times.items()]
    rows.append(VersionResult("max-autotune", failure="no triton"))
    return CaseResult(case, tuple(rows), {"A": 2_000_000, "B": 2_000_000, "D": 2_000_000})


def clock(calls: Sequence[Callable[[], object]]) -> list[float | None]:
    for call in calls:
        call()
    return [1.0 + position for position in range(len(calls))]


def shrink_epilogues(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the suite of epilogues one of small products."""
    monkeypatch.setattr(evt.bench.epilogue, "_COPIED_BYTES", 1000)
    monkeypatch.setattr(evt.bench.suites, "_COST_SHAPES", ((24, 32, 40), (48, 16, 8)))
