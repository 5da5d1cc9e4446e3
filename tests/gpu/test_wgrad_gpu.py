"""The kernels of filter gradients on a GPU: taps, strides, tiles, epilogues, poisoned outputs, against float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import evt
from evt.compilation import KernelSource
from evt.ir.convolution import Convolution
from evt.request import typed_graph
from evt.runtime.arguments import bind
from evt.runtime.kernels import device_target, plan_kernels
from evt.runtime.plans import kernel_sources
from tests.gpu.builds import build_selected
from tests.gpu.own_kernels import check_call, random
from tests.support.convolutions import STREAMED, last

pytestmark = pytest.mark.gpu

#: (images, channels, filters, height and width of the input): whole blocks of 64 and not, few and many pixels.
SIZES = (
    (8, 64, 64, 56, 56),
    (3, 72, 136, 14, 14),
    (33, 128, 64, 7, 7),
    (2, 200, 264, 28, 17),
    (1, 8, 16, 9, 5),
    (2, 64, 72, 40, 120),
    (5, 264, 72, 13, 11),
    (1, 512, 512, 7, 7),
)
PLAIN, SCALED = "D = acc", "D = alpha*acc + beta*C"
#: Wide rows, whose tiles are parts of a row.
WIDE = ((2, 64, 64, 30, 224), (1, 40, 24, 12, 510))
MANY = (
    "out D, E: f32[m, n], s: f32[m], c: f32[n], a: f32; E = acc; D = relu(acc + C) + b[m]*v[n]\n"
    "s = sum[n](D*D); c = sum[m](D); a = max[m, n](abs(D))"
)
#: The text, the type, the geometry, and the sizes.
CASES: dict[str, tuple[str, str, dict[str, Any], tuple[tuple[int, ...], ...]]] = {
    "3x3": (PLAIN, "f16", {"kernel_size": 3, "padding": 1}, SIZES),
    "3x3-scaled": (SCALED, "bf16", {"kernel_size": 3, "padding": 1}, SIZES[:4]),
    "3x3-many": (MANY, "f16", {"kernel_size": 3, "padding": 1}, SIZES[:5]),
    "3x3-f32": ("out D: f32; D = acc", "bf16", {"kernel_size": 3, "padding": 1}, SIZES[:4]),
    "3x3-wide": (SCALED, "f16", {"kernel_size": 3, "padding": 1}, WIDE),
    "3x3-valid": (PLAIN, "bf16", {"kernel_size": 3}, SIZES[1:7]),
    "3x3-strided": (SCALED, "f16", {"kernel_size": 3, "padding": 1, "stride": 2}, SIZES),
    "3x3-dilated": (PLAIN, "f16", {"kernel_size": 3, "padding": 2, "dilation": 2}, SIZES[:6]),
    "5x4": (PLAIN, "f16", {"kernel_size": (5, 4), "padding": (2, 1)}, SIZES[:5]),
    "3x1": (PLAIN, "f16", {"kernel_size": (3, 1), "padding": (1, 0)}, SIZES[:5]),
    "1x3-strides": (PLAIN, "bf16", {"kernel_size": (1, 3), "padding": (0, 1), "stride": (1, 3)}, SIZES[:5]),
    "7x7-strided": (PLAIN, "f16", {"kernel_size": 7, "padding": 3, "stride": 2}, SIZES[:5]),
    "1x1": (SCALED, "f16", {"kernel_size": 1}, SIZES),
    "1x1-strided": (SCALED, "bf16", {"kernel_size": 1, "stride": 2}, SIZES),
    "1x1-padded": (PLAIN, "f16", {"kernel_size": 1, "padding": 1}, SIZES[1:5]),
    **{
        f"1x1-{tile}": (MANY, "bf16", {"kernel_size": 1, "config": f"wgrad_{tile}"}, SIZES[:7])
        for tile in ("128x128", "128x256", "256x128", "128x192", "128x384", "64x256", "256x64", "64x128", "64x64")
    },
    # Tiles whose blocks of channels are of several taps, and clusters that share all tiles.
    **{
        f"3x3-{tile}": (SCALED, "f16", {"kernel_size": 3, "padding": 1, "config": f"wgrad_{tile}"}, SIZES[:7])
        for tile in ("128x128", "128x192", "64x64")
    },
    "3x3-strided-128x384": (
        *(MANY, "bf16"),
        {"kernel_size": 3, "padding": 1, "stride": 2, "config": "wgrad_128x384"},
        (*SIZES[:3], *SIZES[5:]),
    ),
    "2x3-dilated-256x128": (
        *(PLAIN, "bf16"),
        {"kernel_size": (2, 3), "padding": 1, "dilation": 2, "config": "wgrad_256x128"},
        SIZES[1:7],
    ),
    **{
        f"{taps}x{taps}-{config}-streamed": (
            *(SCALED if config == "wgrad_128x128" else MANY, "bf16"),
            {"kernel_size": taps, "padding": taps // 2, "config": config},
            sizes,
        )
        for (taps, config), sizes in STREAMED.items()
    },
}


def call(name: str, number: int) -> tuple[evt.Program, torch.Tensor, torch.Tensor, dict[str, Any]]:
    """Return a program, A, B and the inputs."""
    text, dtype, given, sizes = CASES[name]
    images, channels, filters, *pixels = sizes[number]
    op = evt.conv2d_wgrad(text, route="conv-wgrad-3x", **given)
    geometry = {key: value for key, value in given.items() if key not in ("config", "kernel_size")}
    taps = given["kernel_size"]
    weight = (filters, channels, *((taps, taps) if isinstance(taps, int) else taps))
    results = Convolution.of("conv2d", geometry).problem((images, channels, *pixels), weight).results
    generator = torch.Generator("cuda").manual_seed(number)
    x = last(random((images, channels, *pixels), dtype, generator))
    dy = last(random((images, filters, *results), dtype, generator, (images * math.prod(results)) ** -0.5))
    inputs: dict[str, Any] = {}
    for value in typed_graph(op.request, dtype, dtype).inputs:
        if not value.modes:
            inputs[value.name] = 1.25
        elif value.is_tile:
            inputs[value.name] = last(random(weight, str(value.dtype), generator))
        else:
            extent = filters if value.modes == ("m",) else math.prod(weight[1:])
            inputs[value.name] = random((extent,), str(value.dtype), generator)
    return op, dy, x, inputs


def sources_of(name: str, number: int) -> list[KernelSource]:
    op, a, b, inputs = call(name, number)
    return kernel_sources(plan_kernels(op.request, bind(op.request, a, b, inputs, {}), device_target(0), False))


@pytest.fixture(scope="session")
def refused(request):
    """Which kernels of the selected tests nvcc refuses, all built in one go."""
    return build_selected(request, test_filter_gradients, sources_of)


@pytest.mark.parametrize(
    ("name", "number"),
    [pytest.param(name, i, id=f"{name}-{i}") for name, case in CASES.items() for i in range(len(case[3]))],
)
def test_filter_gradients(name, number, record, refused) -> None:
    for source in sources_of(name, number):
        assert source not in refused, refused[source]
    op, a, b, inputs = call(name, number)
    errors = check_call(op, a, b, inputs)
    record((f"{name}-{number}", "own", CASES[name][1], str(tuple(b.shape)), " ".join(f"{each:.2f}" for each in errors)))


#: The first image, channel, row and column of a view, and the sizes beyond it: channels, rows, columns, images.
VIEWS = {
    "channels": ((0, 64, 0, 0), (0, 72, 0, 0)),
    "rows": ((0, 8, 2, 0), (0, 8, 3, 0)),
    "columns": ((0, 0, 0, 3), (0, 0, 0, 5)),
    "images": ((1, 0, 0, 0), (2, 0, 1, 0)),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", ["3x3", "3x3-128x128", "1x1", "1x1-64x128", "1x1-strided"])
def test_given_pitches(name: str, view: str) -> None:
    """Parts of larger tensors are read in place: their pixels may be a dimension of TMA's descriptor, or not."""
    op, a, b, inputs = call(name, 1)
    want = op(a, b, **inputs)
    firsts, more = VIEWS[view]
    views = []
    for given in (a, b):
        sizes = [size + extra for size, extra in zip(given.shape, more, strict=True)]
        wide = last(torch.full(sizes, float("nan"), device="cuda", dtype=given.dtype))
        views.append(wide[tuple(slice(first, first + size) for first, size in zip(firsts, given.shape, strict=True))])
        views[-1].copy_(given)
    for operands in (views, (a, views[1]), (views[0], b)):
        found = op(*operands, **inputs)
        pairs = zip(found, want, strict=True) if isinstance(want, tuple) else [(found, want)]
        assert all(torch.equal(one, other) for one, other in pairs)
