"""Measurements that tests make up, and the calls that they are of."""

from __future__ import annotations

from typing import Any

import torch

import evt
from evt.diagnostics import Source
from evt.measured import Measurement, Timing, problem_key
from evt.plan import find_target
from evt.program import Program
from evt.request import packed_problem, problem_sizes
from evt.runtime.arguments import bind
from evt.runtime.kernels import call_problem

FORMULA = "D = relu(acc + bias) + C"
GPU = "NVIDIA H200"
SM90 = find_target("sm90")


def measurement(*timings: tuple[str, str, float], gpu: str = GPU) -> Measurement:
    times = timings or (("evt-3x", "pingpong_128x128x64_1x2", 0.25), ("evt-2x", "multistage_128x128x32", 0.2))
    return Measurement(gpu, "sm90", FORMULA, {"m": 3, "n": 4, "k": 5, "l": 1}, tuple(Timing(*each) for each in times))


def last(*shape: int) -> torch.Tensor:
    return evt.channels_last(torch.zeros(shape, dtype=torch.float16))


def half(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.float16)


CALLS = {
    "gemm": (Program(Source(FORMULA)), half(40, 24), half(24, 100), {"bias": half(100), "C": half(40, 100)}),
    "odd": (Program(Source(FORMULA)), half(40, 23), half(23, 99), {"bias": half(99), "C": half(40, 99)}),
    "batched": (
        Program(Source(FORMULA)),
        half(3, 40, 24),
        half(3, 24, 16),
        {"bias": half(16), "C": half(3, 40, 16)},
    ),
    "linear": (Program(Source(FORMULA), "linear"), half(40, 24), half(16, 24), {"bias": half(16), "C": half(40, 16)}),
    "language": (
        Program(Source("in s: f32[m?], keep: b1[m, n]\nout D, t: f32[n]\nD = where(keep, s*acc, 0)\nt = sum[m](acc)")),
        half(40, 24),
        half(24, 16),
        {"s": torch.zeros(40), "keep": torch.zeros(40, 2, dtype=torch.uint8)},
    ),
    "conv2d": (
        Program(Source(FORMULA), "conv2d", padding=1),
        last(2, 16, 9, 7),
        last(24, 16, 3, 3),
        {"bias": half(24), "C": last(2, 24, 9, 7)},
    ),
    "conv1d": (
        Program(Source("D = relu(acc)"), "conv1d", stride=2),
        last(2, 16, 9),
        last(24, 16, 3),
        {},
    ),
    "wgrad": (Program(Source("D = 2*acc"), "conv2d_wgrad", kernel_size=3), last(2, 24, 7, 5), last(2, 16, 9, 7), {}),
}


def key_of_call(program: Program, a: torch.Tensor, b: torch.Tensor, inputs: dict[str, Any]) -> str:
    bound = bind(program.request, a, b, inputs, {})
    return problem_key(call_problem(program.request, bound, SM90), bound.sizes)


def key_of(program: Program, a: torch.Tensor, b: torch.Tensor, arch: str = "sm90", dtype: str = "f16") -> str:
    shapes = (a.shape, b.shape)
    return problem_key(
        packed_problem(program.request, arch, dtype, dtype, shapes), problem_sizes(program.request, shapes)
    )
