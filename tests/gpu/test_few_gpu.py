"""The halo kernels for few channels and for few filters on a GPU, poisoned outputs, against float64.

A case has one kernel, with the width and planes of its first shape; the other shapes run by this kernel too.
"""

from __future__ import annotations

import pytest

from evt.compilation import KernelSource
from tests.gpu import own_kernels
from tests.gpu.builds import build_selected
from tests.gpu.own_kernels import Case, Shape, check, parameters

pytestmark = pytest.mark.gpu

PAD = {"padding": 1}
#: Few channels, whose rows of taps are windows of 64, 32 and 128 bytes.
FEW: tuple[Shape, ...] = (
    ((2, 3, 57, 60), (64, 7, 7), {"padding": 3, "stride": 2}),
    ((2, 3, 33, 37), (72, 3, 3), PAD),
    ((1, 8, 19, 130), (64, 3, 3), PAD),
    ((3, 5, 17, 9), (8, 2, 4), {"padding": ((0, 1), (2, 1))}),
    ((2, 1, 40, 23), (136, 5, 7), {"padding": (2, 3), "stride": (3, 2)}),
    ((2, 3, 31, 33), (64, 3, 3), {"padding": 2, "dilation": (2, 1)}),
    ((7, 4, 7, 7), (64, 3, 3), PAD),
    ((1, 3, 5, 300), (40, 5, 6), {"padding": (4, 5), "stride": 2}),
    ((130, 1, 21, 120), (272, 7, 3), {"padding": (3, 1), "stride": (7, 1)}),
)
FEW_NARROW: tuple[Shape, ...] = (
    ((2, 3, 65, 67), (32, 3, 3), {"padding": 1, "stride": 2}),
    ((1, 2, 40, 21), (64, 4, 4), {"padding": 1, "stride": (1, 2)}),
    ((2, 8, 12, 10), (64, 2, 2), {"padding": "same"}),
)
FEW_WIDE: tuple[Shape, ...] = (
    ((2, 8, 28, 30), (64, 5, 5), {"padding": 2}),
    ((2, 3, 28, 21), (104, 7, 7), {"padding": 3}),
    ((1, 3, 61, 145), (64, 11, 11), {"padding": 5, "stride": 2}),
)
#: More tiles than multiprocessors take at once, an odd number of them for most: of several blocks of filters, of tall
#: boxes (two or three fit), of rows as wide as TMA's boxes, of groups of rows.
FEW_MANY: tuple[Shape, ...] = (
    ((5, 3, 224, 512), (72, 3, 3), {"padding": 1, "stride": 2}),
    ((3, 3, 200, 510), (136, 3, 3), {"padding": 1, "stride": 2}),
    ((2, 3, 331, 333), (64, 3, 4), {"padding": (2, 1), "stride": (3, 2)}),
)
FEW_TALL: tuple[Shape, ...] = (
    ((2, 1, 500, 500), (64, 9, 7), {"padding": (4, 3)}),
    ((3, 1, 256, 256), (72, 8, 5), {"padding": (4, 2)}),
    ((64, 3, 224, 30), (64, 15, 7), {"padding": (14, 3), "dilation": (2, 1)}),
    ((9, 2, 130, 254), (136, 3, 8), {"padding": (1, 3)}),
)
#: Steps of several chunks, each a tap over windows of 64 bytes, then of 32.
FEW_STEPS: tuple[Shape, ...] = (
    ((2, 6, 57, 60), (16, 5, 5), {"padding": 2, "stride": 2}),
    ((3, 3, 64, 67), (24, 4, 12), {"stride": 4, "padding": (0, 5)}),
    ((2, 8, 40, 41), (72, 3, 7), {"padding": (1, 3), "stride": (1, 2)}),
    ((5, 5, 33, 47), (40, 4, 8), {"padding": (3, 2), "stride": 3}),
    ((1, 4, 131, 300), (64, 8, 13), {"padding": 3, "stride": 4}),
    ((7, 7, 21, 90), (136, 2, 13), {"stride": (2, 5)}),
    ((40, 6, 112, 112), (16, 5, 5), {"padding": 2, "stride": 2}),
)
FEW_STEPS_NARROW: tuple[Shape, ...] = (
    ((3, 3, 64, 67), (24, 4, 4), {"stride": 4}),
    ((2, 6, 57, 61), (72, 3, 3), {"padding": 1, "stride": 2}),
    ((9, 8, 15, 15), (64, 3, 4), {"padding": (1, 2), "stride": 3}),
    ((2, 5, 131, 133), (40, 5, 5), {"padding": 1, "stride": 4}),
    ((33, 3, 224, 224), (24, 4, 4), {"stride": 4}),
)
#: Volumes, whose slices of the output read several of the input, or none of them.
FEW_VOLUMES: tuple[Shape, ...] = (
    ((2, 3, 6, 57, 60), (64, 3, 7, 7), {"padding": (1, 3, 3), "stride": (1, 2, 2)}),
    ((1, 3, 5, 61, 64), (96, 3, 3, 3), {"padding": ((2, 0), (1, 1), (1, 1))}),
    ((3, 1, 9, 17, 21), (72, 3, 3, 3), {"padding": 1}),
    ((2, 4, 4, 33, 7), (40, 2, 5, 7), {"padding": ((3, 4), (2, 1), (0, 3)), "stride": (2, 1, 2)}),
    ((5, 2, 3, 7, 7), (8, 1, 2, 4), {"padding": (0, 1, 3), "dilation": (1, 2, 1)}),
    ((7, 3, 16, 112, 110), (136, 3, 7, 7), {"padding": (1, 3, 3), "stride": (1, 2, 2)}),
    ((2, 3, 33, 40, 40), (64, 5, 3, 3), {"padding": (4, 0, 1), "stride": (3, 1, 1), "dilation": (2, 1, 1)}),
)
#: Shapes for 8 bits, with twice the channels in 16 bytes.
FEW_BYTES: tuple[Shape, ...] = (
    ((2, 3, 33, 37), (72, 3, 3), PAD),
    ((2, 5, 57, 60), (64, 7, 7), {"padding": 3, "stride": 2}),
    ((2, 3, 60, 52), (96, 4, 13), {"stride": 4}),
)
FEW_FLOATS: tuple[Shape, ...] = (
    ((2, 3, 33, 37), (72, 3, 3), PAD),
    ((2, 2, 57, 60), (64, 5, 8), {"padding": 3, "stride": 2}),
)

#: Few filters, whose taps are rows of a tile: several images in it, and rows that are wider than it.
FEW_FILTERS: tuple[Shape, ...] = (
    ((2, 64, 57, 60), (3, 3, 3), PAD),
    ((9, 64, 7, 7), (1, 3, 3), PAD),
    ((1, 64, 13, 300), (7, 3, 3), PAD),
    ((3, 136, 17, 5), (2, 5, 5), {"padding": ((0, 1), (2, 0))}),
    ((1, 64, 31, 33), (1, 7, 7), {"padding": 3}),
    ((130, 72, 14, 14), (4, 3, 3), {}),
    ((2, 200, 130, 127), (5, 2, 4), {"dilation": 2}),
    ((40, 192, 64, 64), (3, 3, 3), PAD),
    ((64, 128, 112, 112), (1, 3, 3), PAD),
)
#: Filters of one tap, which are all rows of a tile.
FEW_OF_ONE_TAP: tuple[Shape, ...] = (
    ((2, 32, 57, 60), (7, 1, 1), {}),
    ((9, 64, 7, 7), (1, 1, 1), {}),
    ((130, 200, 14, 14), (3, 1, 1), {}),
    ((1, 16, 13, 300), (8, 1, 1), {}),
    ((64, 64, 112, 112), (5, 1, 1), {}),
)
RESIDUAL = "D = relu(acc + bias + residual)"
WIDENED, TAPS = {"route": "conv-halo-padded-3x"}, {"route": "conv-halo-taps-3x"}
CASES = {
    "few-filters": Case(RESIDUAL, FEW_FILTERS, keywords=TAPS),
    "few-filters-wide": Case(
        "out D: f32[m, n]; D = acc + C", FEW_FILTERS, "bf16", keywords=TAPS, config="halo_taps_256x64x64"
    ),
    "few-filters-reductions": Case(
        "out D, s: f32[n], b: f32[m], p: i32[m], c: f32\n"
        "D = acc + bias; s = sum[m](D*D); b = max[n](D); p = argmax[n](acc); c = mean[m, n](acc)",
        (*FEW_FILTERS[:4], *FEW_FILTERS[5:]),
        keywords=TAPS,
        config="halo_taps_96x64x32",
    ),
    "one-tap": Case(RESIDUAL, FEW_OF_ONE_TAP, keywords=TAPS),
    "one-tap-reductions": Case(
        "out D: f32[m, n], s: f32[n], b: f32[m]; D = acc + bias + C; s = sum[m](D); b = max[n](D)",
        FEW_OF_ONE_TAP,
        "bf16",
        keywords=TAPS,
    ),
    "few-filters-bits": Case(
        "in keep: b1[m, n], t: i64[m]; out D, above: b1[m, n]; above = acc > i32(t)/8; D = where(keep, acc + C, 0)",
        FEW_FILTERS,
        "bf16",
        keywords=TAPS,
    ),
    "unaligned-few": Case(
        "D = silu(acc + bias)", tuple((a, (51, *taps), how) for a, (_, *taps), how in FEW), keywords=WIDENED
    ),
    "few": Case(RESIDUAL, FEW, keywords=WIDENED),
    "few-bf16-narrow": Case(
        "out D, a: f32[n], b: f32[m]; D = relu(acc + bias) + C; a = sum[m](D); b = max[n](acc)",
        FEW_NARROW,
        "bf16",
        keywords=WIDENED,
    ),
    "few-steps": Case(RESIDUAL, FEW_STEPS, keywords=WIDENED),
    "few-steps-narrow": Case(
        "out D, s: f32[n]; D = acc + bias; s = sum[m](D)", FEW_STEPS_NARROW, "bf16", keywords=WIDENED
    ),
    "few-volumes": Case(RESIDUAL, FEW_VOLUMES, operation="conv3d", keywords=WIDENED),
    "few-volumes-bf16": Case(
        "out D, s: f32[n]; D = acc + bias; s = sum[m](D)",
        FEW_VOLUMES,
        "bf16",
        operation="conv3d",
        keywords=WIDENED,
    ),
    "few-wide": Case("out D: f32[m, n]; D = acc + C", FEW_WIDE, keywords=WIDENED),
    "few-many": Case(RESIDUAL, FEW_MANY, keywords=WIDENED),
    "few-many-bf16": Case("out D, s: f32[n]; D = acc + bias; s = sum[m](D)", FEW_MANY, "bf16", keywords=WIDENED),
    "few-tall": Case(RESIDUAL, FEW_TALL, keywords=WIDENED),
    "few-tall-i8": Case("out D: i32[m, n]; D = acc", FEW_TALL[:2], "i8", keywords=WIDENED),
    "few-i8": Case("out D: bf16, E: i32[m, n]; E = acc; D = acc*0.5 + bias", FEW_BYTES, "i8", keywords=WIDENED),
    "few-e4m3": Case("out D: f16; D = silu(acc + C)", FEW_BYTES, "e4m3", keywords=WIDENED),
    "few-f32": Case(RESIDUAL, FEW_FLOATS, "f32", keywords=WIDENED),
}


def sources_of(name: str, number: int) -> list[KernelSource]:
    return own_kernels.sources_of(CASES[name], number)


@pytest.fixture(scope="session")
def refused(request):
    """Which kernels of the selected tests nvcc refuses, all built in one go."""
    return build_selected(request, test_few, sources_of)


@pytest.mark.parametrize(("name", "number"), list(parameters(CASES)))
def test_few(name, number, record, refused) -> None:
    case = CASES[name]
    for source in sources_of(name, number):
        assert source not in refused, refused[source]
    errors = check(case, number)
    shape = case.shapes[number]
    record(
        (f"{name}-{number}", "halo", case.dtype, f"{shape[0]} {shape[1]}", " ".join(f"{each:.2f}" for each in errors))
    )
