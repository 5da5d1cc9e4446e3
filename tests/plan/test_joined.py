"""Packed bits that the warps of a consumer join: the kernels whose parts of C or D end with a store of them."""

from __future__ import annotations

import pytest

import evt
from evt.plan import survey
from evt.plan.joined import joins_bits
from evt.request import packed_problem

MASK = "out D, mask: b1[m, n]; D = relu(acc + bias); mask = acc + bias > 0"


@pytest.mark.parametrize(
    ("text", "n", "joins"),
    [
        (MASK, 256, True),
        ("in C; out mask: b1[m, n]; mask = acc + C > 0", 256, False),
        ("D = relu(acc + bias)", 256, False),
        (MASK, 257, False),
        ("out D, mask: b1[m, n], large: b1[m, n]; D = acc; mask = acc > 0; large = acc > 9", 256, False),
        ("out D[m, n/2], mask: b1[m, n]; D = even(acc)*odd(acc); mask = acc > 0", 256, False),
    ],
)
def test_one_mask_beside_d_that_tma_stores_is_joined(text: str, n: int, joins: bool) -> None:
    op = evt.linear(text)
    problem = packed_problem(op.request, "sm90", "bf16", "bf16", ((128, 64), (n, 64)))
    assert {joins_bits(plan) for plan in survey(problem, "gemm-own-3x").defaults} == {joins}


def test_masks_of_consumers_by_rows_and_of_other_kernels_are_not_joined() -> None:
    scaled = "in a: f32[m, k/128], b: f32[n/128, k/128]; A = a*A; B = b*B; " + MASK.replace("out D", "out D: bf16")
    op = evt.linear(scaled)
    problem = packed_problem(op.request, "sm90", "e4m3", "e4m3", ((256, 512), (256, 512)))
    for plan in survey(problem, "gemm-own-3x").defaults:
        assert joins_bits(plan) == (plan.config.schedule != "own_rows")
    problem = packed_problem(evt.linear(MASK).request, "sm90", "bf16", "bf16", ((8, 65), (256, 65)))
    for plan in survey(problem, "gemv-own-3x").defaults:
        assert not joins_bits(plan)
