"""Convolutions with groups by the halo kernel on a GPU: epilogues, types, gradients, odd shapes, against float64.

A case has one kernel, of its first shape; the other shapes run by this kernel too.
"""

from __future__ import annotations

import pytest
import torch

from evt.compilation import KernelSource
from tests.gpu import own_kernels
from tests.gpu.builds import build_selected
from tests.gpu.own_kernels import Case, Shape, check, parameters, tensors
from tests.support.convolutions import last

pytestmark = pytest.mark.gpu

ROUTE, WORDS_ROUTE = {"route": "conv-halo-groups-3x"}, {"route": "conv-halo-words-3x"}
COPIED_ROUTE = {"route": "conv-halo-copied-3x"}


def of(groups: int, padding: object = 1, **keywords: object) -> dict[str, object]:
    return {"groups": groups, "padding": padding, **keywords}


#: Several groups in blocks of 64 filters, as wide as a swizzled row.
PACKED: tuple[Shape, ...] = (
    ((2, 128, 56, 56), (128, 3, 3), of(32)),
    ((3, 64, 9, 11), (64, 3, 3), of(8)),
    ((1, 48, 17, 5), (96, 3, 3), of(12)),
    ((5, 256, 7, 7), (256, 3, 3), of(8)),
    ((2, 128, 13, 130), (128, 1, 1), of(32, 0)),
    ((2, 192, 21, 19), (192, 3, 3), of(24, 2, stride=2, dilation=2)),
    ((1, 2048, 5, 4), (2048, 3, 3), of(512)),
)
#: Blocks of fewer filters, which a swizzled row is longer than; the last block has fewer groups.
NARROW: tuple[Shape, ...] = (
    ((2, 216, 28, 28), (216, 3, 3), of(9)),
    ((1, 72, 21, 19), (72, 3, 3), of(3, stride=2)),
    ((3, 40, 13, 14), (40, 3, 3), of(10, 2, dilation=2)),
    ((2, 80, 15, 13), (120, 2, 3), of(10)),
    ((2, 24, 31, 33), (24, 3, 3), of(8, ((0, 1), (2, 0)))),
    ((2, 336, 12, 10), (336, 1, 3), of(14, (0, 1))),
)
#: Blocks of 32 channels: large filters.
LARGE: tuple[Shape, ...] = (
    ((2, 128, 28, 28), (128, 5, 5), of(32, 2)),
    ((1, 64, 19, 25), (64, 5, 5), of(4, 3, stride=(2, 3))),
    ((2, 96, 9, 9), (96, 7, 3), of(12, 4)),
)
#: Wide groups, one in each tile.
SINGLE: tuple[Shape, ...] = (
    ((2, 448, 28, 28), (448, 3, 3), of(4)),
    ((1, 336, 14, 14), (336, 3, 3), of(2)),
    ((2, 240, 9, 11), (160, 1, 1), of(2, 0)),
    ((2, 144, 21, 19), (240, 3, 3), of(2, stride=2)),
    ((3, 128, 7, 7), (128, 3, 3), of(2)),
    ((1, 224, 31, 70), (48, 2, 3), of(2)),
    ((2, 208, 13, 12), (208, 5, 5), of(2, 2)),
)
#: Groups whose filters TMA does not store: fewer than 8, or no multiple of 8.
CUT: tuple[Shape, ...] = (
    ((2, 384, 28, 28), (96, 1, 1), of(8, 0)),
    ((2, 240, 15, 13), (60, 1, 1), of(3, 0)),
    ((2, 144, 9, 11), (20, 3, 3), of(2)),
    ((1, 240, 14, 14), (216, 3, 3), of(3)),
)
#: Pixels that are multiples of 4 bytes and not of 16, with groups and without.
WORDS: tuple[Shape, ...] = (
    ((2, 30, 56, 56), (64, 3, 3), of(1)),
    ((3, 18, 9, 11), (18, 3, 3), of(1)),
    ((1, 26, 17, 5), (136, 3, 3), of(1, stride=2)),
    ((5, 22, 7, 7), (72, 3, 3), of(1)),
    ((2, 30, 13, 130), (19, 1, 1), of(1, 0)),
    ((2, 20, 21, 19), (64, 3, 3), of(1, 2, stride=(2, 3), dilation=2)),
    ((2, 90, 15, 13), (96, 3, 3), of(3)),
    ((2, 60, 15, 13), (36, 3, 3), of(6)),
    ((2, 28, 28, 30), (40, 5, 5), of(1, 2)),
)
WIDE_WORDS: tuple[Shape, ...] = (
    ((2, 50, 56, 56), (64, 3, 3), of(1)),
    ((2, 60, 23, 67), (60, 3, 3), of(1, ((0, 1), (2, 0)))),
    ((2, 54, 14, 9), (200, 3, 3), of(1, stride=2)),
    ((2, 62, 15, 13), (40, 1, 1), of(1, 0)),
)
#: Several blocks of channels.
BLOCKS_OF_WORDS: tuple[Shape, ...] = (
    ((2, 100, 56, 56), (100, 3, 3), of(1)),
    ((3, 76, 9, 11), (24, 3, 3), of(1, stride=2)),
    ((1, 196, 13, 130), (19, 1, 1), of(1, 0)),
    ((2, 204, 7, 7), (40, 3, 3), of(2)),
)
#: An odd number of channels: every second pixel begins within a word of 4 bytes.
ODD_WORDS: tuple[Shape, ...] = (
    ((2, 33, 56, 56), (33, 3, 3), of(1)),
    ((3, 17, 9, 11), (24, 3, 3), of(1, stride=2)),
    ((2, 15, 13, 130), (19, 1, 1), of(1, 0)),
    ((9, 47, 7, 7), (72, 3, 3), of(1)),
    ((2, 21, 22, 19), (64, 3, 3), of(1, 2, stride=(2, 3), dilation=2)),
)
FEW_ODD_WORDS: tuple[Shape, ...] = (
    ((2, 5, 61, 33), (48, 7, 7), of(1, 3, stride=4)),
    ((2, 3, 37, 41), (96, 4, 4), of(1, 0, stride=4)),
    ((3, 15, 13, 22), (8, 5, 5), of(1, ((0, 1), (2, 0)))),
)
#: Copies of the operands with padded channels: a wide filter, and odd channels.
COPIED: tuple[Shape, ...] = (
    ((2, 50, 56, 56), (50, 5, 5), of(1, 2)),
    ((3, 18, 9, 11), (18, 3, 3), of(1)),
    ((1, 26, 17, 5), (136, 3, 3), of(1, stride=2)),
    ((2, 100, 13, 130), (19, 1, 1), of(1, 0, stride=2)),
    ((9, 62, 7, 7), (72, 3, 3), of(1, ((0, 1), (2, 0)))),
)
ODD_COPIED: tuple[Shape, ...] = (
    ((2, 51, 28, 28), (51, 3, 3), of(1)),
    ((1, 129, 9, 11), (24, 3, 3), of(1, stride=2)),
    ((2, 33, 7, 7), (64, 3, 3), of(1, 2, dilation=2)),
)
#: The matrices of these begin at multiples of 16 columns.
STRIPS = tuple(shape for shape in (*PACKED, NARROW[0], NARROW[1]))
UNIT_STRIDE = tuple(shape for shape in PACKED if "stride" not in shape[2])
#: Pixels that TMA can load, but not the channels of one group.
WORDS_OF_GROUPS: tuple[Shape, ...] = (
    ((2, 96, 28, 28), (384, 1, 1), of(8, 0)),
    ((3, 96, 14, 15), (384, 3, 3), of(8, stride=2)),
    ((1, 144, 30, 9), (576, 2, 3), of(12)),
)
#: Groups of an odd number of channels, as in ShuffleNet.
ODD_GROUPS: tuple[Shape, ...] = (
    ((8, 68, 28, 28), (272, 1, 1), of(4, 0)),
    ((2, 50, 29, 28), (200, 1, 1), of(2, 0)),
    ((3, 51, 14, 15), (66, 3, 3), of(3, stride=2)),
    ((2, 136, 9, 11), (192, 3, 2), of(8)),
    ((1, 45, 13, 130), (24, 3, 3), of(3, 2, dilation=2)),
)
RESIDUAL = "D = relu(acc + bias + residual)"
CASES = {
    "residual": Case(RESIDUAL, PACKED, keywords=ROUTE),
    "residual-bf16": Case(RESIDUAL, (PACKED[1], *PACKED), "bf16", keywords=ROUTE),
    "large": Case(RESIDUAL, LARGE, keywords=ROUTE),
    "single": Case(RESIDUAL, SINGLE, keywords=ROUTE),
    "single-bf16": Case("D = silu(acc + bias)", SINGLE[1:], "bf16", keywords=ROUTE),
    "cut": Case(RESIDUAL, CUT, keywords=ROUTE),
    "cut-reductions": Case(
        "out D, a: f32[n], b: f32[m], c: f32; D = acc + C; a = sum[m](D); b = max[n](D); c = sum[m, n](acc*acc)",
        (*CUT[:1], *CUT[2:]),
        keywords=ROUTE,
    ),
    "two-outputs": Case(
        "in gate: f32[m, n]; out D, E, F: e4m3[m, n]; E = acc + bias; D = hardswish(E) + C*gate; F = 4*E",
        PACKED[:5],
        keywords=ROUTE,
    ),
    "f32-output": Case("out D: f32[m, n]; D = acc + C", (*PACKED[:3], PACKED[5]), "bf16", keywords=ROUTE),
    "transposed-output": Case("in s: f32[m]; out D: f16[n, m]; D = acc*s + iota(n)", PACKED[:4], keywords=ROUTE),
    "reductions": Case(
        "out D, a: f32[n], b: f32[m], c: f32, p: i32[m], q: i32[n], r: f32[m]\n"
        "D = acc + bias; a = sum[m](D*D); b = max[n](D); c = max[m, n](abs(acc))\n"
        "p = argmax[n](acc); q = argmin[m](acc)\n"
        "r = rsqrt(sum[n](acc*acc)/size(n) + 0.1)",
        PACKED,
        keywords=ROUTE,
    ),
    "single-reductions": Case(
        "out D, a: f32[n], b: f32[m], c: f32, p: i32[m]\n"
        "D = acc + C; a = sum[m](D); b = sum[n](D); c = sum[m, n](acc*acc); p = argmax[n](acc)",
        SINGLE,
        keywords=ROUTE,
    ),
    "moments": Case(
        "out D, mu: f32[m], v: f32[n]; D = acc; mu = mean[n](acc); v = var[m](acc)", PACKED, keywords=ROUTE
    ),
    "bits": Case(
        "in keep: b1[m, n]; out D, above: b1[m, n]; above = acc > 0; D = where(keep, acc + C, 0)",
        PACKED,
        keywords=ROUTE,
    ),
    "pairs": Case("out D: f16[m, n/2]; D = even(acc)*sigmoid(odd(acc))", PACKED[:3], keywords=ROUTE),
    "blocks": Case("out D, s: f32[m, n/16]; s = max[n%16](abs(acc)); D = acc/s", PACKED[:3], keywords=ROUTE),
    "random-numbers": Case("in seed: i64; D = dropout(acc, 0.4, seed, 3)", PACKED[:4], "bf16", keywords=ROUTE),
    "dgrad": Case("D = where(z > 0, acc, 0) + C", UNIT_STRIDE, operation="conv2d_dgrad", keywords=ROUTE),
    "single-dgrad": Case(
        "D = acc*gelu'(z)",
        tuple(shape for shape in SINGLE if "stride" not in shape[2]),
        "bf16",
        operation="conv2d_dgrad",
        keywords=ROUTE,
    ),
    "words": Case(RESIDUAL, WORDS, keywords=WORDS_ROUTE),
    "words-wide-bf16": Case(RESIDUAL, WIDE_WORDS, "bf16", keywords=WORDS_ROUTE),
    "words-blocks": Case(RESIDUAL, BLOCKS_OF_WORDS, keywords=WORDS_ROUTE),
    "words-odd": Case(RESIDUAL, ODD_WORDS, keywords=WORDS_ROUTE),
    "words-odd-few-bf16": Case("D = silu(acc + bias)", FEW_ODD_WORDS, "bf16", keywords=WORDS_ROUTE),
    "words-reductions": Case(
        "out D, a: f32[n], b: f32[m], c: f32, p: i32[m]\n"
        "D = acc + C; a = sum[m](D*D); b = max[n](D); c = sum[m, n](acc*acc); p = argmax[n](acc)",
        WORDS,
        keywords=WORDS_ROUTE,
    ),
    "words-of-aligned-pixels": Case(RESIDUAL, WORDS_OF_GROUPS, keywords=WORDS_ROUTE),
    "words-odd-groups": Case(RESIDUAL, ODD_GROUPS, keywords=WORDS_ROUTE),
    "words-bits": Case(
        "in keep: b1[m, n]; out D, above: b1[m, n]; above = acc > 0; D = where(keep, acc + C, 0)",
        (WORDS[0], *WORDS[2:4]),
        keywords=WORDS_ROUTE,
    ),
    "copied": Case(RESIDUAL, COPIED, keywords=COPIED_ROUTE),
    "copied-odd-bf16": Case("D = silu(acc + bias)", ODD_COPIED, "bf16", keywords=COPIED_ROUTE),
    "copied-e4m3": Case("out D: f16; D = acc + bias", (COPIED[0], ODD_COPIED[0]), "e4m3", keywords=COPIED_ROUTE),
    "copied-volumes": Case(
        RESIDUAL,
        (
            ((1, 18, 5, 9, 14), (20, 3, 3, 3), of(1)),
            ((2, 33, 3, 7, 7), (33, 3, 1, 1), of(1, (1, 0, 0))),
        ),
        operation="conv3d",
        keywords=COPIED_ROUTE,
    ),
    "copied-reductions": Case(
        "out D, a: f32[n], b: f32[m]; D = acc + C; a = sum[m](D*D); b = max[n](D)", COPIED, keywords=COPIED_ROUTE
    ),
    "narrow": Case(RESIDUAL, NARROW, keywords=ROUTE),
    "narrow-bf16": Case("D = acc + bias", NARROW, "bf16", keywords=ROUTE),
    "narrow-reductions": Case(
        "out D, a: f32[n], b: f32[m], c: f32, p: i32[m], q: i32[n]\n"
        "D = acc + C; a = sum[m](D*D); b = max[n](D); c = sum[m, n](acc)\n"
        "p = argmax[n](acc); q = argmin[m](acc)",
        NARROW,
        keywords=ROUTE,
    ),
    "narrow-bits": Case(
        "in keep: b1[m, n]; out D, above: b1[m, n]; above = acc > 0; D = where(keep, acc + C, 0)",
        NARROW[:2],
        keywords=ROUTE,
    ),
    "narrow-dgrad": Case("D = acc + C", (NARROW[0], *NARROW[2:4]), operation="conv2d_dgrad", keywords=ROUTE),
}


def sources_of(name: str, number: int) -> list[KernelSource]:
    return own_kernels.sources_of(CASES[name], number)


@pytest.fixture(scope="session")
def refused(request):
    """Which kernels of the selected tests nvcc refuses, all built in one go."""
    return build_selected(request, test_groups, sources_of)


@pytest.mark.parametrize(("name", "number"), list(parameters(CASES)))
def test_groups(name, number, record, refused) -> None:
    case = CASES[name]
    for source in sources_of(name, number):
        assert source not in refused, refused[source]
    errors = check(case, number)
    shape = case.shapes[number]
    record(
        (f"{name}-{number}", "groups", case.dtype, f"{shape[0]} {shape[1]}", " ".join(f"{each:.2f}" for each in errors))
    )


@pytest.mark.parametrize("name", ["residual", "single", "narrow"])
def test_pitches(name) -> None:
    """Channels of a larger tensor are read and written in place, and nothing beside them."""
    case = CASES[name]
    op = case.program(case.shapes[0][2])
    x, weight, inputs = tensors(case, 0, op)
    want = op(x, weight, **inputs)
    images, channels, *pixels = x.shape
    wide = last(torch.full((images, channels + 128, *pixels), float("nan"), device="cuda", dtype=torch.float16))
    wide[:, 64:-64] = x
    out = last(torch.full((images, want.shape[1] + 128, *want.shape[2:]), float("nan"), device="cuda").half())
    op(wide[:, 64:-64], weight, out=out[:, 64:-64], **inputs)
    assert torch.equal(out[:, 64:-64], want)
    assert bool(out[:, :64].isnan().all() and out[:, -64:].isnan().all())
