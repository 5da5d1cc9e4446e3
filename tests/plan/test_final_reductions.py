"""Arithmetic after reductions: it runs in the kernel that combines their parts."""

from __future__ import annotations

import pickle
import re

import pytest
import torch

import evt
from evt.ir import Reduce, verify
from evt.optimise import optimise
from evt.plan.epilogue.results import Combined, Given, ResultIndex
from evt.plan.epilogue.values import Size
from evt.request import typed_graph

M, N, K = 6, 8, 5


def operands(*lead: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    a = torch.randn(*lead, M, K, generator=generator)
    b = torch.randn(K, N, generator=generator)
    return a, b, (a.double() @ b.double())


def test_rms_mean_and_variance() -> None:
    a, b, acc = operands()
    op = evt.gemm(
        """
        in eps: f32[] = 1e-5
        out D, rms: f32[m], mean, var: f32[n], std: f16[n]
        D = acc
        rms = rsqrt(sum[n](acc*acc)/size(n) + eps)
        mean = sum[m, n](acc)/size(m)/size(n)
        var = sum[m](acc*acc)/size(m) - (sum[m](acc)/size(m))**2
        std = f16(sqrt(var))
        """
    )
    found = op.reference(a, b, float64=True)
    torch.testing.assert_close(found.rms, torch.rsqrt(acc.square().mean(1) + 1e-5), atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(found.mean, acc.mean(), atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(found.var, acc.var(0, unbiased=False), atol=1e-2, rtol=1e-2)
    single = op(a, b)
    assert single.std.dtype == torch.float16
    assert torch.equal(single.std, single.var.sqrt().half())


def test_inputs_of_the_modes_that_are_left() -> None:
    a, b, acc = operands(2)
    op = evt.gemm(
        """
        in w: f16[m], s: f32[l], u: f32[l, m], f: f32[m?]
        out D, r: f32[m], t: f32[l, m]
        D = acc
        r = (sum[n](acc) + w)*f + s
        t = max[n](acc)*u + iota(m) + 10*iota(l)
        """
    )
    w, s, u = torch.arange(M).half(), torch.tensor([2.0, 3.0]), torch.randn(2, M)
    found = op.reference(a, b, w=w, s=s, u=u, f=2.0, float64=True)
    rows = (acc.sum(-1) + w.double()) * 2 + s[:, None].double()
    torch.testing.assert_close(found.r, rows, atol=1e-2, rtol=1e-2)
    places = torch.arange(M)[None] + 10 * torch.arange(2)[:, None]
    torch.testing.assert_close(found.t, acc.amax(-1) * u + places, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize(
    ("modes", "expected"),
    [("n", lambda x: x.mean(-1)), ("m", lambda x: x.mean(-2)), ("m, n", lambda x: x.mean((-2, -1)))],
)
def test_means(modes, expected) -> None:
    a, b, acc = operands(3)
    found = evt.gemm(f"D = acc; r = mean[{modes}](acc)").reference(a, b, float64=True).r
    torch.testing.assert_close(found, expected(acc), atol=1e-3, rtol=1e-3)


def test_means_of_everything_of_blocks_and_of_halves() -> None:
    a, b, acc = operands(3)
    text = "out D, r, s[m, n/8], h: f32[m], c: f32[n/2]; D = acc; r = mean[l, m, n](acc); s = mean[n%8](acc)\n"
    op = evt.gemm(f"{text} h = mean[n](even(acc)); c = mean[m](odd(acc))")
    found = op.reference(a, b, float64=True)
    torch.testing.assert_close(found.r, acc.mean(), atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(found.s, acc.mean(-1, keepdim=True), atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(found.h, acc[..., ::2].mean(-1), atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(found.c, acc[..., 1::2].mean(-2), atol=1e-3, rtol=1e-3)


def test_mean_is_a_name_and_a_function_of_the_users_own() -> None:
    a, b, _ = operands()
    assert evt.gemm("D = acc; mean = mean[m, n](acc)").outputs == ("D", "mean")
    torch.testing.assert_close(evt.gemm("def mean(x) = x/2\nD = mean(acc)")(a, b), (a @ b) / 2)
    with pytest.raises(evt.ProgramError, match="`mean` needs the modes to reduce over"):
        evt.gemm("D = acc - mean(acc)")


def test_undeclared_results_have_the_type_that_they_are_computed_in() -> None:
    a, b = torch.ones(4, 8, dtype=torch.int8), torch.ones(8, 16, dtype=torch.int8)
    op = evt.gemm("D = acc; s = sum[n](acc)*2; r = sum[n](acc)/2; some = max[m, n](acc) > 3")
    assert [each.dtype for each in op(a, b)][1:] == [torch.int32, torch.float32, torch.int32]


REFUSED = {
    "D = acc/sum[n](acc)": ("cannot be read at [m, n]", "reads sizes, scalars and inputs of [m]"),
    "D = acc; s = sum[m, n](acc) + bias": (
        "over [m, n] is complete",
        "arithmetic after a reduction reads sizes, scalars",
    ),
    "D = acc; s = sum[n](acc) + max[m](acc)": ("reductions over [n] and over [m] meet", "over equal modes"),
    "D = acc; s = max[m](max[n](acc))": ("cannot be reduced or paired again", "write `max[m, n](x)`"),
    "in i: i32[m], v: f32[i[m]]; D = acc; s = sum[n](acc)*v[i[m]]": (
        "gathered values cannot combine with a reduction",
        "D = acc; s",
    ),
    "D = acc/max[n](acc)": ("so it cannot be read at [m, n]", "also reads blocks of columns: `max[n%128](x)`"),
    "D = acc; s = max[m](sum[n](acc))": ("cannot be reduced or paired again", "use it in the next kernel"),
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_a_reduction_cannot_meet(text) -> None:
    with pytest.raises(evt.ProgramError, match="E0410") as caught:
        evt.gemm(text).emit("sm90", "f16", "f16")
    for words in REFUSED[text]:
        assert words in str(caught.value)


def test_an_output_has_the_modes_that_are_left() -> None:
    with pytest.raises(evt.ProgramError, match=re.escape("`r` is [n] but its value varies over [m]")):
        evt.gemm("out D, r: f32[n]; D = acc; r = 2*sum[n](acc)").emit("sm90", "f16", "f16")


@pytest.mark.parametrize("relaxed", [False, True])
def test_what_is_made_of_a_reduction_stays_so(relaxed) -> None:
    text = "out D, r, q: f32[m]; D = acc; r = sum[m, n](acc) - sum[m, n](acc); q = where(1 > 0, sum[n](acc), 3)*1"
    dag = optimise(typed_graph(evt.gemm(text).request, "f16", "f16"), relaxed=relaxed, check=True)
    verify(dag)
    assert all(dag.reduced[dag.stores[name]] for name in ("r", "q"))
    assert evt.gemm(text, relaxed=relaxed).emit("sm90", "f16", "f16")


# Kernels

RMS = "in w: f16[m], eps; out D, rms: f32[m], s: f32[m]; D = acc; s = sum[n](acc*acc); rms = rsqrt(s/size(n) + eps[])*w"


@pytest.mark.parametrize("arch", ["sm80", "sm90", "sm100"])
def test_one_reduction_serves_all_that_is_computed_of_it(arch) -> None:
    plan = evt.gemm(RMS).plan(arch, "f16", "f16")
    (reduction,) = plan.reductions
    first, second = plan.results
    assert {first.name, second.name} == {"out_rms", reduction.name}
    computed = next(result for result in plan.results if result.region is not None)
    kinds = {type(operand) for operand in computed.operands}
    assert kinds == {Combined, Given, Size}
    text = evt.gemm(RMS).emit(arch, "f16", "f16")
    assert text.count("evt::ComputeJob<Region") == 1
    assert "evt::FinishJob<evt::Sum, float, float>" in text
    assert "in_w" not in text[text.index("// The visitor.") : text.index("using Visitor = ")]


@pytest.mark.parametrize("arch", ["sm80", "sm90", "sm100"])
def test_whole_numbers_and_truth_values_after_reductions(arch) -> None:
    text = """
        in f: bool, g: bool[m], t: i64[m]
        out D, r: f32[m], k: bool[m]
        D = acc
        r = sum[n](acc)*t
        k = f && (g || r > 1)
    """
    emitted = evt.gemm(text).emit(arch, "f16", "f16")
    assert "evt::Given<std::uint8_t>{static_cast<std::uint8_t>(arguments.value_of_in_f)" in emitted
    assert "evt::Given<int64_t>{int64_t(0), static_cast<int64_t const*>(arguments.in_t)" in emitted


def test_places_of_results() -> None:
    text = "out D, r: f32[m]; D = acc; r = sum[n](acc) + iota(m) + iota(l)"
    (result,) = evt.gemm(text).plan("sm90", "f16", "f16").results
    assert [each for each in result.operands if isinstance(each, ResultIndex)] == [
        ResultIndex(False),
        ResultIndex(True),
    ]


def test_what_is_computed_further_is_not_atomic():
    def plan(text: str):
        return evt.gemm(text, deterministic=False).plan("sm90", "f16", "f16")

    assert [bool(each.atomic) for each in plan("D = acc; r = sum[n](acc)").reductions] == [True]
    assert [bool(each.atomic) for each in plan("D = acc; r = 2*sum[n](acc)").reductions] == [False]
    assert [bool(each.atomic) for each in plan("out D, r, q; D = acc; r = sum[n](acc); q = r").reductions] == [False]
    assert [bool(each.atomic) for each in plan("D = acc; r = sum[m](even(acc))").reductions] == [False]


def test_finished_headers_are_pasted_where_they_are_needed() -> None:
    assert "// evt/finish_compute.hpp" in evt.gemm(RMS).emit("sm90", "f16", "f16")
    assert "// evt/finish_compute.hpp" not in evt.gemm("D = acc; r = sum[n](acc)").emit("sm90", "f16", "f16")


def test_explain_and_show_say_what_is_computed_of_reductions() -> None:
    assert (
        "out_rms: final reduction, Region0 of reduction_"
        in evt.gemm(RMS, route="evt").explain("sm90", "f16", "f16").details()
    )


def test_every_operation_by_itself_leaves_reductions_to_the_end() -> None:
    from evt.plan import plan
    from evt.request import packed_problem

    made = plan(packed_problem(evt.gemm(RMS).request, "sm90", "f16", "f16"), "evt", fused=False)
    assert [result.region is not None for result in made.results].count(True) == 1


def test_a_program_with_them_is_a_value() -> None:
    op = evt.gemm(RMS)
    assert pickle.loads(pickle.dumps(op)) == op
    assert any(isinstance(node, Reduce) for node, _ in op.request.dag.table)


def test_grouped_products_are_refused_by_what_they_lack() -> None:
    with pytest.raises(evt.TargetError, match="a reduction would be over each group"):
        evt.grouped_gemm("D = acc; r = 2*sum[n](acc)").emit("sm90", "f16", "f16")
