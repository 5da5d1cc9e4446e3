"""The depthwise kernel: its units, its plan, and its text."""

from __future__ import annotations

import math
from typing import Any

import pytest

import evt
from evt.diagnostics import Source
from evt.emission import emit
from evt.emission.kernel import spell
from evt.ir.convolution import Convolution
from evt.plan import Plan
from evt.plan.depthwise import Depthwise, Filter, Unit, depthwise_of
from evt.plan.epilogue.broadcasts import RowBroadcast
from evt.plan.epilogue.computes import Apply
from evt.plan.epilogue.loads import AccFetch, AuxLoad, SourceFetch
from evt.plan.epilogue.values import Access
from evt.plan.epilogue.writes import AuxStore
from evt.plan.geometry.depthwise import CHANNELS, SHARED_BYTES, UNITS, memory_of
from evt.plan.plan import DepthwiseConvolution
from evt.runtime.arguments import bind
from tests.support.layers import random_depthwise

RESIDUAL = "D = relu(acc + bias + residual)"
LAYER = (2, 96, 56, 56), (96, 1, 3, 3)


def planned(text: str, dtype: str = "f16", shapes: Any = LAYER, **keywords: Any) -> Plan:
    given = {"padding": 1, "groups": shapes[0][1], **keywords}
    return evt.conv2d(text, **given).plan("sm90", dtype, dtype, shapes=shapes)


def found(images: int, channels: int, side: int, taps: int, **geometry: Any) -> Depthwise:
    made = Convolution.of("conv2d", {"padding": taps // 2, "groups": channels, **geometry})
    return depthwise_of(made.problem((images, channels, side, side), (channels, 1, taps, taps)), 2)


def test_units_divide_the_output() -> None:
    assert found(32, 96, 56, 3).offered == (Unit(2, 7), Unit(1, 7))
    assert found(32, 96, 56, 3).light == (Unit(4, 7),)
    assert found(32, 96, 14, 7).light == ()  # four rows do not divide 14
    assert found(32, 96, 64, 3).offered[0].columns == 8
    assert found(32, 96, 20, 3).offered[0].columns == 7  # three units, where five columns make four
    assert found(32, 96, 3, 3).offered[0].columns == 3


def test_rows_share_little_with_a_stride() -> None:
    assert found(32, 96, 56, 5, stride=2).light == ()


def test_a_row_of_input_fits_in_registers() -> None:
    for taps, dilation in ((7, 1), (7, 6), (11, 1)):
        every = found(1, 64, 112, taps, padding="same", dilation=dilation)
        units = (*every.offered, *every.light, *every.others)
        assert units
        for unit in units:
            met = {column + tap * dilation for column in range(unit.columns) for tap in range(taps)}
            assert 2 * unit.rows * unit.columns + 2 * len(met) <= 96


def test_larger_units_issue_less_for_each_pixel() -> None:
    filter_ = Filter((3, 3), (1, 1), (1, 1))
    issued = [filter_.shape(unit).instructions / math.prod(unit) for unit in (Unit(1, 7), Unit(2, 7), Unit(4, 7))]
    assert issued == sorted(issued, reverse=True)
    assert filter_.cost(Unit(2, 8)) > filter_.shape(Unit(2, 8)).instructions  # two units read the same banks
    assert filter_.cost(Unit(2, 7)) == filter_.shape(Unit(2, 7)).instructions


def test_the_plan() -> None:
    made = planned(RESIDUAL)
    assert (made.route, made.family, made.template) == ("conv-depthwise-3x", "own", "own_depthwise")
    assert isinstance(made.mainloop, DepthwiseConvolution)
    assert made.mainloop.filter == Filter((3, 3), (1, 1), (1, 1))
    assert (made.mainloop.a.alignment, made.mainloop.b.alignment) == (8, 1)
    assert [type(node) for node in made.steps] == [AccFetch, RowBroadcast, SourceFetch, Apply, AuxStore]
    assert not made.with_pdl
    assert made.register_limit == 128
    box, source, filters = 4 * 9 * 64, 14 * 64, 9 * (64 + 34 * 4)
    assert made.shared_memory == math.ceil(box / 128) * 128 + source + filters + 24
    assert planned("D = acc").shared_memory == made.shared_memory - source


def test_other_types_are_moved_element_by_element() -> None:
    made = planned("out D: f32[m, n]; D = acc + C")
    assert (made.source, made.destination) == (None, None)
    accesses = [node.access for node in made.steps if isinstance(node, AuxLoad | AuxStore)]
    assert accesses == [Access.DIRECT, Access.DIRECT]


def test_the_kernel_is_made_for_its_filter() -> None:
    text = emit(planned(RESIDUAL, "bf16", stride=(1, 2), dilation=(2, 1), config="depthwise_2x5"))
    kernel = (
        "evt::depthwise::Kernel<evt::element::bf16, evt::depthwise::Filter<3, 3, 1, 2, 2, 1, 2, 5, false>, Epilogue>"
    )
    assert kernel in text
    assert '#include "cute' not in text
    assert "Kernel::get_shared_bytes(last.params)" in text
    op = evt.Program(Source("D = acc"), "conv2d_dgrad", padding=1, groups=96)
    gradient = op.plan("sm90", "f32", "f32", shapes=LAYER)
    text = emit(gradient)
    assert "evt::depthwise::Kernel<float, evt::depthwise::Filter<3, 3, 1, 1, 1, 1, 2, 7, true>, Epilogue>" in text
    assert (
        "result.problem.height.pad = static_cast<int>(arguments.dilation_height * (arguments.filter_height - 1)" in text
    )


def test_lanes_meet_as_the_kernel_deals_out_columns() -> None:
    made = planned(
        "in keep: b1[m, n]; out D, a: f32[n], b: f32[m], c: f32\n"
        "D = where(keep, acc, 0); a = sum[m](acc); b = max[n](acc); c = max[m, n](acc)"
    )
    types = {part.name: part.type for part in spell(made).fragment.parts}
    assert types["in_keep"] == "evt::own::Part<evt::depthwise::Lanes, evt::epilogue::MaskLoad>"
    assert all(each.startswith("evt::own::Part<evt::depthwise::Lanes, ") for each in types.values())


def test_conv1d_is_one_of_height_1() -> None:
    op = evt.conv1d("D = acc", padding=3, groups=64)
    made = op.plan("sm90", shapes=((8, 64, 500), (64, 1, 7)))
    assert made.mainloop.filter == Filter((1, 7), (1, 1), (1, 1))
    assert made.config.name.startswith("depthwise_1x")


VOLUME = (2, 64, 8, 9, 10), (64, 1, 3, 3, 3)
SMALL = (2, 64, 14, 14), (64, 1, 3, 3)
PAIRS = "out D: f32[m, n], h: f32[m, n/2]; D = acc; h = even(acc, 32)*odd(acc, 32)"
ONE_EACH = "its groups are not one input channel and one output channel each"
#: The reason; the operation, the target, the type, the shapes of A and B, the formula, and the geometry.
REFUSALS: dict[str, tuple[str, dict[str, Any]]] = {
    "sm80": ("have a kernel on sm90 only, and the target is sm80", {"arch": "sm80"}),
    "sm100": ("have a kernel on sm90 only, and the target is sm100", {"arch": "sm100"}),
    "strided dgrad": (
        "it is no fprop, nor a dgrad of stride 1",
        {"operation": "conv2d_dgrad", "shapes": ((2, 64, 7, 7), (64, 1, 3, 3)), "stride": 2},
    ),
    "wgrad": (
        "it is no fprop, nor a dgrad of stride 1",
        {"operation": "conv2d_wgrad", "shapes": ((2, 64, 12, 12), (2, 64, 14, 14)), "kernel_size": 3, "padding": 0},
    ),
    "padded dgrad": (
        "the padding of the dgrad is larger than dilation * (filter size - 1)",
        {"operation": "conv2d_dgrad", "padding": 3},
    ),
    "volumes": ("it is one of volumes", {"operation": "conv3d", "shapes": VOLUME}),
    "large filters": ("the filters have more than 128 taps", {"shapes": ((2, 64, 14, 14), (64, 1, 12, 12))}),
    "far taps": (
        "a thread's pixels and their halo do not fit in registers and shared memory",
        {"shapes": ((2, 64, 14, 300), (64, 1, 1, 3)), "dilation": (1, 128)},
    ),
    "8 bits": ("`A` is i8", {"dtype": "i8"}),
    "unaligned channels": (
        "`A` is aligned to 8 bytes: address, strides and extent along `k` must be multiples of 16 bytes",
        {"shapes": ((2, 60, 14, 14), (60, 1, 3, 3))},
    ),
    "wide pairs": ("64 columns are taken together, and a warp has 32", {"text": PAIRS}),
    "mainloop fusion": ("`A` has a mainloop fusion", {"text": "A = relu(A); D = acc"}),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals_are_what_a_user_is_told(name: str) -> None:
    reason, given = REFUSALS[name]
    case: dict[str, Any] = {
        "operation": "conv2d",
        "arch": "sm90",
        "dtype": "f16",
        "shapes": SMALL,
        "text": "D = acc",
        "padding": 1,
    }
    case |= given
    operation, arch, dtype, shapes, text = (case.pop(each) for each in ("operation", "arch", "dtype", "shapes", "text"))
    for route, code in (("conv-depthwise-3x", "E0502"), (None, "E0503")):
        op = evt.Program(Source(text), operation, groups=shapes[0][1], route=route, **case)
        with pytest.raises(evt.TargetError, match=code) as caught:
            op.plan(arch, dtype, dtype, shapes=shapes)
        assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("shapes", "groups", "reason"),
    [
        (None, 64, "its sizes are not known: give the shapes of A and B"),
        (((2, 64, 14, 14), (64, 32, 3, 3)), 2, ONE_EACH),
        (((2, 64, 14, 14), (128, 1, 3, 3)), 64, ONE_EACH),
    ],
)
def test_other_groups_are_refused(shapes: Any, groups: int, reason: str) -> None:
    with pytest.raises(evt.TargetError, match=reason):
        evt.conv2d("D = acc", groups=groups, route="conv-depthwise-3x").plan("sm90", shapes=shapes)


def test_wide_groups_of_odd_channels_hear_of_cutlass() -> None:
    with pytest.raises(evt.TargetError, match="a group's channels must be multiples of 4 bytes"):
        evt.conv2d("D = acc", groups=2).plan("sm90", shapes=((2, 130, 14, 14), (66, 65, 3, 3)))
    with pytest.raises(evt.TargetError, match="the filters have more than 64 taps"):
        evt.conv2d("D = acc", route="own").plan("sm90", shapes=((2, 64, 30, 30), (64, 64, 17, 17)))


@pytest.mark.parametrize(("arch", "channels", "taps"), [("sm80", 64, 3), ("sm90", 62, 3), ("sm90", 64, 12)])
def test_f32_elsewhere_is_read_one_channel_at_a_time(arch: str, channels: int, taps: int) -> None:
    """By CUTLASS 2.x, whose accesses have to stay within a group."""
    shapes = ((2, channels, 14, 14), (channels, 1, taps, taps))
    made = evt.conv2d("D = silu(acc)", padding=1, groups=channels).plan(arch, "f32", "f32", shapes=shapes)
    assert made.route == "conv-evt-2x"
    assert made.mainloop.alignments == (1, 1)
    assert (made.mainloop.a.alignment, made.mainloop.b.alignment) == (1, 1)


def test_what_tma_does_not_move_is_copied() -> None:
    """No other kernel is depthwise. Channels that a copy would not align are not copied."""
    import torch

    op = evt.conv2d("D = acc", padding=1, groups=64)
    weight = torch.zeros(64, 1, 3, 3).half()
    for first, count, copied in ((0, 64, ()), (8, 64, ()), (4, 64, ("A",)), (4, 60, ())):
        wide = torch.zeros(2, 9, 7, 72).half().movedim(3, 1)
        shapes = op if count == 64 else evt.conv2d("D = acc", padding=1, groups=count)
        found = bind(shapes.request, wide[:, first : first + count], weight[:count], {}, {})
        assert found.copied == copied


def test_tiles_cover_the_output_and_fit() -> None:
    found = [each for each in random_depthwise(1, 300) if each[3].units]
    assert len(found) > 200
    for problem, shape, elements, tile in found:
        height, width = problem.height, problem.width
        assert 1 <= tile.units <= UNITS
        assert tile.threads == 32 * math.ceil(tile.units / 2) <= 256
        assert tile.tiles_high == math.ceil(height.output / (tile.rows * shape.rows))
        assert tile.tiles_wide == math.ceil(width.output / (tile.columns * shape.columns))
        assert tile.tiles == tile.tiles_high * tile.tiles_wide * math.ceil(problem.images / tile.images)
        assert tile.images == 1 or tile.tiles_high == tile.tiles_wide == 1
        assert tile.channel_blocks == math.ceil(problem.channels / CHANNELS)
        rows = (tile.rows * shape.rows - 1) * height.stride + (height.taps - 1) * height.dilation + 1
        columns = (tile.columns * shape.columns - 1) * width.stride + (width.taps - 1) * width.dilation + 1
        assert (tile.box_rows, tile.box_columns) == (rows, columns)
        assert max(rows, columns) <= 256
        assert memory_of(shape, tile, elements).size <= SHARED_BYTES
