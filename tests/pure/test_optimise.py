"""The optimiser: text-pair fixtures for each pass, and the value of random programs is kept."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from _pytest.mark.structures import ParameterSet
from hypothesis import HealthCheck, given, settings
from programs import Sample, programs, same, typed

from evt.ir import Apply, Const, Dag, Store, TypedDag, verify
from evt.optimise import PIPELINE, contract, fold, optimise, recognise, simplify
from evt.optimise.recognise import RULES
from evt.reference import reference

FIXTURES = Path(__file__).parents[1] / "fixtures/optimise"

#: What a fixture file is run through: ``before`` whole, ``after`` only as far as its spelling needs.
PASSES: dict[str, tuple[tuple[Callable[[TypedDag], TypedDag], ...], ...]] = {
    "fold": ((fold,), ()),
    "simplify": ((fold, simplify), ()),
    "recognise": ((fold, simplify, recognise, simplify), (fold, simplify)),
    "contract": ((contract,), ()),
}
relaxed = settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


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
    assert set(PASSES) == {each.__name__ for each in PIPELINE} == {path.stem for path in FIXTURES.glob("*.txt")}
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
    """No exact rule makes an input unnecessary: what a call has to give does not depend on the optimiser."""
    dag = typed("D = acc * 0 + C * 0 + max(E, E) + (F - F)")
    assert [i.name for i in optimise(dag).inputs] == ["C", "E", "F"]


def check(sample: Sample, passes: tuple[Callable[[TypedDag], TypedDag], ...]) -> None:
    dag = sample.dag
    verify(dag)
    optimised = run(dag, passes)
    a, b, inputs = sample.data()
    for float64 in (False, True) if passes == (contract,) else (False,):
        expected = reference(dag, a, b, inputs, float64=float64)
        found = reference(optimised, a, b, inputs, float64=float64)
        assert list(found) == list(expected)
        for name, value in expected.items():
            assert same(found[name], value), f"{name}\n{dag}\n{optimised}"


@pytest.mark.parametrize("name", ["fold", "simplify", "contract", "recognise"])
@relaxed
@given(sample=programs(exact=True))
def test_a_pass_keeps_the_value_to_the_bit(name: str, sample: Sample) -> None:
    check(sample, PASSES[name][0])


@settings(relaxed, max_examples=200)
@given(sample=programs(exact=True))
def test_the_pipeline_keeps_the_value_to_the_bit(sample: Sample) -> None:
    check(sample, PIPELINE)


@settings(relaxed, max_examples=200)
@given(sample=programs())
def test_the_pipeline_accepts_every_program(sample: Sample) -> None:
    optimised = run(sample.dag, PIPELINE)
    assert optimised.outputs == sample.dag.outputs
    a, b, inputs = sample.data()
    for name, value in reference(optimised, a, b, inputs).items():
        assert value.shape == reference(sample.dag, a, b, inputs)[name].shape


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
