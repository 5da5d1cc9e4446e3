"""The graph: its construction, its verification, and its textual form."""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from hypothesis import given, settings

import evt
from evt.errors import InternalError
from evt.ir import (
    Acc,
    Apply,
    Builder,
    Cast,
    Const,
    Dag,
    Input,
    Load,
    Pick,
    Random,
    Reduce,
    ReduceBlocks,
    Store,
    ValueType,
    format_dag,
    infer,
    parse_dag,
    verify,
)
from evt.ir.dag import prune
from evt.ir.node import Node
from tests.programs import Sample, programs, typed
from tests.support.graphs import AB, BF16, F16, D, untyped

# The graph


def test_a_product_with_itself_keeps_two_edges() -> None:
    dag = untyped("z = acc + C; D = z * z")
    (product,) = [node for node in range(len(dag)) if dag[node] == Apply("mul")]
    (z,) = set(dag.arguments(product))
    assert dag.arguments(product) == (z, z)
    assert dag.graph.number_of_edges(z, product) == 2
    assert sorted(dag.graph[z][product]) == [0, 1]
    assert dag.users[z] == (product,)


def test_the_graph_is_a_frozen_multigraph() -> None:
    for dag in (untyped("D = acc + C"), typed("D = acc + C")):
        assert type(dag.graph) is nx.MultiDiGraph
        assert nx.is_frozen(dag.graph)
        with pytest.raises(nx.NetworkXError):
            dag.graph.add_node(99)
        assert nx.is_directed_acyclic_graph(dag.graph)


@settings(deadline=None, derandomize=True, max_examples=50)
@given(programs())
def test_ids_are_in_topological_order(sample: Sample) -> None:
    dag = sample.dag
    assert list(dag.graph.nodes) == list(range(len(dag)))
    for node in range(len(dag)):
        assert all(operand < node for operand in dag.arguments(node))
        assert all(node in dag.arguments(user) for user in dag.users[node])
        assert dag.arguments(node) == tuple(
            source for source, _, _ in sorted(dag.graph.in_edges(node, keys=True), key=lambda edge: edge[2])
        )


def test_equal_nodes_merge_and_others_do_not() -> None:
    builder = Builder()
    acc, load = builder.add(Acc()), builder.add(Load("C"))
    assert builder.add(Acc()) == acc
    assert builder.add(Apply("sub"), acc, load) == builder.add(Apply("sub"), acc, load)
    assert builder.add(Apply("sub"), acc, load) != builder.add(Apply("sub"), load, acc)
    assert builder.add(Cast(F16), acc) != builder.add(Cast(BF16), acc)
    assert builder.add(Const.of(0.0)) != builder.add(Const.of(-0.0))
    assert builder.add(Const.of(0.1)) == builder.add(Const.of(0.1)) != builder.add(Const.of(0.10000000149011612))
    assert builder.add(Load("D")) != builder.add(Load("C"))
    assert builder.add(Reduce("sum", ("n",)), acc) != builder.add(Reduce("sum", ("m",)), acc)
    assert builder.add(Pick(0, 1), acc) != builder.add(Pick(1, 1), acc)
    assert len(builder) == 15


@pytest.mark.parametrize("value", [1e39, 0.1, -0.0, 5e-324, 3.0])
def test_a_constant_is_a_double(value: float) -> None:
    assert struct.pack("<d", Const.of(value).value) == struct.pack("<d", value)


@pytest.mark.parametrize(
    ("value", "integer"),
    [
        (3.0, True),
        (0.0, True),
        (-0.0, False),
        (0.5, False),
        (2.0**31, False),
        (-(2.0**31), True),
        (-(2.0**31) - 1, False),
        (1e39, False),
    ],
)
def test_integers_among_constants(value: float, integer: bool) -> None:
    assert Const.of(value).is_integer is integer


def test_graphs_are_values() -> None:
    first, second = untyped("D = acc + C"), untyped("D = acc+C  # again")
    assert first == second
    assert hash(first) == hash(second)
    assert first != untyped("D = C + acc")
    assert first != untyped("in C: f16[m, n]; D = acc + C")
    assert first != untyped("D = acc + C[m, n]")
    assert first != infer(first, AB)
    assert infer(first, AB) == infer(second, AB)
    assert infer(first, AB) != infer(first, [replace(each, dtype=BF16) for each in AB])
    assert first != "D = acc + C"


def test_pruning_drops_what_no_output_needs() -> None:
    builder = Builder()
    acc = builder.add(Acc())
    builder.add(Apply("add"), acc, builder.add(Load("C")))
    builder.add(Store("D"), builder.add(Apply("relu"), acc))
    inputs = [Input("C", F16, ("m", "n"))]
    pruned = prune(builder.finish("gemm", AB, inputs, [D]))
    verify(pruned)
    assert pruned.inputs == ()
    assert [pruned[node] for node in range(len(pruned))] == [Acc(), Apply("relu"), Store("D")]


# Verification


def malformed(*table: tuple[Node, tuple[int, ...]], inputs: tuple[Input, ...] = (), outputs: Any = (D,)) -> str:
    """Return the message of verification about a graph."""
    with pytest.raises(InternalError) as caught:
        verify(Dag("gemm", AB, inputs, outputs, table))
    (each,) = caught.value.diagnostics
    assert each.code == "E0902"
    return each.message


def chain(*ops: Node) -> list[tuple[Node, tuple[int, ...]]]:
    """Each node reads the one before."""
    return [(op, (node - 1,) if node else ()) for node, op in enumerate(ops)]


def test_verification_accepts_what_lowering_makes() -> None:
    verify(untyped("D = acc"))
    verify(typed("D = relu(acc + f16(C) * 2); E = acc"))


@pytest.mark.parametrize("operand", [2, 0, 7, -1])
def test_an_operand_that_does_not_come_before_its_user(operand: int) -> None:
    table = ((Apply("relu"), (operand,)), (Store("D"), (0,)), (Acc(), ()))
    assert "an operand comes after its user" in malformed(*table)


def test_two_equal_nodes() -> None:
    assert "two nodes are equal" in malformed((Acc(), ()), (Acc(), ()))


@pytest.mark.parametrize("op", [Apply("add"), Apply("fma"), Apply("clamp")])
def test_too_few_operands(op: Apply) -> None:
    assert "has 1 operands" in malformed(*chain(Acc(), op, Store("D")))


@pytest.mark.parametrize("op", [Load("C"), Const.of(1.0)])
def test_too_many_operands(op: Load | Const) -> None:
    message = malformed(*chain(Acc(), op, Store("D")), inputs=(Input("C", F16, ("m", "n")),))
    assert "has 1 operands and needs 0" in message


def test_an_unknown_function() -> None:
    message = malformed(*chain(Acc(), Apply("frobnicate"), Store("D")))
    assert "`frobnicate` is not in the function table" in message


def test_a_load_of_what_is_no_input() -> None:
    assert "`C` is not an input" in malformed(*chain(Load("C"), Store("D")))


def test_a_store_to_what_is_no_output() -> None:
    assert "`E` is not an output" in malformed(*chain(Acc(), Store("E")))


def test_a_store_that_is_read() -> None:
    message = malformed(*chain(Acc(), Store("D"), Apply("relu")))
    assert "a store has users" in message or "reads a store" in message


def test_a_reduction_that_is_read() -> None:
    message = malformed(*chain(Acc(), Reduce("sum", ("n",)), Reduce("sum", ("m",)), Store("D")))
    assert "it reads a reduction" in message


def test_reductions_that_do_not_meet() -> None:
    rows, columns = Reduce("sum", ("n",)), Reduce("sum", ("m",))
    table = ((Acc(), ()), (rows, (0,)), (columns, (0,)), (Apply("add"), (1, 2)), (Store("D"), (3,)))
    assert "it reads reductions over different modes" in malformed(*table)


@pytest.mark.parametrize("op", [Reduce("prod", ("n",)), ReduceBlocks("prod", 32)])
def test_an_unknown_reduction(op: Reduce | ReduceBlocks) -> None:
    assert "`prod` is not a reduction" in malformed(*chain(Acc(), op, Store("D")))


def test_random_numbers_without_an_offset() -> None:
    assert "has 1 operands and needs 2" in malformed(*chain(Acc(), Random(), Store("D")))


def test_an_output_that_is_not_stored() -> None:
    assert "outputs and stores differ" in malformed(*chain(Acc()))


def test_an_output_that_is_stored_twice() -> None:
    table = (*chain(Acc(), Store("D")), (Const.of(1.0), ()), (Store("D"), (2,)))
    assert "outputs and stores differ" in malformed(*table)


def test_no_output() -> None:
    assert "no output" in malformed((Acc(), ()), outputs=())


def test_two_inputs_of_one_name() -> None:
    value = Input("C", F16, ("m", "n"))
    assert "have one name" in malformed(*chain(Load("C"), Store("D")), inputs=(value, value))


def test_wrong_types() -> None:
    dag = typed("D = acc + C")
    with pytest.raises(InternalError, match="not every value has a type"):
        verify(replace(dag, types=dag.types[:-1]))
    wrong = (ValueType(F16, ("m", "n")), *dag.types[1:])
    with pytest.raises(InternalError, match="%0: its type is not"):
        verify(replace(dag, types=wrong))


# The textual form


@settings(deadline=None, derandomize=True)
@given(programs())
def test_the_text_reads_back(sample: Sample) -> None:
    for dag in (sample.dag, untyped(sample.text)):
        text = format_dag(dag)
        again = parse_dag(text)
        assert again == dag
        assert type(again) is type(dag)
        assert format_dag(again) == text == str(dag)
        verify(again)


@pytest.mark.parametrize(
    "text",
    [
        "in s: f32 = 0.1, t = -0.0; out D: f16[n, m], E; D = acc * s * t; E = f16(acc) + C[m, n]",
        "D = acc + -0.0 + 1.5e-45 + 3.4e38 + 1e-5",
        "D[l, m, n] = acc + b[l, n] + s[l]",
        "linear(A: tf32, B: tf32[k, n]); D = clamp(acc, -1, 2)",
        "in x: f32[m?], y[l, n?], t: i8[m, n] = 3; D = acc * x + y + t",
        "D = acc; a = sum[n](acc); b = max[m, n](abs(acc)); c = min[l, m](acc)",
        "D = even(acc) * odd(acc); E = even(acc, 32); q = acc / max[n%32](abs(acc)); b = max[n%16](acc)",
        "D = where(acc > iota(m) + iota(n) && rand(seed, 3) < 0.5, acc, 1e30); mask = D != 0",
        "out D: i8, mask: b1; D = acc; mask = acc > 0",
        "D = dropout(acc, 0.25, seed, offset)",
    ],
)
def test_the_text_reads_back_also_here(text: str) -> None:
    dag = untyped(text)
    assert parse_dag(str(dag)) == dag
    with_types = infer(dag, AB)
    assert parse_dag(str(with_types)) == with_types


def test_the_text() -> None:
    assert str(typed("in s: f32 = 0.5; D = relu(s * acc + bias) + C")) == (
        "gemm(A: f16[m, k], B: f16[k, n])\n"
        "in s: f32[] = 0x1.0000000000000p-1\n"
        "in bias: f16[n]\n"
        "in C: f16[..., m, n]\n"
        "out D: f16[..., m, n]\n"
        "%0 = load s : f32[]\n"
        "%1 = acc : f32[m, n]\n"
        "%2 = mul %0 %1 : f32[m, n]\n"
        "%3 = load bias : f16[n]\n"
        "%4 = add %2 %3 : f32[m, n]\n"
        "%5 = relu %4 : f32[m, n]\n"
        "%6 = load C : f16[m, n]\n"
        "%7 = add %5 %6 : f32[m, n]\n"
        "%8 = store D %7 : f32[m, n]\n"
    )
    assert str(untyped("in x: f32[m?]; D = even(acc * x); s = sum[n](iota(m)); b = max[n%32](rand(1, 2))")) == (
        "gemm()\n"
        "in x: f32[m?]\n"
        "out D: auto[..., m, n/2]\n"
        "out s: auto[..., m]\n"
        "out b: auto[..., m, n/32]\n"
        "%0 = acc\n"
        "%1 = load x\n"
        "%2 = mul %0 %1\n"
        "%3 = pick 0[1] %2\n"
        "%4 = index m\n"
        "%5 = reduce sum[n] %4\n"
        "%6 = const 0x1.0000000000000p+0\n"
        "%7 = const 0x1.0000000000000p+1\n"
        "%8 = random %6 %7\n"
        "%9 = fold max[32] %8\n"
        "%10 = store D %3\n"
        "%11 = store s %5\n"
        "%12 = store b %9\n"
    )
    assert str(untyped("D = acc")) == "gemm()\nout D: auto[..., m, n]\n%0 = acc\n%1 = store D %0\n"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        "banana",
        "gemm()\nbanana",
        "gemm()\nout D: f31[m, n]\n%0 = acc\n%1 = store D %0",
        "gemm(A: f31[m, k])\n%0 = acc",
        "gemm()\n%1 = acc",
        "gemm()\n%0 = acc\n%1 = acc",
        "gemm()\n%0 = relu %0",
        "gemm()\n%0 = relu %5",
        "gemm()\n%0 = acc\n%1 = cast f31 %0",
        "gemm()\n%0 = const banana",
        "gemm()\n%0 = random banana",
        "gemm()\n%0 = acc\n%1 = reduce sum %0",
        "gemm()\n%0 = acc\n%1 = fold max[x] %0",
        "gemm()\n%0 = random[2]",
    ],
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_dag(text)


# Pickles

#: A process that unpickles a graph as the key of a table, and prints the value that an equal graph finds.
_LOADED = """
import pickle, sys
with open(sys.argv[1], "rb") as file:
    table, graph = pickle.load(file), pickle.load(file)
print(table.get(graph))
"""


@pytest.mark.parametrize("typed", [False, True])
def test_a_pickled_graph_is_equal_in_other_processes(tmp_path: Path, typed: bool) -> None:
    """The hash of a text differs between processes, so a pickle does not contain the graph's."""
    graph: Dag = infer(untyped("D = relu(acc + bias)"), AB) if typed else untyped("D = relu(acc + bias)")
    assert hash(graph) == hash(replace(graph))
    file = tmp_path / "graph"
    file.write_bytes(pickle.dumps({graph: "found"}) + pickle.dumps(replace(graph)))
    environment = {**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": str(Path(evt.__file__).parents[1])}
    command = [sys.executable, "-c", _LOADED, str(file)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "found"
