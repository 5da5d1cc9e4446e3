"""Groups by the halo kernel: the blocks of filters against a model of the kernel's memory, rules and text."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch

import evt
from evt.emission import emit
from evt.ir.convolution import Convolution
from evt.launch.halo import shape
from evt.launch.halo_groups import packed
from evt.launch.shape import TensorMap
from evt.plan import Plan, find_target
from evt.plan.cards import find_card
from evt.plan.geometry.convolution import Axis, Problem
from evt.plan.plan import HaloConvolution
from evt.plan.sizes import UNKNOWN
from evt.plan.speed import duration, fastest, refusal
from evt.plan.survey import survey
from evt.request import packed_problem, problem_sizes
from evt.runtime.kernels import call_problem
from tests.support.convolutions import bound, half, last

ROUTE = "conv-halo-groups-3x"
RESIDUAL = "D = relu(acc + bias + residual)"
CARD = 132
Shapes = tuple[tuple[int, ...], tuple[int, ...]]


def planned(shapes: Shapes, groups: int, text: str = RESIDUAL, operation: str = "conv2d", **keywords: Any) -> Plan:
    op = getattr(evt, operation)(text, groups=groups, **{"route": ROUTE, **keywords})
    return op.plan("sm90", "f16", "f16", shapes=shapes)


@pytest.mark.parametrize(("channels", "found"), [(16, {"halo_group", "halo_groups"}), (17, {"halo_groups"})])
def test_a_tile_of_one_group_needs_filters_that_tma_loads(channels: int, found: set[str]) -> None:
    op = evt.conv2d("D = acc", groups=8, route=ROUTE)
    weight = last(half(64, channels, 2, 2))[:, :16]
    problem = call_problem(op.request, bound(op, last(half(2, 128, 9, 9)), weight), find_target("sm90"))
    assert {config.schedule for config in survey(problem, ROUTE).chosen.search_space.values()} == found


# Blocks of filters


def sizes_of(plan: Plan, operation: str, groups: int, shapes: Shapes) -> dict[str, int]:
    """Return the sizes of a call of packed tensors, channels last, with a filter of one tap."""
    found = dict(Convolution.of(operation, {"groups": groups}).problem(*shapes).sizes)
    columns = found["filters"] if operation == "conv2d" else found["channels"]
    found |= {"l": 1, "n": columns, "tile_rows": 0, "tile_columns": 0}
    for name, (_, channels, height, width) in zip("AB", shapes, strict=True):
        strides = {"outer": height * width * channels, "height": width * channels, "width": channels}
        found |= {each.name: strides[each.role] for each in plan.fields if each.tensor == name and each.role in strides}
    for name in ("C", "D"):
        found |= {each.name: columns for each in plan.fields if each.tensor == name and each.kind == "size"}
    return found


def place(values: Mapping[str, Any], block: int) -> tuple[int, int, int, int]:
    """Return the slice, the first filter and channel in it, and the end of the filters: GroupBlocks::place."""
    filters, step, channel_step, blocks = (
        values[f"operands.groups.{name}"] for name in ("filters", "step", "channel_step", "blocks")
    )
    slice_, number = divmod(block, blocks)
    first = number * step
    return slice_, first, number * channel_step, slice_ * filters + min(first + step, filters)


def loaded(map_: TensorMap, tensor: torch.Tensor, first: int, slice_: int) -> torch.Tensor:
    """Return the box [pixels, channels] that TMA loads from packed pixels: zeros beyond the slice."""
    extent, slices, stride = map_.extents[0], map_.extents[-1], map_.strides[-1] // 2
    assert extent + (slices - 1) * stride == tensor.shape[1]
    found = tensor.new_zeros((tensor.shape[0], map_.box[0]))
    within = tensor[:, slice_ * stride : slice_ * stride + extent][:, first : first + map_.box[0]]
    found[:, : within.shape[1]] = within
    return found


def filters_of(plan: Plan, values: Mapping[str, Any], weight: torch.Tensor, block: int, channels: int) -> torch.Tensor:
    """Return the rows of channels of a block's 64 filters, as the kernel's threads or TMA write them."""
    assert isinstance(plan.mainloop, HaloConvolution)
    slice_, first, _, end = place(values, block)
    rows = torch.zeros((64, channels), dtype=weight.dtype)
    backwards = plan.mainloop.operator == "dgrad"
    if plan.mainloop.groups == "multiple":
        names = ("b_group", "b_filter", "b_channel", "filters", "channels")
        of_group, of_filter, of_channel, filters, inner = (values[f"operands.{name}"] for name in names)
        flat = weight.flatten()
        last = end - slice_ * values["operands.groups.filters"]
        for row in range(last - first):
            group, number = divmod(first + row, filters)
            base = (slice_ + group) * of_group + number * of_filter
            at = (group - first // filters) * inner
            rows[row, at : at + inner] = flat[base : base + inner * of_channel : of_channel][:inner]
        return rows
    inner = values["operands.groups.channels"]
    if backwards:  # rows of B are channels
        found = weight[slice_ * inner : (slice_ + 1) * inner, first : first + 64].T
    else:
        filter_ = slice_ * values["operands.groups.filters"] + first
        found = weight[filter_ : filter_ + 64]
    rows[: found.shape[0], : found.shape[1]] = found
    return rows


def computed(plan: Plan, operation: str, groups: int, a: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return the columns of D that the kernel's blocks compute for pixels [pixels, channels] and one tap."""
    shapes = ((1, a.shape[1], 1, a.shape[0]), (*weight.shape, 1, 1))
    sizes = sizes_of(plan, operation, groups, shapes)
    made = shape(plan, sizes, CARD)
    assert made is not None
    maps = {each.member: each for each in made.maps}
    values: dict[str, Any] = dict(made.values)
    channels = plan.config.tile[2]
    columns = sizes["n"]
    d = torch.full((a.shape[0], columns), torch.nan, dtype=a.dtype)
    assert made.tiles[1] == 4 * values["filter_blocks"]
    for block in range(values["filter_blocks"]):
        slice_, first, channel, end = place(values, block)
        rows = filters_of(plan, values, weight, block, channels * values["channel_blocks"])
        inputs = [
            loaded(maps["input"], a, channel + number * channels, slice_) for number in range(values["channel_blocks"])
        ]
        sums = torch.cat(inputs, dim=1) @ rows.T
        begin = slice_ * values["operands.groups.filters"] + first
        stored = end - begin
        if store := maps.get("destination"):
            assert begin == slice_ * store.strides[-1] // 2 + first
            assert stored == min(store.box[0], store.extents[0] - first)
        assert bool(d[:, begin : begin + stored].isnan().all())  # no block stores another block's columns
        d[:, begin : begin + stored] = sums[:, :stored]
    return d


def drawn(draw: random.Random, operation: str) -> Iterator[tuple[int, int, int]]:
    """Yield numbers of groups, and channels and filters of a group, that the kernel takes."""
    while True:
        groups = draw.choice((2, 3, 5, 8, 9, 16, 33, 64))
        inner, outer = (draw.choice((1, 2, 3, 4, 5, 8, 12, 16, 24, 32, 40, 56, 64, 112, 168)) for _ in range(2))
        if groups * inner <= 800 and groups * outer <= 800 and groups * inner % 8 == groups * outer % 8 == 0:
            yield groups, inner, outer


@pytest.mark.parametrize("operation", ["conv2d", "conv2d_dgrad"])
def test_blocks_compute_their_groups(operation: str) -> None:
    """Each column of D is stored once, and only the channels of its group are multiplied by it."""
    draw, kinds, refused = random.Random(operation), set(), 0
    problems = drawn(draw, operation)
    for _ in range(36):
        groups, inner, outer = next(problems)
        a = torch.randint(-4, 5, (3, groups * inner)).double()
        rows, length = (groups * inner, outer) if operation == "conv2d_dgrad" else (groups * outer, inner)
        weight = torch.randint(-4, 5, (rows, length)).double()
        shapes = ((1, groups * inner, 1, 3), (rows, length, 1, 1))
        try:
            plan = planned(shapes, groups, "D = acc", operation)
        except evt.TargetError:
            refused += 1
            continue
        assert isinstance(plan.mainloop, HaloConvolution)
        kinds.add((plan.mainloop.groups, plan.config.tile[2]))
        of_group = weight.unflatten(0, (groups, -1))
        turned = of_group if operation == "conv2d_dgrad" else of_group.mT
        want = torch.einsum("pgc,gcf->pgf", a.unflatten(1, (groups, inner)), turned).flatten(1)
        assert torch.equal(computed(plan, operation, groups, a, weight), want), (groups, inner, outer)
    assert refused < 12
    assert {kind for kind, _ in kinds} == {"single", "multiple"}
    assert len(kinds) >= 5


@pytest.mark.parametrize("inner", [16, 24, 32])
@pytest.mark.parametrize("side", [7, 14])
def test_few_images_take_one_group_in_a_tile(inner: int, side: int) -> None:
    """TMA loads its filters: 512 channels at 14x14 took 8.8 us on an H200, and 9.8 us with several groups in a tile."""
    taken = []
    for images in (1, 256):
        shapes = (images, 32 * inner, side, side), (32 * inner, inner, 3, 3)
        op = evt.conv2d("D = relu(acc + bias)", padding=1, groups=32)
        plans = survey(packed_problem(op.request, "sm90", "f16", "f16", shapes)).defaults
        loop = plans[fastest(plans, problem_sizes(op.request, shapes), find_card("sm90"))].mainloop
        assert isinstance(loop, HaloConvolution)
        taken.append(loop.groups)
    assert taken == ["single", "multiple"]


def test_filters_that_tma_cannot_load_have_several_groups_in_a_tile() -> None:
    op = evt.conv2d("D = acc", padding=1, groups=32, route="conv-halo-groups-3x")
    wide = last(half(512, 20, 3, 3))
    for weight, kinds in ((wide[:, :16], {"multiple"}), (last(half(512, 16, 3, 3)), {"single", "multiple"})):
        given = bound(op, last(half(1, 512, 14, 14)), weight)
        plans = survey(call_problem(op.request, given, find_target("sm90"))).defaults
        assert {each.mainloop.groups for each in plans if isinstance(each.mainloop, HaloConvolution)} == kinds


@pytest.mark.parametrize("backwards", [False, True])
def test_filters_of_a_group_are_within_32_bits(backwards: bool) -> None:
    axis = Axis(14, 14, 3, 1, 1, 1)
    problem = Problem(1, 64, 32, axis, axis)
    rows = 16 if backwards else 8
    assert packed(problem, 4, (2**31 // rows - 100, 3, 1), backwards=backwards) is not None
    assert packed(problem, 4, (2**31 // rows, 3, 1), backwards=backwards) is None


# Rules

LAYER: Shapes = ((2, 128, 28, 28), (128, 4, 3, 3))
REFUSED = {
    "volumes": ("conv3d", ((2, 64, 9, 9, 9), (64, 4, 3, 3, 3)), {"groups": 16}, "it is no fprop or dgrad of two dim"),
    "strided": ("conv2d_dgrad", ((2, 64, 9, 9), (64, 4, 3, 3)), {"groups": 16, "stride": 2}, "a dgrad with a stride"),
    "wgrad": ("conv2d_wgrad", ((2, 64, 7, 7), (2, 64, 9, 9)), {"groups": 16, "kernel_size": 3}, "it is no fprop"),
    "bytes": ("conv2d", ((2, 64, 9, 9), (64, 16, 3, 3)), {"groups": 4, "a": "i8"}, "the operands are i8"),
    "odd": ("conv2d", ((2, 66, 9, 9), (66, 22, 3, 3)), {"groups": 3}, "`A`"),
    "without": ("conv2d", ((2, 64, 9, 9), (64, 64, 3, 3)), {}, "there are no groups"),
    "large": ("conv2d", ((2, 64, 19, 19), (64, 4, 9, 9)), {"groups": 16}, "more than 64 taps"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    operation, shapes, given, reason = REFUSED[name]
    keywords = dict(given)
    dtype = str(keywords.pop("a", "f16"))
    op = getattr(evt, operation)("out D: f16; D = acc", **keywords)
    found = survey(packed_problem(op.request, "sm90", dtype, dtype, shapes))
    (candidate,) = (each for each in found.candidates if each.route.name == ROUTE)
    assert not candidate.applies
    assert any(reason in each.reason for each in candidate.refusals), [each.reason for each in candidate.refusals]


@pytest.mark.parametrize("text", ["in keep: b1[m, n]; D = where(keep, acc, 0)", "out D: f16[m, n/2]; D = even(acc)"])
def test_strips_begin_with_blocks(text: str) -> None:
    """Bits and pairs are taken by strips of 16 columns, where blocks begin."""
    assert planned(LAYER, 32, text).config.tile[2] == 64
    assert planned(((2, 72, 14, 14), (72, 24, 3, 3)), 3, text).config.tile[2] == 48  # two groups of 24
    with pytest.raises(evt.TargetError, match="multiples of 16"):
        planned(((2, 80, 14, 14), (80, 40, 3, 3)), 2, text)
    assert planned(((2, 80, 14, 14), (80, 40, 3, 3)), 2).route == ROUTE


def test_each_channel_alone_is_depthwise() -> None:
    op = evt.conv2d(RESIDUAL, padding=1, groups=64)
    assert op.plan("sm90", "f16", "f16", shapes=((2, 64, 14, 14), (64, 1, 3, 3))).route == "conv-depthwise-3x"
    assert op.plan("sm90", "f16", "f16", shapes=((2, 64, 14, 14), (128, 1, 3, 3))).route == ROUTE


# The text and the speed


@pytest.mark.parametrize(
    ("operation", "shapes", "groups", "mainloop"),
    [
        ("conv2d", LAYER, 32, "PackedGroupsMainloop<Mma, 64, 4>"),
        ("conv2d", ((2, 216, 28, 28), (216, 24, 3, 3)), 9, "PackedGroupsMainloop<Mma, 48, 8>"),
        ("conv2d", ((2, 448, 28, 28), (448, 112, 3, 3)), 4, "GroupsMainloop<Mma, 64>"),
        ("conv2d_dgrad", LAYER, 32, "PackedGroupsMainloop<Mma, 64, 1, true>"),
        ("conv2d_dgrad", ((2, 448, 28, 28), (448, 112, 3, 3)), 4, "GroupsMainloop<Mma, 64>"),
    ],
)
def test_the_main_loop(operation: str, shapes: Shapes, groups: int, mainloop: str) -> None:
    made = planned(shapes, groups, operation=operation, padding=1)
    text = emit(made, "k")
    assert f"using Mainloop = k::evt::kit::{mainloop};" in text.replace("= evt::", "= k::evt::")
    assert "  arguments.groups = int(given.groups);" in text or "groups = " in text
    assert ("kTransposed = true" in text) == (operation == "conv2d_dgrad" and "Packed" not in mainloop)


def test_the_estimate_knows_the_groups() -> None:
    """A kernel's time does not depend on the number of groups in a block, and other blocks are refused."""

    def sizes(groups: int) -> dict[str, int]:
        shapes = (32, 128, 56, 56), (128, 128 // groups, 3, 3)
        return {**Convolution.of("conv2d", {"groups": groups, "padding": 1}).problem(*shapes).sizes, "l": 1}

    made = planned(((32, 128, 56, 56), (128, 4, 3, 3)), 32, padding=1)
    assert duration(made, sizes(16), CARD).work == duration(made, sizes(32), CARD).work
    assert refusal(made, sizes(1), UNKNOWN)
