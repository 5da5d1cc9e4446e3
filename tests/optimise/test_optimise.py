"""The optimiser: text-pair fixtures for each pass, and the value of random programs is kept."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from _pytest.mark.structures import ParameterSet
from hypothesis import HealthCheck, given, settings

from evt.emission import emit
from evt.errors import TargetError
from evt.ir import Apply, Cast, Const, Dag, Store, TypedDag, parse_dag, verify
from evt.ir.dag import reads_accumulator
from evt.ir.dtype import B1, BY_NAME, F32, DType
from evt.optimise import (
    PIPELINE,
    RELAXED,
    ROUNDING_KEPT,
    casts,
    contract,
    expand_means,
    fold,
    integers,
    logic,
    optimise,
    place_casts,
    recognise,
    relax,
    round_as_eager,
    simplify,
)
from evt.optimise.recognise import RULES
from evt.optimise.rewrite import rewrite
from evt.optimise.rounding import is_exact, round_constant
from evt.plan import Problem, find_target, natural_signature, plan
from evt.reference import reference
from evt.reference.rounding import round_to
from tests.programs import Sample, programs, same, typed

FIXTURES = Path(__file__).parent / "fixtures"

Passes = tuple[Callable[[TypedDag], TypedDag], ...]


def explicit(dag: TypedDag) -> TypedDag:
    """Return the conversions that a program implies, written out."""
    return rewrite(dag)


#: The passes for a fixture file: ``before`` runs through all, ``after`` only through the ones that its spelling needs.
PASSES: dict[str, tuple[Passes, Passes]] = {
    "fold": ((fold,), (explicit,)),
    "casts": ((fold, casts), (fold,)),
    "integers": ((fold, integers), (fold,)),
    "logic": ((fold, logic), (fold,)),
    "simplify": ((fold, simplify), (explicit,)),
    "recognise": ((fold, simplify, recognise, simplify), (fold, simplify)),
    "relax": ((fold, simplify, relax, simplify, relax, simplify), (fold, simplify)),
    "contract": ((contract,), ()),
    "place_casts": ((place_casts,), (explicit,)),
    "expand_means": ((expand_means, explicit), (explicit,)),
}
bounded = settings(deadline=None, derandomize=True, max_examples=12, suppress_health_check=list(HealthCheck))


def cases() -> Iterator[ParameterSet]:
    for path in sorted(FIXTURES.glob("*.txt")):
        for block in re.split(r"^# ", path.read_text(), flags=re.M)[2:]:
            name, _, text = block.partition("\n")
            before, arrow, after = text.partition("\n=>\n")
            assert arrow, f"{path.name}: {name}"
            yield pytest.param(path.stem, before, after, id=f"{path.stem}: {name}")


def describe(dag: Dag) -> set[str]:
    """Each output as one nested expression; commutative operands in order."""
    texts: list[str] = []
    for node in range(len(dag)):
        op, operands = dag[node], [texts[operand] for operand in dag.arguments(node)]
        if op in (Apply("add"), Apply("mul"), Apply("min"), Apply("max")):
            operands.sort()
        word = op.value.hex() if isinstance(op, Const) else str(op)
        texts.append(f"{word}({', '.join(operands)})")
    return {texts[node] for node in range(len(dag)) if isinstance(dag[node], Store)}


def run(dag: TypedDag, passes: tuple[Callable[[TypedDag], TypedDag], ...]) -> TypedDag:
    return optimise(dag, passes, check=True)


@pytest.mark.parametrize(("name", "before", "after"), tuple(cases()))
def test_fixture(name: str, before: str, after: str) -> None:
    passes, spelling = PASSES[name]
    found, expected = run(typed(before), passes), run(typed(after), spelling)
    assert describe(found) == describe(expected), f"{found}\n{expected}"
    assert len(found) == len(expected)  # shared values stay shared


def test_fixtures_cover_every_pass_and_rule() -> None:
    passes = {each.__name__ for each in (*PIPELINE, *RELAXED, *ROUNDING_KEPT)}
    assert set(PASSES) == passes == {path.stem for path in FIXTURES.glob("*.txt")}
    text = (FIXTURES / "recognise.txt").read_text()
    for _, function in RULES:
        assert f"D = {function}(" in text


@pytest.mark.parametrize("name", sorted(PASSES))
def test_no_pass_changes_its_input(name: str) -> None:
    dag = typed("D = relu(alpha * acc * 1 + (2 * 3) * C) + max(0, acc) + acc * sigmoid(acc); E = acc / 4")
    before = str(dag)
    run(dag, PASSES[name][0])
    assert str(dag) == before


@pytest.mark.parametrize("name", sorted(PASSES))
def test_a_pass_has_nothing_to_add_to_its_own_work(name: str) -> None:
    for param in cases():
        stem, before, _ = param.values
        if stem == name:
            once = run(typed(before), PASSES[name][0])
            assert run(once, PASSES[name][0][-1:]) == once, before


def test_inputs_stay() -> None:
    """A value that is kept because it may be NaN is read."""
    dag = typed("D = acc * 0 + C * 0 + max(E, E) + (F - F)")
    assert [i.name for i in optimise(dag).inputs] == ["C", "E", "F"]


@pytest.mark.parametrize("relaxed", [False, True])
@pytest.mark.parametrize("text", ["D = where(acc < C, E, E)", "D = acc - acc + C", "D = C * (acc * 0)"])
def test_a_program_keeps_its_accumulator(text: str, relaxed: bool) -> None:
    assert reads_accumulator(optimise(typed(text), relaxed=relaxed, check=True))


def check(sample: Sample, passes: Passes) -> None:
    dag = sample.dag
    verify(dag)
    optimised = run(dag, passes)
    assert optimised.outputs == dag.outputs
    a, b, inputs = sample.data()
    for float64 in (False, True) if passes == (contract,) else (False,):
        expected = reference(dag, a, b, inputs, float64=float64)
        found = reference(optimised, a, b, inputs, float64=float64)
        assert list(found) == list(expected)
        for name, value in expected.items():
            dtype = dag.output[name].dtype
            assert same(stored(dtype, found[name]), stored(dtype, value)), f"{name}\n{dag}\n{optimised}"


def stored(dtype: DType | None, value: torch.Tensor) -> torch.Tensor:
    """Return an output as it is in memory; a constant that is stored as it is comes in f64."""
    assert dtype is not None
    return round_to(dtype, value) if value.dtype == torch.float64 else value


@pytest.mark.parametrize("name", [name for name in PASSES if name != "relax"])
@bounded
@given(sample=programs(exact=True))
def test_a_pass_keeps_the_value_to_the_bit(name: str, sample: Sample) -> None:
    check(sample, PASSES[name][0])


@settings(bounded, max_examples=25)
@given(sample=programs(exact=True))
def test_the_pipeline_keeps_the_value_to_the_bit(sample: Sample) -> None:
    check(sample, PIPELINE)


@settings(bounded, max_examples=22)
@given(sample=programs(exact=True))
def test_numerics_of_pytorch_keep_the_value_to_the_bit(sample: Sample) -> None:
    rounded = round_as_eager(sample.dag)
    a, b, inputs = sample.data()
    expected, found = (reference(each, a, b, inputs) for each in (rounded, run(rounded, ROUNDING_KEPT)))
    for name, value in expected.items():
        dtype = rounded.output[name].dtype
        assert same(stored(dtype, found[name]), stored(dtype, value)), f"{name}\n{rounded}"


@settings(bounded, max_examples=25)
@given(sample=programs())
def test_every_program_is_accepted(sample: Sample) -> None:
    a, b, inputs = sample.data()
    expected = reference(sample.dag, a, b, inputs)
    for relaxed in (False, True):
        optimised = optimise(sample.dag, relaxed=relaxed, check=True)
        assert optimised.outputs == sample.dag.outputs
        assert parse_dag(str(optimised)) == optimised
        for name, value in reference(optimised, a, b, inputs).items():
            assert value.shape == expected[name].shape


@pytest.mark.parametrize("arch", ["sm80", "sm90"])
@bounded
@given(sample=programs())
def test_every_program_is_emitted_or_refused(arch: str, sample: Sample) -> None:
    dag = optimise(sample.dag)
    try:
        made = plan(Problem(dag, natural_signature(dag), find_target(arch)))
    except TargetError:
        return
    assert "_run(" in emit(made)


#: Sums, products and quotients of tame numbers: relaxed rules change only their rounding.
TAME = ("add", "sub", "mul", "neg", "square", "abs", "min", "max", "sigmoid", "tanh")


@settings(bounded, max_examples=25)
@given(sample=programs(functions=TAME, exact=True))
def test_relaxed_rules_change_roundings_only(sample: Sample) -> None:
    """In f64, where the program rounds nothing itself; results without a finite value are left out."""
    dag = sample.dag
    nodes = [dag[node] for node in range(len(dag))]
    rounds = any(isinstance(op, Cast) and op.dtype != F32 for op in nodes)
    if rounds or any(value.dtype == B1 for value in dag.types):  # a comparison may go the other way
        return
    a, b, inputs = sample.data()
    expected = reference(dag, a, b, inputs, float64=True)
    found = reference(run(dag, RELAXED), a, b, inputs, float64=True)
    for name, value in expected.items():
        if value.dtype == torch.float64:
            finite = value.isfinite()
            size = value[finite].abs().max().item() if finite.any() else 0.0
            torch.testing.assert_close(found[name][finite], value[finite], rtol=1e-5, atol=1e-5 * max(1.0, size))


EXTREME = ("1e-40", "-1.4e-45", "1e-38", "3e38", "-2e38", "1e30", "1e-30", "0.5", "3", "-1", "0")
FORMULAS: tuple[str, ...] = (
    "acc / {0}",
    "acc * {0} * {1}",
    "acc / {0} / {1}",
    "acc * {0} / {1}",
    "(acc + {0}) - {1}",
    "-acc * {0}",
)
FORMULAS += ("acc * {0} * s * {1}", "acc * {0} + acc * {1}", "acc * s + acc * {0}", "acc / s * {0}", "s / {0} * acc")
FORMULAS += (
    "acc * {0} - acc",
    "exp(acc) * exp({0})",
    "acc / sqrt({0})",
    "(acc * {0}) * (s * {1})",
    "{0} / (acc / {1})",
)


@pytest.mark.parametrize("extremes", [EXTREME[:-1:2], pytest.param(EXTREME, marks=pytest.mark.slow)], ids=len)
@pytest.mark.parametrize("formula", FORMULAS)
def test_relaxed_rules_keep_numbers_finite(formula: str, extremes: tuple[str, ...]) -> None:
    """For any constants: a number stays a number, near to its value if that has all its digits."""
    a, b = torch.tensor([[0.0], [1.0], [-3e-7], [1e-30]]), torch.ones(1, 1)
    for constants in itertools.product(extremes, repeat=2):
        dag = typed("out D: f32; D = acc*0.25 + " + re.sub(r"\bs\b", "s[]", formula.format(*constants)), "f32")
        for s in (1.0, -0.25, 1000.0) if dag.inputs else (1.0,):
            expected, found = (reference(each, a, b, {"s": s})["D"] for each in (dag, optimise(dag, relaxed=True)))
            numbers = expected.isfinite()
            assert bool(found[numbers].isfinite().all()), (formula, constants, s, expected, found)
            exact = reference(dag, a, b, {"s": s}, float64=True)["D"].float()
            usual = numbers & (exact == expected) & (expected.abs() > 1e-30)
            torch.testing.assert_close(found[usual], expected[usual], rtol=1e-5, atol=0)


@pytest.mark.parametrize("formula", [formula for formula, _ in RULES])
def test_a_recognised_function_is_the_formula(formula: str) -> None:
    dag = typed(f"x = alpha * acc + bias; D = {formula}; E = {formula} - x", "f32")
    optimised = optimise(dag)
    applied = {op.function for op in map(optimised.__getitem__, range(len(optimised))) if isinstance(op, Apply)}
    assert not applied & {"exp", "erf", "tanh", "relu6", "softplus", "log", "log1p"}, str(optimised)
    torch.manual_seed(0)
    a, b, bias = torch.randn(9, 16), torch.randn(16, 11), torch.linspace(-9, 9, 11)
    inputs = {"alpha": 1.5, "bias": bias}
    expected, found = (reference(each, a, b, inputs, float64=True) for each in (dag, optimised))
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-5, atol=1e-6)


# Rounding of constants


@pytest.mark.parametrize("name", ["tf32", "f16", "bf16", "e4m3", "e5m2", "i32", "i8", "u8", "b1", "f32", "f64"])
def test_constants_are_rounded_as_tensors_are(name: str) -> None:
    dtype = BY_NAME[name]
    bits = torch.arange(0, 2**32, 104729, dtype=torch.int64).to(torch.int32)
    near = torch.cat([torch.arange(-600, 600) / 2**k for k in (0, 1, 4, 9, 17, 24, 26)])
    values = torch.cat([bits.view(torch.float32), near.float(), near.half().float() * (1 + 2**-11)])
    values = values[values.isfinite()]
    expected = round_to(dtype, values).to(torch.float64).tolist()
    found = [round_constant(dtype, value) for value in values.tolist()]
    assert [(float(e).hex() if e else 0) for e in expected] == [(f.hex() if f else 0) for f in found]
    assert all(is_exact(dtype, value) for value in found if abs(value) != float("inf") and str(value) != "-0.0")
