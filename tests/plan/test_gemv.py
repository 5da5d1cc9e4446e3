"""Products of few rows or columns whose operands TMA does not load: the routes, their tiles, and a call's choice."""

from __future__ import annotations

import pytest

import evt
from evt.plan import survey
from evt.plan.cards import find_card
from evt.plan.gemv import TILES, TILES_BY_ROWS
from evt.plan.geometry.convolution import ceil_div
from evt.plan.geometry.gemv import STAGE_BYTES, WARPS, GemvTile
from evt.plan.geometry.halo import SHARED_BYTES
from evt.plan.sizes import UNKNOWN
from evt.plan.speed import fastest, refusal
from evt.plan.survey import Survey
from evt.request import packed_problem, problem_sizes

ROUTE, BY_ROWS = "gemv-own-3x", "gemv-rows-3x"


def plans(m: int, n: int, k: int) -> Survey:
    """Return the survey of a product with a bias and a residual."""
    op = evt.linear("D = relu(acc + bias + residual)")
    return survey(packed_problem(op.request, "sm90", "bf16", "bf16", ((m, k), (n, k))))


@pytest.mark.parametrize(
    ("dtypes", "k", "operation", "reason"),
    [
        (("bf16", "bf16"), 1001, "linear", ""),
        (("f16", "f16"), 1004, "linear", ""),
        (("i8", "i8"), 1001, "linear", ""),
        (("bf16", "bf16"), 1024, "linear", "TMA can load A and B"),
        (("bf16", "bf16"), 1001, "gemm", "`B` is contiguous along n"),
        (("e4m3", "e4m3"), 1001, "linear", "`A` is e4m3"),
        (("bf16", "i8"), 1001, "linear", "evt's GEMM kernel converts it"),
    ],
)
def test_operands(dtypes: tuple[str, str], k: int, operation: str, reason: str) -> None:
    op = evt.Program("out D: f32; D = acc", operation)
    shapes = (16, k), (64, k) if operation == "linear" else (k, 64)
    found = survey(packed_problem(op.request, "sm90", *dtypes, shapes))
    (candidate,) = (each for each in found.candidates if each.route.name == ROUTE)
    assert candidate.applies == (not reason)
    assert reason in " ".join(each.reason for each in candidate.refusals)


def test_few_rows_take_it_and_many_rows_the_gemm_kernel() -> None:
    for n, k in ((11867, 5702), (4097, 4097), (1001, 16383)):
        found = plans(1, n, k).defaults
        chosen = {}
        for m in (1, 4, 16, 4096, 16384):
            sizes = {"m": m, "n": n, "k": k, "l": 1}
            chosen[m] = found[fastest(found, sizes, find_card("H200"))].route
        assert chosen == {1: ROUTE, 4: ROUTE, 16: ROUTE, 4096: "gemm-own-3x", 16384: "gemm-own-3x"}


def test_offsets_of_32_bits_reach_a_row() -> None:
    (made,) = (each for each in plans(1, 64, 1001).defaults if each.config.name == "gemv_8x32x64")
    assert refusal(made, {"m": 1, "n": 64, "k": 2**29}, UNKNOWN) == ""
    assert "rows of at most 1 GiB" in refusal(made, {"m": 1, "n": 64, "k": 2**29 + 1}, UNKNOWN)


def test_threads_move_all_tensors() -> None:
    """D and the residual have aligned rows here, which TMA could move."""
    (made,) = (each for each in plans(8, 1024, 1001).defaults if each.config.name == "gemv_8x32x64")
    assert made.source is None
    assert made.destination is None
    assert not made.row_copies


@pytest.mark.parametrize("tile", TILES)
def test_ctas_split_k_where_tiles_leave_sms_idle(tile: GemvTile) -> None:
    assert tile.shared_bytes <= SHARED_BYTES
    for tiles in (1, 30, 132, 1000):
        for row_bytes in (2, 1000, 10000, 100000):
            stages = ceil_div(row_bytes, STAGE_BYTES)
            splits = tile.splits(tiles, stages, 132)
            assert splits == 1 or tiles * splits <= 132 * tile.resident
            assert splits == 1 or stages >= 2 * splits * WARPS
    assert tile.splits(1, 1000, 132) == 8


@pytest.mark.parametrize(
    ("channels", "filters", "taps", "reason"),
    [
        (64, 1, 1, ""),
        (512, 8, 1, ""),
        (66, 100, 1, ""),
        (17, 88, 1, ""),
        (64, 9, 1, "TMA can load A and B"),
        (64, 3, 3, "the filters have more than one tap"),
    ],
)
def test_convolutions_of_few_filters_or_unaligned_channels(channels: int, filters: int, taps: int, reason: str) -> None:
    op = evt.conv2d("D = relu(acc + bias)", padding=taps // 2)
    shapes = (2, channels, 28, 28), (filters, channels, taps, taps)
    found = survey(packed_problem(op.request, "sm90", "f16", "f16", shapes))
    (candidate,) = (each for each in found.candidates if each.route.name == BY_ROWS)
    assert candidate.applies == (not reason)
    assert reason in " ".join(each.reason for each in candidate.refusals)


@pytest.mark.parametrize(
    ("images", "channels", "filters", "side", "chosen"),
    [
        (8, 24, 7, 40, True),
        (32, 48, 6, 32, True),
        (128, 32, 7, 160, False),
        (96, 64, 3, 96, False),
        (1, 90, 48, 56, True),
        (8, 30, 160, 112, False),
    ],
)
def test_few_columns_take_it(images: int, channels: int, filters: int, side: int, chosen: bool) -> None:
    """The kernel stores results one by one: many filters or pixels take another route, as measured on an H200."""
    op, shapes = evt.conv2d("D = relu(acc + bias)"), ((images, channels, side, side), (filters, channels, 1, 1))
    found = survey(packed_problem(op.request, "sm90", "f16", "f16", shapes)).defaults
    best = found[fastest(found, problem_sizes(op.request, shapes), find_card("H200"))]
    assert (best.route == BY_ROWS) == chosen


@pytest.mark.parametrize("tile", TILES_BY_ROWS)
def test_ctas_of_few_columns_share_an_sm(tile: GemvTile) -> None:
    assert tile.resident > 1
    assert tile.resident * tile.shared_bytes <= SHARED_BYTES
    assert tile.splits(1, 1000, 132) == 1
