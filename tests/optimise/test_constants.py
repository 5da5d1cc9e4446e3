"""Constants: folded in the type that they are computed in, and spelled in C++ as the same numbers."""

from __future__ import annotations

import itertools
import math
import random
import re
import struct
from collections.abc import Sequence

import pytest
import torch

import evt
from evt.emission import emit
from evt.emission.expressions import literal
from evt.errors import EvtError
from evt.functions import TABLE
from evt.ir import Apply, TypedDag, infer, lower
from evt.ir.dtype import BY_NAME, F32, F64, I32
from evt.ir.specialise import without_inputs
from evt.language import parse
from evt.optimise import PIPELINE, RELAXED, fold, optimise
from evt.plan import Problem, find_target, natural_signature, plan
from evt.reference import functions, reference
from evt.request import typed_graph
from tests.programs import typed
from tests.support.depth import in_depth
from tests.support.patterns import same_bits

TARGETS = ("sm80", "sm86", "sm89", "sm90", "sm100", "sm103", "sm120")
CASTS = ("f64", "f32", "tf32", "f16", "bf16", "e4m3", "e5m2", "i32", "i8", "u8", "b1")
NUMBERS: tuple[str, ...] = (
    "0",
    "-0.0",
    "1",
    "-1",
    "2",
    "3",
    "0.1",
    "-2.5",
    "0.50000001",
    "16777217",
    "2147483647",
    "-2147483648",
)
NUMBERS += ("1e-40", "1.4e-45", "3.4e38", "-1e38", "1e20", "1e-7", "100")
NUMBERS += ("65504", "65520", "448", "465", "57344", "255.5")  # the ends of types, and beyond them
#: Functions that are one operation, or several that the reference does in the same steps.
EXACT = [
    *("add", "sub", "mul", "div", "neg", "fma", "min", "max", "clamp", "abs", "sign", "square", "rcp", "lerp"),
    *("copysign", "heaviside", "floor", "ceil", "round", "trunc"),
    *("frac", "relu", "leaky_relu", "prelu", "rrelu", "relu6"),
    *("threshold", "hardtanh", "hardsigmoid", "hardswish", "hardshrink", "softshrink", "softsign", "where"),
    *("lt", "le", "gt", "ge", "eq", "ne", "logical_and", "logical_or", "logical_not", "isnan", "isinf", "isfinite"),
]
#: Functions that the reference computes in f64 and rounds; sqrt of f64 is PyTorch's, to a unit in the last place.
ROUNDED = sorted({*TABLE} - {*EXACT, "gelu", "gelu_tanh", "mish", "softplus", "tanhshrink"})


@pytest.fixture(autouse=True)
def _zeros_of_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Order zeros as kernels and folding do; on a CPU the reference of relu and of clamp keeps -0, as PyTorch does."""

    def clamp(x: torch.Tensor, *limits: torch.Tensor | float) -> torch.Tensor:
        lower, upper = (torch.as_tensor(limit, dtype=x.dtype) for limit in limits)
        return functions.minimum(functions.maximum(x, lower), upper)

    monkeypatch.setattr(functions, "clamp", clamp)
    monkeypatch.setattr(functions, "relu", lambda x: functions.maximum(x, torch.zeros_like(x)), raising=False)


def expression(generator: random.Random, depth: int, functions: Sequence[str]) -> str:
    """Return a constant expression, with casts to every type."""
    if not depth or generator.random() < 0.15:
        return generator.choice(NUMBERS)
    if generator.random() < 0.3:
        return f"{generator.choice(CASTS)}({expression(generator, depth - 1, functions)})"
    name = generator.choice(functions)
    count = TABLE[name].required + generator.randint(0, len(TABLE[name].parameters) - TABLE[name].required)
    arguments = [expression(generator, depth - 1, functions) for _ in range(count)]
    if TABLE[name].requires:  # of numbers, E0207; products of numbers are not compared
        arguments = [f"mul({each}, 1)" if each in NUMBERS else each for each in arguments]
    return f"{name}({', '.join(arguments)})"


def check(
    dag: TypedDag, passes: tuple[object, ...], operand: str, inputs: dict[str, torch.Tensor] | None = None
) -> None:
    """Check that the optimised program has the bits of the program as it is written, wherever it stores."""
    kind = getattr(torch, BY_NAME[operand].torch)
    a, b = (torch.ones(2, 2).to(kind) for _ in range(2))
    expected = reference(dag, a, b, inputs or {})
    found = reference(optimise(dag, passes, check=True), a, b, inputs or {})
    for name, value in expected.items():
        assert bool(same_bits(found[name], value).all()), f"{name}: {found[name]} {value}\n{dag}"


def program(generator: random.Random, functions: Sequence[str], depth: int) -> str:
    """Constants that are stored in every type, reduced, and met by values of every type."""
    texts = [expression(generator, depth, functions) for _ in range(4)]
    stores = [name for name in CASTS if name != "tf32"]
    outs = [f"{name}: {_stored(generator, stores)}" for name in ("y0", "y1", "y2", "z")]
    lines = [f"y{index} = {text}" for index, text in enumerate(texts[:3])]
    met = generator.choice(("iota(m)", "acc", "x", "w", "h", "i"))
    lines += [f"z = {generator.choice(('add', 'mul', 'max'))}({met}, {texts[3]})", "D = acc"]
    head = ["in x: f32[m, n] = 0.1", "in w: f64[n] = 0.1", "in h: f16[m] = 0.1", "in i: i32[m, n] = -2147483648"]
    head = [line for line in head if line.split()[1][0] == met]
    out = f"out D: f32, {', '.join(outs)}"
    return "\n".join([*head, out, *lines])


def _stored(generator: random.Random, stores: Sequence[str]) -> str:
    """Return a type, with the given modes or the value's; bits are a matrix's."""
    dtype = generator.choice(stores)
    return dtype if dtype != "b1" and generator.random() < 0.3 else f"{dtype}[m, n]"


@pytest.mark.parametrize("operand", ["f16", "f64", "i8"])
@pytest.mark.parametrize("seed", in_depth(range(4), range(1)))
def test_folding_keeps_the_bits(operand: str, seed: int) -> None:
    generator = random.Random(f"{operand} {seed}")
    for _ in range(60):
        text = program(generator, EXACT, generator.randint(1, 4))
        dag = typed(text, operand)
        for absent in ({}, {value.name: value.default or 0.0 for value in dag.inputs if value.modes}):
            left_out = infer(without_inputs(dag, absent), dag.operands)
            check(left_out, PIPELINE, operand)


@pytest.mark.parametrize("name", ROUNDED)
def test_a_function_of_constants_is_the_reference_of_it(name: str) -> None:
    """In f32 to the bit; in f64, which PyTorch does not round to the nearest, to the last places."""
    arity = TABLE[name].required
    values = ("0.1", "-0.0", "1", "-1", "2.5", "-3", "30", "1e-40", "1e30", "-1e30", "0.7")
    rows = list(itertools.product(values if arity == 1 else values[:7], repeat=arity))
    text = "\n".join([f"y{i} = {name}({', '.join(row)})" for i, row in enumerate(rows)])
    text += f"\nD = acc\nout D, {', '.join(f'y{i}: f64' for i in range(len(rows)))}"
    for operand, kind in (("f16", torch.float16), ("f64", torch.float64)):
        dag = typed(text, operand)
        folded = optimise(dag, (fold,))
        ones = torch.ones(1, 1).to(kind)
        found, expected = (reference(each, ones, ones, {}) for each in (folded, dag))
        for output, value in expected.items():
            if operand == "f16":
                assert bool(same_bits(found[output], value).all()), (output, rows)
            else:
                torch.testing.assert_close(found[output], value, rtol=1e-13, atol=1e-300, equal_nan=True)


def test_what_an_absent_tensor_stands_for_is_computed_in_its_type() -> None:
    op = evt.gemm("in R: f64[m, n] = 0\nout D, E, s: f64[m]\nD = acc; E = -logsigmoid(R) + 0.1; s = sum[n](R + 0.1)")
    a = torch.eye(4, dtype=torch.float64)
    dag = infer(
        without_inputs(typed_graph(op.request, "f64", "f64"), {"R": 0.0}),
        typed_graph(op.request, "f64", "f64").operands,
    )
    expected = math.log(2) + 0.1
    for found in (op(a, a), reference(optimise(dag), a, a, {})):
        each = found if isinstance(found, dict) else found._asdict()
        torch.testing.assert_close(each["E"], torch.full((4, 4), expected, dtype=torch.float64), rtol=1e-15, atol=0)
        torch.testing.assert_close(each["s"], torch.full((4,), 0.4, dtype=torch.float64), rtol=1e-15, atol=0)


def test_a_constant_that_is_stored_has_the_digits_of_its_output() -> None:
    for operand in ("f16", "f64", "i8"):
        dag = typed(
            "out D, a: f64, b: i32, c: f32, d: i8\nD = acc; a = 0.1; b = 16777217; c = 16777217; d = 2.5", operand
        )
        kind = getattr(torch, BY_NAME[operand].torch)
        for each in (dag, optimise(dag)):
            found = reference(each, torch.ones(1, 1).to(kind), torch.ones(1, 1).to(kind), {})
            assert [found[name].item() for name in "abcd"] == [0.1, 16777217, 16777216.0, 2]


# C++


def read(text: str) -> float:
    """Return the number of an emitted C++ literal."""
    text = re.sub(r"^\((.*)\)$", r"\1", text)
    text = re.sub(r"^static_cast<double>\((.*)\)$", r"\1", text)
    if text == "-2147483647 - 1":
        return -(2.0**31)
    known = {"INFINITY": math.inf, "-INFINITY": -math.inf, "NAN": math.nan}
    return known[text] if text in known else float(text.removesuffix("f"))


def test_literals_read_back() -> None:
    generator = random.Random(5)
    values = [struct.unpack("<d", generator.randbytes(8))[0] for _ in range(3000)]
    values += [generator.choice((-1, 1)) * generator.random() * 10.0 ** generator.randint(-46, 40) for _ in range(3000)]
    values += [0.0, -0.0, 1e39, -1e400, math.nan, 3.4028234663852886e38, 3.4028235677973366e38, 2.0**-149, 1.0, 1e16]
    for value in values:
        single = torch.tensor(value, dtype=torch.float64).to(torch.float32).item()
        for dtype, expected in ((F32, single), (F64, value)):
            text = literal(value, dtype)
            found = read(text)
            found = torch.tensor(found, dtype=torch.float64).to(torch.float32).item() if dtype == F32 else found
            assert found == expected or found != found, (value, text)
            assert math.copysign(1, found) == math.copysign(1, expected) or found != found
            assert math.isnan(found) == math.isnan(expected)
            assert dtype == F64 or text.endswith(("f", "f)", "INFINITY", "INFINITY)", "NAN"))
    for number in (0, 1, -1, 2**31 - 1, -(2**31)):
        assert read(literal(float(number), I32)) == number


#: Constants beyond a type's range, or no numbers; each is emitted for every target, from every operand type.
BEYOND = (
    "in w: f32[m]; D = acc + w*exp(200)",
    "in w: f32[m]; D = acc + w*f32(exp(200)) - w*-exp(300)",
    "in w: f16[n]; D = where(acc > exp(300), -exp(300), w)",
    "in w: f32[n] = 3.4e38; D = acc + w*10",
    "D = acc*exp(1000) + log(-1)",
    "D = acc + 0/0 - 1/0 + -1/0",
    "D = acc + f16(1e6)*bf16(3.4e38) + e4m3(1/0) + i8(0/0) + u8(exp(100))",
    "D = acc + (i32(2147483647) + i32(1)) + iota(m)*i32(-2147483648)",
    "D = acc*(1e38*100) + 1e-38*1e-38",
    (
        "out D, E: f64[m, n], F: i32[m, n], G: b1[m, n], H: e5m2[m, n]\n"
        "D = acc; E = exp(200); F = 1/0; G = 0/0; H = 1e38*10"
    ),
    "out D, E: f64, F: i32, G: bool, H: e5m2; D = acc; E = exp(200); F = 1/0; G = 0/0; H = 1e38*10",
    "out D, s: f64[m]; D = acc; s = sum[n](exp(90))",
    "in s: f32[n] = 0; A = A*exp(100); D = acc/s",
)


@pytest.mark.parametrize("operand", ["f16", "f64", "i8", "e4m3"])
@pytest.mark.parametrize("text", BEYOND)
def test_constants_beyond_a_range_are_emitted(text: str, operand: str) -> None:
    dag = infer(lower(parse(text)), typed("D = acc", operand).operands)
    emitted = 0
    for absent in ({}, {value.name: value.default for value in dag.inputs if value.default is not None}):
        left_out = infer(without_inputs(dag, absent), dag.operands)
        for passes in (PIPELINE, RELAXED):
            optimised = optimise(left_out, passes, check=True)
            for target in TARGETS:
                try:
                    made = plan(Problem(optimised, natural_signature(optimised), find_target(target)))
                except EvtError:
                    continue
                emitted += "_run(" in emit(made)
    assert emitted or operand != "f16"


@pytest.mark.parametrize("operand", ["f16", "f64", "i8"])
def test_random_constants_are_emitted(operand: str) -> None:
    generator = random.Random(operand)
    emitted = 0
    for index in range(60):
        dag = optimise(typed(program(generator, [*EXACT, *ROUNDED], 3), operand))
        target = find_target(TARGETS[index % len(TARGETS)])
        try:
            text = emit(plan(Problem(dag, natural_signature(dag), target)))
        except EvtError:
            continue
        emitted += 1
        assert not re.search(r" const t\d+ = .*\b(inf|nan)f?\b", text)
    assert emitted > 30


# Defaults, and numbers at a call


@pytest.mark.parametrize(
    "declaration",
    ["s: i32[] = -2147483648", "s: i32[] = 2147483647", "s: i8[n] = -128", "s: u8[n] = 255", "s: f16[] = -65504"],
)
def test_defaults_at_the_ends_of_a_type(declaration: str) -> None:
    op = evt.gemm(f"in {declaration}\nout D, E: f64\nD = acc; E = s")
    ones = torch.ones(2, 2).half()
    assert op(ones, ones).E.unique().item() == float(declaration.rpartition("= ")[2])


@pytest.mark.parametrize(
    "declaration",
    ["s: i32[] = 2147483648", "s: i32[] = -2147483649", "s: i8[n] = -129", "s: u8[n] = -1", "s: f16[] = 70000"],
)
def test_defaults_beyond_a_type(declaration: str) -> None:
    with pytest.raises(evt.ProgramError, match="E0306") as caught:
        evt.gemm(f"in {declaration}; D = acc + s")
    assert "holds" in caught.value.diagnostics[0].help


@pytest.mark.parametrize("seed", [2**32 - 1, 2**31, 2**31 - 1, -(2**31)])
def test_a_seed_is_its_32_bits(seed: int) -> None:
    op, ones = evt.gemm("D = rand(seed, 3) + 0*acc"), torch.ones(4, 4)
    word = torch.tensor([(seed + 2**31) % 2**32 - 2**31], dtype=torch.int32)
    assert torch.equal(op(ones, ones, seed=seed), op(ones, ones, seed=word))
    assert not torch.equal(op(ones, ones, seed=seed), op(ones, ones, seed=0))


def test_functions_fold_as_they_are_applied() -> None:
    """The tests above omit only rows that are made of several functions."""
    assert {*EXACT, *ROUNDED} | {"gelu", "gelu_tanh", "mish", "softplus", "tanhshrink"} == {*TABLE}
    dag = optimise(typed("D = acc + " + " + ".join(f"{name}(0.3, 0.3, 0.3)" for name in ("clamp", "fma"))))
    assert sum(isinstance(dag[node], Apply) for node in range(len(dag))) <= 2
