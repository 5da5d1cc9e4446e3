"""Convolutions of volumes by the halo kernel: slices and their channel blocks, and where the kernel is preferred."""

from __future__ import annotations

import random
from typing import Any

import pytest

import evt
from evt.emission import emit
from evt.emission.own import own
from evt.ir.convolution import Convolution
from evt.ir.dtype import F16
from evt.launch.halo_call import problem_of
from evt.plan import Plan
from evt.plan.geometry.convolution import Axis, Problem
from evt.plan.halo import forward, halo_of
from evt.plan.halo_cost import BlockedConvolution, Cycles, choose
from evt.plan.speed import depth, fastest
from tests.support.convolutions import convolution

AXIS = ("output", "pad", "stride", "dilation")
RESIDUAL = "D = relu(acc + bias + residual)"
VOLUME = (2, 64, 8, 28, 28), (64, 64, 3, 3, 3)


def planned(operation: str = "conv3d", shapes: Any = VOLUME, text: str = RESIDUAL) -> Plan:
    return convolution(text, operation, padding=1, route="own").plan("sm90", "f16", shapes=shapes)


def test_the_kernel_is_told_of_the_depth() -> None:
    made = planned()
    text = own(made)
    assert text is not None
    members = dict((*text.problem, *text.operands))
    for part, member in (("", "size"), ("filter_", "taps"), *((f"{part}_", part) for part in AXIS)):
        name = f"{part}depth"
        assert members[f"problem.depth.{member}"] == f"static_cast<int>(arguments.{name})"
    assert members["a_strides[3]"] == "arguments.stride_width_of_A"
    assert members["b_strides[1]"] == "arguments.stride_depth_of_B"
    assert "HaloMainloop<Mma, 64, 3>;" in emit(made, "k")
    flat = evt.conv2d(RESIDUAL, padding=1, route="own").plan("sm90", "f16", shapes=((2, 64, 28, 28), (64, 64, 3, 3)))
    assert "HaloMainloop<Mma, 64, 2>;" in emit(flat, "k")


def test_a_tile_has_a_slice_of_several_volumes() -> None:
    sizes = Convolution.of("conv3d", {"padding": 1}).problem((6, 64, 8, 7, 7), VOLUME[1]).sizes
    tile = choose(BlockedConvolution.of(sizes, 64, 2), 256)
    flat = choose(
        BlockedConvolution.of({name: size for name, size in sizes.items() if "depth" not in name}, 64, 2), 256
    )
    assert tile is not None
    assert flat is not None
    assert tile.images == flat.images > 1
    assert tile.tiles(problem_of(planned(shapes=((6, 64, 8, 7, 7), VOLUME[1])), sizes)) == 8 * -(-6 // tile.images)


@pytest.mark.parametrize("seed", range(60))
def test_taps_outside_of_the_volume_cost_nothing(seed: int) -> None:
    """The mean number of blocks counts the taps of each slice that read the input, and one at least."""
    draw = random.Random(seed)
    taps, dilation, stride, pad = draw.randint(1, 5), draw.randint(1, 3), draw.randint(1, 3), draw.randrange(6)
    size, output = draw.randint(1, 12), draw.randint(1, 9)
    depth, flat = Axis(size, output, taps, stride, dilation, pad), Axis(9, 9, 3, 1, 1, 1)
    inside = [
        sum(0 <= z * stride - pad + tap * dilation < size for tap in range(taps)) for z in range(output)
    ]  # of each slice of the output
    assert depth.taps_inside == max(sum(inside), output)
    assert Problem(1, 100, 64, flat, flat, depth).mean_blocks(64) == -(-2 * depth.taps_inside // output)
    blocked = BlockedConvolution.cut(flat, flat, depth, 200, 128)
    tile = choose(blocked, 104)
    assert tile is not None
    cycles = Cycles.of(blocked, tile, 104)
    assert (cycles.blocks, cycles.most_blocks) == (2 * depth.taps_inside / output, 2 * max(1, *inside))


def test_time_counts_slices():
    plans = [
        convolution("D = acc", "conv3d", padding=1, route="own", config=f"halo_{pixels}x64x64").plan(
            "sm90", "f16", shapes=VOLUME
        )
        for pixels in (208, 120)
    ]
    geometry = Convolution.of("conv3d", {"padding": 1})

    def best(depth: int) -> int:
        problem = geometry.problem((1, 64, depth, 28, 28), VOLUME[1])
        return fastest(plans, problem.sizes, 132)

    assert best(1) == 1  # few slices fill the multiprocessors by smaller tiles
    assert best(512) == 0


def test_the_gradient_of_a_volume() -> None:
    problem = Convolution.of("conv3d_dgrad", {"padding": (0, 1, 2), "dilation": (1, 1, 2)}).problem(
        (2, 64, 6, 9, 9), (64, 40, 3, 3, 2)
    )
    sizes = forward("dgrad", problem.sizes)
    assert [sizes[f"pad_{name}"] for name in ("depth", "height", "width")] == [2, 1, 0]
    assert (sizes["depth"], sizes["output_depth"]) == (6, problem.pixels[0])
    assert planned("conv3d_dgrad", text="D = acc").route == "conv-halo-3x"
    far = Convolution.of("conv3d_dgrad", {"padding": (3, 1, 1)}).problem((2, 64, 6, 9, 9), (64, 40, 3, 3, 3))
    assert "padding of the dgrad" in halo_of(far.geometry, far, F16).reason


@pytest.mark.parametrize("taps", [(3, 3, 3), (1, 3, 3), (1, 1, 1)])
def test_it_is_preferred(taps) -> None:
    shapes = (2, 64, 6, 14, 14), (64, 64, *taps)
    assert evt.conv3d(RESIDUAL).plan("sm90", "f16", shapes=shapes).route == "conv-halo-3x"
    assert evt.conv3d(RESIDUAL).plan("sm90", "f32", shapes=shapes).route != "conv-halo-3x"


def test_the_estimate_counts_taps_that_are_multiplied() -> None:
    """A single slice meets one of three taps along the depth; a pixel of a strided gradient meets a quarter of them."""
    shapes = (2, 64, 1, 14, 14), (64, 64, 3, 3, 3)
    sizes = Convolution.of("conv3d", {"padding": 1}).problem(*shapes).sizes
    assert depth(planned(shapes=shapes), sizes) == 64 * 9
    gradient = (2, 64, 14, 14), (64, 64, 4, 4)
    made = evt.conv2d_dgrad("D = acc*2", stride=2, padding=1).plan("sm90", "f16", shapes=gradient)
    sizes = Convolution.of("conv2d_dgrad", {"stride": 2, "padding": 1}).problem(*gradient).sizes
    assert made.route == "conv-halo-3x"
    assert depth(made, sizes) == 64 * 4


@pytest.mark.parametrize(
    ("shape", "taps", "settings", "flat"),
    [
        ((2, 64, 8, 14, 11), (3, 1, 1), {"padding": ((2, 0), (0, 0), (0, 0))}, True),
        ((2, 64, 9, 14, 11), (4, 1, 1), {"stride": (2, 1, 1), "padding": (3, 0, 0)}, False),
        ((2, 64, 5, 14, 11), (3, 1, 1), {"padding": (1, 0, 0)}, False),
        ((2, 64, 8, 14, 11), (3, 1, 1), {"padding": (1, 0, 1)}, False),
        ((2, 64, 8, 14, 11), (3, 1, 3), {"padding": (1, 0, 1)}, False),
        ((2, 64, 8, 14, 11), (1, 1, 1), {}, False),
    ],
)
def test_slices_are_rows_for_filters_that_are_columns(shape, taps, settings, flat) -> None:
    """A volume of many slices is an image if its filters have one tap in each slice, and its rows are dense."""
    op = evt.conv3d(RESIDUAL, route="own", **settings)
    weight = (64, 64, *taps)
    made = op.plan("sm90", "f16", shapes=(shape, weight))
    problem = op.request.convolution.problem(shape, weight)
    strides = {"outer": 64 * 14 * 11 * shape[2], "depth": 64 * 14 * 11, "height": 64 * 11, "width": 64}
    for row in (64 * 11, 64 * 12):
        sizes = {**problem.sizes, **{f"stride_{name}_of_A": value for name, value in strides.items()}}
        sizes["stride_height_of_A"] = row
        found = problem_of(made, sizes)
        if flat and row == 64 * 11:
            assert (found.height, found.depth.output) == (Axis.of(problem.sizes, "depth"), 1)
            assert found.width == Axis(14 * 11, 14 * 11, 1, 1, 1, 0)
        else:
            assert found.depth == Axis.of(problem.sizes, "depth")
