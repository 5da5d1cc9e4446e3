"""Programs of graphs that somebody built: the same as of a text, and refused where they are none."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings

import evt
from evt.diagnostics import Source
from evt.functions.testing import temporarily
from evt.ir import (
    Acc,
    Apply,
    Builder,
    Cast,
    Const,
    Dag,
    Element,
    Feed,
    Index,
    Input,
    Load,
    Operand,
    Output,
    Pick,
    Random,
    Reduce,
    ReduceBlocks,
    Store,
)
from evt.ir.dtype import B1, F16, F32, I8, I32
from evt.request import typed_graph
from tests.programs import Sample, programs

FORMULA = "D[m, n] = relu(acc + bias[n])"
TILE = ("m", "n")


def built(source: Source | None = Source(FORMULA), operation: str = "gemm") -> Dag:  # noqa: B008
    """Return a graph as a matcher of PyTorch's graphs would build it."""
    builder = Builder()
    total = builder.add(Apply("add"), builder.add(Acc()), builder.add(Load("bias")))
    builder.add(Store("D"), builder.add(Apply("relu"), total))
    return builder.finish(operation, (), [Input("bias", None, ("n",))], [Output("D", None, TILE)], source)


def test_a_built_graph_is_the_program_of_its_text() -> None:
    op = evt.Program.from_dag(built())
    assert op == evt.gemm(FORMULA)
    assert repr(op) == "<evt.Program gemm(A[m, k]*, B[k, n]*): bias[n] -> D[m, n]; * inferred>"
    for arch in ("sm80", "sm90"):
        assert op.emit(arch) == evt.gemm(FORMULA).emit(arch)
        assert op.explain(arch).details() == evt.gemm(FORMULA).explain(arch).details()


def test_without_a_text_the_heading_shows_the_graph() -> None:
    made, written = evt.Program.from_dag(built(None)).emit(), evt.gemm(FORMULA).emit()
    body, other = (re.sub(r"evt_\w{12}_", "", text).partition("\nnamespace")[2] for text in (made, written))
    assert body
    assert body == re.sub(r"^// \d+:\d+ .*\n", "", other, flags=re.MULTILINE)  # without the parts of a text
    assert "%2 = add %0 %1" in made
    assert evt.Program.from_dag(built(None)).request.source.name == "<graph>"


def test_settings_and_geometry() -> None:
    keywords: dict[str, Any] = {"stride": 2, "padding": "valid", "relaxed": True}
    assert evt.Program.from_dag(built(operation="conv2d"), **keywords) == evt.conv2d(FORMULA, **keywords)
    assert evt.Program.from_dag(built(operation="linear"), route="evt") == evt.linear(FORMULA, route="evt")
    with pytest.raises(evt.ArgumentError, match=r"E0602.*for convolutions"):
        evt.Program.from_dag(built(), stride=2)
    with pytest.raises(evt.ArgumentError, match=r"E0602.*no setting `nonsense`"):
        evt.Program.from_dag(built(), nonsense=2)  # type: ignore[call-arg]
    with pytest.raises(evt.ArgumentError, match="E0607"):
        evt.Program.from_dag(FORMULA)
    with pytest.raises(evt.TargetError, match="E0501"):
        evt.Program.from_dag(built(operation="einsum"))


def test_it_computes() -> None:
    a, b, bias = torch.randn(5, 8).half(), torch.randn(8, 7).half(), torch.randn(7).half()
    op = evt.Program.from_dag(built())
    assert torch.equal(op(a, b, bias=bias), evt.gemm(FORMULA)(a, b, bias=bias))


def test_what_no_output_needs_is_left_out() -> None:
    builder = Builder()
    builder.add(Apply("exp"), builder.add(Const.of(2.0)))
    builder.add(Store("D"), builder.add(Apply("relu"), builder.add(Acc())))
    dag = builder.finish(
        "gemm", (), [Input("unread", F16, TILE)], [Output("D", None, TILE)], Source("D[m, n] = relu(acc)")
    )
    op = evt.Program.from_dag(dag)
    assert len(op.request.dag) == 3
    assert op.inputs == ("unread",)  # the graph decides the arguments of a call
    assert op.emit() == evt.gemm("D[m, n] = relu(acc)").emit()


def test_a_typed_graph_declares_its_types() -> None:
    op = evt.Program.from_dag(typed_graph(evt.gemm(FORMULA).request, "bf16"))
    assert [str(operand.dtype) for operand in op.request.dag.operands] == ["bf16", "bf16"]
    assert op.emit() == evt.gemm(FORMULA).emit("sm90", "bf16", "bf16")


@settings(max_examples=40, deadline=None)
@given(programs())
def test_every_lowered_graph_is_a_program(sample: Sample) -> None:
    dag = evt.gemm(sample.text).request.dag
    assert evt.Program.from_dag(dag).request.dag == dag


@pytest.mark.parametrize(
    "text",
    [
        "in s: f32[m?], t: f16[l, n] = 0\nout D, r: f32[l, m]; D = s*acc + t; r = sum[n](D)",
        "out D, a: f32; D = acc; a = max[l, m, n](abs(acc))",
        "gemm(A: i8[m, k], B: i8[n, k])\nout D[n, m], keep: b1[m, n]; D = bf16(acc); keep = acc > 0",
        "A = relu(s[k]*A + t[m]); B = B*u[]; D = acc",
        "out D[m, n/2], q: f32[m, n/32]; D = even(acc) * odd(acc); q = max[n%32](abs(acc))",
        "D = dropout(acc, 0.5, seed, offset) + iota(m)",
    ],
)
def test_every_kind_of_node(text: str) -> None:
    op = evt.gemm(text)
    assert evt.Program.from_dag(op.request.dag) == op


# Graphs that are none


def graph(*nodes: tuple[Any, ...], **fields: Any) -> Callable[[], Dag]:
    """Return a graph of a given table, which no builder may have made."""

    def made() -> Dag:
        table = tuple((node, tuple(operands)) for node, *operands in nodes)
        whole = {"inputs": (), "outputs": (Output("D", None, TILE),), **fields}
        return Dag(whole.pop("operation", "gemm"), whole.pop("operands", ()), table=table, **whole)

    return made


ACC, STORE = (Acc(),), (Store("D"), 0)
C = Input("C", None, TILE)
WRONG = {
    "an operand that comes later": (graph((Apply("relu"), 1), ACC, (Store("D"), 0)), "%0 reads 1"),
    "an operand that is none": (graph(ACC, (Store("D"), "acc")), "%1 reads acc"),
    "not a node": (graph(ACC, ("relu", 0), (Store("D"), 1)), "which is not a node"),
    "no input": (graph(ACC, STORE, inputs=("C",)), "'C' is no Input|`?C`? is no Input|C is no Input"),
    "an unknown function": (graph(ACC, (Apply("wiggle"), 0), (Store("D"), 1)), "not in the function table"),
    "too few arguments": (graph(ACC, (Apply("add"), 0), (Store("D"), 1)), "needs 2"),
    "an unknown input": (graph(ACC, (Load("C"),), (Apply("add"), 0, 1), (Store("D"), 2)), "`C` is no input"),
    "two equal nodes": (graph(ACC, ACC, (Apply("add"), 0, 1), (Store("D"), 2)), "two nodes are equal"),
    "another output": (graph(ACC, (Store("E"), 0)), "`E` is not an output"),
    "no store": (graph(ACC), "outputs and stores differ"),
    "one name twice": (graph(ACC, STORE, inputs=(C, C)), "one name"),
    "a name with a space": (graph(ACC, STORE, inputs=(replace(C, name="a b"),)), "cannot be the name"),
    "the name of an operand": (graph(ACC, STORE, inputs=(replace(C, name="A"),)), "`A` cannot be the name"),
    "the name of the accumulator": (graph(ACC, STORE, inputs=(replace(C, name="acc"),)), "`acc` cannot be"),
    "an unknown mode": (graph(ACC, STORE, inputs=(replace(C, modes=("m", "q")),)), "has the modes"),
    "a mode twice": (graph(ACC, STORE, inputs=(replace(C, modes=("n", "n/2")),)), "has the modes"),
    "an output along k": (graph(ACC, STORE, outputs=(Output("D", None, ("m", "k")),)), "has the modes"),
    "a default out of range": (
        graph(ACC, STORE, inputs=(replace(C, dtype=I8, default=300),)),
        "i8 holds -128 to 127",
    ),
    "a default between integers": (graph(ACC, STORE, inputs=(replace(C, dtype=I32, default=0.5),)), "is 0.5;"),
    "a default that is none": (graph(ACC, STORE, inputs=(replace(C, default=float("nan")),)), "is NaN"),
    "blocks of 7": (graph(ACC, (ReduceBlocks("max", 7), 0), (Store("D"), 1)), "blocks of 7"),
    "pairs of 3": (graph(ACC, (Pick(0, 3), 0), (Store("D"), 1)), "pairs 3 columns apart"),
    "a coordinate along k": (graph(ACC, (Index("k"),), (Apply("add"), 0, 1), (Store("D"), 2)), "no mode `k`"),
    "a cast to bits of a type": (graph(ACC, (Reduce("sum", ("n", "m")), 0), (Store("D"), 1)), "in this order"),
    "a reduction of nothing": (graph(ACC, (Reduce("sum", ()), 0), (Store("D"), 1)), "a reduction over"),
    "a reduction that is read": (
        graph(ACC, (Reduce("sum", ("n",)), 0), (Reduce("max", ("m",)), 1), (Store("D"), 2)),
        "reads a reduction",
    ),
    "a kind of reduction": (graph(ACC, (Reduce("median", ("n",)), 0), (Store("D"), 1)), "not a reduction"),
    "operands by other names": (
        graph(ACC, STORE, operands=(Operand("X", F16, ("m", "k")), Operand("B", F16, ("k", "n")))),
        "its operands are",
    ),
    "one operand": (graph(ACC, STORE, operands=(Operand("A", F16, ("m", "k")),)), "its operands are"),
    "a batch of a convolution": (
        graph(ACC, STORE, operation="conv2d", inputs=(replace(C, modes=("l", "n")),)),
        "conv2d has none",
    ),
    "pairs of a wgrad": (
        graph(
            ACC,
            (Pick(0, 1), 0),
            (Store("D"), 1),
            operation="conv2d_wgrad",
            outputs=(Output("D", None, ("m", "n/2")),),
        ),
        "gradient of a weight",
    ),
    "an operand in the epilogue": (graph(ACC, (Element("A"),), (Store("D"), 1)), "reads the operand `A`"),
    "an input along k in the epilogue": (
        graph(ACC, (Load("s"),), (Apply("add"), 0, 1), (Store("D"), 2), inputs=(Input("s", F32, ("k",)),)),
        "which has the mode k",
    ),
    "another operand": (graph(ACC, (Element("B"),), (Feed("A"), 1), STORE), "does not read"),
    "an operand of coordinates": (
        graph(ACC, (Element("A"),), (Index("m"),), (Apply("mul"), 1, 2), (Feed("A"), 3), STORE),
        "not elementwise",
    ),
    "an operand with a matrix": (
        graph(ACC, (Element("A"),), (Load("C"),), (Apply("mul"), 1, 2), (Feed("A"), 3), STORE, inputs=(C,)),
        "neither a scalar nor a vector",
    ),
    "a filter": (graph(ACC, (Element("B"),), (Feed("B"), 1), STORE, operation="conv2d"), "is not supported"),
    "random numbers of nothing": (graph(ACC, (Random(),), (Store("D"), 1)), "needs 2"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_graph_that_is_no_program(name: str) -> None:
    made, said = WRONG[name]
    keywords: dict[str, Any] = {"kernel_size": 3} if "wgrad" in name else {}
    with pytest.raises(evt.ProgramError, match=f"E0412(.|\n)*({said})") as caught:
        evt.Program.from_dag(made(), **keywords)
    assert {each.code for each in caught.value.diagnostics} == {"E0412"}


def test_what_types_say_is_said_as_of_a_text() -> None:
    with pytest.raises(evt.ProgramError, match="E0304"):
        evt.Program.from_dag(graph(ACC, STORE, outputs=(Output("D", None, ("m",)),))())
    with pytest.raises(evt.ProgramError, match="E0308"):
        evt.Program.from_dag(graph(ACC, STORE, inputs=(Input("s", B1, ("n",)),))())
    with pytest.raises(evt.ProgramError, match="E0405"):
        evt.Program.from_dag(graph((Const.of(1.0),), STORE)())


def test_casts_are_to_types_that_tensors_have() -> None:
    made = evt.Program.from_dag(graph(ACC, (Cast(B1), 0), (Store("D"), 1))())
    assert made.outputs == ("D",)


def test_functions_that_are_registered() -> None:
    with temporarily():
        evt.function("from_dag_twice(x)", cxx="2.0f * x", torch=lambda x: 2 * x)
        made = graph(ACC, (Apply("from_dag_twice"), 0), (Store("D"), 1))
        assert evt.Program.from_dag(made()) == evt.gemm("D = from_dag_twice(acc)")
    with pytest.raises(evt.ProgramError, match="E0412"):
        evt.Program.from_dag(made())
