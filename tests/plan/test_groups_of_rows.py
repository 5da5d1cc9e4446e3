"""Products of groups of rows: the tiles that the model of the GEMM kernel's speed chooses for them."""

from __future__ import annotations

import random

import pytest

import evt
from evt.ir.dtype import BF16
from evt.plan import survey
from evt.plan.cards import find_card
from evt.plan.gemm import ProductClass, tiles_of
from evt.plan.gemm_speed import Size, microseconds, waves
from evt.plan.speed import fastest
from evt.request import packed_problem
from evt.request.ragged import ragged_request

OFFERED, ASKED = tiles_of(ProductClass(BF16))
GATED = "gemm(A: bf16[m, k], B: bf16[n, k]); out D: bf16[m, n/2]; D = silu(even(acc))*odd(acc)"
TILES = (
    "own_pingpong_128x128x64",
    "own_pingpong_192x128x64_1x2",
    "own_pingpong_160x128x64_1x2",
    "own_pingpong_168x128x64",
    "own_cooperative_128x256x64",
    "own_pingpong_64x128x64",
    "own_pingpong_32x128x64",
)
#: Microseconds of two calls by each tile, by (groups, m, n, k): of groups with equal rows, and of groups whose rows
#: vary. H200, 2026-11-29.
MEASURED = {
    (8, 2048, 1536, 2048): (54.1, 70.5, 62.1, 64.0, 52.8, 61.1, 79.0),
    (8, 4096, 1536, 2048): (85.4, 102.8, 91.7, 96.2, 95.4, 100.9, 151.8),
    (8, 8192, 1536, 2048): (156.3, 169.9, 170.3, 168.0, 168.4, 201.7, 328.4),
    (64, 24576, 2816, 2048): (938.7, 911.3, 995.6, 1028.3, 923.9, 1142.6, 1795.8),
}


@pytest.mark.parametrize("size", MEASURED, ids=str)
def test_groups_take_a_tile_that_is_fast_for_equal_and_for_varying_rows(size: tuple[int, int, int, int]) -> None:
    groups, m, n, k = size
    request = ragged_request(evt.grouped_gemm(GATED).request)
    plans = survey(packed_problem(request, "sm90", shapes=((groups, 16, k), (groups, n, k)))).defaults
    taken = plans[fastest(plans, {"l": groups, "m": m, "n": n, "k": k}, find_card("H200"))].config.name
    assert MEASURED[size][TILES.index(taken)] <= 1.03 * min(MEASURED[size])


@pytest.mark.parametrize("seed", range(20))
def test_groups_of_whole_tiles_take_little_longer(seed: int) -> None:
    """Rows that fill the tiles of each group take a fourth of a tile more for each group at most."""
    draw = random.Random(seed)
    tile = draw.choice((*OFFERED, *ASKED))
    tall, groups = tile.rows * tile.cluster[0], draw.choice((4, 8, 64))
    whole = Size(tall * groups * draw.randint(1, 9), 64 * draw.randint(1, 99), 128 * draw.randint(1, 99), 4.0, 132)
    grouped = whole._replace(groups=groups)
    longer = whole._replace(rows=whole.rows + tall * groups // 4)
    assert waves(tile, whole) <= waves(tile, grouped) <= waves(tile, longer)
    assert microseconds(tile, whole) <= microseconds(tile, grouped)


@pytest.mark.parametrize("groups", [1, 8])
def test_no_rows_have_no_tiles(groups: int) -> None:
    assert {waves(tile, Size(0, 64, 128, 4.0, 132, groups=groups)) for tile in (*OFFERED, *ASKED)} == {0}
