"""The tiles that the model of the GEMM kernel's speed chooses for measured products."""

from __future__ import annotations

import random

import pytest

import evt
from evt.plan import survey
from evt.plan.cards import find_card
from evt.plan.gemm import Tile
from evt.plan.gemm_speed import Size, memory_rate, traffic
from evt.plan.speed import fastest
from evt.request import packed_problem

PAIRS = "out D[m, n/2]; D = silu(even(acc))*odd(acc)"
#: (m, n, k) of products with pairs of columns, and their configurations within 5 % of the fastest on an H200 or H100,
#: 2026-11.
FASTEST_OF_PAIRS = {
    (2048, 28672, 4096): ("own_cooperative_128x256x64", "own_pingpong_192x128x64_1x2"),
    (8192, 3072, 768): ("own_pingpong_168x128x64", "own_pingpong_192x128x64_1x2", "own_pingpong_128x128x64"),
    (384, 6144, 4096): ("own_pingpong_192x128x64_1x2",),
    (16, 4096, 4096): ("own_pingpong_16x128x128", "own_pingpong_16x128x64", "own_pingpong_32x128x64"),
    (128, 28672, 4096): ("own_cooperative_128x256x64", "own_pingpong_128x128x64"),
    (16, 28672, 4096): ("own_pingpong_16x128x128", "own_pingpong_16x128x64", "own_pingpong_32x128x64"),
    (1024, 6144, 4096): ("own_pingpong_128x128x64",),
    (64, 4096, 4096): ("own_pingpong_16x128x64", "own_pingpong_32x128x64"),
    (64, 1280, 8192): ("own_stages_32x128x64_1x1x4",),
    (95, 1920, 10048): ("own_stages_48x128x64_1x1x4",),
    (128, 1280, 8192): ("own_cooperative_32x256x64_1x1x4",),
    (64, 2560, 4096): ("own_pingpong_16x128x128", "own_pingpong_16x128x64", "own_pingpong_32x128x64"),
    (1, 7168, 8192): ("own_stages_8x128x128_1x1x2", "own_pingpong_16x128x64"),
    (16, 4096, 14336): ("own_stages_16x128x64_1x1x2", "own_cooperative_16x256x64_1x1x4"),
    (24, 4096, 14336): ("own_pingpong_16x128x128",),
    (16, 3584, 18944): ("own_stages_16x128x64_1x1x2", "own_stages_16x128x64_1x1x4"),
    (1, 2048, 8192): ("own_stages_8x128x64_1x1x4",),
    (16, 18432, 6144): ("own_stages_16x128x64_1x1x2",),
    (16, 7168, 8192): ("own_pingpong_16x128x128",),
    (1, 1280, 8192): ("own_stages_8x128x64_1x1x4",),
    (4096, 2304, 768): ("own_pingpong_192x128x64_1x2",),
    (2048, 1280, 8192): ("own_pingpong_160x128x64_1x2",),
    (8192, 1280, 8192): ("own_pingpong_160x128x64_1x2",),
    (1024, 7168, 8192): ("own_cooperative_128x256x64", "own_pingpong_160x128x64_1x2", "own_pingpong_168x128x64"),
    (2048, 7168, 8192): ("own_pingpong_128x128x64", "own_pingpong_192x128x64_1x2"),
}


@pytest.mark.parametrize("size", FASTEST_OF_PAIRS)
def test_products_of_pairs_take_a_fast_tile(size: tuple[int, int, int]) -> None:
    m, n, k = size
    op = evt.linear(PAIRS)
    plans = survey(packed_problem(op.request, "sm90", "bf16", "bf16", ((m, k), (n, k)))).defaults
    chosen = plans[fastest(plans, {"m": m, "n": n, "k": k, "l": 1}, find_card("H200"))]
    assert chosen.config.name in FASTEST_OF_PAIRS[size]


#: The tiles within 8 % of the fastest offered one, for bf16 products without an epilogue whose k does not fill lines of
#: memory. H200, 2026-11-28.
FASTEST_OF_TAILS = {
    (10152, 344, 11792): ("own_cooperative_256x128x64_2x1",),
    (10448, 264, 2464): ("own_cooperative_256x128x64_2x1",),
    (9011, 840, 14280): ("own_cooperative_256x128x64_2x1",),
    (412, 872, 11704): ("own_cooperative_128x128x64_1x1x4",),
    (5504, 776, 912): ("own_pingpong_152x128x64", "own_pingpong_192x128x64_1x2"),
}
#: The same for fp8 with factors of rows and columns.
FASTEST_OF_FP8 = {
    (1024, 1280, 8192): ("own_cooperative_96x128x128",),
    (4096, 1280, 8192): ("own_cooperative_160x128x128_1x2",),
    (4096, 4096, 14336): ("own_cooperative_128x128x128",),
    (8192, 2048, 8192): ("own_cooperative_168x128x128",),
    (1024, 5120, 5120): ("own_cooperative_176x128x128_1x2", "own_cooperative_120x128x128"),
}


@pytest.mark.parametrize("size", [*FASTEST_OF_TAILS, *FASTEST_OF_FP8])
def test_rows_that_begin_within_lines_and_fp8_take_a_fast_tile(size: tuple[int, int, int]) -> None:
    m, n, k = size
    dtype = "e4m3" if size in FASTEST_OF_FP8 else "bf16"
    text = "in s: f32[m], t: f32[n]; out D: bf16; D = s*(t*acc)" if dtype == "e4m3" else "D = acc"
    problem = packed_problem(evt.linear(text).request, "sm90", dtype, dtype, ((m, k), (n, k)))
    plans = survey(problem, "gemm-own-3x").defaults
    chosen = plans[fastest(plans, {"m": m, "n": n, "k": k, "l": 1}, find_card("H200"))]
    assert chosen.config.name in (FASTEST_OF_TAILS | FASTEST_OF_FP8)[size]


#: Products that load packed bits, and their fastest tile: 1x1 data gradients of 256 images. The fastest tile without
#: bits has cooperating consumers. With bits it takes 1.06 to 1.15 of the pingpong tile's time. H200, 2026-11-29.
FASTEST_WITH_BITS = {
    (256 * 28 * 28, 512, 128): "own_pingpong_192x128x64_1x2",
    (256 * 56 * 56, 256, 128): "own_pingpong_192x128x64_1x2",
}


@pytest.mark.parametrize("size", FASTEST_WITH_BITS)
def test_pingpong_consumers_load_bits(size: tuple[int, int, int]) -> None:
    m, n, k = size

    def chosen(text: str) -> str:
        problem = packed_problem(evt.linear(text).request, "sm90", "bf16", "bf16", ((m, k), (n, k)))
        plans = survey(problem, "gemm-own-3x").defaults
        return plans[fastest(plans, {"m": m, "n": n, "k": k, "l": 1}, find_card("H200"))].config.name

    assert chosen("in z: b1[m, n]; D = where(z, acc, 0)") == FASTEST_WITH_BITS[size]
    assert "cooperative" in chosen("D = acc")


@pytest.mark.parametrize("seed", range(20))
def test_few_thread_blocks_load_pairs_at_the_rate_of_their_processors(seed: int) -> None:
    """The last wave of tiles loads at that rate, too. An SM loads about 108 bytes in a nanosecond."""
    draw = random.Random(seed)
    tile, rate = Tile(draw.choice((16, 32, 64)), 2, True), draw.uniform(2.5e6, 4.8e6)
    few, row_bytes = draw.randint(1, 16), 128 * draw.randint(100, 400)

    def memory(tiles: int) -> float:
        size = Size(16, tiles * tile.columns, row_bytes, 2.0, 132, paired=True)
        return traffic(size) / rate / memory_rate(tile, size, rate)

    of_one = tile.columns * row_bytes / 108e3
    assert memory(few) == pytest.approx(of_one, rel=0.2)
    assert memory(132 + few) - memory(132) == pytest.approx(of_one, rel=0.2)
