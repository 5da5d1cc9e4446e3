"""The tiles of filter gradients: their contents, the clusters that share them, and the problems that are refused."""

from __future__ import annotations

import random

import pytest

import evt
from evt.ir.convolution import Convolution
from evt.plan.geometry.wgrad import (
    BLOCK,
    CLUSTERS,
    DEPTH,
    LARGEST_BOX,
    PIXELS,
    STAGES_BYTES,
    TILE_SUMS,
    available,
    ceil_share,
    outputs,
    partial_sums,
    reach,
    share_of,
    streamed_parts,
)
from evt.plan.geometry.wgrad_choice import cluster_of
from evt.plan.wgrad import ONE_TAP, geometry_of, problem_of, tiles_of, time
from tests.support.convolutions import STREAMED

ROUTE = "conv-wgrad-3x"


def drawn(seed: int) -> tuple[dict[str, object], dict[str, int]]:
    """Return the geometry of a convolution, and its sizes."""
    draw = random.Random(seed)
    taps = draw.choice(((1, 1), (3, 3), (3, 3), (1, 3), (5, 4), (7, 7)))
    given = {"stride": draw.choice((1, 1, 2, 3)), "padding": taps[0] // 2, "dilation": draw.choice((1, 1, 2))}
    sizes = [draw.randint(max(taps) * 2, draw.choice((20, 60, 200))) for _ in range(2)]
    x, weight = (draw.choice((1, 7, 64)), 8 * draw.randint(1, 40), *sizes), (8 * draw.randint(1, 40), 0, *taps)
    problem = Convolution.of("conv2d", given).problem(x, (weight[0], x[1], *taps))
    return {**given, "kernel_size": taps}, dict(problem.sizes)


@pytest.mark.parametrize("seed", range(40))
def test_tiles_cover_the_pixels_and_fit(seed: int) -> None:
    given, sizes = drawn(seed)
    problem, height, width = problem_of(sizes), problem_of(sizes).height, problem_of(sizes).width
    for tile in tiles_of(Convolution.of("conv2d_wgrad", given)):
        kind, made = tile.kind, geometry_of(problem, tile)
        assert made.stages % tile.parts == 0
        if not made.stages:
            continue
        assert made.stages >= 2 * tile.parts  # a stage is released when the next one is multiplied
        assert max(made.stages * made.stage_bytes, kind.join_bytes + 4 * kind.sums) <= STAGES_BYTES
        assert 0 < time(tile, sizes) < float("inf")
        if not kind.has_window:
            assert 0 <= made.tiles * PIXELS - problem.images * height.output * width.output < PIXELS
            assert made.stage_bytes == (tile.filters + tile.channels) * 2 * PIXELS
            continue
        assert made.tiles_high * made.rows >= height.output
        assert made.tiles_wide * made.columns >= width.output
        assert made.tiles == problem.images * made.tiles_high * made.tiles_wide
        assert made.depth % DEPTH == 0
        assert made.rows * made.pitch <= made.depth
        furthest = made.depth + reach(height, kind.tap_rows) * made.pitch + reach(width, kind.tap_columns)
        assert furthest * 2 * BLOCK <= made.box_bytes
        assert (made.pitch - 1) * width.stride < LARGEST_BOX
        assert made.tiles_wide == 1 or made.pitch == made.columns or width.output % made.columns == 0


@pytest.mark.parametrize("seed", range(20))
def test_clusters_of_a_wave_run_at_a_time(seed: int) -> None:
    given, sizes = drawn(seed)
    problem = problem_of(sizes)
    for tile in tiles_of(Convolution.of("conv2d_wgrad", given)):
        cluster, number = cluster_of(problem, tile.kind), outputs(problem, tile.kind)
        assert cluster.ctas in CLUSTERS
        ctas = cluster.streamed * cluster.neighbours if cluster.streamed else number * cluster.splits
        assert cluster.clusters == 1 or ctas <= available(cluster.ctas)
        tiles = geometry_of(problem, tile).tiles
        if not tile.kind.has_window and not cluster.streamed and tiles:  # the last cluster has pixels
            assert (cluster.splits - cluster.ranks) * share_of(number, tiles, cluster) < tiles
        assert -(-problem.filters // tile.filters) % cluster.neighbours == tile.channel_blocks % cluster.neighbours == 0


@pytest.mark.parametrize(
    ("tiles", "blocks", "clusters"), [(72, 196, 132), (3, 7, 21), (5, 9, 4), (1, 1, 1), (40, 1, 7)]
)
def test_streamed_clusters_have_each_unit_once(tiles: int, blocks: int, clusters: int) -> None:
    units = tiles * blocks
    share = ceil_share(units, clusters)
    owners = [unit // share for unit in range(units)]
    assert owners[-1] == ceil_share(units, share) - 1 < clusters  # the last cluster has a unit
    assert ceil_share(units, owners[-1] + 1) == share
    sharing = [len(set(owners[first : first + blocks])) for first in range(0, units, blocks)]
    assert max(sharing) <= streamed_parts(blocks, share) <= max(sharing) + 1


@pytest.mark.parametrize(
    ("x", "filters", "neighbours", "ranks"),
    [
        ((32, 264, 7, 7), 2048, 2, 1),  # a load for each block: neighbours begin fewer
        ((256, 1024, 14, 14), 256, 1, 1),  # many clusters would wait for memory
        ((32, 512, 7, 7), 2048, 1, 2),  # the CTAs of a cluster complete a tile, without a second kernel
    ],
)
def test_clusters_load_or_complete_a_tile_together(
    x: tuple[int, int, int, int], filters: int, neighbours: int, ranks: int
) -> None:
    problem = problem_of(Convolution.of("conv2d", {}).problem(x, (filters, x[1], 1, 1)).sizes)
    cluster = cluster_of(problem, ONE_TAP.kind)
    assert (cluster.neighbours, cluster.ranks) == (neighbours, ranks)


@pytest.mark.parametrize(
    ("reason", "operand", "geometry"),
    [
        ("there are groups", "f16", {"groups": 2}),
        ("`A` is f32", "f32", {}),
        ("a stride is beyond 8", "f16", {"stride": 9}),
    ],
)
def test_refusals(reason: str, operand: str, geometry: dict[str, int]) -> None:
    op = evt.conv2d_wgrad("D = acc", kernel_size=3, route=ROUTE, **geometry)
    with pytest.raises(evt.TargetError, match=reason):
        op.plan("sm90", operand, operand)


def test_volumes_are_refused() -> None:
    with pytest.raises(evt.TargetError, match="the filters are volumes"):
        evt.conv3d_wgrad("D = acc", kernel_size=3, route=ROUTE).plan("sm90", "f16", "f16")


@pytest.mark.parametrize(("taps", "config"), STREAMED)
def test_sizes_for_tests_of_streamed_tiles_are_streamed(taps: int, config: str) -> None:
    """A changed model of time would let the tests on a GPU launch other clusters."""
    geometry = {"padding": taps // 2}
    for images, channels, filters, *pixels in STREAMED[taps, config]:
        shapes = (images, filters, *pixels), (images, channels, *pixels)
        op = evt.conv2d_wgrad("D = acc", kernel_size=taps, route=ROUTE, config=config, **geometry)
        plan = op.plan("sm90", "bf16", "bf16", shapes=shapes)
        asked = Convolution.of("conv2d", geometry).problem(shapes[1], (filters, channels, taps, taps))
        assert cluster_of(problem_of(asked.sizes), plan.mainloop.part.kind).streamed


def test_partial_sums_have_whole_tiles() -> None:
    problem = problem_of(Convolution.of("conv2d", {}).problem((2, 72, 9, 9), (40, 72, 3, 3)).sizes)
    assert partial_sums(problem) == 40 * 9 * 128
    assert partial_sums(problem) % TILE_SUMS == 0


def test_partial_sums_of_clusters_are_in_the_workspace() -> None:
    plan = evt.conv2d_wgrad("D = acc + C", kernel_size=3, padding=1, route=ROUTE).plan("sm90", "f16", "f16")
    assert plan.config.name == "wgrad_64x64_3x3"
    assert "workspace" in {field.name for field in plan.fields}
