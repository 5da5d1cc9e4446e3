"""Random programs against an evaluator that is not evt, which sees mistakes.

Forty programs, and 300 where ``-m slow`` asks for them: ``pytest tests/programs --count 20000`` checks 20,000.
``python -m tests.programs`` checks them in several processes, and shrinks the failures.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import evt
from evt.functions import TABLE
from tests.programs.call import arguments, problems
from tests.programs.checks import TARGETS, Failure, check, make, operand_types
from tests.programs.draw import Profile
from tests.programs.dtypes import CASTS, OUTPUTS, STORAGE
from tests.programs.features import FEATURES, features
from tests.programs.functions import FUNCTIONS
from tests.programs.generator import generate
from tests.programs.interface import reductions
from tests.programs.shrink import shrink
from tests.programs.simple import gemm, kinds
from tests.programs.tree import (
    NODES,
    Acc,
    Block,
    Call,
    Cast,
    Input,
    Output,
    Pair,
    Program,
    Read,
    Reduce,
    Style,
    walk,
)

ROOT = Path(__file__).parents[2]


@dataclass
class Run:
    """Programs, and the results of their checks."""

    programs: list[Program]
    accepted: list[Program]
    failures: list[tuple[Program, Failure]]
    counts: Counter[str]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "run" in metafunc.fixturenames:
        asked = metafunc.config.getoption("count")
        marks = [pytest.mark.slow, pytest.mark.xdist_group("300 random programs")]  # one worker makes them
        counts = [asked] if asked else [25, pytest.param(300, marks=marks)]
        metafunc.parametrize("run", counts, indirect=True, scope="module")


@pytest.fixture(scope="module")
def run(request: pytest.FixtureRequest) -> Run:
    first, count = request.config.getoption("first"), request.param
    found = Run([], [], [], Counter())
    for seed in range(first, first + count):
        program = generate(seed)
        report = check(program)
        found.programs.append(program)
        found.accepted += [program] * report.accepted
        found.failures += [(program, failure) for failure in report.failures]
        found.counts.update(report.counts)
    return found


def test_no_random_program_fails(run: Run) -> None:
    for program, failure in run.failures[:3]:
        targets = [name for name in TARGETS if failure.detail.startswith(f"{name}:")]

        def fails(smaller: Program) -> bool:
            return any(each.kind == failure.kind for each in check(smaller, targets).failures)  # noqa: B023

        small = shrink(program, fails, most=150)
        print(f"{failure.kind}: {failure.detail}\n{small}\n")
    kinds = Counter(failure.kind for _, failure in run.failures)
    assert not kinds, "\n".join(f"{count} x {kind}" for kind, count in kinds.most_common())


def test_most_programs_are_accepted_and_emitted(run: Run) -> None:
    assert len(run.accepted) > 0.8 * len(run.programs)
    for arch in TARGETS:
        assert run.counts[f"emitted {arch}"] > 0.5 * len(run.programs)


def test_little_is_in_doubt(run: Run) -> None:
    for stage in ("reference", "float64", "optimised"):
        compared = run.counts[f"compared {stage}"]
        assert run.counts[f"in doubt {stage}"] < 0.2 * compared
        assert run.counts[f"loose {stage}"] < 0.1 * compared


def test_all_of_the_language_is_drawn(run: Run) -> None:
    """The accepted programs contain every part of the language."""
    if len(run.programs) < 300:
        pytest.skip("needs 300 programs")
    nodes = [node for program in run.accepted for node in program.expressions()]
    inputs = [value for program in run.accepted for value in program.inputs]
    outputs = [output for program in run.accepted for output in program.outputs]
    called = {node.function for node in nodes if isinstance(node, Call)}
    assert set(TABLE) - called == set()
    assert {node.primes for node in nodes if isinstance(node, Call)} == {0, 1, 2}
    assert {node.type for node in nodes if isinstance(node, Cast)} == set(CASTS)
    assert {type(node) for node in nodes} == set(NODES)
    assert {value.type for value in inputs} == {*STORAGE, None}
    assert {output.type for output in outputs} == {*OUTPUTS, None}
    reduced = {node.kind for node in nodes if isinstance(node, Reduce)}
    assert reduced >= {"sum", "max", "min", "mean", "var"}
    assert reduced & {"argmax", "argmin"}
    blocks = [node for node in nodes if isinstance(node, Block)]
    assert {isinstance(node.x, Pair) for node in blocks} == {True, False}
    assert {node.width for node in blocks} == {8, 16, 32, 64, 128}
    assert {index for value in inputs for index in value.indexed} == {"m", "n", "lm", "ln"}
    assert {index for output in outputs for index in output.indexed} >= {"m", "n"}
    seeds = [{value.type for value in program.inputs if value.name == "seed"} for program in run.accepted]
    assert {*map(frozenset, seeds)} >= {frozenset({"i32"}), frozenset({"i64"})}
    assert any(program.views for program in run.accepted)
    assert any(all(reductions(program).get(each.name) for each in program.outputs) for program in run.accepted)
    assert {program.operation for program in run.accepted} == set(Profile().operations)
    assert len({(program.a, program.b) for program in run.accepted}) >= 15
    modes = {value.modes for value in inputs}
    assert {(), ("m",), ("n",), ("m", "n"), ("n", "m"), ("l",), ("l", "m"), ("l", "n"), ("k",), ("m", "n/2")} <= modes
    assert {value.given for value in inputs} == {"tensor", "number", "element", "batched", "absent"}
    assert {bool(value.default) for value in inputs if value.flexible} == {True, False}
    kinds = {output.modes for output in outputs}
    assert {("m", "n"), ("n", "m"), ("l", "m", "n"), ("m",), ("n",), (), ("m", "n/2"), ("m", "n/16")} <= kinds
    assert {key for program in run.accepted for key, _ in program.settings} >= {"numerics", "relaxed", "fast_math"}
    assert {program.data for program in run.accepted} == {"plain", "normal", "edge"}
    sizes = [each for program in run.accepted if not program.geometry for each in (program.groups or (program.sizes,))]
    assert {0, 1} <= {each.n for each in sizes} & {each.k for each in sizes} & {each.rows[0] for each in sizes}


def test_a_thousand_programs_have_every_part_of_the_language() -> None:
    found = {name for seed in range(1000) for name in features(generate(seed))}
    assert set(FEATURES) - found == set()


def test_styles_are_other_words_for_the_same_graph() -> None:
    styles = [Style(sparse=True), Style(together=True, subscript_first=True, assigned=True)]

    def graph(program: Program) -> object:
        try:
            return make(program).request.dag.table
        except evt.EvtError as error:
            return error.diagnostics[0].code

    programs = [replace(generate(seed), style=Style(), declares_outputs=True) for seed in range(120)]
    texts = {replace(program, style=style).text for program in programs for style in [Style(), *styles]}
    assert len(texts) > 2 * len(programs)
    for program in programs:
        for style in styles:
            assert graph(replace(program, style=style)) == graph(program), program.text


def digests(seeds: Iterator[int] | range) -> dict[str, str]:
    """Return the digests of programs and of their emitted text."""
    found = {}
    for seed in seeds:
        program = generate(seed)
        texts = [str(program), *(emitted(program, arch) for arch in TARGETS)]
        found[str(seed)] = hashlib.sha256("\0".join(texts).encode()).hexdigest()
    return found


def emitted(program: Program, arch: str) -> str:
    try:
        text: str = make(program).emit(arch, *operand_types(program))
    except evt.EvtError as error:
        return str(error)
    return text


@pytest.mark.parametrize("seeds", [range(7, 8), pytest.param(range(8, 20), marks=pytest.mark.slow)], ids=str)
def test_programs_and_texts_are_the_same_with_another_hash_seed(seeds: range) -> None:
    name = "tests.programs.test_random_programs"
    code = f"import json, {name} as t; print(json.dumps(t.digests(range{seeds.start, seeds.stop})))"
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=environment)
    assert done.stdout.replace("'", '"') == repr(digests(seeds)).replace("'", '"') + "\n"


# Mistakes that it has to see


def test_a_function_that_means_another_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    program = gemm(Call("gelu", (Acc(),)))
    assert kinds(program) == set()
    monkeypatch.setitem(FUNCTIONS, "gelu", FUNCTIONS["gelu_tanh"])
    assert kinds(program) == {f"{stage}: another value" for stage in ("reference", "float64", "optimised")}


def test_every_function_is_told_from_what_is_a_little_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """In doubles a part in 10**9 is seen, in f32 one in 10**5."""
    for name, row in FUNCTIONS.items():
        if row.predicate:
            continue
        program = gemm(Call(name, (Acc(), *[Read("x")] * (len(row.parameters) - 1))), Input("x", ("m", "n"), "f32"))
        for factor, stage in ((1 + 1e-9, "float64"), (1 + 1e-5, "reference")):
            with monkeypatch.context() as patch:
                other = replace(row, meaning=_scaled(row.meaning, factor), integers=None)
                patch.setitem(FUNCTIONS, name, other)
                other.__dict__["parameters"] = row.parameters
                assert f"{stage}: another value" in kinds(program), (name, factor)


def _scaled(meaning: Callable[..., Any], factor: float) -> Callable[..., Any]:
    return lambda t, *arguments: meaning(t, *arguments) * factor


@pytest.mark.parametrize("dtype", ["f16", "bf16", "e4m3", "i8"])
def test_a_store_that_truncates_is_seen(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    from evt.reference import extents

    round_to = extents.round_to  # type: ignore[attr-defined]
    outputs = (Output("D", ("m", "n"), dtype),)
    scaled = Call("mul", (Acc(), Read("x")), "*")
    program = gemm(scaled, Input("x", ("n",), "f32"), outputs=outputs, data="plain" if dtype == "i8" else "normal")
    assert kinds(program) == set()

    def truncating(to: Any, value: torch.Tensor) -> torch.Tensor:
        done = round_to(to, value)
        if to.name != dtype or not value.dtype.is_floating_point:
            return done
        over = done.double().abs() > value.double().abs()
        less = torch.where(over, value.double() * (1 - 2.0**-7), value.double())
        return round_to(to, torch.trunc(value) if dtype == "i8" else less)

    monkeypatch.setattr(extents, "round_to", truncating)
    assert "reference: another value" in kinds(program)


def test_exchanged_members_of_pairs_and_shifted_blocks_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    from evt.reference.exact import Exact

    program = gemm(Call("sub", (Acc(), Block("max", 16, Acc())), "-"))
    assert kinds(program) == set()
    repeat = Exact.repeat
    monkeypatch.setattr(Exact, "repeat", lambda self, value, width: repeat(self, value, width).roll(1, -1))
    assert "reference: another value" in kinds(program)


def test_an_optimiser_that_rounds_once_too_often_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    import evt.request.graphs
    from evt.ir.dtype import BF16
    from evt.ir.node import Cast as Rounding
    from evt.ir.node import Load
    from evt.optimise.rewrite import on, rewrite

    program = gemm(Call("mul", (Acc(), Read("x")), "*"), Input("x", ("n",), "f32"))

    @on(Load)
    def rule(builder: Any, op: Any, operands: tuple[int, ...]) -> int:
        return builder.add(Rounding(BF16), builder.add(op))

    optimise = evt.request.graphs.optimise  # type: ignore[attr-defined]
    monkeypatch.setattr(
        evt.request.graphs, "optimise", lambda dag, *rest, **more: rewrite(optimise(dag, *rest, **more), rule)
    )
    assert kinds(program) == {"optimised: another value"}


def test_crashes_and_faults_of_emission_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    import evt.emission

    program = gemm(Call("relu", (Acc(),)))
    emit = evt.emission.emit
    monkeypatch.setattr(evt.emission, "emit", lambda plan, name: emit(plan, name) + "\nfloat x = nan;\n}\n")
    assert {kind.partition(":")[2] for kind in kinds(program, TARGETS[:1])} == {" a word of Python's", " brackets"}
    monkeypatch.setattr(evt.emission, "emit", lambda plan, name: {}[plan])
    assert {kind.partition(" at ")[0] for kind in kinds(program, TARGETS[:1])} == {"emit: KeyError"}


def test_a_failure_is_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large program that fails for one function shrinks to the call of that function."""
    programs = map(generate, range(1000))
    large = next(p for p in programs if calls(p, "silu") and p.operation == "gemm" and len(list(p.expressions())) > 20)
    small = shrink(large, lambda program: calls(program, "silu"))
    assert len(list(small.expressions())) <= 4
    assert len(small.text) < len(large.text) / 2


def calls(program: Program, function: str) -> bool:
    nodes = (node for each in program.assigns for node in walk(each.value))
    return any(isinstance(node, Call) and node.function == function for node in nodes)


def test_data_are_the_same_at_every_call() -> None:
    program = next(p for p in map(generate, range(100)) if p.inputs and p.operation == "gemm")
    one, two = (arguments(program, problems(program)[0]) for _ in range(2))
    assert all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(one[:2], two[:2], strict=True))
