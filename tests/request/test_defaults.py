"""Defaults of inputs and of functions' parameters: each keeps its type and its bits on every way to a kernel."""

from __future__ import annotations

import copy
import pickle
import random
import struct

import pytest
import torch

import evt
from evt.errors import ProgramError
from evt.export.kernels import Named
from evt.export.number import cxx_number
from evt.export.schema import schemas_of
from evt.functions.testing import temporarily
from evt.ir import Input, format_dag, parse_dag
from evt.ir.dtype import BOOL, F16, F32, F64, I32, I64, OPERANDS, PACKED_OPERANDS, DType
from evt.ir.formula import formula

A, B = torch.ones(16, 8), torch.ones(8, 24)


def test_an_input_that_is_left_out_keeps_its_sign() -> None:
    for text in ("in gate: f32[m] = -0.0; D = 1 / gate + acc * 0", "in s: f32 = -0.0; D = 1 / s + acc * 0"):
        op = evt.gemm(text)
        assert op(A, B)[0, 0] == float("-inf")
        assert op.reference(A, B, float64=True)[0, 0] == float("-inf")


def test_a_group_that_leaves_an_input_out_keeps_its_sign() -> None:
    found = evt.grouped_gemm("in s: f32 = -0.0; D = 1 / s + acc * 0")([A, A], [B, B], s=[1.0, None])
    assert (found[0][0, 0], found[1][0, 0]) == (1.0, float("-inf"))


def test_a_parameter_that_is_left_out_keeps_its_sign() -> None:
    with temporarily():
        evt.function("signed(x, a=-0.0)", cxx="1 / a + x", torch=lambda x, a: 1 / a + x)
        op = evt.gemm("D = signed(acc)")
        assert op(A, B)[0, 0] == float("-inf")
        assert "-0.0f" in op.emit("sm80")


def _drawn(count: int) -> list[tuple[DType, str, float]]:
    """Return types of scalars, each with a default as text and its value: the ends of the range and random numbers."""
    draw = random.Random(37)
    found: list[tuple[DType, str, float]] = [(BOOL, "0", 0), (BOOL, "1", 1)]
    for dtype in (I64, I32):
        ends = (dtype.least, dtype.least + 1, -1, 0, 1, dtype.largest - 1, dtype.largest)
        numbers = [*map(int, ends), *(draw.randint(int(dtype.least), int(dtype.largest)) for _ in range(count))]
        found += [(dtype, str(number), number) for number in numbers]
    for dtype in (F64, F32, F16):
        doubles = [-0.0, 0.0, 0.1, 1 / 3, 65504.0, float("-inf"), *(draw.uniform(-4, 4) for _ in range(count))]
        doubles += [5e-324, 1e300, -1.7976931348623157e308] * (dtype == F64)
        found += [(dtype, repr(number), number) for number in doubles]
    return found


def _bits(value: float) -> object:
    """Return a number so that -0.0 and 0.0, and an int and a float, are different."""
    return (type(value), value if isinstance(value, int) else struct.pack("<d", value))


def _program(dtype: DType, text: str) -> evt.Program:
    value = "s" if dtype == BOOL else "s == 1"
    body = "dropout(acc, 0.5, s, 7)" if dtype == I64 else f"where({value}, acc, 0)"
    head = "gemm(A: f64[m, k], B: f64[k, n]); " if dtype == F64 else ""
    return evt.gemm(f"{head}in s: {dtype} = {text}; D = {body}")


def test_a_default_keeps_its_type_and_its_bits_in_every_form_of_a_program() -> None:
    for dtype, text, number in _drawn(20):
        op = _program(dtype, text)
        for dag in (
            op.request.dag,
            pickle.loads(pickle.dumps(op)).request.dag,
            copy.deepcopy(op).request.dag,
            parse_dag(format_dag(op.request.dag)),
            evt.gemm(formula(op.request.dag)).request.dag,
        ):
            assert _bits(dag.input["s"].default) == _bits(number), (dtype, text)


def test_a_default_launches_as_the_number_passed(launches) -> None:
    for dtype, text, _ in _drawn(3):
        a, b = (torch.ones(16, 16, dtype=torch.float64 if dtype == F64 else torch.float16) for _ in range(2))
        op = _program(dtype, text)
        given = bool(int(text)) if dtype == BOOL else float(text) if dtype.is_float else int(text)
        op(a, b)
        op(a, b, s=given)
        first, second = (members["value_of_in_s"] for members in launches[-2:])
        assert first == second, (dtype, text)
        assert dtype == I64 or _bits(float(first)) == _bits(float(second)), (dtype, text)


def test_the_reference_reads_a_seed_of_64_bits_exactly() -> None:
    for seed in (2**63 - 1, -(2**63), 2**53 + 1, 12345678901234567):
        op = evt.gemm(f"in s: i64 = {seed}; D = dropout(acc + 1, 0.5, s, 7)")
        assert torch.equal(op(A, B), op(A, B, s=seed))
        assert not torch.equal(op(A, B), op(A, B, s=seed ^ 1))


def test_pytorch_parses_the_schema_and_reads_the_default_back() -> None:
    for dtype, text, number in _drawn(20):
        *_, schema = schemas_of(Named("p", _program(dtype, text).request))
        read = torch._C.parse_schema(schema.text).arguments[-1].default_value
        if read is not None:  # C++ fills in defaults that no schema writes
            assert _bits(read) == _bits(bool(number) if dtype == BOOL else number), schema.text
        else:
            assert str(number) in ("-0.0", "-inf", "5e-324"), schema.text


def test_a_default_is_printed_exactly_in_the_header_and_as_cxx() -> None:
    header = evt.gemm("in s: i64 = 9223372036854775807; D = dropout(acc, 0.5, s, 7)").emit("sm80")
    assert "the program's default is 9223372036854775807" in header
    assert "default is 0.30000000000000004" in evt.gemm("in s: f32 = 0.30000000000000004; D = s*acc").emit("sm80")
    assert cxx_number(-(2**63), True) == "INT64_MIN"
    assert cxx_number(2**63 - 1, True) == "INT64_C(9223372036854775807)"
    assert [cxx_number(each, False) for each in (-0.0, 1e300, float("-inf"))] == ["-0.0", "1e+300", "-INFINITY"]


@pytest.mark.parametrize(
    ("declared", "text"),
    [
        *(("i8[n]", text) for text in ("300", "-129", "128")),
        *(("u8[n]", text) for text in ("-1", "256")),
        *(("i32", text) for text in ("2147483648", "-2147483649", "inf", "1e10")),
        *(("i64", text) for text in ("9223372036854775808", "-9223372036854775809", "1e300", "9" * 5000)),
        *(("bool", text) for text in ("2", "-1")),
        ("b1[m, n]", "2"),
        ("f16", "65505"),
    ],
)
def test_a_default_out_of_range_is_refused_with_the_range(declared: str, text: str) -> None:
    with pytest.raises(ProgramError) as refused:
        evt.gemm(f"in s: {declared} = {text}; D = where(s == 1, acc, 0)")
    (found,) = refused.value.diagnostics
    assert found.code == "E0306"
    assert f"{declared.partition('[')[0]} holds " in found.help


def test_a_graph_of_a_builder_has_defaults_of_their_types() -> None:
    assert _bits(Input("s", I64, (), 5.0).default) == _bits(5)
    assert _bits(Input("s", F32, (), 5).default) == _bits(5.0)
    assert _bits(Input("s", None, (), 5).default) == _bits(5.0)


def test_states_of_older_versions_load() -> None:
    op = evt.gemm("in s: i64 = 9223372036854775807; in t: i32 = 7; D = dropout(t*acc, 0.5, s, 7)")
    state = op.request.__getstate__()
    text = str(state["graph"])
    old = text.replace("= 0x7fffffffffffffff\n", f"= {float(2**63).hex()}\n").replace("= 0x7\n", f"= {(7.0).hex()}\n")
    assert old != text
    assert parse_dag(old) == op.request.dag


def test_an_integer_constant_is_exact_or_refused() -> None:
    for digits in range(1, 38):
        for text in (str(2**digits), str(3**digits), str(10**digits)):
            exact = float(text) == int(text)
            if exact:
                evt.gemm(f"D = acc*{text}")
                continue
            with pytest.raises(ProgramError, match=r"an integer that no double equals(.|\n)*nearest double"):
                evt.gemm(f"D = acc*{text}")
            evt.gemm(f"D = acc*{text}.0")


@pytest.mark.parametrize("dtype", OPERANDS, ids=str)
def test_an_operand_has_the_type_of_the_other(dtype: DType) -> None:
    program = evt.linear("D = acc")
    for types in ({"a": dtype.name}, {"b": dtype.name}):
        assert f"linear(A: {dtype}[m, k], B: {dtype}[n, k])" in str(program.graph("typed", **types))


@pytest.mark.parametrize("dtype", PACKED_OPERANDS, ids=str)
def test_an_operand_of_a_type_of_b_alone(dtype: DType) -> None:
    program = evt.linear("D = acc")
    assert f"linear(A: f16[m, k], B: {dtype}[n, k])" in str(program.graph("typed", b=dtype.name))
    with pytest.raises(ProgramError, match=f"{dtype} is a type of `B` alone"):
        program.graph("typed", a=dtype.name)
