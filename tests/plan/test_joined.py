"""Packed bits in shared memory: the kernels whose warps join bits before a store, or mask words of D."""

from __future__ import annotations

import pytest

import evt
from evt.emission import emit
from evt.plan import survey
from evt.plan.joined import joins_bits, mask_of
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


@pytest.mark.parametrize(
    ("text", "masks"),
    [
        ("D = where(keep, acc, 0)", True),
        ("D = where(keep, relu(2*acc + bias), 0)", True),
        ("D = where(keep, where(keep, acc, 1), 0)", True),
        ("D = where(keep, acc, 1)", False),
        ("D = where(keep, 0, acc)", False),
        ("D = where(keep, acc, -0.0)", False),
        ("D = where(keep, acc, bias)", False),
        ("D = where(!keep, acc, 0)", False),
        ("D = 2*where(keep, acc, 0)", False),
        ("out D: f32[m, n]; D = where(keep, acc, 0)", False),
        ("out D, t: f32[n]; D = where(keep, acc, 0); t = sum[m](D)", False),
        ("out D, E; D = where(keep, acc, 0); E = acc", False),
        ("in other: b1[m, n]; D = where(keep, where(other, acc, 0), 0)", False),
    ],
)
@pytest.mark.parametrize("operation", ["linear", "conv2d_dgrad"])
def test_words_of_d_are_masked_if_it_is_zero_where_bits_are_not_set(text: str, masks: bool, operation: str) -> None:
    op = getattr(evt, operation)(f"in keep: b1[m, n]; {text}", **({"stride": 2} if operation != "linear" else {}))
    shapes = ((128, 64), (256, 64)) if operation == "linear" else ((4, 64, 9, 9), (64, 128, 3, 3))
    problem = packed_problem(op.request, "sm90", "bf16", "bf16", shapes)
    plans = survey(problem, "gemm-own-3x" if operation == "linear" else "conv-halo-3x").defaults
    assert plans
    for plan in plans:
        assert (mask_of(plan) is not None) == masks
        assert ("kMasksWords = true" in emit(plan)) == masks
