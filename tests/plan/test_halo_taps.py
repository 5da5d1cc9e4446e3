"""The halo kernel for few filters, whose taps are rows of a tile."""

from __future__ import annotations

from typing import Any

import pytest

import evt
from evt.emission import emit
from evt.plan.cards import CARDS
from evt.plan.geometry.convolution import Axis, Problem
from evt.plan.halo_cost import BlockedConvolution, choose
from evt.plan.speed import duration
from evt.program import program_of
from evt.request import problem_sizes

ROUTE = "conv-halo-taps-3x"


def convolution(taps: int = 3, **keywords: Any) -> evt.Program:
    return evt.conv2d("D = relu(acc + bias + residual)", padding=taps // 2, **keywords)


def shapes(channels: int, filters: int, taps: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return (2, channels, 64, 64), (filters, channels, taps, taps)


@pytest.mark.parametrize("taps", [2, 3, 4, 5, 7])
@pytest.mark.parametrize("filters", [1, 2, 3, 5, 7, 8, 9, 14])
def test_the_taps_of_all_filters_are_the_rows_of_a_tile(filters: int, taps: int) -> None:
    made = convolution(taps).plan("sm90", "f16", "f16", shapes=shapes(64, filters, taps))
    assert (made.route == ROUTE) == (filters <= 8 and filters * taps**2 <= 64)
    if made.route == ROUTE:
        assert made.source is None  # products take its place in shared memory
        assert f"TapRowsMainloop<Mma, {made.config.tile[2]}>" in emit(made)


@pytest.mark.parametrize(
    ("given", "types", "keywords", "reason"),
    [
        ((64, 9, 2), "f16", {}, "more than 8 filters"),
        ((64, 3, 5), "f16", {}, "more than 64 taps together"),
        ((64, 3, 3), "f16", {"stride": 2}, "has a stride"),
        ((64, 3, 3), "e4m3", {}, "not of 16 bits"),
        ((62, 3, 3), "f16", {}, "`A` is aligned to 4 bytes"),
    ],
)
def test_refusals(given: tuple[int, int, int], types: str, keywords: dict[str, int], reason: str) -> None:
    with pytest.raises(evt.TargetError, match=reason):
        convolution(given[2], route=ROUTE, **keywords).plan("sm90", types, types, shapes=shapes(*given))


@pytest.mark.parametrize(("side", "taps", "pixels"), [(112, 3, 256), (160, 7, 256), (64, 5, 192), (7, 3, 64)])
def test_a_tile_has_the_pixels_that_its_taps_reach(side: int, taps: int, pixels: int) -> None:
    """Boxes are nearly square, and all their pixels are columns of the instruction."""
    axis = Axis(side, side, taps, 1, 1, taps // 2)
    tile = choose(BlockedConvolution.of_taps(Problem(1, 64, 1, axis, axis), 64, 2), pixels)
    assert tile is not None
    assert tile.box_pixels + tile.guard <= pixels
    assert tile.columns < 4 * (tile.rows + taps)
    assert tile.epilogue_bytes >= taps**2 * (pixels + 8) * 4


#: Times on an H200, 2026-11-28 and, of one tap, 2026-11-30: images, channels, filters, side, taps, the tile, and
#: microseconds.
MEASURED = [
    (128, 32, 7, 160, 1, "halo_taps_256x64x32", 118.4),
    (96, 64, 3, 96, 1, "halo_taps_256x64x64", 45.6),
    (8, 128, 3, 256, 1, "halo_taps_256x64x64", 47.6),
    (8, 192, 3, 64, 3, "halo_taps_192x64x64", 14.7),
    (16, 32, 1, 112, 3, "halo_taps_256x64x32", 22.9),
    (32, 24, 1, 128, 5, "halo_taps_256x64x32", 77.9),
    (16, 256, 1, 96, 3, "halo_taps_256x64x64", 34.9),
    (2, 64, 2, 128, 3, "halo_taps_192x64x64", 10.9),
    (1, 48, 1, 160, 7, "halo_taps_256x64x64", 15.2),
]


@pytest.mark.parametrize(("images", "channels", "filters", "side", "taps", "config", "time"), MEASURED)
def test_the_estimate(images: int, channels: int, filters: int, side: int, taps: int, config: str, time: float) -> None:
    op = evt.conv2d("D = relu(acc + bias)", padding=taps // 2)
    op = program_of(op.request.forced(ROUTE, config))
    given = (images, channels, side, side), (filters, channels, taps, taps)
    plan = op.plan("sm90", "f16", "f16", shapes=given)
    found = duration(plan, problem_sizes(op.request, given), CARDS["H200"]).total
    assert found == pytest.approx(time, rel=0.25)
