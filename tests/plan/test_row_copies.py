"""Products whose rows or addresses TMA does not take: the copies of operands, the route, and the estimate."""

from __future__ import annotations

import pytest

import evt
from evt.diagnostics import Source
from evt.ir.dtype import BY_NAME
from evt.plan import survey
from evt.plan.speed import product_microseconds
from evt.request import packed_problem

ROUTE = "gemm-own-3x"


def test_unaligned_rows_are_taken_and_printed_by_cutlass() -> None:
    """CUTLASS 3.x needs aligned rows, and threads of 2.x load and store single elements."""
    request = evt.linear("D = relu(acc + bias + residual)").request
    found = survey(packed_problem(request, "sm90", "f16", "f16", ((64, 71), (133, 71))))
    applying = {each.route.name for each in found.candidates if each.applies}
    assert {ROUTE, "stock-2x"} <= applying
    assert applying.isdisjoint({"evt-3x", "stock-3x"})
    assert (found.plan.route, found.printed.plan.route) == (ROUTE, "stock-2x")


@pytest.mark.parametrize(
    ("dtype", "operation", "shapes", "copied"),
    [
        ("bf16", "linear", ((64, 72), (133, 72)), ""),
        ("bf16", "linear", ((64, 75), (136, 75)), "AB"),
        ("bf16", "gemm", ((64, 72), (72, 133)), "B"),
        ("bf16", "gemm", ((64, 75), (75, 136)), "A"),
        ("e4m3", "linear", ((64, 72), (136, 72)), "AB"),
        ("f32", "linear", ((64, 74), (136, 74)), "AB"),
    ],
)
def test_operands_that_tma_does_not_load_are_copied(dtype: str, operation: str, shapes, copied: str) -> None:
    op = evt.Program(Source("out D: bf16; D = relu(acc + bias)"), operation, route=ROUTE)
    found = op.explain("sm90", dtype, dtype, shapes=shapes)
    assert [copy.matrix.name for copy in found.plan.row_copies] == list(copied)
    assert any(field.role == "workspace" for field in found.plan.fields) == bool(copied)
    (route,) = (each for each in found.routes if each.chosen)
    assert ("copied into aligned rows" in route.costs) == bool(copied)
    assert route.to_json()["copied"] == list(copied)
    for copy in found.plan.row_copies:
        along_k = operation == "linear" or copy.matrix.name == "A"
        outer = "m" if copy.matrix.name == "A" else "n"
        assert (copy.rows.name, copy.columns.name) == ((outer, "k") if along_k else ("k", outer))
        assert copy.line * BY_NAME[dtype].bits == 1024


def test_a_copy_takes_its_traffic_and_a_launch() -> None:
    """The copies of two operands are made by one kernel."""
    op = evt.linear("D = acc", route=ROUTE)
    aligned, odd = (op.plan("sm90", "f16", "f16", shapes=((8192, k), (4096, k))) for k in (1024, 1023))
    sizes = {"m": 8192, "n": 4096, "k": 1024, "l": 1}
    copied = 2 * 2 * (8192 + 4096) * 1024
    difference = product_microseconds(odd, sizes, 132) - product_microseconds(aligned, sizes, 132)
    assert copied / 3.35e6 < difference < copied / 2e6 + 20


def test_tall_tiles_of_pingpong_consumers_move_nothing_element_by_element() -> None:
    """Their accumulators leave no registers for elements that are loaded ahead."""
    op, sizes = evt.linear("D = acc + residual"), {"m": 8192, "n": 6433, "k": 512, "l": 1}
    found = survey(packed_problem(op.request, "sm90", "bf16", "bf16", ((8192, 512), (6433, 512)))).defaults
    tall = [product_microseconds(each, sizes, 132) for each in found if each.config.name.startswith("own_pingpong_192")]
    assert tall[0] > 2 * min(product_microseconds(each, sizes, 132) for each in found)


@pytest.mark.parametrize("side", [9, 99])
def test_few_pixels_of_a_1x1_convolution_are_copied(side: int) -> None:
    """The rows of the copy are short: of many pixels it takes longer than CUTLASS's loads of 4 bytes."""
    op = evt.conv2d("D = relu(acc + bias)")
    found = survey(packed_problem(op.request, "sm90", "bf16", "bf16", ((2, 31, side, side), (64, 31, 1, 1))))
    own = {each.route.name for each in found.candidates if each.applies and not each.unsuited} & {ROUTE}
    assert own == ({ROUTE} if side == 9 else set())
