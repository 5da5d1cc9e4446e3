"""The halo kernel on a GPU: epilogues, types, gradients, many shapes, poisoned outputs, against float64.

A case has one kernel, with the width and planes of its first shape; the other shapes run by this kernel too.
"""

from __future__ import annotations

import pytest
import torch

import evt
from evt.compilation import KernelSource
from evt.ir.dtype import F16
from evt.plan.speed import fastest
from evt.reference.compare import distance
from evt.runtime.arguments import bind
from evt.runtime.kernels import device_target, plan_kernels
from tests.gpu import own_kernels
from tests.gpu.builds import build_selected
from tests.gpu.own_kernels import Case, Shape, check, parameters, poisoned, random, tensors
from tests.support.convolutions import last

pytestmark = pytest.mark.gpu

PAD = {"padding": 1}
LAYERS: tuple[Shape, ...] = (
    ((2, 64, 56, 56), (64, 3, 3), PAD),
    ((1, 64, 14, 14), (64, 3, 3), PAD),
    ((5, 128, 7, 7), (128, 3, 3), PAD),
    ((3, 192, 9, 11), (72, 3, 3), PAD),
    ((1, 256, 13, 130), (192, 3, 3), PAD),
)
ODD: tuple[Shape, ...] = (
    ((3, 64, 17, 5), (8, 3, 3), PAD),
    ((2, 64, 23, 67), (40, 3, 3), {}),
    ((2, 64, 31, 33), (104, 3, 3), {"padding": ((0, 1), (2, 0))}),
    ((2, 64, 9, 9), (64, 3, 3), {"padding": 4}),
    ((2, 64, 12, 10), (64, 2, 2), {"padding": "same"}),
    ((2, 64, 9, 19), (64, 1, 3), {"padding": (0, 1)}),
    ((2, 64, 19, 9), (64, 3, 1), {"padding": (1, 0)}),
)
LARGE: tuple[Shape, ...] = (
    ((2, 64, 28, 28), (64, 5, 5), {"padding": 2}),
    ((1, 64, 21, 35), (64, 7, 7), {"padding": 3}),
    ((2, 64, 19, 25), (64, 3, 3), {"padding": 2, "dilation": 2}),
    ((2, 64, 27, 16), (64, 3, 3), {"padding": (3, 5), "dilation": (3, 5)}),
    ((4, 64, 15, 13), (136, 1, 1), {}),
    ((2, 64, 15, 13), (64, 1, 1), {"padding": 1}),
)
STRIDES: tuple[Shape, ...] = (
    ((2, 128, 56, 56), (128, 3, 3), {"padding": 1, "stride": 2}),
    ((2, 64, 33, 35), (64, 3, 3), {"padding": 1, "stride": 3}),
    ((2, 64, 33, 35), (64, 5, 5), {"padding": 2, "stride": (2, 3)}),
    ((2, 64, 37, 41), (64, 7, 7), {"padding": 3, "stride": 2}),
    ((2, 128, 15, 13), (64, 1, 1), {"stride": 2}),
    ((2, 64, 21, 19), (64, 3, 3), {"padding": 2, "stride": 2, "dilation": 2}),
    ((2, 64, 21, 19), (64, 3, 3), {"padding": 3, "stride": 2, "dilation": 3}),
)

#: Halos that are wider than the images, and taps with a box for each.
FAR: tuple[Shape, ...] = (
    ((3, 64, 14, 14), (64, 1, 7), {"padding": (0, 36), "dilation": (1, 12)}),
    ((2, 128, 14, 14), (64, 1, 7), {"padding": (0, 108), "dilation": (1, 36)}),
    ((2, 256, 7, 7), (64, 1, 7), {"padding": (0, 48), "dilation": (1, 16)}),
    ((2, 192, 40, 77), (64, 1, 5), {"padding": (0, 2), "stride": 8}),
    ((2, 128, 41, 40), (64, 3, 5), {"padding": (2, 8), "stride": (1, 5), "dilation": (2, 3)}),
)


def channels(count: int, *, also: tuple[int, ...] = ()) -> tuple[Shape, ...]:
    """Return shapes of the given channels; the first one chooses the planes, and the others fit them."""
    sizes = ((2, 28, 28), (3, 11, 17), *((1, 14, 9) for _ in also))
    counts = (count, count, *also)
    return tuple(((n, c, h, w), (64, 3, 3), PAD) for (n, h, w), c in zip(sizes, counts, strict=True))


VOLUMES: tuple[Shape, ...] = (
    ((2, 64, 6, 28, 28), (64, 3, 3, 3), PAD),
    ((1, 128, 5, 9, 33), (40, 3, 3, 3), PAD),
    ((3, 64, 4, 7, 7), (72, 2, 3, 1), {"padding": ((1, 0), (1, 1), (0, 0))}),
    ((2, 72, 9, 14, 11), (64, 3, 1, 1), {"padding": (2, 0, 0), "dilation": (2, 1, 1)}),
    ((2, 64, 3, 14, 11), (64, 1, 3, 5), {"padding": (0, 1, 2)}),
)
STRIDED_VOLUMES: tuple[Shape, ...] = (
    ((2, 64, 9, 28, 28), (64, 3, 3, 3), {"padding": 1, "stride": 2}),
    ((2, 64, 8, 15, 13), (64, 3, 3, 3), {"padding": 1, "stride": (2, 1, 1)}),
)
#: Filters that are columns along the depth.
COLUMNS: tuple[Shape, ...] = (
    ((3, 64, 16, 15, 13), (64, 3, 1, 1), {"padding": (1, 0, 0)}),
    ((2, 144, 9, 28, 28), (72, 3, 1, 1), {"padding": ((2, 0), (0, 0), (0, 0))}),
    ((1, 256, 21, 7, 3), (136, 5, 1, 1), {"padding": (4, 0, 0), "dilation": (2, 1, 1)}),
    ((2, 64, 17, 9, 8), (40, 4, 1, 1), {"padding": ((1, 2), (0, 0), (0, 0)), "stride": (2, 1, 1)}),
    ((2, 64, 16, 9, 8), (64, 3, 1, 1), {"padding": (1, 0, 0)}),
)
CAUSAL = {"padding": ((2, 0), (1, 1), (1, 1))}
#: A slice of several volumes, slices that no tap reaches, and taps before the first slice.
SMALL_VOLUMES: tuple[Shape, ...] = (
    ((5, 64, 3, 7, 7), (64, 3, 3, 3), PAD),
    ((9, 128, 2, 7, 7), (136, 3, 3, 3), PAD),
    ((3, 64, 1, 5, 6), (72, 3, 3, 3), PAD),
    ((2, 64, 4, 9, 9), (64, 2, 3, 3), {"padding": ((5, 5), (1, 1), (1, 1))}),
    ((1, 64, 3, 30, 52), (64, 3, 3, 3), CAUSAL),
    ((40, 64, 4, 7, 7), (64, 3, 3, 3), {"padding": (2, 1, 1), "dilation": (2, 1, 1)}),
)
SHARED_VOLUMES: tuple[Shape, ...] = (
    ((1, 512, 2, 7, 7), (512, 3, 3, 3), PAD),
    ((5, 320, 3, 6, 6), (40, 3, 3, 3), PAD),
    ((1, 384, 1, 9, 9), (64, 3, 3, 3), CAUSAL),
    ((2, 64, 4, 7, 7), (64, 5, 1, 1), {"padding": (2, 0, 0)}),
)
#: Filters that stay in shared memory, and consumers that cooperate.
RESIDENT_VOLUMES: tuple[Shape, ...] = (
    ((9, 64, 9, 28, 28), (64, 3, 1, 1), {"padding": (1, 0, 0)}),
    ((1, 64, 5, 33, 20), (72, 3, 1, 1), {"padding": ((2, 0), (0, 0), (0, 0))}),
    ((4, 64, 9, 28, 28), (64, 4, 1, 1), {"padding": (1, 0, 0), "stride": (2, 1, 1)}),
)
PAIRED_VOLUMES: tuple[Shape, ...] = (
    ((16, 256, 6, 28, 28), (256, 3, 1, 1), {"padding": ((2, 0), (0, 0), (0, 0))}),
    ((8, 256, 6, 28, 28), (256, 3, 1, 1), {"padding": (1, 0, 0)}),
    ((16, 320, 7, 28, 28), (256, 3, 1, 1), {"padding": (1, 0, 0), "stride": (2, 1, 1)}),
)
#: Gradients of convolutions with a stride, whose classes of pixels have other taps each, or none.
STRIDED_GRADIENTS: tuple[Shape, ...] = (
    ((2, 128, 28, 28), (64, 3, 3), {"padding": 1, "stride": 2, "output_padding": 1}),
    ((3, 64, 17, 5), (72, 3, 3), {"padding": 1, "stride": 2}),
    ((40, 256, 14, 14), (128, 1, 1), {"stride": 2, "output_padding": 1}),
    ((9, 64, 13, 9), (40, 5, 4), {"padding": (2, 1), "stride": (2, 1)}),
    ((2, 64, 9, 13), (64, 2, 2), {"stride": 2}),
    ((5, 256, 7, 7), (136, 3, 3), {"padding": 1, "stride": 2, "output_padding": (1, 0)}),
    ((2, 64, 9, 23), (64, 4, 5), {"padding": ((1, 2), (0, 1)), "stride": (1, 4), "dilation": (3, 1)}),
    ((2, 64, 11, 8), (64, 3, 3), {"padding": 2, "stride": 2, "dilation": 3}),
    ((64, 64, 28, 28), (192, 3, 3), {"padding": 1, "stride": 2, "output_padding": 1}),
    ((7, 72, 33, 29), (40, 1, 1), {"stride": 2}),
    ((30, 136, 31, 22), (64, 2, 1), {"stride": (4, 1), "output_padding": (1, 0)}),
)

#: Few tiles of many channels, which several thread blocks share.
SHARED: tuple[Shape, ...] = (
    ((1, 512, 7, 7), (72, 3, 3), PAD),
    ((2, 320, 9, 11), (40, 3, 3), PAD),
    ((1, 1024, 14, 5), (136, 1, 1), {}),
    ((1, 448, 15, 13), (64, 2, 3), {"padding": (1, 1)}),
    ((1, 128, 21, 15), (64, 7, 7), {"padding": 3}),
)

#: Gradients whose consumers multiply the same pixels: tiles have rows of eight pixels, and filters more than one block.
TOGETHER = (
    ((128, 256, 7, 7), (248, 3, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
    ((63, 264, 16, 16), (256, 3, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
    ((65, 256, 15, 8), (200, 3, 3), {"stride": 2, "padding": 1}),
    ((513, 256, 4, 7), (120, 3, 3), {"stride": 2, "padding": 1}),
)
RESIDUAL = "D = relu(acc + bias + residual)"
#: Whose padding is within the reach of the filters, as that of a gradient has to be.
#: Numbers of filters that threads store: few and many, odd and even, of several images in a tile and of rows.
UNALIGNED: tuple[Shape, ...] = (
    ((2, 64, 56, 56), (51, 3, 3), PAD),
    ((9, 64, 7, 7), (50, 3, 3), PAD),
    ((1, 64, 13, 300), (33, 3, 3), PAD),
    ((2, 64, 57, 60), (3, 1, 1), {}),
    ((3, 136, 17, 5), (130, 3, 3), {"padding": ((0, 1), (2, 0))}),
    ((1, 64, 31, 33), (2, 3, 3), {"padding": 1, "stride": 2}),
    ((5, 64, 28, 28), (20, 5, 5), {"padding": 2}),
)
GRADIENTS = (*LAYERS, *ODD[:3], *ODD[4:], *LARGE[:5])
CASES = {
    "residual": Case(RESIDUAL, (*LAYERS, *ODD)),
    "residual-bf16": Case(RESIDUAL, (*LAYERS[:3], *LARGE), "bf16"),
    "strides": Case("D = silu(acc + bias)", STRIDES),
    "unaligned": Case(RESIDUAL, UNALIGNED),
    "unaligned-bf16": Case("out D, s: f32[n]; D = acc + bias; s = sum[m](D)", UNALIGNED, "bf16"),
    "unaligned-volumes": Case(
        "D = relu(acc + bias)",
        (
            ((2, 64, 6, 28, 28), (3, 3, 3, 3), PAD),
            ((1, 128, 5, 9, 33), (35, 3, 3, 3), PAD),
            ((2, 72, 9, 14, 11), (50, 3, 1, 1), {"padding": (1, 0, 0)}),
        ),
        operation="conv3d",
    ),
    "far": Case(RESIDUAL, FAR),
    "far-bf16": Case("out D: f32[m, n]; D = acc + bias", FAR[::-1], "bf16"),
    "f32-output": Case("out D: f32[m, n]; D = acc + C", (*LAYERS[:4], *ODD[:3], STRIDES[2]), "bf16"),
    "broadcasts": Case(
        "in s: f32[m], t: bf16[n], p: f16, q: i32; D = acc*s + t*alpha + p*q + beta*C", (*LAYERS[:4], *ODD[:4])
    ),
    "flexible": Case("in s: f32[m?], t: f16[n?] = 0.5; out D: f16; D = acc*s + t", (*LAYERS[:2], ODD[0])),
    "two-outputs": Case(
        "in gate: f32[m, n]; out D, E, F: e4m3[m, n]; E = acc + bias; D = hardswish(E) + C*gate; F = 4*E",
        (*LAYERS[:3], *ODD[:3], LARGE[1], STRIDES[0]),
    ),
    "places": Case(
        "out D: f32[m, n], E: i32[m, n]; D = where(iota(n) <= iota(m) - 32, acc, size(k)); E = 20*acc",
        (*LAYERS[:3], *ODD[:2]),
    ),
    "reductions": Case(
        "out D, a: f32[n], b: f32[m], c: f32, p: i32[m], q: i32[n], r: f32[m]\n"
        "D = acc + bias; a = sum[m](D*D); b = max[n](D); c = max[m, n](abs(acc))\n"
        "p = argmax[n](acc); q = argmin[m](acc)\n"
        "r = rsqrt(sum[n](acc*acc)/size(n) + 0.1)",
        (*LAYERS[:4], *ODD[:3], LARGE[1], STRIDES[0]),
    ),
    "moments": Case(
        "out D, mu: f32[m], r: f32[m], c: f32[n], s: f32[n], a: f32\n"
        "x = acc + 500; D = acc; mu = mean[n](x); r = rsqrt(var[n](x) + 0.1)\n"
        "c = mean[m](x); s = sqrt(var[m](x, 0.5)); a = var[m, n](x)",
        (*LAYERS[:4], *ODD[:3], LARGE[1], STRIDES[0]),
    ),
    "atomic": Case(
        "out D, a: f32[n], b: f32[m], c: f32; D = acc; a = sum[m](acc); b = max[n](acc); c = sum[m, n](acc)",
        (LAYERS[0], ODD[1]),
        keywords={"deterministic": False},
    ),
    "bits": Case(
        "in keep: b1[m, n], t: i64[m]; out D, above: b1[m, n]; above = acc > i32(t)/8; D = where(keep, acc + C, 0)",
        (*LAYERS, *ODD[:3], LARGE[1], STRIDES[0]),
    ),
    "bits-i8": Case(
        "in keep: b1[m, n]; out D: i32[m, n], above: b1[m, n]; above = acc > 3; D = where(keep, acc, 0)", LAYERS, "i8"
    ),
    "random-numbers": Case(
        "in seed: i64, other: i32; out D, E; D = dropout(acc, 0.4, other, 7); E = dropout(acc, 0.4, seed, other)",
        (*LAYERS[:4], *ODD[:2]),
        "bf16",
    ),
    "vector-outputs": Case(
        "in s: f32[n], t: f32[m], p: f16; out D, a: f32[n], b: f16[m], c: f32\n"
        "D = acc; a = exp(s); b = sigmoid(t); c = 3*p",
        (*LAYERS[:4], *ODD[:3]),
    ),
    "planes-of-32": Case(RESIDUAL, channels(96, also=(24, 32, 40))),
    "planes-of-16": Case(RESIDUAL, channels(8, also=(16, 40, 48)), "bf16"),
    "wide-planes": Case("D = acc + bias", channels(64, also=(8, 24, 96, 200))),
    "shared": Case("out D, a: f32[n]; D = relu(acc + bias) + C; a = sum[m](D)", SHARED),
    "shared-wide": Case("out D: f32[m, n]; D = acc + C", (LAYERS[0], *SHARED), "bf16"),
    "shared-strided-f32": Case(
        "in bias: f32[n]; out D: f32[m, n]; D = acc + bias",
        (((2, 512, 20, 20), (512, 3, 3), {"padding": 1, "stride": 2}), SHARED[0]),
    ),
    "shared-no-tile": Case("out a: f32[n], b: i32[m]; a = sum[m](acc); b = argmax[n](acc)", SHARED),
    "shared-bits": Case(
        "in keep: b1[m, n], seed: i32; out D, above: b1[m, n], r: f32[n]; above = acc > 0; r = 2*scale[n]\n"
        "D = where(keep, dropout(acc*scale[n], 0.3, seed, 1), 0)",
        SHARED,
    ),
    "shared-i8": Case("out D: bf16, E: i32[m, n]; E = acc; D = acc*0.5 + bias", SHARED[:4], "i8"),
    "shared-e4m3": Case("out D: f16; D = acc + C", SHARED[:4], "e4m3"),
    "shared-dgrad": Case("D = where(z > 0, acc, 0)", SHARED, operation="conv2d_dgrad"),
    "f32": Case(RESIDUAL, (*LAYERS, *ODD, *LARGE[2:5], STRIDES[0]), "f32"),
    "e4m3": Case(
        "out D: f16, E: e4m3[m, n], t: f32[n]; E = acc/2; D = relu(acc + bias) + C; t = max[m](abs(acc))",
        (*LAYERS, *ODD, LARGE[1], STRIDES[0]),
        "e4m3",
    ),
    "e5m2-wide-planes": Case("D = silu(acc + bias)", channels(128, also=(16, 48, 400)), "e5m2"),
    "e4m3-e5m2-strides": Case("D = acc + bias", (*STRIDES, LARGE[4]), "e4m3", "e5m2"),
    "i8": Case(
        "out D: i8, E: i32[m, n], F: bf16[m, n], a: i32[n], p: i32[m]\n"
        "D = acc/32 + bias; E = acc; F = acc*0.5 + C; a = sum[m](acc); p = argmax[n](acc)",
        (*LAYERS, *ODD, LARGE[1], *STRIDES[:3]),
        "i8",
    ),
    "u8-i8-narrow-planes": Case("D = relu(acc + C)", channels(32, also=(16, 48, 80)), "u8", "i8"),
    "dgrad": Case("D = where(z > 0, acc, 0) + C", GRADIENTS, operation="conv2d_dgrad"),
    "dgrad-strides": Case("D = where(z > 0, acc, 0) + C", STRIDED_GRADIENTS, operation="conv2d_dgrad"),
    "dgrad-strides-bits": Case(
        "in keep: b1[m, n]; D = where(keep, acc, 0)", STRIDED_GRADIENTS, "bf16", operation="conv2d_dgrad"
    ),
    "dgrad-strides-together": Case(
        "in keep: b1[m, n]; D = where(keep, acc, 0) + C", TOGETHER, operation="conv2d_dgrad", config="halo_128x64x64"
    ),
    "dgrad-strides-together-bits": Case(
        "in keep: b1[m, n]; D = where(keep, acc, 0)",
        TOGETHER,
        "bf16",
        operation="conv2d_dgrad",
        config="halo_128x64x64",
    ),
    "dgrad-strides-together-reductions": Case(
        "in keep: b1[m, n]; out D, t: f32[n], r: f32[m]\nD = where(keep, acc, 0); t = sum[m](D); r = max[n](abs(D))",
        TOGETHER,
        operation="conv2d_dgrad",
        config="halo_128x64x64",
    ),
    "dgrad-strides-plain": Case("D = acc", STRIDED_GRADIENTS, operation="conv2d_dgrad"),
    "dgrad-strides-wide": Case(
        "out D, E: f32[m, n], t: f32[n], r: f32[m]; E = acc * silu'(z); D = E; t = sum[m](E); r = max[n](abs(E))",
        STRIDED_GRADIENTS,
        "bf16",
        operation="conv2d_dgrad",
        config="halo_248x64x64",
    ),
    "dgrad-strides-planes-of-16": Case(
        "out D: f32[m, n]; D = acc + bias", STRIDED_GRADIENTS[:8], operation="conv2d_dgrad", config="halo_104x64x16"
    ),
    "dgrad-bf16-planes-of-32": Case(
        "D = acc * gelu'(z)", (*channels(96, also=(24, 32, 40)), *GRADIENTS[5:]), "bf16", operation="conv2d_dgrad"
    ),
    "volumes": Case(RESIDUAL, (*VOLUMES, *STRIDED_VOLUMES), operation="conv3d"),
    "volumes-dgrad-bf16": Case("D = where(z > 0, acc, 0)", VOLUMES, "bf16", operation="conv3d_dgrad"),
    "columns": Case(RESIDUAL, COLUMNS, operation="conv3d"),
    "columns-dgrad-bf16": Case(
        "out D, a: f32[m]; D = where(z > 0, acc, 0); a = sum[n](D)", COLUMNS[:3], "bf16", operation="conv3d_dgrad"
    ),
    "small-volumes": Case(RESIDUAL, SMALL_VOLUMES, operation="conv3d", config="halo_248x64x64"),
    "small-volumes-places": Case(
        "out D: f32[m, n], a: f32[m]; D = where(iota(n) <= iota(m) - 32, acc, 1); a = sum[n](acc)",
        SMALL_VOLUMES,
        "bf16",
        operation="conv3d",
        config="halo_120x64x64",
    ),
    "shared-volumes": Case(
        "out D, a: f32[n]; D = relu(acc + bias) + C; a = sum[m](D)", SHARED_VOLUMES, operation="conv3d"
    ),
    "resident-volumes": Case(RESIDUAL, RESIDENT_VOLUMES, operation="conv3d"),
    "paired-volumes": Case(RESIDUAL, PAIRED_VOLUMES, operation="conv3d"),
    "dgrad-planes-of-16": Case(
        "out D, E: f32[m, n], t: f32[n], r: f32[m]; E = acc * silu'(z); D = E; t = sum[m](E); r = max[n](abs(E))",
        channels(8, also=(16, 40, 48)),
        operation="conv2d_dgrad",
    ),
}


def sources_of(name: str, number: int) -> list[KernelSource]:
    return own_kernels.sources_of(CASES[name], number)


@pytest.fixture(scope="session")
def refused(request):
    """Which kernels of the selected tests nvcc refuses, all built in one go."""
    return build_selected(request, test_halo, sources_of)


@pytest.mark.parametrize(("name", "number"), list(parameters(CASES)))
def test_halo(name, number, record, refused) -> None:
    case = CASES[name]
    for source in sources_of(name, number):
        assert source not in refused, refused[source]
    errors = check(case, number)
    shape = case.shapes[number]
    record(
        (f"{name}-{number}", "halo", case.dtype, f"{shape[0]} {shape[1]}", " ".join(f"{each:.2f}" for each in errors))
    )


def test_given_tiles_and_pitches() -> None:
    """Channels of a larger tensor are read and written in place, and nothing beside them."""
    case = CASES["residual"]
    op = case.program(case.shapes[0][2])
    x, weight, inputs = tensors(case, 0, op)
    want = op(x, weight, **inputs)
    wide = last(torch.full((2, 192, 56, 56), float("nan"), device="cuda", dtype=torch.float16))
    wide[:, 64:128] = x
    out = last(torch.full((2, 192, 56, 56), float("nan"), device="cuda", dtype=torch.float16))
    op(wide[:, 64:128], weight, out=out[:, 64:128], **inputs)
    assert torch.equal(out[:, 64:128], want)
    assert bool(out[:, :64].isnan().all() and out[:, 128:].isnan().all())


def test_few_images_take_another_kernel() -> None:
    """One program: the halo kernel for one image, a kernel of CUTLASS for many."""
    op = evt.conv2d(RESIDUAL, padding=1)
    taken = set()
    for images in (1, 40):
        generator = torch.Generator("cuda").manual_seed(images)
        x, weight = (last(random(shape, "f16", generator, 0.1)) for shape in ((images, 512, 7, 7), (512, 512, 3, 3)))
        inputs = {
            "bias": random((512,), "f16", generator),
            "residual": last(random((images, 512, 7, 7), "f16", generator)),
        }
        out = poisoned(inputs["residual"])
        op(x, weight, out=out, **inputs)
        want = op.reference(x, weight, float64=True, **inputs)
        assert distance(out, want, F16, operand=F16, inside=F16) <= 1.0
        bound = bind(op.request, x, weight, inputs, {})
        plans = plan_kernels(op.request, bound, device_target(0))
        taken.add(plans[fastest(plans, bound.sizes, 132)].route)
    assert taken == {"conv-halo-3x", "conv-evt-3x"}
