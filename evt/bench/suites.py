"""Cases by name: ``suite("gemm") -> cases``."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from evt.bench.case import Case, convolution_case
from evt.bench.layers import NETWORKS, Network
from evt.diagnostics import Source
from evt.program import Program
from evt.workload import Workload

#: The formula and the shapes of the performance targets.
FORMULA = "D = relu(alpha*acc + beta*C) + residual"
_SHAPES = ((6304, 3072, 768, 0.70), (16384, 1024, 1024, 0.70), (4096, 14336, 4096, 1.0))
_EPILOGUES = {
    "bias": "D = acc + bias",
    "bias+gelu": "D = gelu(acc + bias)",
    "two residuals": "D = acc + bias + residual_1 + residual_2",
    "row+column scale": "in scale_a: f32[m], scale_b: f32[n]\nD = scale_a * (scale_b * acc)",
    "aux store": "out D, Z\nZ = acc + bias\nD = gelu(Z)",
}

#: Epilogues whose costs are measured, the bare store first.
_COSTS = {
    "bare store": "D = acc",
    "bias": "D = acc + bias",
    "bias+gelu": "D = gelu(acc + bias)",
    "two residuals": "D = acc + residual_1 + residual_2",
    "row+column scale": "in scale_a: f32[m], scale_b: f32[n]\nD = scale_a * (scale_b * acc)",
    "aux store": "out D, Z\nZ = acc\nD = relu(acc)",
    "amax": "out D, amax: f32\nD = acc\namax = max[m, n](abs(acc))",
    "row sum": "out D, total: f32[m]\nD = acc\ntotal = sum[n](acc)",
    "column sum": "out D, total: f32[n]\nD = acc\ntotal = sum[m](acc)",
    "bit mask": "out D, mask: b1[m, n]\nD = relu(acc)\nmask = acc > 0",
    "dropout": "D = dropout(acc, 0.1, seed, offset)",
}
_COST_SHAPES = ((4096, 4096, 4096), (16384, 1024, 1024))

#: The epilogues of the networks' convolutions.
_OF_LAYERS = ("relu(acc + bias + residual)", "relu(acc + bias) + residual", "relu(acc + bias)")

#: Projections of Llama 3 8B, and of 70B on eight GPUs: n, k, and the epilogue that follows.
_PROJECTIONS = {
    "8B qkv": (6144, 4096, ""),
    "8B out": (4096, 4096, "residual"),
    "8B gate up": (28672, 4096, "swiglu"),
    "8B down": (4096, 14336, "residual"),
    "70B/8 qkv": (1280, 8192, ""),
    "70B/8 out": (8192, 1024, "residual"),
    "70B/8 gate up": (7168, 8192, "swiglu"),
    "70B/8 down": (8192, 3584, "residual"),
}
_TOKENS = (1, 16, 64, 256, 1024, 4096, 8192)
_OF_PROJECTIONS = {
    "residual": "D = acc + residual",
    "swiglu": "out D[m, n/2]\nD = silu(even(acc))*odd(acc)",
}
_SCALED = "in scale_a: f32[m], scale_b: f32[n]\nout D: bf16\nD = scale_a*(scale_b*acc)"
#: Suites of a model's projections.
OF_PROJECTIONS = ("llm", "fp8")

SUITES = ("gemm", "epilogue", *OF_PROJECTIONS, *NETWORKS)


def suite(name: str, dtype: str | None = None, images: int | None = None) -> tuple[Case, ...]:
    """Return the cases of a suite; the cases of ``epilogue`` by size, the bare store first.

    ``dtype`` is bf16 by default, e4m3 for ``fp8``, and f16 for a network's convolutions. ``images`` replaces the usual
    batch size of convolutions. Raise KeyError for a name that is not in :data:`SUITES`.
    """
    if name not in SUITES:
        raise KeyError(name)
    if name in NETWORKS:
        return tuple(_convolutions(NETWORKS[name], dtype or "f16", images))
    if name in OF_PROJECTIONS:
        return tuple(_projections(name == "fp8", dtype or ("e4m3" if name == "fp8" else "bf16")))
    dtype = dtype or "bf16"
    if name == "epilogue":
        programs = {title: Program(Source(text)) for title, text in _COSTS.items()}
        return tuple(
            Case(title, program, m, n, k, dtype=dtype)
            for m, n, k in _COST_SHAPES
            for title, program in programs.items()
        )
    main = Program(Source(FORMULA))
    cases = [Case("relu+residual", main, m, n, k, dtype=dtype, bar=bar) for m, n, k, bar in _SHAPES]
    for title, text in _EPILOGUES.items():
        program = Program(Source(text))
        cases += [Case(title, program, m, n, k, dtype=dtype) for m, n, k, _ in _SHAPES[:2]]
    return tuple(cases)


def workload_cases(workload: Workload) -> tuple[Case, ...]:
    """Return the cases of a workload, with their weights."""
    found = []
    for entry in workload.entries:
        if entry.program.request.convolution is not None:
            made = convolution_case(entry.title, entry.program, entry.shapes, dtype=entry.dtype)
        else:
            m, n, k, l = (entry.sizes.get(mode, 1) for mode in "mnkl")  # noqa: E741
            made = Case(entry.title, entry.program, m, n, k, l, entry.dtype)
        found.append(replace(made, weight=entry.weight))
    return tuple(found)


def _projections(scaled: bool, dtype: str) -> Iterator[Case]:
    """Yield a model's projections of few and of many tokens, with row and column scales or with their epilogues."""
    programs = {title: Program(Source(text), "linear") for title, text in _OF_PROJECTIONS.items()}
    of_scales = Program(Source(_SCALED), "linear")
    for title, (n, k, epilogue) in _PROJECTIONS.items():
        if not scaled and not epilogue:
            continue
        program = of_scales if scaled else programs[epilogue]
        for tokens in _TOKENS:
            yield Case(f"{title}, {tokens} tokens", program, tokens, n, k, dtype=dtype)


def _convolutions(network: Network, dtype: str, images: int | None) -> Iterator[Case]:
    """Yield a network's layers with each epilogue; cases of one text and geometry share a program."""

    @functools.cache
    def program(text: str, stride: int, padding: int, groups: int) -> Program:
        return Program(Source(f"D = {text}"), "conv2d", stride=stride, padding=padding, groups=groups)

    for layer, text in product(network.layers, _OF_LAYERS):
        shapes = (
            (images or network.images, layer.channels, layer.side, layer.side),
            (layer.filters, layer.channels // layer.groups, layer.taps, layer.taps),
        )
        geometry = (layer.stride, layer.padding, layer.groups)
        yield convolution_case(f"{layer} {text}", program(text, *geometry), shapes, dtype=dtype)
