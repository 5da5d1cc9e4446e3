"""``batch_invariant``: all kernels that a call may take, for any number of rows, sum in one order."""

from __future__ import annotations

import pytest
import torch

import evt
from evt.errors import EvtError
from evt.plan import Plan
from evt.plan.invariance import Accumulation, accumulation
from evt.plan.plan import OwnProduct
from evt.plan.speed import fastest, refusal
from evt.plan.verdict import Refusal
from evt.request import packed_problem, surveyed
from evt.runtime.arguments import bind
from tests.programs.checks import operand_types
from tests.programs.draw import Profile
from tests.programs.generator import generate
from tests.support.depth import in_depth

ROWS = (1, 2, 3, 5, 16, 64, 77, 256, 1000, 4096)


def plans_of(op: evt.Program, arch: str, a: str | None = None, b: str | None = None) -> tuple[Plan, ...]:
    return surveyed(op.request, packed_problem(op.request, arch, a, b)).defaults


@pytest.mark.parametrize("count", in_depth([100, 400], quick=[100]))
@pytest.mark.parametrize("arch", ["sm80", "sm90", "sm100", "sm120"])
def test_drawn_programs_have_one_order(arch: str, count: int) -> None:
    proved = refused = several = 0
    for seed in range(count):
        program = generate(seed, Profile(operations=("gemm", "linear")))
        settings = {**dict(program.settings), "batch_invariant": True, "deterministic": None}
        try:
            op = getattr(evt, program.operation)(program.text, **settings)
            a, b = operand_types(program)
            problem = packed_problem(op.request, arch, a, b)
        except EvtError:
            continue
        try:
            plans = surveyed(op.request, problem).defaults
        except EvtError:
            refused += 1
            continue
        orders = {accumulation(problem, plan) for plan in plans}
        assert len(orders) == 1
        (order,) = orders
        assert isinstance(order, Accumulation)
        taken = {fastest(plans, {"m": m, "n": 512, "k": 640, "l": 1}, 132) for m in ROWS}
        assert not any(isinstance(plan.mainloop, OwnProduct) and plan.config.cluster[2] > 1 for plan in plans)
        assert str(order) in op.explain(arch, a, b).proof
        proved, several = proved + 1, several + (len(taken) > 1)
    assert proved > count / 6
    assert refused
    assert several or arch != "sm90"  # the number of rows still chooses among tiles


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("out D, s[n]; D = acc; s = sum[m](acc)", "a sum over rows"),
        ("out D, s: f32; D = acc; s = sum[m, n](acc)", "a sum over rows"),
        ("out D, s[n]; D = acc; s = mean[m](acc)", "a sum over rows"),
        ("out D, s[n]; D = acc; s = var[m](acc)", "a sum over rows"),
        *((f"out D, s: f32[m]; D = acc; s = {kind}[n](acc)", "a sum over columns") for kind in ("sum", "mean", "var")),
        ("D = acc/size(m)", "size(m)"),
        ("D = acc*(rand(1, 2) > 0.5)", "random numbers"),
    ],
)
def test_programs_that_depend_on_all_rows_are_refused(text: str, reason: str) -> None:
    for arch in ("sm80", "sm90"):
        with pytest.raises(evt.TargetError, match="no route compiles") as found:
            evt.gemm(text, batch_invariant=True).plan(arch)
        assert reason in str(found.value).partition("\n")[0]
        assert str(found.value).count(reason) < 10
        assert not evt.supports(text, arch, batch_invariant=True)
        evt.gemm(text).plan(arch)


def test_kernels_without_a_proof_are_refused() -> None:
    shapes = (2, 64, 56, 56), (64, 64, 3, 3)
    found = evt.supports("D = acc", "sm90", shapes, operation="conv2d", padding=1, batch_invariant=True)
    assert not found
    assert any("proved for matrix products only" in each.message for each in found.reasons)
    with pytest.raises(evt.ArgumentError, match="deterministic"):
        evt.gemm("D = acc", batch_invariant=True, deterministic=False)
    free = plans_of(evt.gemm("D = relu(acc)", route="own"), "sm90", "bf16")
    kept = plans_of(evt.gemm("D = relu(acc)", route="own", batch_invariant=True), "sm90", "bf16")
    problem = packed_problem(evt.gemm("D = relu(acc)", batch_invariant=True).request, "sm90", "bf16")
    shared = [plan for plan in free if isinstance(accumulation(problem, plan), Refusal)]
    assert {plan.config.name for plan in kept} == {plan.config.name for plan in free} - {p.config.name for p in shared}
    assert shared
    assert all(not refusal(plan, {"m": 1, "n": 64, "k": 64}, problem.sizes) for plan in kept)


def test_sums_over_blocks_of_columns_and_eighths_have_one_tile() -> None:
    for kind in ("sum", "mean", "var"):
        op = evt.gemm(f"out D, s: f32[m, n/32]; D = acc; s = {kind}[n%32](acc)", batch_invariant=True)
        assert len(plans_of(op, "sm90", "bf16")) == 1
    plans = plans_of(evt.gemm("out D: bf16; D = acc", batch_invariant=True), "sm90", "e4m3", "e4m3")
    assert len({plan.config.tile[2] for plan in plans}) == 1


@pytest.mark.parametrize("k", [64, 60, 57])
@pytest.mark.parametrize("stride", [0, 4, 8])
def test_a_single_row_has_the_layout_of_several(k: int, stride: int) -> None:
    """Alignments, and so kernels, do not change with the number of rows."""
    op = evt.linear("D = relu(acc + C)", batch_invariant=True)
    x, c = torch.zeros(8, k + stride).half()[:, :k], torch.zeros(8, 72 + stride).half()[:, :72]
    w = torch.zeros(72, k).half()

    def signature(rows: int) -> object:
        return bind(op.request, x[:rows], w, {"C": c[:rows]}, {}, memory=False).signature

    assert signature(1) == signature(2) == signature(8)


def test_explain_shows_the_proof() -> None:
    found = evt.gemm("D = gelu(acc + bias)", batch_invariant=True).explain("sm90", "bf16")
    assert "wgmma adds k-blocks in ascending order, and one CTA sums a whole tile" in found.proof
    assert found.proof in str(found)
    assert found.to_json()["batch_invariant"] == found.proof
    assert evt.gemm("D = gelu(acc + bias)").explain("sm90", "bf16").proof == ""


def test_measurements_do_not_choose() -> None:
    assert evt.gemm("D = acc").request.may_be_measured
    assert not evt.gemm("D = acc", batch_invariant=True).request.may_be_measured
