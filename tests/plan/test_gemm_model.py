"""The model of the GEMM kernel's speed: its estimates, and the tiles that it chooses."""

from __future__ import annotations

import random
from math import inf, isfinite

import pytest

import evt
from evt.ir.dtype import BF16, BY_NAME
from evt.plan import survey
from evt.plan.cards import find_card
from evt.plan.gemm import ProductClass, Tile, completed_rows, rows_of_box, rows_of_part, tile_of, tiles_of
from evt.plan.gemm_speed import LAUNCH, Size, library_microseconds, microseconds, waves
from evt.plan.geometry.convolution import ceil_div
from evt.plan.geometry.halo import SHARED_BYTES
from evt.plan.speed import duration, evaluation, fastest, product_microseconds
from evt.request import packed_problem

MULTIPROCESSORS = 132
EPILOGUE = "D = relu(acc + bias + residual)"
OFFERED, ASKED = tiles_of(ProductClass(BF16))
#: The measured tiles: :data:`MEASURED` has a column for each.
TILES = (
    Tile(128, 2, True),
    Tile(256, 1, False, (1, 2, 1)),
    Tile(192, 2, True, (1, 2, 1)),
    Tile(128, 1, False),
    Tile(64, 2, True),
    Tile(64, 1, True),
    Tile(32, 1, True),
    Tile(16, 1, True),
)
#: Microseconds of bf16 products with a residual, by (m, n, k): by :data:`TILES`, and by torch.mm alone.
#: NVIDIA H100 80GB HBM3, 2026-11.
MEASURED = {
    (1, 4096, 4096): (31.9, 50.4, 38.1, 31.8, 25.8, 23.7, 22.0, 21.6, 22.8),
    (64, 4096, 4096): (31.4, 50.5, 39.2, 30.8, 26.1, 22.4, 22.8, 27.6, 22.4),
    (512, 4096, 4096): (35.3, 52.5, 43.2, 35.3, 38.2, 51.1, 66.1, 105.7, 33.3),
    (4096, 4096, 4096): (219.7, 189.4, 208.2, 221.9, 315.5, 486.1, 649.3, 802.6, 177.7),
    (16, 28672, 4096): (105.6, 145.5, 123.9, 111.0, 95.7, 102.6, 95.2, 93.6, 96.1),
    (2048, 28672, 4096): (865.5, 637.0, 661.4, 820.6, 1249.5, 1806.7, 2523.9, 3472.9, 607.0),
    (256, 3072, 768): (12.0, 16.2, 15.2, 12.6, 10.4, 11.4, 11.5, 13.5, 9.4),
    (4096, 3072, 768): (41.2, 44.3, 43.1, 44.4, 49.9, 68.6, 83.4, 118.8, 34.7),
    (128, 768, 3072): (21.9, 35.4, 28.6, 21.3, 14.7, 11.3, 11.3, 11.4, 11.7),
    (8192, 768, 3072): (70.9, 80.4, 63.3, 72.7, 94.1, 120.5, 176.5, 241.4, 56.3),
    (1024, 1024, 1024): (13.8, 19.2, 16.6, 13.2, 11.1, 12.5, 14.8, 19.2, 10.1),
    (8192, 8192, 1024): (242.0, 232.2, 211.0, 228.9, 347.7, 528.9, 693.0, 850.8, 198.4),
}


def size_of(m: int, n: int, k: int, traffic: float = 4.0) -> Size:
    return Size(m, n, 2 * k, traffic, MULTIPROCESSORS)


def drawn(seed: int) -> Size:
    draw = random.Random(seed)
    m, n, k = (round(2 ** draw.uniform(3, 13)) for _ in range(3))
    return size_of(m, n, k, draw.choice((2.0, 4.0, 6.0)))


# Measurements


@pytest.mark.parametrize("size", MEASURED, ids=str)
def test_estimates_are_near_the_measured_times(size) -> None:
    """The best tile within 20 %; the chosen tile takes at most a tenth longer than the best one."""
    *times, library = MEASURED[size]
    estimates = [microseconds(tile, size_of(*size)) for tile in TILES]
    best = times.index(min(times))
    assert estimates[best] == pytest.approx(times[best], rel=0.2)
    chosen = estimates.index(min(estimates))
    assert estimates[chosen] == pytest.approx(times[chosen], rel=0.15)
    assert times[chosen] <= 1.1 * times[best]
    assert library_microseconds(size_of(*size)) == pytest.approx(library, rel=0.15)


def test_errors_are_small_on_average() -> None:
    ratios, taken = [], []
    for size, (*times, _) in MEASURED.items():
        estimates = [microseconds(tile, size_of(*size)) for tile in TILES]
        ratios += [max(a / b, b / a) for a, b in zip(estimates, times, strict=True) if b < 1.3 * min(times)]
        taken.append(times[estimates.index(min(estimates))] / min(times))
    assert sorted(ratios)[len(ratios) // 2] < 1.08
    assert sum(taken) / len(taken) < 1.03


# The choice


@pytest.mark.parametrize("seed", range(20))
def test_a_call_takes_the_least_estimate(seed) -> None:
    """The least estimate of the offered tiles counts, and of requested tiles beside them."""
    draw = random.Random(seed)
    (own,) = survey(packed_problem(evt.linear(EPILOGUE).request, "sm90", "bf16", "bf16"), "gemm-own-3x").asked
    plans = [own.plan(config) for config in (*own.default_configs, *draw.sample(own.configs, 6))]
    for _ in range(10):
        m, n, k = (8 * draw.randrange(1, 1025) for _ in range(3))
        sizes = {"m": m, "n": n, "k": k, "l": 1}
        least = fastest(plans, sizes, MULTIPROCESSORS)
        tiles = [tile_of(plan.config, 2) for plan in plans]
        estimates = [microseconds(tile, size_of(m, n, k)) for tile in tiles]
        assert estimates[least] == pytest.approx(min(estimates))
        assert product_microseconds(plans[least], sizes, MULTIPROCESSORS) == pytest.approx(estimates[least])


def test_wide_tiles_serve_many_rows() -> None:
    taken = []
    for rows in (1, 16, 64, 512, 4096):
        estimates = [microseconds(tile, size_of(rows, 4096, 4096)) for tile in OFFERED]
        taken.append(OFFERED[estimates.index(min(estimates))])
    areas = [tile.rows * tile.columns for tile in taken]
    assert areas == sorted(areas)
    assert (areas[0], areas[-1]) == (16 * 64, 256 * 128)


#: Microseconds of tiles that fill one wave, with bias and gelu_tanh, bf16: NVIDIA H100 80GB HBM3, and H200 where a tile
#: has 80 or 104 rows, 2026-11-28. Clusters, and consumers that have no second tile to multiply, take longer.
ONE_WAVE = {
    (1024, 1280, 8192): {"cooperative_96x128x64": 38.5, "pingpong_96x128x64": 39.6, "cooperative_80x128x64": 40.4},
    (256, 5120, 1280): {"cooperative_96x128x64": 15.7, "cooperative_96x128x64_1x2": 17.4},
    (1024, 768, 3072): {"cooperative_64x128x64": 17.6, "pingpong_64x128x64": 18.1},
    (3152, 768, 3072): {"cooperative_144x128x64": 30.8, "cooperative_160x128x64_1x2": 32.2},
    (384, 4096, 14336): {"cooperative_96x128x64": 73.0, "pingpong_128x128x64": 84.9},
    (640, 2048, 5632): {"cooperative_80x128x64": 26.9, "cooperative_96x128x64": 29.0, "pingpong_96x128x64": 30.4},
    (1576, 768, 3072): {"cooperative_80x128x64": 18.8, "cooperative_96x128x64": 20.0, "pingpong_96x128x64": 20.8},
    (1576, 1024, 4096): {"cooperative_104x128x64": 26.7, "cooperative_128x128x64": 28.6, "pingpong_128x128x64": 29.3},
}


@pytest.mark.parametrize("size", ONE_WAVE)
def test_one_wave_takes_cooperating_consumers_without_clusters(size: tuple[int, int, int]) -> None:
    op = evt.linear("D = gelu_tanh(acc + bias)")
    offered = survey(packed_problem(op.request, "sm90", "bf16", "bf16"), "gemm-own-3x").defaults
    plans = [plan for plan in offered if plan.config.name.removeprefix("own_") in ONE_WAVE[size]]
    chosen = plans[fastest(plans, dict(zip("mnk", size, strict=True)) | {"l": 1}, find_card("h100"))]
    assert ONE_WAVE[size][chosen.config.name.removeprefix("own_")] <= 1.05 * min(ONE_WAVE[size].values())


#: Microseconds with bias and gelu_tanh, bf16, on an H200, 2026-11-29: few tiles and long k. The rows of the first four
#: sizes begin within sectors of 32 bytes.
LONG_ROWS = {
    (838, 1200, 9576): {
        "cooperative_192x128x64_1x2x2": 46.7,
        "cooperative_256x128x64_1x2x2": 57.4,
        "cooperative_192x128x64_1x1x2": 66.2,
    },
    (956, 1728, 7032): {
        "cooperative_256x128x64_1x2x2": 48.3,
        "cooperative_160x128x64_1x2": 53.3,
        "pingpong_144x128x64_1x2": 54.4,
        "pingpong_192x128x64_1x2": 58.9,
        "cooperative_128x128x64": 68.5,
    },
    (434, 2856, 7848): {"pingpong_152x128x64": 61.8, "cooperative_96x128x64": 69.9, "cooperative_128x128x64": 70.4},
    (709, 1624, 7752): {
        "cooperative_192x128x64_1x2x2": 43.3,
        "cooperative_192x128x64_1x1x2": 55.1,
        "cooperative_104x128x64": 58.3,
        "cooperative_128x128x64": 58.9,
    },
    (635, 1192, 13712): {
        "cooperative_128x128x64_2x1x2": 48.9,
        "cooperative_80x128x64": 62.8,
        "cooperative_192x128x64_1x1x4": 73.6,
    },
    (293, 1176, 11552): {
        "cooperative_128x128x64_1x2x4": 27.9,
        "cooperative_128x128x64_1x1x4": 30.9,
        "cooperative_192x128x64_1x1x4": 31.3,
    },
    (304, 1320, 9168): {
        "cooperative_192x128x64_1x1x4": 27.2,
        "pingpong_64x64x64": 30.8,
        "cooperative_64x128x64_1x1x4": 35.6,
    },
    (734, 1280, 15576): {
        "cooperative_192x128x64_1x1x2": 81.3,
        "cooperative_128x128x64_1x1x4": 91.7,
        "cooperative_96x128x64": 93.4,
    },
}
#: The same for one wave of narrow tiles or of clusters, and for few columns.
FEW_TILES = {
    (512, 1280, 5120): {
        "pingpong_88x64x64": 18.9,
        "cooperative_64x128x64": 20.7,
        "cooperative_192x128x64_1x1x4": 21.2,
        "cooperative_128x128x64_2x1x2": 22.0,
    },
    (256, 7168, 8192): {"cooperative_128x128x64": 50.6, "cooperative_256x128x64_1x2x2": 55.6},
    (512, 5120, 1280): {"cooperative_176x128x64": 18.7, "pingpong_128x192x64": 19.9, "cooperative_96x128x64": 20.8},
    (1001, 1760, 9152): {"cooperative_112x128x64": 49.0, "cooperative_256x128x64_1x2x2": 57.8},
    (2141, 1072, 6720): {"pingpong_168x128x64": 52.0, "pingpong_128x192x64": 57.7},
    (133, 4040, 11520): {"pingpong_72x64x64": 35.3, "pingpong_88x64x64": 37.2, "cooperative_64x128x64": 42.1},
    (459, 2000, 4928): {"pingpong_120x64x64": 21.2, "cooperative_80x128x64": 23.0, "cooperative_64x128x64": 23.9},
    (553, 1520, 7904): {"cooperative_128x128x64_1x4x2": 29.0, "cooperative_128x128x64_1x2x4": 38.0},
    (348, 800, 4776): {"cooperative_96x128x64_2x1x4": 16.3, "cooperative_128x128x64_1x2x4": 18.3},
    (6, 80, 14728): {"stages_16x64x64_1x1x8": 10.8, "cooperative_16x128x64_1x1x4": 16.5},
    (125, 216, 13072): {"stages_32x64x64_1x1x4": 13.2, "cooperative_16x128x64_1x1x4": 16.0},
    (3, 80, 3472): {"stages_32x64x64_1x1x4": 8.1, "stages_16x64x64_1x1x8": 8.2, "cooperative_16x128x64_1x1x4": 9.0},
}
#: Microseconds of tiles of products with a layer norm, bf16: NVIDIA H200, 2026-11-29. Lanes exchange the values of rows
#: in each tile, which only another consumer hides.
LAYER_NORMS = {
    (4096, 2560, 2048): {"pingpong_128x128x64": 56.8, "cooperative_160x128x64_1x2": 59.5, "pingpong_152x128x64": 65.0},
    (4096, 4096, 2048): {"pingpong_128x128x64": 91.0, "cooperative_256x128x64_1x2": 91.8, "pingpong_152x128x64": 92.3},
}
#: The same with layer norm and gelu.
GELU_NORMS = {
    (12608, 2304, 768): {
        "pingpong_144x128x64_1x2": 79.3,
        "pingpong_128x128x64": 81.0,
        "pingpong_128x192x64": 83.7,
        "pingpong_192x128x64_1x2": 88.2,
    },
    (16384, 3072, 768): {
        "pingpong_152x128x64": 131.5,
        "pingpong_144x128x64_1x2": 132.1,
        "pingpong_128x192x64": 140.2,
        "pingpong_192x128x64_1x2": 146.6,
    },
    (20000, 2048, 512): {
        "pingpong_128x128x64": 89.5,
        "pingpong_152x128x64": 93.6,
        "pingpong_128x192x64": 105.2,
        "pingpong_192x128x64_1x2": 109.3,
    },
}
#: Microseconds of long epilogues of the product (2048, 4096, 1024), bf16, in a loop of launches: NVIDIA H200,
#: 2026-11-29. The epilogues of pingpong consumers take turns.
LONG_EPILOGUES = {
    (6, True): {
        "pingpong_128x128x64": 45.5,
        "cooperative_256x128x64_2x1": 39.2,
        "cooperative_128x128x64": 40.4,
        "pingpong_64x128x64": 45.4,
    },
    (12, True): {
        "pingpong_128x128x64": 53.7,
        "cooperative_256x128x64_2x1": 44.6,
        "cooperative_128x128x64": 44.6,
        "pingpong_64x128x64": 53.5,
    },
    (12, False): {
        "pingpong_128x128x64": 44.7,
        "cooperative_256x128x64_2x1": 38.5,
        "cooperative_128x128x64": 39.7,
        "pingpong_64x128x64": 42.4,
    },
}
NORM = "in mean: f32[m], rstd: f32[m], sums: f32[n], c: f32[n]\nD = {}(rstd*(acc - mean*sums) + c)"


def polynomial(degree: int, summed: bool) -> str:
    """Return an epilogue of a polynomial of `acc` and `x`, with the sums of its columns if ``summed``."""
    value = "x"
    for _ in range(degree):
        value = f"(({value})*acc - 0.01)*x + 0.01"
    sums = ("\nout D, sums: f32[n]", "\nsums = sum[m](D)") if summed else ("", "")
    return f"in x: bf16[m, n]{sums[0]}\nD = tanh(x) + ({value})*0.0001{sums[1]}"


@pytest.mark.parametrize(
    ("text", "size", "measured"),
    [
        *((polynomial(*which), (2048, 4096, 1024), times) for which, times in LONG_EPILOGUES.items()),
        *(("D = gelu_tanh(acc + bias)", *each) for each in (*LONG_ROWS.items(), *FEW_TILES.items())),
        *((NORM.format(""), *each) for each in LAYER_NORMS.items()),
        *((NORM.format("gelu"), *each) for each in GELU_NORMS.items()),
    ],
)
def test_measured_products_take_a_fast_tile(text: str, size: tuple[int, int, int], measured: dict[str, float]) -> None:
    offered = survey(packed_problem(evt.linear(text).request, "sm90", "bf16", "bf16"), "gemm-own-3x").defaults
    plans = [plan for plan in offered if plan.config.name.removeprefix("own_") in measured]
    assert len(plans) == len(measured)
    chosen = plans[fastest(plans, dict(zip("mnk", size, strict=True)) | {"l": 1}, find_card("h200"))]
    assert measured[chosen.config.name.removeprefix("own_")] <= 1.05 * min(measured.values())


# Properties


@pytest.mark.parametrize("seed", range(40))
def test_more_work_takes_no_less_time(seed) -> None:
    """An estimate grows with rows, columns, k and traffic, and falls with the number of SMs."""
    draw, size = random.Random(seed), drawn(seed)
    for tile in (*OFFERED, *draw.sample(ASKED, 12)):
        known = microseconds(tile, size)
        assert isfinite(known)
        assert known > LAUNCH
        factor = draw.choice((1.01, 1.5, 2, 7))
        whole = size._replace(row_bytes=ceil_div(size.row_bytes, 128) * 128)  # rows of A and B are whole lines of L2
        for name, step in (("rows", 1), ("columns", 1), ("row_bytes", 128)):
            known = microseconds(tile, whole)
            more = whole._replace(**{name: (int(getattr(whole, name) * factor) // step + 1) * step})
            assert microseconds(tile, more) >= known * (1 - 1e-9), (tile, size, more)
        assert microseconds(tile, whole._replace(traffic=whole.traffic * factor)) >= known
        assert microseconds(tile, whole, 0.01) > known
    assert 0 < library_microseconds(size) < inf
    assert library_microseconds(size) <= library_microseconds(size._replace(rows=4 * size.rows)) * (1 + 1e-9)
    assert library_microseconds(size) == library_microseconds(size._replace(traffic=9.0))  # it writes D alone


@pytest.mark.parametrize("seed", range(20))
def test_waves_count_the_tiles_of_whole_clusters(seed) -> None:
    """Clusters of four CTAs or more leave some SMs idle."""
    draw, size = random.Random(seed), drawn(seed)
    for tile in draw.sample((*OFFERED, *ASKED), 20):
        down, across, splits = tile.cluster
        clusters = ceil_div(size.rows, down * tile.rows) * ceil_div(size.columns, across * tile.columns)
        full = clusters * down * across * splits / MULTIPROCESSORS
        found = waves(tile, size)
        assert full <= found <= full * (1.11 if down * across * splits >= 4 else 1)


def test_heavy_epilogues_count() -> None:
    (own,) = survey(
        packed_problem(evt.linear("D = gelu(acc + bias)").request, "sm90", "bf16", "bf16"), "gemm-own-3x"
    ).asked
    (light,) = survey(
        packed_problem(evt.linear("D = relu(acc + bias)").request, "sm90", "bf16", "bf16"), "gemm-own-3x"
    ).asked
    sizes = {"m": 4096, "n": 4096, "k": 256, "l": 1}
    for config in own.default_configs:
        heavy, other = own.plan(config), light.plan(config)
        assert evaluation(heavy) > evaluation(other)
        assert duration(heavy, sizes, MULTIPROCESSORS).work > duration(other, sizes, MULTIPROCESSORS).work


# Tiles


@pytest.mark.parametrize("staged", [2, 6, 12])
@pytest.mark.parametrize("dtype", ["f16", "e4m3", "i8"])
def test_boxes_divide_what_a_thread_block_completes(dtype, staged) -> None:
    for found in tiles_of(ProductClass(BY_NAME[dtype], staged=staged)):
        for tile in found:
            splits = tile.cluster[2]
            completed, part = completed_rows(tile.rows, splits), rows_of_part(tile, staged)
            box = rows_of_box(tile, staged)
            assert completed % part % 8 == 0
            assert part <= (64 if tile.pingpong else 32)
            assert part * 64 * staged <= (8192 if tile.pingpong else 4096) or part <= 16
            assert completed % box == part % box == 0
            assert completed * splits >= tile.rows


@pytest.mark.parametrize("paired", [False, True])
def test_a_consumer_by_stages_has_two_stages(paired: bool) -> None:
    """With one, it would wait for its next stage before it releases the one that it multiplies."""
    tiles = [tile for found in tiles_of(ProductClass(BY_NAME["f16"], paired=paired)) for tile in found]
    by_stages = [tile for tile in tiles if tile.by_stages]
    assert any(tile.row_bytes == 256 for tile in by_stages)
    for tile in by_stages:
        of_d = 2 * completed_rows(tile.rows, tile.cluster[2]) * tile.columns
        assert 4 * tile.row_bytes * (tile.rows + tile.columns) + of_d <= SHARED_BYTES


def test_the_general_tile_comes_first() -> None:
    assert OFFERED[0] == Tile(128, 2, True)
    assert tiles_of(ProductClass(BY_NAME["e4m3"]))[0][0] == Tile(128, 1, False)
    promoted = {name for name in ("e4m3", "e5m2", "i8", "bf16", "f32") if ProductClass(BY_NAME[name]).promoted}
    assert promoted == {"e4m3", "e5m2"}
