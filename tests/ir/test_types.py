"""Types of the graph: types and modes of values, and the mistakes that are found when a program is made."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evt.diagnostics import Diagnostic
from evt.errors import ProgramError
from evt.ir import Const, Dag, Operand, TypedDag, format_dag, infer, lower, parse_dag
from evt.ir.dtype import BY_NAME, OPERANDS, PACKED_OPERANDS, STORAGE, DType, from_torch_name
from evt.ir.specialise import without_inputs
from evt.language import parse
from evt.optimise import optimise
from tests.programs import Sample, programs, typed
from tests.support.graphs import AB, BF16, F16, F32, untyped

# Types


def mistakes(text: str, operands: tuple[Operand, ...] = AB) -> list[Diagnostic]:
    with pytest.raises(ProgramError) as caught:
        infer(untyped(text), operands)
    return list(caught.value.diagnostics)


def types(dag: TypedDag) -> dict[str, str]:
    return {value.name: str(value.dtype) for values in (dag.inputs, dag.outputs) for value in values}


@pytest.mark.parametrize(("operand", "expected"), [("f16", "f16"), ("bf16", "bf16"), ("f32", "f32"), ("tf32", "f32")])
def test_what_is_not_declared(operand: str, expected: str) -> None:
    """D takes the type of A, tensors that of D, scalars f32."""
    dag = typed("E = acc * 2; D = alpha * acc + bias + C + s[m] + t[] + X[l, m, n]", operand)
    tensors = dict.fromkeys(("E", "D", "bias", "C", "s", "X"), expected)
    assert types(dag) == {**tensors, "alpha": "f32", "t": "f32"}


def test_tensors_follow_a_declared_primary_output() -> None:
    dag = typed("out D: f32, E; E = acc * 2; D = acc + bias", "bf16")
    assert types(dag) == {"D": "f32", "E": "f32", "bias": "f32"}
    dag = typed("out E: f32, D; E = acc * 2; D = acc + bias", "bf16")
    assert types(dag) == {"D": "bf16", "E": "f32", "bias": "bf16"}


def test_what_is_declared() -> None:
    dag = typed("in bias: f32[n], C: bf16[m, n]; out D: f32; D = acc + bias + C", "f16")
    assert types(dag) == {"D": "f32", "bias": "f32", "C": "bf16"}


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("acc", "f32[m, n]"),
        ("bias", "f16[n]"),
        ("r[m]", "f16[m]"),
        ("bias + r[m]", "f32[m, n]"),
        ("bias + alpha", "f32[n]"),
        ("2 * 3", "f32[]"),
        ("alpha", "f32[]"),
        ("T[n, m]", "f16[m, n]"),
        ("T[n, m] + C", "f32[m, n]"),
        ("X[l, m, n] + bias", "f32[l, m, n]"),
        ("b[l, n] + r[m]", "f32[l, m, n]"),
        ("s[l] * 2", "f32[l]"),
        ("bf16(bias)", "bf16[n]"),
        ("f16(acc) + bf16(acc)", "f32[m, n]"),
    ],
)
def test_a_value_varies_over_its_operands_modes(expression: str, expected: str) -> None:
    dag = typed(f"z = {expression}; D = z + acc")
    total = dag.arguments(dag.stores["D"])[0]
    operands = [dag.types[operand] for operand in dag.arguments(total)]
    assert expected in map(str, operands)


def test_a_transposed_output() -> None:
    dag = typed("D[n, m] = acc + C")
    assert dag.output["D"].modes == ("n", "m")
    assert str(dag.types[dag.stores["D"]]) == "f32[m, n]"


def test_the_batch_needs_no_subscript_of_an_output() -> None:
    assert typed("D = acc + C[l, m, n]").output["D"].batchable
    assert typed("D[l, m, n] = acc + C").output["D"].batchable is False


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("D[n] = acc", "E0304", "varies over [m, n]"),
        ("out D: f16[m]; D = acc", "E0304", "varies over [m, n]"),
        ("out D, s: f32[]; D = acc; s = bias", "E0304", "varies over [n]"),
        ("out D, s: f32[n]; D = acc; s = sum[n](acc)", "E0304", "varies over [m]"),
        ("out D, s: f32[m, n]; D = acc; s = sum[n](acc)", "E0304", "the reduction gives [m]"),
        ("out D, h: f32[m, n]; D = acc; h = even(acc)", "E0304", "varies over [m, n/2]"),
        ("out D, h: f32[m, n/2]; D = acc; h = acc", "E0304", "varies over [m, n]"),
        ("out D, h: f32[m, n/2]; D = acc; h = alpha * 2", "E0304", "varies over []"),
        ("out D, h: f32[n/2]; D = acc; h = even(bias)", "E0304", "only a matrix may have fewer columns"),
        ("out D, v: f32[m, l]; D = acc; v = s[l, m] * 2", "E0304", "the batches of a vector come first"),
        ("out D, v: f32[m]; D = acc; v = s[m] + bias", "E0304", "`v` is [m] but its value varies over [m, n]"),
        ("out D, v: f32[l]; D = acc; v = s[l, n] + 1", "E0304", "`v` is [l] but its value varies over [l, n]"),
        ("out D: tf32; D = acc", "E0308", "output `D` is tf32"),
        ("in C: tf32[m, n]; D = acc + C", "E0308", "input `C` is tf32"),
        ("in s: i8[]; D = acc * s", "E0308", "scalar `s` is i8"),
        ("in v: b1[n]; D = where(v, acc, 0)", "E0308", "`v` is b1 of [n]"),
        ("out D: b1[n, m]; D = acc", "E0308", "`D` is b1 of [n, m]"),
    ],
)
def test_a_mistake(text: str, code: str, message: str) -> None:
    (each,) = mistakes(text)
    assert each.code == code
    assert message in each.message
    assert each.span is not None
    assert each.source is not None


def test_operands() -> None:
    for dtype in BY_NAME.values():
        operands = tuple(replace(each, dtype=dtype) for each in AB)
        if dtype in OPERANDS:
            infer(untyped("D = acc"), operands)
        else:
            assert {each.code for each in mistakes("D = acc", operands)} == {"E0308"}


def test_operands_of_refused_types() -> None:
    """Each refused operand is one mistake. The types of two operands are compared if both are multiplied."""
    for a, b in product(BY_NAME.values(), repeat=2):
        refused = (a not in OPERANDS) + (b not in OPERANDS and b not in PACKED_OPERANDS)
        if refused:
            operands = (replace(AB[0], dtype=a), replace(AB[1], dtype=b))
            assert len(mistakes("D = acc", operands)) == refused


@pytest.mark.parametrize(
    ("a", "b", "meet"),
    [("tf32", "f32", True), ("e4m3", "e5m2", True), ("i8", "u8", True), ("f16", "bf16", False), ("i8", "e4m3", False)],
)
def test_operands_of_two_types(a: str, b: str, meet: bool) -> None:
    operands = (replace(AB[0], dtype=BY_NAME[a]), replace(AB[1], dtype=BY_NAME[b]))
    if meet:
        infer(untyped("D = acc"), operands)
    else:
        (each,) = mistakes("D = acc", operands)
        assert each.code == "E0308"
        assert f"`A` is {a} and `B` is {b}" in each.message


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        (
            "out D, s; D = acc * s; s = sum[n](acc)",
            "E0410",
            "cannot be read at [m, n]",
        ),
        ("D = acc; s = sum[m](sum[n](acc))", "E0410", "cannot be reduced or paired again"),
        ("D = acc; s = max[n%32](sum[m](acc))", "E0410", "cannot be reduced or paired again"),
        ("D = acc; s = sum[n](acc) + sum[m, n](acc)", "E0410", "reductions over [n] and over [m, n] meet"),
        ("D = acc; s = sum[n](acc) + sum[l, n](acc)", "E0410", "reductions over [n] and over [l, n] meet"),
        ("D = acc; s = sum[n](acc) + bias", "E0410", "cannot be read at [n]"),
        ("D = acc; s = sum[m](acc) + b[m]", "E0410", "cannot be read at [m]"),
        ("in b: f32[n]; D = acc; s = sum[m](even(acc)) + even(b)", "E0410", "pairs, blocks, random numbers"),
        ("in b: f32[n]; D = acc; s = sum[m](even(acc)) + b", "E0307", "widths"),
        ("D = even(acc) + acc", "E0307", "width"),
        ("D = even(acc) * odd(acc, 32)", "E0307", "widths"),
        ("D = even(even(acc))", "E0307", "[m, n/2] cannot be paired again"),
        ("D = max[n%32](max[n%16](acc))", "E0307", "cannot be reduced by blocks again"),
        ("D = max[n%16](even(acc, 32))", "E0307", "pairs of columns 32 apart do not lie together in blocks of 16"),
        ("D = even(acc, 16) * max[n%16](acc)", "E0307", "blocks of 16 columns have no whole pairs of columns 16 apart"),
        ("in g: f16[m, n/2]; out D, E; D = even(acc, 8)*g; E = odd(acc, 32)*g", "E0307", "widths"),
        ("D = max[n%32](acc) + max[n%16](acc) + acc", "E0307", "widths"),
    ],
)
def test_what_must_not_meet(text: str, code: str, message: str) -> None:
    found = mistakes(text)
    assert code in {each.code for each in found}
    assert any(message in each.message for each in found)


def test_a_header_gives_the_operands() -> None:
    dag = infer(untyped("gemm(A: bf16[k, m], B: bf16[n, k]); D = acc"))
    assert dag.operands == (Operand("A", BF16, ("k", "m")), Operand("B", BF16, ("n", "k")))
    assert infer(dag, AB).operands == AB
    with pytest.raises(ValueError, match="no header"):
        infer(untyped("D = acc"))


@pytest.mark.parametrize(
    ("operand", "expression", "expected"),
    [
        ("f16", "acc", "f32"),
        ("f64", "acc", "f64"),
        ("i8", "acc", "i32"),
        ("i8", "acc + 1", "i32"),
        ("i8", "acc + 0.5", "f32"),
        ("i8", "acc + -0.0", "f32"),
        ("i8", "acc + iota(m)", "i32"),
        ("i8", "acc / 2", "f32"),  # no integer division
        ("i8", "acc + alpha", "f32"),
        ("i8", "exp(acc)", "f32"),
        ("i8", "acc > 1", "b1"),
        ("i8", "where(acc > 1, acc, 0)", "i32"),
        ("i8", "where(acc > 1, acc, alpha)", "f32"),
        ("i8", "(acc > 1) + (acc < 5)", "i32"),
        ("i8", "f16(acc)", "f16"),
        ("f16", "iota(m) * iota(n)", "i32"),
        ("f16", "i8(acc) + iota(n)", "i32"),
        ("f16", "acc + iota(n)", "f32"),
        ("f16", "acc > 0 && !(acc < 1)", "b1"),
        ("f16", "b1(acc)", "b1"),
        ("f16", "6 + iota(n)", "i32"),
        ("f16", "rand(1, 2)", "f32"),
        ("f64", "acc * 2 + f32(acc)", "f64"),
        ("f64", "acc + iota(m)", "f64"),
        ("f64", "f32(acc) * 3", "f32"),
        ("f64", "2 * 3", "f64"),
    ],
)
def test_what_a_value_is_computed_in(operand: str, expression: str, expected: str) -> None:
    dag = infer(
        untyped(f"x = {expression}; D = where(acc > 1, x, x)"), [replace(e, dtype=BY_NAME[operand]) for e in AB]
    )
    chosen = dag.arguments(dag.stores["D"])[0]
    assert str(dag.types[dag.arguments(chosen)[1]].dtype) == expected


@pytest.mark.parametrize(
    ("operand", "expression", "expected"),
    [
        ("f16", "sum[n](acc)", "f32[m]"),
        ("f16", "sum[m](acc)", "f32[n]"),
        ("f16", "max[m, n](abs(acc))", "f32[]"),
        ("f16", "sum[l, m, n](acc)", "f32[]"),
        ("i8", "sum[n](acc)", "i32[m]"),
        ("f64", "sum[n](acc)", "f64[m]"),
        ("f16", "sum[n](acc > 0)", "i32[m]"),
        ("f16", "sum[n](f16(acc))", "f32[m]"),
        ("f16", "even(acc) * odd(acc)", "f16[m, n/2]"),
        ("f16", "even(acc, 32)", "f16[m, n/2]"),
        ("f16", "max[n%32](abs(acc))", "f16[m, n/32]"),
        ("f16", "acc / max[n%32](abs(acc))", "f16[m, n]"),
    ],
)
def test_outputs_of_reductions_pairs_and_blocks(operand: str, expression: str, expected: str) -> None:
    dag = infer(untyped(f"D = acc; y = {expression}"), [replace(each, dtype=BY_NAME[operand]) for each in AB])
    output = dag.output["y"]
    assert f"{output.dtype}[{', '.join(output.modes)}]" == expected


def test_names_of_types() -> None:
    assert set(STORAGE) < set(BY_NAME.values())
    assert from_torch_name("float16") is F16
    assert from_torch_name("float32") is F32
    assert from_torch_name("complex64") is None
    for alias, name in [
        ("half", "f16"),
        ("float", "f32"),
        ("double", "f64"),
        ("fp8_e4m3", "e4m3"),
        ("int", "i32"),
    ]:
        assert BY_NAME[alias].name == name


# When mistakes are found

MISTAKES = {
    "gemm(A: i8[m, k], B: e4m3[n, k])\nD = acc": "E0308",
    "gemm(A: i32, B: i32)\nD = acc": "E0308",
    "in s: f32[m]; out D, r: f32[m]; D = acc; r = acc*s": "E0304",
    "D = even(acc) + acc": "E0307",
    "in x: b1[n]; D = acc + x": "E0308",
    "in alpha: e4m3; D = acc*alpha": "E0308",
    "in seed: f32[]; D = dropout(acc, 0.5, seed, offset)": "E0308",
    "out D, r; r = sum[n](acc); D = acc/r": "E0410",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_mistakes_of_types_and_modes_are_found_when_a_program_is_made(text: str) -> None:
    import evt

    makers = [evt.gemm, evt.linear, evt.grouped_gemm]
    for make in (*makers, evt.conv2d) if not text.startswith("gemm") and "r: f32" not in text else makers:
        with pytest.raises(evt.ProgramError) as caught:
            make(text)
        assert caught.value.diagnostics[0].code == MISTAKES[text]


@settings(deadline=None, derandomize=True, max_examples=150)
@given(programs(), st.integers(0, 10**6))
def test_mistakes_do_not_depend_on_the_operands_types(sample: Sample, seed: int) -> None:
    """A mistake for any operand types is a mistake for all, so it is reported before they are known."""
    shake = random.Random(seed)
    words = re.split(r"(\W)", sample.text)
    for _ in range(2):  # exchange a type, a mode or a name for another
        place = shake.choice([each for each, word in enumerate(words) if word.isalnum()])
        words[place] = shake.choice([*BY_NAME, "m", "n", "acc", "alpha", "s", "C", "sum", "even"])
    try:
        dag = lower(parse("".join(words)))
    except ProgramError:
        return
    assert len({mistakes_of(dag, dtype) for dtype in OPERANDS}) == 1


def mistakes_of(dag: Dag, dtype: DType) -> tuple[object, ...]:
    try:
        infer(dag, (Operand("A", dtype, ("m", "k")), Operand("B", dtype, ("k", "n"))))
    except ProgramError as error:
        return tuple((each.code, each.span) for each in error.diagnostics)
    return ()


def test_an_input_that_cancels_out_is_one() -> None:
    """It is in the graph's interface, and goes with the optimiser's first pass."""
    for text in ("def first(x, y) = x\nD = first(acc, s)", "in s: f32[n] = 2\nD = where(2 > 1, acc, s)"):
        dag = untyped(text)
        assert [value.name for value in dag.inputs] == ["s"]
        assert [value.name for value in infer(dag, AB).inputs] == ["s"]
        assert optimise(infer(dag, AB), check=True).inputs == ()
        assert parse_dag(format_dag(dag)) == dag
    dag = without_inputs(untyped("def first(x, y) = x\nin s: f32[m]; D = first(acc, s) + C"), {"C": 0.5})
    assert [value.name for value in dag.inputs] == ["s"]
    for each in (dag, infer(dag, AB)):  # the constant has the modes of C
        assert parse_dag(format_dag(each)) == each
        assert Const.of(0.5, ("m", "n")) in (each[node] for node in range(len(each)))


def test_a_type_that_only_a_matrix_has_tells_how_one_is_declared() -> None:
    for dtype in ("i8", "e4m3", "b1"):
        (each,) = mistakes(f"in C: {dtype}; D = acc + C")
        assert each.message == f"scalar `C` is {dtype}, which is not a type of scalars"
        assert each.help == (
            f"a scalar is one of f64, f32, f16, bf16, i64, i32, bool; a matrix is declared `in C: {dtype}[m, n]`"
        )


def test_the_expression_that_is_too_wide_is_named() -> None:
    text = "out D, v: f32[m]; D = acc; t = bias * 2; v = s[m] + t"
    (each,) = mistakes(text)
    assert [(text[label.span.start : label.span.end], label.text) for label in each.secondary] == [
        ("bias", "`bias` is [n]"),
        ("v", "has no mode `n`"),
    ]


@pytest.mark.parametrize(
    ("statement", "modes", "batchable"),
    [
        ("v = s[m] * 2", ("m",), False),
        ("v = bias * 2", ("n",), False),
        ("v = alpha * 2", (), False),
        ("v = 2", (), False),
        ("v = s[l, m] * bias", ("m", "n"), True),
        ("v = s[l, m] * 2", ("m",), True),
        ("v = s[l] * 2", (), True),
        ("v[m, n] = bias * 2", ("m", "n"), True),
        ("v = even(bias)", ("m", "n/2"), True),
        ("v = sum[n](acc)", ("m",), True),
    ],
)
def test_an_output_has_the_modes_of_its_value(statement: str, modes: tuple[str, ...], batchable: bool) -> None:
    found = typed(f"D = acc; {statement}").output["v"]
    assert (found.modes, found.batchable) == (modes, batchable)
