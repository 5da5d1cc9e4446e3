"""Reductions over the pixels of each image, and over groups of channels, by the halo kernel on a GPU, against float64.

A case has one kernel, of its first shape; the other shapes run by this kernel too. Small images share no tile.
"""

from __future__ import annotations

import pytest
import torch

import evt
from evt.compilation import KernelSource
from tests.gpu import own_kernels
from tests.gpu.builds import build_selected
from tests.gpu.own_kernels import Case, Shape, check, parameters
from tests.support.convolutions import last

pytestmark = pytest.mark.gpu

PAD = {"padding": 1}
LAYERS: tuple[Shape, ...] = (
    ((2, 64, 56, 56), (64, 3, 3), PAD),
    ((5, 128, 7, 7), (80, 3, 3), PAD),
    ((3, 64, 9, 11), (40, 3, 3), PAD),
    ((4, 64, 33, 47), (120, 3, 3), {"padding": 1, "stride": 2}),
    ((1, 64, 130, 131), (40, 3, 3), PAD),
    ((9, 64, 4, 4), (40, 3, 3), PAD),
)
MOMENTS = """
out D, mean: f32[m/p, n/{0}], rstd: f32[m/p, n/{0}]
D = {1}(acc + bias + 3)
mean = mean[m%p, n%{0}](D)
rstd = rsqrt(var[m%p, n%{0}](D) + 1e-5)
"""
CASES = {
    "groups of 4": Case(MOMENTS.format(4, "f16"), LAYERS),
    "groups of 10": Case(
        MOMENTS.format(10, "bf16"), tuple((a, (c[0] // 40 * 40 or 40, *c[1:]), g) for a, c, g in LAYERS), "bf16"
    ),
    "groups of 5, one vector": Case(
        "in residual: f16[m, n]; out D, s: f32[m/p, n/5], low: f32[n/5]; z = acc + residual; D = relu(z); "
        "s = sum[m%p, n%5](z); low = min[m, n%5](z)",
        tuple((a, (c[0] // 40 * 40 or 40, *c[1:]), g) for a, c, g in LAYERS),
    ),
    "images": Case(
        "out D, s: f32[m/p, n], whole: f32[m/p]; D = acc; s = sum[m%p](acc*acc); whole = mean[m%p, n](abs(acc))", LAYERS
    ),
    "volumes": Case(
        "out D, mean: f32[m/p, n/8], v: f32[m/p, n/8]; D = acc; mean = mean[m%p, n%8](acc); v = var[m%p, n%8](acc)",
        (((2, 64, 5, 18, 19), (64, 3, 3, 3), PAD), ((3, 64, 4, 7, 7), (72, 3, 3, 3), PAD)),
        operation="conv3d",
    ),
    "gradient": Case(
        "out D, s: f32[m/p, n/16]; D = acc; s = sum[m%p, n%16](acc)",
        (((2, 64, 28, 28), (64, 3, 3), PAD), ((5, 128, 7, 9), (64, 3, 3), PAD)),
        operation="conv2d_dgrad",
    ),
    "a few channels": Case(
        "out D, s: f32[m/p, n/16]; D = acc; s = sum[m%p, n%16](acc)",
        (((3, 3, 40, 41), (64, 3, 3), PAD), ((4, 3, 9, 9), (64, 3, 3), PAD)),
        keywords={"route": "conv-halo-padded-3x"},
    ),
    "few filters": Case(
        "out D, s: f32[m/p, n], whole: f32[m/p]; D = acc; s = sum[m%p](acc*acc); whole = mean[m%p, n](abs(acc))",
        (((2, 64, 56, 56), (3, 3, 3), PAD), ((5, 128, 7, 7), (1, 3, 3), PAD), ((1, 64, 130, 131), (5, 3, 3), PAD)),
        keywords={"route": "conv-halo-taps-3x"},
    ),
    "many channels": Case(
        MOMENTS.format(16, "f16"), (((2, 512, 14, 14), (128, 3, 3), PAD), ((3, 640, 5, 5), (64, 3, 3), PAD))
    ),
}


def sources_of(name: str, number: int) -> list[KernelSource]:
    return own_kernels.sources_of(CASES[name], number)


@pytest.fixture(scope="session")
def refused(request):
    """Which kernels of the selected tests nvcc refuses, all built in one go."""
    return build_selected(request, test_reductions_of_images, sources_of)


@pytest.mark.parametrize(("name", "number"), list(parameters(CASES)))
def test_reductions_of_images(name, number, record, refused) -> None:
    case = CASES[name]
    for source in sources_of(name, number):
        assert source not in refused, refused[source]
    errors, shape = check(case, number), case.shapes[number]
    record((name, "3x", case.dtype, f"{shape[0]} {shape[1]}", " ".join(f"{each:.2f}" for each in errors)))


def test_large_means() -> None:
    """Moments of images are right where the mean is a thousand standard deviations."""
    op = evt.conv2d(
        "in shift: f32[n]; out D, mu: f32[m/p, n/8], v: f32[m/p, n/8]; x = acc + shift; D = acc; "
        "mu = mean[m%p, n%8](x); v = var[m%p, n%8](x)",
        padding=1,
    )
    generator = torch.Generator("cuda").manual_seed(0)
    x = last(torch.randn(3, 64, 40, 43, device="cuda", generator=generator).half())
    w = last(torch.randn(64, 64, 3, 3, device="cuda", generator=generator).half() / 24)
    shift = torch.full((64,), 1000.0, device="cuda")
    found = op(x, w, shift=shift)
    exact = torch.nn.functional.conv2d(x.double(), w.double(), padding=1) + 1000
    groups = exact.view(3, 8, 8, 40, 43)
    torch.testing.assert_close(found.mu.double(), groups.mean((2, 3, 4)), rtol=1e-6, atol=0)
    torch.testing.assert_close(found.v.double(), groups.var((2, 3, 4), correction=0), rtol=1e-3, atol=0)
