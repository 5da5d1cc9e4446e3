"""The halo kernel over windows of widened pixels: for first layers, which have few channels."""

from __future__ import annotations

import re
from typing import Any

import pytest

import evt
from evt.emission import emit
from evt.emission.own import own
from evt.ir.convolution import Convolution
from evt.ir.dtype import BY_NAME
from evt.plan import Plan
from evt.plan.geometry import halo
from evt.plan.geometry.convolution import Axis, Problem
from evt.plan.geometry.halo_kernel import KernelClass
from evt.plan.halo import Halo
from evt.plan.halo_cost import BlockedConvolution, axes_of, choose
from evt.plan.halo_few import windows_of
from evt.plan.halo_kernels import time
from evt.plan.plan import HaloConvolution

RESIDUAL = "D = relu(acc + bias + residual)"
#: The first layers of ResNet-50, of a detector and of a U-Net.
STEM = (2, 3, 224, 224), (64, 3, 7, 7)
DETECTOR = (2, 3, 640, 640), (32, 3, 3, 3)
UNET = (2, 4, 64, 64), (320, 4, 3, 3)


def planned(shapes=STEM, dtype: str = "f16", text: str = RESIDUAL, **keywords) -> Plan:
    keywords = {"stride": 2, "padding": 3, **keywords}
    return evt.conv2d(text, **keywords).plan("sm90", dtype, dtype, shapes=shapes)


def windows(channels: int, taps: int, stride: int = 1, dtype: str = "f16", side: int = 64) -> Halo:
    geometry = Convolution.of("conv2d", {"stride": stride, "padding": taps // 2})
    problem = geometry.problem((2, channels, side, side), (64, channels, taps, taps))
    return windows_of(problem, BY_NAME[dtype])


@pytest.mark.parametrize(
    ("channels", "taps", "stride", "dtype", "window_bytes"),
    [
        (3, 7, 2, "f16", 64),
        (3, 3, 2, "f16", 32),
        (4, 3, 1, "f16", 64),
        (8, 3, 1, "bf16", 64),
        (1, 2, 1, "f16", 32),
        (8, 7, 1, "f16", 128),
        (3, 16, 2, "f16", 128),
        (3, 7, 1, "e4m3", 128),
        (3, 7, 2, "i8", 64),
        (3, 4, 4, "i8", 32),
        (3, 3, 1, "f32", 64),
        (3, 4, 4, "f16", 32),
        (8, 3, 2, "f16", 32),
        (6, 5, 2, "bf16", 64),
        (5, 9, 3, "f16", 64),
        (8, 9, 2, "f16", 128),
    ],
)
def test_a_row_of_taps_is_a_window(channels, taps, stride, dtype, window_bytes) -> None:
    found = windows(channels, taps, stride, dtype)
    assert {each.block_bytes for each in found.offered} == {window_bytes}
    assert found.fast
    assert found.offered


@pytest.mark.parametrize(
    ("channels", "taps", "stride", "dtype", "reason"),
    [
        (9, 3, 1, "f16", "there are more than 8 channels"),
        (5, 3, 1, "f32", "the channels of a pixel have more than 16 bytes"),
        (8, 9, 1, "f16", "a row of the filter is longer than 8 steps of the stride"),
        (3, 11, 8, "f32", "there are more than 64 rows of taps"),
    ],
)
def test_why_there_are_no_windows(channels, taps, stride, dtype, reason) -> None:
    assert reason in windows(channels, taps, stride, dtype).reason
    shapes = (2, channels, 64, 64), (64, channels, taps, taps)
    op = evt.conv2d(RESIDUAL, stride=stride, padding=taps // 2, route="conv-halo-padded-3x")
    with pytest.raises(evt.TargetError, match=f"E0502.*{reason}"):
        op.plan("sm90", dtype, dtype, shapes=shapes)


@pytest.mark.parametrize(
    ("keywords", "operation", "reason"),
    [
        ({"dilation": (1, 2)}, "conv2d", "the taps of a row are not next to each other"),
        ({"stride": (9, 2)}, "conv2d", "a stride is beyond 8"),
        ({"groups": 3}, "conv2d", "no fprop of two or three dimensions without groups"),
        ({}, "conv1d", "no fprop of two or three dimensions without groups"),
    ],
)
def test_what_is_no_row_of_taps(keywords, operation, reason) -> None:
    rank = int(operation[4])
    channels = 3 // keywords.get("groups", 1)
    shapes = (2, 3, *[20] * rank), (6, channels, *[3] * rank)
    op = evt.Program(evt.diagnostics.Source(RESIDUAL), operation, route="conv-halo-padded-3x", **keywords)
    with pytest.raises(evt.TargetError, match=f"E0502.*{reason}"):
        op.plan("sm90", "f16", "f16", shapes=shapes)


def test_columns_in_time_have_no_windows() -> None:
    problem = evt.conv3d("D = acc").request.convolution.problem((1, 3, 9, 20, 20), (64, 3, 3, 1, 1))
    assert windows_of(problem, BY_NAME["f16"]).reason == "the filters are columns in time"


def test_a_volume_has_a_box_of_windows_for_each_slice() -> None:
    op = evt.conv3d(RESIDUAL, stride=(1, 2, 2), padding=(1, 3, 3))
    shapes = (8, 3, 16, 112, 112), (64, 3, 3, 7, 7)
    made = op.plan("sm90", "f16", "f16", shapes=shapes)
    assert made.route == "conv-halo-padded-3x"
    assert isinstance(made.mainloop, HaloConvolution)
    assert made.mainloop.windows == (3, 2)
    assert "using Mainloop = evt::kit::WindowsMainloop<Mma, 32, 3, 3, 2, 1>;" in emit(made, "k")
    assert not any(each.shared for each in windows_of(op.request.convolution.problem(*shapes), BY_NAME["f16"]).most)
    slices = {taps: duration_of_volume(taps) for taps in (1, 3)}
    assert 2 * slices[1] < slices[3] < 3 * slices[1]


def duration_of_volume(taps: int) -> float:
    axis = Axis(112, 56, 7, 2, 1, 3)
    blocked = BlockedConvolution.of_windows(axis, axis, Axis(16, 16, taps, 1, 1, taps // 2), 64, 2)
    return time(blocked, 224, 8, 64)


def test_a_tile_has_the_windows_of_its_last_pixels() -> None:
    sizes = evt.conv2d("D = acc", stride=2, padding=3).request.convolution.problem(*STEM).sizes
    tile = choose(BlockedConvolution.of_windows(*axes_of(sizes), 64, 2), 232)
    assert tile is not None
    assert (tile.images, tile.rows, tile.columns, tile.box_rows) == (1, 28, 8, 31)
    assert (tile.input_pitch, tile.accumulator_pitch, tile.taps_per_stage) == (11, 8, 1)
    assert (tile.input_stages, tile.input_stage_bytes, tile.filter_stages, tile.resident) == (6, 6144, 7, True)
    wide = choose(BlockedConvolution.of_windows(Axis(1, 1, 1, 1, 1, 0), Axis(256, 256, 1, 1, 1, 0), None, 64, 1), 256)
    assert wide is not None
    assert (wide.columns, wide.accumulator_pitch) == (128, 131)  # TMA's boxes of C and D have 256 at most


def test_filters_stay_in_shared_memory() -> None:
    width = Axis(90, 90, 1, 1, 1, 0)
    blocked = {
        taps: BlockedConvolution.of_windows(Axis(99, 90, taps, 1, 1, 0), width, None, 128, 1) for taps in (16, 32)
    }
    tile = choose(blocked[16], 256)
    assert tile is not None
    assert (tile.resident, tile.filter_stages * tile.filter_stage_bytes) == (True, 16 * 64 * 128)
    assert choose(blocked[32], 64) is None
    shapes = (2, 3, 99, 99), (64, 3, 32, 5)
    with pytest.raises(evt.TargetError, match=r"E0502.*a tile and its halo do not fit in shared memory"):
        evt.conv2d(RESIDUAL, route="conv-halo-padded-3x").plan("sm90", "f16", shapes=shapes)
    assert evt.conv2d(RESIDUAL).plan("sm90", "f16", shapes=shapes).route == "conv-padded-3x"


@pytest.mark.parametrize(
    ("shapes", "keywords"), [(STEM, {}), (DETECTOR, {"padding": 1}), (UNET, {"stride": 1, "padding": 1})]
)
def test_first_layers_take_it(shapes, keywords) -> None:
    made = planned(shapes, **keywords)
    assert made.route == "conv-halo-padded-3x"
    assert isinstance(made.mainloop, HaloConvolution)
    assert made.mainloop.windows == ((4, 1) if shapes is UNET else (3, 2))
    assert not made.copies


@pytest.mark.parametrize(
    ("dtype", "text"),
    [("f32", RESIDUAL), ("f16", "D = relu(acc + x) + y*z"), ("f16", "out D, E; D = acc; E = relu(acc)")],
)
def test_where_another_kernel_is_preferred(dtype, text) -> None:
    shapes = (2, 2, 64, 64), (64, 2, 3, 3)
    assert planned(shapes, dtype, text).route == "conv-padded-3x"
    (route,) = (
        each
        for each in evt.conv2d(text, stride=2, padding=3).explain("sm90", dtype, dtype, shapes=shapes).routes
        if each.name == "conv-halo-padded-3x"
    )
    assert "8 or 16 bits, and the epilogue reads at most one matrix" in route.unmet
    assert route.unsuited


def test_sizes_that_are_not_known() -> None:
    with pytest.raises(evt.TargetError, match=r"E0502.*its sizes are not known"):
        evt.conv2d(RESIDUAL, stride=2, route="conv-halo-padded-3x").plan("sm90", "f16", "f16")


def test_filters_of_one_tap_are_left_to_matrix_products() -> None:
    shapes = (4, 8, 64, 64), (64, 8, 1, 1)
    assert evt.conv2d(RESIDUAL).plan("sm90", "f16", shapes=shapes).route in ("stock-3x", "evt-3x")


def test_tall_padding_is_no_obstacle() -> None:
    shapes = (2, 3, 64, 64), (64, 3, 3, 3)
    assert evt.conv2d(RESIDUAL, padding=(200, 1)).plan("sm90", "f16", shapes=shapes).route == "conv-halo-padded-3x"


def test_wide_rows_are_planned_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million columns: the widths of tiles are tried, not the number of tiles."""
    shapes = (2, 3, 8, 10**6), (64, 3, 3, 3)
    made = evt.conv2d(RESIDUAL, padding=1).plan("sm90", "f16", shapes=shapes)
    assert made.route == "conv-halo-padded-3x"
    height = Axis(8, 8, 3, 1, 1, 1)
    tried, arrange = [], halo.arrange

    def counted(problem: Problem, kernel: KernelClass, *sizes: Any) -> halo.Geometry:
        tried.append(sizes)
        return arrange(problem, kernel, *sizes)

    monkeypatch.setattr(halo, "arrange", counted)
    assert choose(BlockedConvolution.of_windows(height, Axis(10**6, 10**6, 3, 1, 1, 1), None, 64, 1), 256) is not None
    assert 0 < len(tried) < 256


def test_rows_beyond_32_bits_take_another_kernel() -> None:
    for columns, taken in ((50_000_000, "conv-halo-padded-3x"), (54_000_000, "conv-padded-3x")):
        made = evt.conv2d(RESIDUAL, padding=1).plan("sm90", "f16", shapes=((1, 8, 3, columns), (64, 8, 3, 3)))
        assert made.route == taken


def test_the_kernel_reads_the_operands_themselves() -> None:
    """Threads load them, wherever they are, and are told the convolution's own sizes."""
    made = planned()
    spelled = own(made)
    assert spelled is not None
    sizes, operands = dict(spelled.problem), dict(spelled.operands)
    assert sizes["problem.channels"] == "static_cast<int>(arguments.channels)"
    assert sizes["problem.width.pad"] == "static_cast<int>(arguments.pad_width)"
    assert operands["a"] == "arguments.A"
    assert operands["a_strides[2]"] == "arguments.stride_width_of_A"
    text = emit(made, "k")
    assert "using Mainloop = evt::kit::WindowsMainloop<Mma, 32, 2, 3, 2, 1>;" in text
    (aligned,) = re.findall(r"if \(evt::misaligned\((.*)\)\) return", text)
    assert "residual" in aligned
    assert "->A" not in aligned
    assert "->B" not in aligned


# Programmatic dependent launch


def test_kernels_that_may_begin_early_wait_for_the_one_before_them() -> None:
    """The warps that multiply and finish."""
    made = planned(text="out D, s: f32[n]; D = relu(acc + bias); s = sum[m](D)")
    text = emit(made, "k")
    assert text.count("&jobs, true)") == 1
    assert text.count("&last.params, true)") == 1
    assert text.count("evt::pdl::let_next_kernel_begin();") == 2
    assert text.count("evt::pdl::wait_for_kernel_before();\n  evt::finish_all(") == 1
    (_, multiplies) = text.split("CUTLASS_DEVICE void operator()(Params const& params, char* shared_memory)")
    waits = multiplies.index("pdl::wait_for_kernel_before();")
    begins = multiplies.index("consume(params, storage, group - 1)")
    assert multiplies.index("Mainloop::arrange(params, storage)") < waits < begins < multiplies.index("prepare(params")


def test_kernels_of_cutlass_are_launched_after_the_one_before_them() -> None:
    text = emit(evt.conv2d(RESIDUAL, padding=1, route="evt").plan("sm90", shapes=((2, 64, 9, 9), (64, 64, 3, 3))), "k")
    assert "griddepcontrol" not in text
    assert "&last.params)" in text
