"""Origins of values: lowering records them, passes keep them, and nothing else depends on them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from dataclasses import replace

import pytest

from evt.diagnostics import Diagnostic, Span
from evt.errors import InternalError, ProgramError
from evt.functions import TABLE
from evt.ir import (
    Acc,
    Apply,
    Builder,
    Cast,
    Const,
    Dag,
    Element,
    Foreign,
    Load,
    Node,
    Operand,
    Output,
    Place,
    Reduce,
    Store,
    format_dag,
    infer,
    lower,
    parse_dag,
    verify,
)
from evt.ir.dtype import BY_NAME, I8
from evt.ir.lower import OPERATIONS
from evt.ir.operand import epilogue_of
from evt.ir.origin import at, describe
from evt.ir.specialise import without_inputs
from evt.language import parse
from evt.language.tree import Assign
from evt.optimise import PIPELINE, RELAXED, optimise, round_as_eager
from tests.programs import typed
from tests.programs.generator import generate

F16 = BY_NAME["f16"]
SEEDS = range(40)
AB = (Operand("A", F16, ("m", "k")), Operand("B", F16, ("k", "n")))


def untyped(text: str) -> Dag:
    return lower(parse(text))


def text_of(dag: Dag, node: int) -> str:
    """Return the expression that a node comes from."""
    found = dag.where(node)
    assert found is not None
    source, span = found
    return source.text[span.start : span.end]


def of(dag: Dag, op: Node) -> int:
    """Return the node of an operation that occurs once."""
    (node,) = (node for node in range(len(dag)) if dag[node] == op)
    return node


def calls_of(dag: Dag, node: int) -> list[str]:
    """Return the calls that a node was inlined for, innermost first."""
    origin = dag.origins[node]
    assert isinstance(origin, Place)
    assert dag.source is not None
    return [dag.source.text[call.start : call.end] for call in origin.calls]


# Lowering


@pytest.mark.parametrize(
    ("text", "op", "expected"),
    [
        ("D = relu(alpha * acc + bias)", Acc(), "acc"),
        ("D = relu(alpha * acc + bias)", Load("alpha"), "alpha"),
        ("D = acc + bias[n]", Load("bias"), "bias[n]"),
        ("in C: f16[m, n] = 2; D = acc + C", Load("C"), "C"),
        ("D = relu(alpha * acc + bias)", Apply("mul"), "alpha * acc"),
        ("D = relu(alpha * acc + bias)", Apply("add"), "alpha * acc + bias"),
        ("D = relu((acc + bias) * 2)", Apply("mul"), "(acc + bias) * 2"),
        ("D = relu((acc + bias) * 2)", Apply("add"), "acc + bias"),
        ("D = relu((acc + bias) * 2)", Apply("relu"), "relu((acc + bias) * 2)"),
        ("D = acc * 2", Const.of(2.0), "2"),
        ("D = acc * -2", Const.of(-2.0), "-2"),
        ("D = leaky_relu(acc)", Const.of(0.01), "leaky_relu(acc)"),  # a default argument
        ("D = -acc", Apply("neg"), "-acc"),
        ("D = where(!(acc > 0), acc, 1)", Apply("logical_not"), "!(acc > 0)"),
        ("D = f16(acc) + 1", Cast(F16), "f16(acc)"),
        ("out D, s; D = acc; s = max[m, n](abs(acc))", Reduce("max", ("m", "n")), "max[m, n](abs(acc))"),
        ("D = acc + dropout(C, 0.5, seed, offset)", Apply("ge"), "dropout(C, 0.5, seed, offset)"),
        ("D = 1 + gelu'(acc)", Apply("gelu_slope"), "gelu'(acc)"),
        ("out D, E; D = acc\nE = relu(D) ", Store("E"), "E = relu(D)"),
        ("out D, E; D[m, n] = acc\nE = relu(D) ", Store("D"), "D[m, n] = acc"),
        ("A = relu(A); D = acc", Element("A"), "A"),
    ],
)
def test_the_expression_that_a_value_comes_from(text: str, op: Node, expected: str) -> None:
    dag = untyped(text)
    assert text_of(dag, of(dag, op)) == expected
    assert calls_of(dag, of(dag, op)) == []


def test_values_of_functions_of_the_users() -> None:
    """Their place is in the function; the calls say for which value they are."""
    dag = untyped("def f(x) = x * 2\ndef g(x) = f(x) + 1\nD = relu(g(acc))\nE = f(C)")
    first, second = (node for node in range(len(dag)) if dag[node] == Apply("mul"))
    assert text_of(dag, first) == text_of(dag, second) == "x * 2"
    assert (calls_of(dag, first), calls_of(dag, second)) == (["f(x)", "g(acc)"], ["f(C)"])
    total = of(dag, Apply("add"))
    assert (text_of(dag, total), calls_of(dag, total)) == ("f(x) + 1", ["g(acc)"])
    assert calls_of(dag, of(dag, Apply("relu"))) == []
    site = dag.origins[first]
    assert isinstance(site, Place)
    assert dag.source is not None
    assert dag.source.text[site.site.start : site.site.end] == "g(acc)"


def test_values_after_a_call_are_none_of_the_functions() -> None:
    dag = untyped("def f(x) = x * 2\nD = leaky_relu(f(acc)) + f'(C) * dropout(f(acc), 0.5, seed, offset)")
    assert text_of(dag, of(dag, Const.of(0.01))) == "leaky_relu(f(acc))"
    assert text_of(dag, of(dag, Apply("ge"))) == "dropout(f(acc), 0.5, seed, offset)"


def test_values_of_a_derivative_come_from_its_call() -> None:
    """For any operands: the program has none of the body written out. Each call has separate values."""
    dag = untyped("def f(x) = tanh(x) * x\ndef g(x) = f'(x)\nD = f'(acc) + gelu'(acc) + gelu'(C)\nE = g(C)")
    found = [(text_of(dag, node), calls_of(dag, node)) for node in range(len(dag)) if dag[node] == Apply("tanh")]
    assert found == [("f'(acc)", []), ("f'(x)", ["g(C)"])]
    slopes = [text_of(dag, node) for node in range(len(dag)) if dag[node] == Apply("gelu_slope")]
    assert slopes == ["gelu'(acc)", "gelu'(C)"]


def test_equal_values_come_from_the_first() -> None:
    dag = untyped("out D, E; E = acc + C; D = relu(acc + C)")
    assert dag.where(of(dag, Apply("add"))) == (dag.source, Span(14, 21))


def test_a_default_comes_from_its_declaration() -> None:
    dag = untyped("in alpha: f32 = 0.5, C: f16[m, n] = -2; D = alpha * acc + C * C")
    left_out = without_inputs(infer(dag, AB), {"alpha": 0.5, "C": -2.0})
    assert text_of(left_out, of(left_out, Const.of(0.5))) == "0.5"
    assert text_of(left_out, of(left_out, Const.of(-2.0, ("m", "n")))) == "-2"
    assert text_of(left_out, of(left_out, Cast(F16))) == "-2"
    read = without_inputs(untyped("D = acc + C"), {"C": 1.0})
    assert text_of(read, of(read, Const.of(1.0, ("m", "n")))) == "C"


# Passes


@pytest.mark.parametrize(
    ("text", "op", "expected"),
    [
        ("D = max(acc + C, 0) * 3", Apply("relu"), "max(acc + C, 0)"),
        ("D = alpha * acc + beta * C", Apply("fma"), "alpha * acc + beta * C"),
        ("D = relu(x * sigmoid(x)); x = acc + C", Apply("add"), "acc + C"),
        ("x = acc + C; D = 2 * (x / (1 + exp(-x)))", Apply("silu"), "x / (1 + exp(-x))"),
        ("D = acc / 8 + C", Const.of(0.125), "acc / 8"),
        ("D = acc + 2 * 3", Const.of(6.0), "2 * 3"),
        ("in x: i8[m, n]; out D: f16, y: i8; D = acc; y = x * x", Cast(I8), "y = x * x"),
    ],
)
def test_what_replaces_a_value_comes_from_where_it_came_from(text: str, op: Node, expected: str) -> None:
    dag = optimise(typed(text))
    assert text_of(dag, of(dag, op)) == expected


def test_roundings_come_from_the_operation_that_is_rounded() -> None:
    dag = round_as_eager(typed("D = tanh(acc + C)"))
    places = {text_of(dag, node) for node in range(len(dag)) if isinstance(dag[node], Cast)}
    assert places == {"acc", "acc + C", "tanh(acc + C)"}


def stages(dag: Dag, operands: tuple[Operand, Operand]) -> Iterator[Dag]:
    """Yield a program after every step that makes a graph of it."""
    yield dag
    made = infer(dag, operands)
    yield made
    yield without_inputs(made, {value.name: value.default for value in made.inputs if value.default is not None})
    for pipeline in (PIPELINE, RELAXED, (round_as_eager, *PIPELINE)):
        step = made
        for each in pipeline:
            step = each(step)
            yield step
        yield epilogue_of(step)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_value_of_every_stage_comes_from_the_text(seed: int) -> None:
    program = generate(seed)
    operation = program.operation.removeprefix("grouped_")
    tree = parse(program.text)
    text, assigned = tree.source.text, {s.target.text: s.span for s in tree.statements if isinstance(s, Assign)}
    try:
        lowered = lower(tree, operation)
        modes = OPERATIONS[operation]
        a, b = (BY_NAME[name] for name in (program.a, program.b))
        operands = (Operand("A", a, modes[0]), Operand("B", b, modes[1]))
        if lowered.operands:
            operands = (lowered.operands[0], lowered.operands[1])
        infer(lowered, operands)
    except ProgramError:
        return
    for dag in stages(lowered, operands):
        assert dag.source is tree.source
        for (op, _), origin in zip(dag.table, dag.origins, strict=True):
            assert isinstance(origin, Place)
            for span in (origin.span, *origin.calls):
                assert 0 <= span.start < span.end <= len(text)
            shown = text[origin.span.start : origin.span.end]
            match op:
                case Store(name):
                    assert origin == Place(assigned[name])
                case Load(name) | Element(name):
                    assert shown.partition("[")[0] == name
                case Acc():
                    assert shown.partition("[")[0] == "acc"
            if not isinstance(op, Store):
                assert any(span.covers(origin.site) for span in (*assigned.values(), *defaults(lowered)))


def defaults(dag: Dag) -> list[Span]:
    return [value.default_span for value in dag.inputs if value.default_span is not None]


def test_random_programs_have_every_way_to_a_value() -> None:
    """The property is about functions of the user's, derivatives and operands too."""
    programs = [generate(seed) for seed in SEEDS]
    assert any(program.defines for program in programs)
    assert any("'(" in program.text for program in programs)
    assert any(program.feeds for program in programs)


# Results that do not depend on origins


def test_equal_graphs_come_from_anywhere() -> None:
    first, second = untyped("D = acc + C"), untyped("D   =  acc+C  # again")
    assert first.origins != second.origins
    assert first == second
    assert hash(first) == hash(second)
    assert str(first) == str(second)
    assert infer(first, AB) == infer(second, AB)
    assert optimise(infer(first, AB)).origins != optimise(infer(second, AB)).origins
    by_hand = parse_dag(str(first))
    assert by_hand == first
    assert by_hand.origins == (None,) * len(first)
    assert by_hand.where(0) is None


def test_they_are_printed_on_request() -> None:
    for dag in (untyped("D = acc + C"), typed("def f(x) = x * 2\nD = f(acc)")):
        text = format_dag(dag, origins=True)
        assert parse_dag(text) == dag
        assert [line.partition("#")[0].rstrip() for line in text.splitlines()] == str(dag).splitlines()
    assert text.splitlines()[-2].endswith("# 1:12 x * 2, called at 2:5")


def test_an_expression_is_shown_in_one_line() -> None:
    dag = untyped("D = relu(acc  # \x1b[31m\n\t+ C)")
    assert describe(dag.origins[of(dag, Apply("relu"))], dag.source) == "1:5 relu(acc + C)"
    long = untyped(f"D = acc + {'+'.join(['C'] * 100)}")
    assert max(len(describe(origin, long.source)) for origin in long.origins) < 80
    assert describe(None, None) == ""
    assert describe(Foreign("fx: a\nb"), None) == "fx: a\\nb"


def test_they_are_plain_data() -> None:
    dag = optimise(typed("def f(x) = x * 2\nD = f(acc) + C"))
    for other in (pickle.loads(pickle.dumps(dag)), copy.deepcopy(dag)):
        assert other == dag
        assert other.origins == dag.origins
        assert other.source == dag.source


# Graphs of others


def foreign(inner: str = "relu") -> Dag:
    """Return a graph as another front end makes it."""
    builder = Builder()
    builder.origin = Foreign("fx: linear")
    acc = builder.add(Acc())
    builder.origin = Foreign("fx: relu_3")
    value = builder.add(Apply(inner), *[acc] * len(TABLE[inner].parameters))
    builder.origin = Foreign("fx: output")
    builder.add(Store("D"), value)
    return builder.finish("gemm", AB, (), (Output("D", F16, ("m", "n")),))


def test_nodes_of_other_graphs() -> None:
    dag = optimise(infer(foreign(), AB))
    assert dag.origins == (Foreign("fx: linear"), Foreign("fx: relu_3"), Foreign("fx: output"))
    assert dag.where(1) is None
    assert "%1 = relu %0 : f32[m, n]     # fx: relu_3" in format_dag(dag, origins=True)


def test_mistakes_in_nodes_of_other_graphs_name_them() -> None:
    each = at(Foreign("fx: relu_3"), None, Diagnostic("E0410", "read"))
    assert each.notes == ("from fx: relu_3",)
    assert each.span is None


# Diagnostics


def test_a_malformed_graph_is_shown_where_it_is() -> None:
    dag = untyped("D = acc + bias")
    table = (*dag.table[:2], (Apply("add"), (0,)), *dag.table[3:])
    with pytest.raises(InternalError) as caught:
        verify(replace(dag, table=table))
    (each,) = caught.value.diagnostics
    assert each.span == Span(4, 14)
    with pytest.raises(InternalError, match="not every value has an origin"):
        verify(replace(dag, origins=dag.origins[:-1]))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("D[n] = acc", [("acc", "varies over [m, n]"), ("D", "has no mode `m`")]),
        ("out D[n]; x = acc; D = x", [("D = x", "varies over [m, n]"), ("D", "has no mode `m`")]),
        (
            "def f(x) = x + 1\nD[n] = f(acc)",
            [("f(acc)", "varies over [m, n]"), ("acc", "`acc` is [m, n]"), ("D", "has no mode `m`")],
        ),
        (
            "out D, s: f32[m, n]; D = acc; s = sum[n](acc)",
            [("sum[n](acc)", "gives [m]"), ("s", "not the modes that are left")],
        ),
        (
            "out D, s: f32[l]; D = acc; s = sum[m, n, l](X[l, m, n])",
            [("sum[m, n, l](X[l, m, n])", "reduced over the batches"), ("s", "has no batches")],
        ),
        (
            "out D, s: f32[m]; D = acc; s = v[m] + bias * 2",
            [("v[m] + bias * 2", "varies over [m, n]"), ("bias", "`bias` is [n]"), ("s", "has no mode `n`")],
        ),
        (
            "out D, h: f32[m, n/2]; D = acc; h = alpha * 2",
            [("alpha * 2", "varies over []"), ("h", "other columns")],
        ),
        (
            "out D, s; D = acc * s; s = sum[n](acc)",
            [("acc * s", "[m, n] meets a reduction"), ("sum[n](acc)", "the reduction")],
        ),
        ("D = acc; s = max[m](sum[n](acc))", [("max[m](sum[n](acc))", "made from a reduction")]),
        (
            "D = relu(even(acc) + acc)",
            [("even(acc) + acc", "made from both"), ("acc", "`acc` is [m, n]"), ("even(acc)", "is [m, n/2]")],
        ),
        ("D = relu(even(even(acc)))", [("even(even(acc))", "paired twice")]),
        ("D = acc + rand(acc, offset)", [("rand(acc, offset)", "made with others")]),
        (
            "def f(x, y) = x + y\nD = relu(f(acc, even(acc)))",
            [
                ("x + y", "made from both"),
                *[("acc", "`acc` is [m, n]"), ("even(acc)", "is [m, n/2]"), ("f(acc, even(acc))", "called here")],
            ],
        ),
        (
            "def f(x) = even(x) + x\ndef g(x) = f(x)\nD = g(acc)",
            [
                ("even(x) + x", "made from both"),
                *[("acc", "`acc` is [m, n]"), ("even(x)", "is [m, n/2]")],
                *[("f(x)", "called here"), ("g(acc)", "called here")],
            ],
        ),
        ("in C: tf32[m, n]; D = acc + C", [("C", "")]),
        ("gemm(A: f16[m, k], B: bf16[k, n]); D = acc", [("B: bf16[k, n]", "")]),
        ("A = even(A) + acc; B = even(B) + B; D = acc", [("even(A)", "not elementwise")]),
    ],
)
def test_mistakes_are_shown_at_the_expression(text: str, expected: list[tuple[str, str]]) -> None:
    with pytest.raises(ProgramError) as caught:
        infer(untyped(text), () if text.startswith("gemm") else AB)
    shown = []
    for each in caught.value.diagnostics:
        assert each.span is not None
        shown.append([(each.span, each.label), *((label.span, label.text) for label in each.secondary)])
    assert expected in [[(text[span.start : span.end], label) for span, label in places] for places in shown]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("D = relu(even(acc)) * odd(acc)", "even(acc)"),
        ("in C: f16[m, n]; D = acc + C * max[n%32](acc)", "max[n%32](acc)"),
        ("out D, mask: b1[m, n]; D = acc; mask = acc > 0", "mask"),
    ],
)
def test_columns_of_the_gradient_of_a_weight(text: str, expected: str) -> None:
    with pytest.raises(ProgramError) as caught:
        lower(parse(text), "conv2d_wgrad")
    (each,) = caught.value.diagnostics
    assert each.code == "E0901"
    assert each.span is not None
    assert text[each.span.start : each.span.end] == expected


def test_mistakes_without_a_text_have_no_place() -> None:
    dag = parse_dag(str(untyped("D = relu(even(acc) + acc)")))
    with pytest.raises(ProgramError) as caught:
        infer(dag, AB)
    assert [each.span for each in caught.value.diagnostics] == [None]
