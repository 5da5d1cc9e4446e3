"""``batch_invariant``: all kernels that a call may take, for any number of rows, sum in one order."""

from __future__ import annotations

import pytest
import torch

import evt
from evt.errors import EvtError
from evt.plan import Plan
from evt.plan.gemm import FEW_ROWS
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


@pytest.mark.parametrize("count", in_depth([60, 400], quick=[60]))
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
    assert proved > count / 8
    assert refused
    assert several or arch != "sm90"  # the number of rows still chooses among tiles


def test_warps_that_multiply_by_themselves_have_another_order() -> None:
    text = "gemm(A: bf16[m, k], B: i4[n, k]); in s: f32[n, k/128]; B = s*B; D = acc"
    found, free = (
        {
            plan.config.tile[0]
            for plan in plans_of(evt.gemm(text, batch_invariant=invariant), "sm90")
            if plan.config.cluster[2] == 1
        }
        for invariant in (True, False)
    )
    assert free - found == {FEW_ROWS}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("out D, s[n]; D = acc; s = sum[m](acc)", "a sum over rows"),
        ("out D, s: f32; D = acc; s = sum[m, n](acc)", "a sum over rows"),
        ("out D, s[n]; D = acc; s = mean[m](acc)", "a sum over rows"),
        ("out D, s[n]; D = acc; s = var[m](acc)", "a sum over rows"),
        ("out D: f16[n, m]; D[n, m] = acc", "the rows of `D` are neighbours in memory"),
        ("in C: f16[n, m]; D = acc + C", "the rows of `C` are neighbours in memory"),
        ("gemm(A: f16[k, m], B: f16[k, n]); D = acc", "the rows of `A` are neighbours in memory"),
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


def test_moments_by_cutlass_on_sm90_are_refused() -> None:
    text = "out D, s: f32[m]; D = acc; s = var[n](acc)"
    with pytest.raises(evt.TargetError, match="merge its moments in an order each"):
        evt.linear(text, batch_invariant=True, route="evt-3x").plan("sm90")
    assert evt.linear(text, batch_invariant=True, route="evt").plan("sm80")
    assert plans_of(evt.linear(text, batch_invariant=True), "sm90", "bf16")[0].family == "own"


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


@pytest.mark.parametrize("kind", ["sum", "mean", "var"])
@pytest.mark.parametrize("arch", ["sm80", "sm90", "sm100"])
def test_sums_over_columns_have_the_same_parts(arch: str, kind: str) -> None:
    for text in ("s: f32[m]; s = {}[n](acc)", "s: f32[m, n/32]; s = {}[n%32](acc)"):
        op = evt.gemm(f"out D, {text.format(kind)}; D = acc", batch_invariant=True)
        plans, proof = plans_of(op, arch, "bf16"), op.explain(arch, "bf16").proof
        if plans[0].family == "own":  # its tiles have the same strips
            assert len(plans) > 8
            assert "a part for each strip of 16 columns" in proof
        else:
            assert len(plans) == 1
            assert f"a part for each tile of {plans[0].config.name}" in proof


@pytest.mark.parametrize("text", ["s = sum[n](acc)", "s = 2*var[n](acc)"])
def test_the_parts_of_rows_are_added_in_one_order(text: str) -> None:
    text = f"out D, s: f32[m]; D = acc; {text}"
    assert "  evt::InOneOrder<" in evt.gemm(text, batch_invariant=True).emit("sm90", "bf16")
    assert "  evt::InOneOrder<" not in evt.gemm(text).emit("sm90", "bf16")


def test_eighths_have_one_tile() -> None:
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
