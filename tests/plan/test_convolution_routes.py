"""Convolutions: which route takes them, and why others do not."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import evt
from evt.diagnostics import Source
from evt.emission import emit
from evt.plan import find_target, survey
from evt.plan.epilogue.loads import AuxLoad
from evt.plan.epilogue.values import Access
from evt.plan.plan import Convolution2x, MatrixProduct
from evt.program import Program
from evt.request import packed_problem
from evt.runtime.kernels import plan_kernels
from tests.support.convolutions import STOCK, TREE, X, bound, convolution, half, last

ROOT = Path(__file__).parents[2]


# Routes

TYPICAL = ((2, 64, 14, 14), (64, 64, 3, 3))
POINTWISE = ((2, 64, 14, 14), (64, 64, 1, 1))


def chosen(op: Program, arch: str, dtype: str = "f16", shapes: Any = None) -> str:
    (found,) = (route.name for route in op.explain(arch, dtype, dtype, shapes=shapes).routes if route.chosen)
    return found


@pytest.mark.parametrize(
    ("arch", "stock", "tree", "pointwise"),
    [
        ("sm80", "conv-stock-2x", "conv-evt-2x", "stock-2x"),
        ("sm86", "conv-stock-2x", "conv-evt-2x", "stock-2x"),
        ("sm89", "conv-stock-2x", "conv-evt-2x", "stock-2x"),
        ("sm90", "conv-evt-3x", "conv-evt-3x", "conv-halo-3x"),
        ("sm100", "conv-stock-2x", "conv-evt-2x", "evt-3x"),
        ("sm103", "conv-stock-2x", "conv-evt-2x", "evt-3x"),
        ("sm120", "conv-stock-2x", "conv-evt-2x", "stock-2x"),
    ],
)
def test_routes_by_target(arch: str, stock: str, tree: str, pointwise: str) -> None:
    typical = "conv-halo-3x" if arch == "sm90" else tree
    assert chosen(evt.conv2d(STOCK, padding=1), arch, shapes=TYPICAL) == (typical if arch == "sm90" else stock)
    assert chosen(evt.conv2d(STOCK, padding=1), arch) == stock
    assert chosen(evt.conv2d(TREE, padding=1), arch, shapes=TYPICAL) == typical
    assert chosen(evt.conv2d(STOCK), arch, shapes=POINTWISE) == pointwise
    for op in (evt.conv1d(TREE), evt.conv3d(TREE), convolution(TREE, "conv2d_dgrad")):
        assert chosen(op, arch) == tree
    wgrad = convolution(TREE, "conv2d_wgrad", kernel_size=3)
    assert chosen(wgrad, arch) == "conv-evt-2x"
    assert chosen(evt.conv2d(TREE, padding=1), arch, "bf16", TYPICAL) == typical
    assert chosen(evt.conv2d(TREE, padding=1), arch, "f32", TYPICAL) == tree
    for dtype in ("i8", *(["e4m3", "e5m2"] if arch not in ("sm80", "sm86") else [])):
        assert chosen(evt.conv2d(TREE, padding=1), arch, dtype, TYPICAL) == typical


@pytest.mark.parametrize(
    ("operation", "shapes", "keywords"),
    [
        ("conv1d", ((2, 1024, 14), (64, 1024, 1)), {}),
        ("conv2d", ((2, 1024, 14, 14), (64, 1024, 1, 1)), {"padding": "same"}),
        ("conv3d", ((2, 1024, 3, 4, 5), (64, 1024, 1, 1, 1)), {}),
        ("conv2d_dgrad", ((2, 1024, 14, 14), (1024, 64, 1, 1)), {}),
        ("conv2d_wgrad", (POINTWISE[0], POINTWISE[0]), {"kernel_size": 1}),
    ],
)
@pytest.mark.parametrize(("arch", "route"), [("sm80", "evt-2x"), ("sm90", "evt-3x"), ("sm100", "evt-3x")])
def test_a_pointwise_convolution_is_a_gemm(
    operation: str, shapes: Any, keywords: dict[str, Any], arch: str, route: str
) -> None:
    """On sm90 the GEMM kernel of evt takes it, unless A is not contiguous along k; CUTLASS's kernel is printed."""
    op = convolution(TREE, operation, **keywords)
    own = arch == "sm90" and operation != "conv2d_wgrad"
    assert chosen(op, arch, shapes=shapes) == ("gemm-own-3x" if own else route)
    printed = op.plan(arch, shapes=shapes)
    assert printed.route == route
    assert isinstance(printed.mainloop, MatrixProduct)
    assert printed.template.startswith("gemm_")
    assert op.emit(arch, shapes=shapes) == emit(printed)


EMIT = f"""
import evt
from evt.diagnostics import Source
from evt.request import packed_problem
for operation in ("conv2d", "conv3d", "conv2d_dgrad", "conv2d_wgrad"):
    size = {{"kernel_size": 3}} if operation.endswith("wgrad") else {{}}
    for text in ({STOCK!r}, "out D, Z, t: f32[n]; Z = acc*s[n] + bias; D = hardswish(Z) + C; t = sum[m](Z)"):
        op = evt.Program(Source(text), operation, padding=1, **size)
        for arch in ("sm80", "sm90"):
            print(op.emit(arch))
            print(op.explain(arch))
"""


@pytest.mark.parametrize("seeds", [2, pytest.param(6, marks=pytest.mark.slow)])
def test_output_does_not_depend_on_the_hash_seed(seeds: int) -> None:
    texts = set()
    for seed in range(seeds):
        environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
        command = [sys.executable, "-c", EMIT]
        texts.add(subprocess.run(command, capture_output=True, check=True, cwd=ROOT, env=environment).stdout)
    assert len(texts) == 1
    assert texts.pop().count(b'extern "C"') >= 16


def test_filters_and_channels_decide_the_iterators() -> None:
    large = ((1, 64, 64, 64), (64, 64, 33, 33))
    for shapes, expected in ((TYPICAL, "optimized"), (large, "analytic")):
        plan = evt.conv2d(TREE, padding=1).plan("sm80", shapes=shapes)
        assert isinstance(plan.mainloop, Convolution2x)
        assert plan.mainloop.iterators == expected
        assert f"cutlass::conv::IteratorAlgorithm::k{expected.capitalize()}," in emit(plan)


@pytest.mark.parametrize(
    ("config", "extended"),
    [("implicit_own_128x160x64", True), ("implicit_128x160x64_2blocks", True), ("implicit_own_128x192x64", False)],
)
def test_tiles_are_as_wide_as_an_instruction(config: str, extended: bool) -> None:
    """CUTLASS multiplies 160 columns by instructions of 32, unless its extended shapes are asked for."""
    text = evt.conv2d(TREE, padding=1, route="conv-evt-3x", config=config).emit(
        "sm90", shapes=((8, 320, 64, 64), (320, 320, 3, 3))
    )
    lines = text.splitlines()
    defined = [i for i, line in enumerate(lines) if line.startswith("#define CUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED")]
    assert len(defined) == extended
    assert all(i < lines.index('#include "cutlass/cutlass.h"') for i in defined)


@pytest.mark.parametrize(("operation", "expected"), [("conv2d", Access.TILE), ("conv2d_dgrad", Access.DIRECT)])
def test_a_second_matrix_of_a_dgrad_has_no_tma(operation: str, expected: Access) -> None:
    """CUTLASS's batches of a dgrad are two modes, and the visitors have one: nvcc refused their TMA."""
    text = "out D; D = where(x <= 0, 0, acc) + y"
    op = Program(Source(text), operation, padding=1, route="conv-evt-3x")
    made = op.plan("sm90", "bf16", shapes=TYPICAL)
    assert [step.access for step in made.steps if isinstance(step, AuxLoad)] == [expected]


def test_groups_fill_tiles() -> None:
    for groups, filters, expected in ((2, 256, "kSingleGroup"), (8, 64, "kMultipleGroup")):
        shapes = ((2, 64, 14, 14), (filters, 64 // groups, 3, 3))
        text = evt.conv2d(TREE, groups=groups).emit("sm80", shapes=shapes)
        assert "DefaultConv2dGroupFprop<" in text
        assert f"GroupMode::{expected}" in text


# Refusals

PAIRS = "out D: f32[m, n], h: f32[m, n/2]; D = acc; h = even(acc, 16)*odd(acc, 16)"


@dataclass(frozen=True)
class Refusal:
    """A convolution that a route refuses, and its reason."""

    route: str
    reason: str
    operation: str = "conv2d"
    arch: str = "sm80"
    dtype: str = "f16"
    shapes: Any = None
    text: str = TREE
    keywords: tuple[tuple[str, Any], ...] = ()

    def program(self, route: str | None) -> Program:
        return convolution(self.text, self.operation, route=route, **dict(self.keywords))


def of(*shapes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    return shapes


def kw(**keywords: Any) -> tuple[tuple[str, Any], ...]:
    return tuple(keywords.items())


_PERMUTES = "CUTLASS permutes the rows of a dgrad with a stride, which visitors do not support"
_GROUPS = "CUTLASS has groups for the fprop of one and two dimensions only"
_REACH = "a stride is beyond 8, or padding or dilated filters reach too far"
_K = "8-bit operands must be contiguous along k, and the channels of"
_BIG = (2, 64, 300, 300)
REFUSALS = {
    "strided dgrad, 2x": Refusal("conv-evt-2x", _PERMUTES, "conv2d_dgrad", keywords=kw(stride=2)),
    "strided dgrad, 3x": Refusal("conv-evt-3x", _PERMUTES, "conv2d_dgrad", "sm90", keywords=kw(stride=(1, 2))),
    "strided dgrad, 3-D": Refusal("conv-evt-2x", _PERMUTES, "conv3d_dgrad", keywords=kw(stride=2)),
    "strided, dilated dgrad": Refusal(
        *("conv-stock-2x", "CUTLASS's dgrad with a stride has no dilation", "conv2d_dgrad"),
        text="D = acc",
        keywords=kw(stride=2, dilation=2),
    ),
    "wgrad, 3x": Refusal(
        *("conv-evt-3x", "visitors do not know the nested columns of wgrad", "conv2d_wgrad", "sm90"),
        keywords=kw(kernel_size=3),
    ),
    "depthwise": Refusal(
        *("conv-evt-2x", "a group's channels must be multiples of 4 bytes, and are 1 channels"),
        shapes=of((2, 64, 14, 14), (64, 1, 3, 3)),
        keywords=kw(groups=64),
    ),
    "depthwise, stock": Refusal(
        *("conv-stock-2x", "a group's channels must be multiples of 4 bytes, and are 1 channels"),
        text="D = relu(acc)",
        shapes=of((2, 64, 14, 14), (128, 1, 3, 3)),
        keywords=kw(groups=64),
    ),
    "narrow groups of 8 bits": Refusal(
        *("conv-evt-2x", "a group's channels must be multiples of 4 bytes, and are 2 channels"),
        dtype="i8",
        shapes=of((2, 64, 14, 14), (64, 2, 3, 3)),
        keywords=kw(groups=32),
    ),
    "filters of groups": Refusal(
        *("conv-evt-2x", "a group has 24 output channels, which neither divide a tile of 64 columns"),
        shapes=of((2, 64, 14, 14), (48, 32, 3, 3)),
        keywords=kw(groups=2),
    ),
    "groups of volumes": Refusal("conv-evt-2x", _GROUPS, "conv3d", keywords=kw(groups=2)),
    "groups of dgrad": Refusal("conv-evt-2x", _GROUPS, "conv2d_dgrad", keywords=kw(groups=2)),
    "groups of wgrad": Refusal("conv-stock-2x", _GROUPS, "conv2d_wgrad", keywords=kw(groups=2, kernel_size=3)),
    "groups, 3x": Refusal("conv-evt-3x", "the collectives have no groups", arch="sm90", keywords=kw(groups=2)),
    "narrow volumes": Refusal(
        *("conv-evt-2x", "iterators of volumes take 16 bytes at a time, and `B` is aligned to 8", "conv3d_dgrad"),
        shapes=of((2, 64, 6, 14, 14), (64, 4, 3, 3, 3)),
    ),
    "e4m3 dgrad": Refusal("conv-evt-2x", f"{_K} dgrad", "conv2d_dgrad", "sm89", "e4m3"),
    "i8 wgrad": Refusal("conv-evt-2x", f"{_K} wgrad", "conv2d_wgrad", dtype="i8", keywords=kw(kernel_size=3)),
    "f32 dgrad, 3x": Refusal("conv-evt-3x", "WGMMA takes f32 along k only", "conv2d_dgrad", "sm90", "f32"),
    "f64": Refusal("conv-evt-2x", "CUTLASS's convolutions have no f64", dtype="f64"),
    "f64, stock": Refusal("conv-stock-2x", "CUTLASS's convolutions have no f64", dtype="f64", text="D = acc"),
    "f64, 3x": Refusal(
        "conv-evt-3x", "f64 is multiplied by the mma instructions of 2.x kernels", arch="sm90", dtype="f64"
    ),
    "e4m3 on sm80": Refusal("conv-evt-2x", "sm80 does not multiply e4m3; sm89 and later do", dtype="e4m3"),
    "stride of TMA": Refusal("conv-evt-3x", _REACH, arch="sm90", shapes=TYPICAL, keywords=kw(stride=9)),
    "padding of TMA": Refusal("conv-evt-3x", _REACH, arch="sm90", shapes=TYPICAL, keywords=kw(padding=128)),
    "dilation of TMA": Refusal(
        *("conv-evt-3x", _REACH), arch="sm90", shapes=of(_BIG, TYPICAL[1]), keywords=kw(dilation=128)
    ),
    "volume of TMA": Refusal(
        *("conv-evt-3x", _REACH, "conv3d", "sm90"),
        shapes=of((1, 64, 8, 8, 8), (64, 64, 3, 3, 3)),
        keywords=kw(padding=16),
    ),
    "narrow channels of TMA": Refusal(
        *("conv-evt-3x", "`A` is aligned to 2 bytes: address, strides and extent along `k`"),
        arch="sm90",
        shapes=of((2, 3, 14, 14), (64, 3, 3, 3)),
    ),
    "collectives of sm80": Refusal("conv-evt-3x", "the target is sm80"),
    "collectives of sm100": Refusal("conv-evt-3x", "the target is sm100", arch="sm100"),
    "collectives of sm120": Refusal("conv-evt-3x", "the target is sm120", arch="sm120"),
    "halo of sm100": Refusal("conv-halo-3x", "the target is sm100", arch="sm100"),
    "halo of a wgrad": Refusal(
        "conv-halo-3x", "the operation is wgrad", "conv2d_wgrad", "sm90", keywords=kw(kernel_size=3)
    ),
    "halo of a strided dgrad": Refusal(
        *("conv-halo-3x", "the dgrad has more than 4 classes of pixels, which meet other taps each", "conv2d_dgrad"),
        arch="sm90",
        keywords=kw(stride=(2, 3)),
        text="D = acc",
    ),
    "halo of a strided dgrad of volumes": Refusal(
        *("conv-halo-3x", "the dgrad of volumes has a stride", "conv3d_dgrad", "sm90"),
        keywords=kw(stride=(2, 1, 1)),
        text="D = acc",
    ),
    "halo of a padded, strided dgrad": Refusal(
        *("conv-halo-3x", "the padding of the dgrad is larger than dilation * (filter size - 1)", "conv2d_dgrad"),
        arch="sm90",
        shapes=TYPICAL,
        keywords=kw(stride=2, padding=3),
        text="D = acc",
    ),
    "halo of a padded dgrad": Refusal(
        *("conv-halo-3x", "the padding of the dgrad is larger than dilation * (filter size - 1)", "conv2d_dgrad"),
        arch="sm90",
        shapes=TYPICAL,
        keywords=kw(padding=3),
    ),
    "halo of an e4m3 dgrad": Refusal("conv-halo-3x", "WGMMA takes e4m3 along k only", "conv2d_dgrad", "sm90", "e4m3"),
    "halo of an f32 dgrad": Refusal("conv-halo-3x", "WGMMA takes f32 along k only", "conv2d_dgrad", "sm90", "f32"),
    "halo of unaligned channels of a dgrad": Refusal(
        *("conv-halo-3x", "`B` is aligned to 8 bytes: address, strides and extent along `n`", "conv2d_dgrad", "sm90"),
        shapes=of((2, 64, 14, 14), (64, 20, 3, 3)),
    ),
    "halo of groups": Refusal("conv-halo-3x", "there are groups", arch="sm90", keywords=kw(groups=2)),
    "halo of f64": Refusal(
        "conv-halo-3x", "f64 is multiplied by the mma instructions of 2.x kernels", arch="sm90", dtype="f64"
    ),
    "halo of narrow channels": Refusal(
        *("conv-halo-3x", "`A` is aligned to 8 bytes: address, strides and extent along `k`"),
        arch="sm90",
        shapes=of((2, 20, 14, 14), (64, 20, 3, 3)),
    ),
    "halo of a large stride": Refusal(
        "conv-halo-3x", "a stride is beyond 8", arch="sm90", shapes=TYPICAL, keywords=kw(stride=9)
    ),
    "halo of a large filter": Refusal(
        *("conv-halo-3x", "the filters have more than 64 taps"),
        arch="sm90",
        shapes=of((2, 64, 14, 14), (64, 64, 9, 9)),
    ),
    "a halo that is too large": Refusal(
        *("conv-halo-3x", "a tile and its halo do not fit in shared memory"),
        arch="sm90",
        shapes=of((2, 64, 99, 99), (64, 64, 7, 7)),
        keywords=kw(dilation=16),
    ),
    "halo of f64 values": Refusal("conv-halo-3x", "`x` is f64", arch="sm90", text="in x: f64[n]; D = acc + x"),
    "halo of wide pairs": Refusal(
        *("conv-halo-3x", "32 columns are taken together, and a warp has 16"), arch="sm90", text=PAIRS
    ),
    "halo of a mainloop fusion": Refusal(
        "conv-halo-3x", "`A` has a mainloop fusion", arch="sm90", text="A = relu(A); D = acc"
    ),
    "taps as a GEMM": Refusal("evt-2x", "the filters have more than one tap", shapes=TYPICAL),
    "stride as a GEMM": Refusal("evt-3x", "the stride is not 1", arch="sm90", shapes=POINTWISE, keywords=kw(stride=2)),
    "padding as a GEMM": Refusal("evt-2x", "the input is padded", shapes=POINTWISE, keywords=kw(padding=1)),
    "groups as a GEMM": Refusal(
        *("stock-2x", "it has groups"),
        shapes=of(POINTWISE[0], (64, 32, 1, 1)),
        text="D = acc",
        keywords=kw(groups=2),
    ),
    "a stock epilogue of another formula": Refusal("conv-stock-2x", "CUTLASS has no functor with the values of `silu`"),
    "a vector in a gradient": Refusal(
        *("conv-stock-2x", "CUTLASS has such convolutions for fprop without groups only", "conv2d_dgrad"), text=STOCK
    ),
    "two residuals": Refusal("conv-stock-2x", "are two tensors, and convolutions read one", text="D = acc+bias+C+R"),
    "work on volumes": Refusal(
        "conv-mainloop-2x", "it has three spatial dimensions", "conv3d", text="A = relu(A); D = acc"
    ),
    "work in groups": Refusal(
        "conv-mainloop-2x", "there are groups", text="A = relu(A); D = acc", keywords=kw(groups=2)
    ),
    "work by visitors": Refusal("conv-evt-2x", "`A` has a mainloop fusion", text="A = relu(A); D = acc"),
    "no work": Refusal("conv-mainloop-2x", "A and B have no mainloop fusion"),
}
#: For these, no other route is left.
NOTHING_LEFT = {
    *("strided dgrad, 2x", "strided dgrad, 3-D", "strided, dilated dgrad"),
    *("bits of a wgrad", "pairs of a wgrad", "depthwise", "depthwise, stock", "narrow groups of 8 bits"),
    *("filters of groups", "groups of volumes", "groups of dgrad", "groups of wgrad", "narrow volumes"),
    *("e4m3 dgrad", "halo of an e4m3 dgrad", "i8 wgrad", "e4m3 on sm80"),
    *("f64", "f64, stock", "f64, 3x", "halo of f64"),
    *("work on volumes", "work in groups"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name: str) -> None:
    case = REFUSALS[name]
    with pytest.raises(evt.TargetError) as caught:
        case.program(case.route).plan(case.arch, case.dtype, case.dtype, shapes=case.shapes)
    assert [each.code for each in caught.value.diagnostics] == ["E0502"]
    assert case.reason in str(caught.value)
    assert f"the route {case.route} cannot compile this program" in str(caught.value)
    free = case.program(None)
    if name not in NOTHING_LEFT:
        assert free.plan(case.arch, case.dtype, case.dtype, shapes=case.shapes)
        return
    with pytest.raises(evt.TargetError, match="E0503") as caught:
        free.plan(case.arch, case.dtype, case.dtype, shapes=case.shapes)
    assert any(route == case.route and case.reason in reason for route, reason in caught.value.refusals)


def test_the_pitch_of_pixels_is_a_rule_of_matrices() -> None:
    weight = last(half(24, 16, 1, 1))
    op = evt.conv2d(TREE)
    for x, route in ((X, "evt-2x"), (last(half(2, 16, 11, 9))[:, :, 1:10, 1:8], "conv-evt-2x")):
        (plan, *_) = plan_kernels(op.request, bound(op, x, weight), find_target("sm80"))
        assert plan.template == {"evt-2x": "gemm_2x", "conv-evt-2x": "conv_2x"}[route]
    with pytest.raises(evt.TargetError, match="the pixels of an operand have no single pitch"):
        plan_kernels(evt.conv2d(TREE, route="evt-2x").request, bound(op, x, weight), find_target("sm80"))


def test_routes_of_convolutions_are_unknown_to_matrices() -> None:
    with pytest.raises(evt.TargetError, match="there is no route `conv-evt-2x`"):
        evt.gemm(TREE, route="conv-evt-2x").plan("sm80")
    assert evt.conv2d(TREE, route="evt").plan("sm80").template == "conv_2x"


def test_large_operands_are_left_to_tma() -> None:
    """CUTLASS 2.x's iterators count bytes in 32 bits."""
    op = evt.conv2d("D = acc", padding=1)
    large = ((256, 512, 128, 128), (64, 512, 3, 3))
    assert op.plan("sm90", "f16", "f16", shapes=large).template == "own_sm90"
    assert evt.conv2d("D = acc", padding=1, route="evt").plan("sm90", "f16", "f16", shapes=large).template == "conv_3x"
    with pytest.raises(evt.TargetError, match="2 GiB or more"):
        op.plan("sm80", "f16", "f16", shapes=large)
    assert op.plan("sm80", "f16", "f16", shapes=((255, 256, 128, 128), (64, 256, 3, 3))).family == "2x"


@pytest.mark.parametrize("filters", [65, 72, 96, 112, 160])
def test_groups_that_share_a_tile_with_half_of_another_are_refused(filters) -> None:
    op = evt.conv2d("D = relu(acc)", groups=2, padding=1)
    with pytest.raises(evt.TargetError, match=f"a group has {filters} output channels"):
        op.plan("sm80", "f16", "f16", shapes=((2, 64, 8, 8), (2 * filters, 32, 3, 3)))


@pytest.mark.parametrize(("route", "channels"), [("conv-evt-3x", 16), ("conv-padded-3x", 3)])
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_collectives_do_not_store_adjacent_pixels(route: str, channels: int, dtype: str) -> None:
    """TMA needs a constant stride of 1, and the launcher would refuse every call; another kernel computes it."""
    for modes, applies in (("m, n", True), ("n, m", False)):
        op = evt.conv2d(f"out D[{modes}]: {dtype}; D = acc", padding=1)
        problem = packed_problem(op.request, "sm90", "f16", "f16", ((2, channels, 14, 8), (64, channels, 3, 3)))
        found = survey(problem)
        assert next(each for each in found.candidates if each.route.name == route).applies == applies
        assert found.defaults


@pytest.mark.parametrize(("route", "channels"), [("conv-evt-3x", 16), ("conv-padded-3x", 3)])
@pytest.mark.parametrize(
    "formula",
    [
        *(f"D = {function}[{modes}](acc)" for function in ("sum", "max") for modes in ("m, n", "n", "m")),
        "D = argmax[n](acc)",
        "s = sum[n](acc); t = sum[m, n](acc)",
        "in i[m]: i32; out D[n, i[m]]: f64; D = acc",
    ],
)
def test_collectives_take_outputs_that_a_step_of_the_epilogue_stores(formula: str, route: str, channels: int) -> None:
    """A vector along the pixels is adjacent in memory, and a scalar has no layout: the collective stores neither."""
    op, shapes = evt.conv2d(formula, padding=1, route=route), ((2, channels, 14, 8), (64, channels, 3, 3))
    assert "epilogue.dD = " not in op.emit("sm90", "f16", "f16", shapes=shapes)
