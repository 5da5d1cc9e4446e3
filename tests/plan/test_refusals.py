"""A refusal of the planner shows its cause in the program: an expression or a declaration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import evt
from evt.ir import Acc, Apply, Builder, Output, Store
from evt.ir.origin import Foreign

REFUSED: dict[str, tuple[Callable[[], Any], tuple[str, str, str], list[tuple[str, str]]]] = {
    "stock": (
        lambda: evt.gemm("D = acc * silu(acc)", route="stock-3x"),
        ("E0502", "acc * silu(acc)", "`acc` is used more than once"),
        [],
    ),
    "factor": (
        lambda: evt.gemm("D = relu(alpha*acc + beta*C) * sign(C)", route="stock"),
        ("E0503", "sign(C)", "a factor is neither a number nor an input"),
        [],
    ),
    "operand": (
        lambda: evt.gemm("A = relu(s[k]*A)\nD = acc + bias", route="evt-3x"),
        ("E0502", "A = relu(s[k]*A)", "`A` has a mainloop fusion, which this main loop cannot do; "),
        [],
    ),
    "group": (
        lambda: evt.grouped_gemm("out D, r: f32[m]\nD = acc + bias\nr = sum[n](D)"),
        ("E0503", "sum[n](D)", "a reduction would be over each group"),
        [],
    ),
    "batches": (
        lambda: evt.grouped_gemm("in b: f16[l, n]\nD = acc + b"),
        ("E0503", "b", "a group has no batches: `b` has the mode l"),
        [],
    ),
    "function": (
        lambda: evt.grouped_gemm("def f(x) = x + rand(1, 2)\nD = f(acc)"),
        ("E0503", "rand(1, 2)", "random numbers depend on the coordinates of elements in a single problem"),
        [("f(acc)", "called here")],
    ),
    "several": (
        lambda: evt.gemm("gemm(A: f64[m, k], B: f64[k, n])\nA = 2*A*A\nD = acc"),
        ("E0503", "A: f64[m, k]", "f64 is multiplied by instructions of another shape"),
        [
            (
                "A = 2*A*A",
                "`A` has a mainloop fusion, which this main loop cannot do; without it: compute A by a kernel before",
            )
        ],
    ),
    "own": (
        lambda: evt.gemm("in C: f64[m, n]\nD = acc + C", route="own"),
        ("E0503", "C", "`C` is f64"),
        [],
    ),
    "nothing": (lambda: evt.gemm("D = gelu(acc)", route="evt-3x", config="wide"), ("E0501", "", ""), []),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_shows_what_it_is_about(name: str) -> None:
    make, (code, text, reason), others = REFUSED[name]
    with pytest.raises(evt.TargetError) as raised:
        make().emit("sm90")
    (found,) = raised.value.diagnostics
    assert found.code == code
    if not text:
        assert found.span is None
        return
    assert found.source is not None
    assert found.span is not None
    assert found.source.text[found.span.start : found.span.end] == text
    assert f": {reason}" in found.message
    assert found.label == ""
    shown = [(found.source.text[each.span.start : each.span.end], each.text) for each in found.secondary]
    assert shown == others
    assert len(found.notes) <= 1


def test_explain_has_what_refuses_every_route() -> None:
    op = evt.gemm("gemm(A: e4m3[m, k], B: e4m3[n, k])\nD = silu(acc)*gate")
    with pytest.raises(evt.TargetError) as raised:
        op.explain("sm80")
    (found,) = raised.value.diagnostics
    assert [note.partition(": ")[0] for note in found.notes] == [
        "gemm-own-3x",
        "gemm-own-batches",
        "gemv-own-3x",
        "gemv-rows-3x",
        "stock-3x",
        "evt-3x",
        "stock-2x",
        "evt-2x",
        "mainloop-2x",
    ]
    assert "the target is sm80" in found.notes[0]
    assert "silu" in found.notes[4]
    assert "; sm80 runs CUTLASS 2.x" in found.notes[4]


def test_a_refusal_is_no_stock_epilogue_only_where_those_are_asked_for() -> None:
    with pytest.raises(evt.TargetError) as raised:
        evt.gemm("gemm(A: e4m3[m, k], B: e4m3[n, k])\nD = silu(acc)*gate").emit("sm80")
    (found,) = raised.value.diagnostics
    assert found.message.endswith(" for sm80: sm80 does not multiply e4m3; sm89 and later do")
    assert str(raised.value).splitlines()[0] == f"error[E0503]: {found.message}"
    assert found.secondary == ()


def test_places_of_routes_for_other_problems_are_not_shown() -> None:
    """The route of batches has more reasons than the nearest one: its places would mislead."""
    op = evt.gemm("gemm(A: bf16[m, k], B: i4[n, k]); in s: bf16[n, k/64]; B = s*B; D = acc", route="own")
    with pytest.raises(evt.TargetError, match="a stage has 128 elements of k") as raised:
        op.explain("sm90")
    (found,) = raised.value.diagnostics
    assert found.secondary == ()


def test_a_refusal_of_a_graph_names_the_other_graphs_node() -> None:
    builder = Builder()
    acc = builder.add(Acc())
    builder.origin = Foreign("fx: mul_2")
    builder.add(Store("D"), builder.add(Apply("mul"), acc, builder.add(Apply("silu"), acc)))
    op = evt.Program.from_dag(builder.finish("gemm", (), (), [Output("D", None, ("m", "n"))]), route="stock-3x")
    with pytest.raises(evt.TargetError) as raised:
        op.emit("sm90")
    (found,) = raised.value.diagnostics
    assert found.message.endswith("`acc` is used more than once")
    assert found.notes == ("from fx: mul_2",)


@pytest.mark.parametrize(
    "bits", ["in keep: b1[m, n]; D = where(keep, acc, 0)", "out D, keep: b1[m, n]; D = acc; keep = acc > 0"]
)
def test_bits_beside_wide_blocks_take_kernels_of_2x(bits: str) -> None:
    """A quad of threads of sm90 moves four words of bits, of 64 columns."""

    def route(width: int) -> str:
        head, _, rest = bits.partition("; ")
        out = head.replace("out D", "out D, Y") if head.startswith("out") else f"{head}; out D, Y"
        return evt.gemm(f"{out}; {rest}; Y[m, n/{width}] = max[n%{width}](acc)").plan("sm90", "f16", "f16").route

    assert (route(64), route(128)) == ("evt-3x", "evt-2x")
