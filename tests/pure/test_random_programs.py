"""Random programs against an evaluator that is not evt; what the evaluator is made of, and that it sees mistakes.

A hundred programs, and 300 where ``-m slow`` asks for them: ``pytest tests/pure/test_random_programs.py --count 20000``
checks that many. ``python -m tests.programs`` does so in several processes, and makes what fails small.
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

import numpy as np
import pytest
import torch
from programs.call import arguments, problems
from programs.checks import TARGETS, Failure, check, make, operand_types
from programs.derivatives import Derivatives
from programs.draw import Profile
from programs.dtypes import CASTS, OUTPUTS, STORAGE
from programs.features import FEATURES, features
from programs.functions import FUNCTIONS
from programs.generator import generate, normalised
from programs.interface import reductions
from programs.number import NO_DOUBT, Arithmetic, Number
from programs.products import accumulated
from programs.rounding import FLOATS, grain, rounded, wrapped
from programs.shrink import shrink
from programs.tree import (
    NODES,
    Acc,
    Assign,
    Block,
    Call,
    Cast,
    Input,
    Output,
    Pair,
    Program,
    Read,
    Reduce,
    Sizes,
    Style,
    walk,
)

import evt
from evt.functions import TABLE

ROOT = Path(__file__).parents[2]


@dataclass
class Run:
    """Programs, and what came of them."""

    programs: list[Program]
    accepted: list[Program]
    failures: list[tuple[Program, Failure]]
    counts: Counter[str]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "run" in metafunc.fixturenames:
        asked = metafunc.config.getoption("count")
        marks = [pytest.mark.slow, pytest.mark.xdist_group("300 random programs")]  # one worker makes them
        counts = [asked] if asked else [100, pytest.param(300, marks=marks)]
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
    """Among the programs that are accepted is everything of which a program is made."""
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
    assert reduced >= {"sum", "max", "min", "mean"}
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
            return make(program).spec.dag.table
        except evt.EvtError as error:
            return error.diagnostics[0].code

    programs = [replace(generate(seed), style=Style(), declares_outputs=True) for seed in range(120)]
    texts = {replace(program, style=style).text for program in programs for style in [Style(), *styles]}
    assert len(texts) > 2 * len(programs)
    for program in programs:
        for style in styles:
            assert graph(replace(program, style=style)) == graph(program), program.text


def digests(seeds: Iterator[int] | range) -> dict[str, str]:
    """Return the digests of programs and of what is emitted for them."""
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


@pytest.mark.parametrize("seeds", [range(7, 10), pytest.param(range(10, 20), marks=pytest.mark.slow)], ids=str)
def test_programs_and_texts_are_the_same_with_another_hash_seed(seeds: range) -> None:
    code = f"import json, test_random_programs as t; print(json.dumps(t.digests(range{seeds.start, seeds.stop})))"
    path = os.pathsep.join(map(str, (ROOT, ROOT / "tests", ROOT / "tests/pure")))
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": path}
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=environment)
    assert done.stdout.replace("'", '"') == repr(digests(seeds)).replace("'", '"') + "\n"


# What the evaluator is made of


def test_every_function_has_a_meaning_of_its_own() -> None:
    rows = {name: row for name, row in TABLE.items() if not row.source}
    assert set(rows) == set(FUNCTIONS)
    for name, row in rows.items():
        wanted = [(each.name, each.default) for each in row.parameters]
        assert [each for each, _ in FUNCTIONS[name].parameters] == [each for each, _ in wanted]
        for (_, mine), (_, other) in zip(FUNCTIONS[name].parameters, wanted, strict=True):
            assert (mine is None) == (other is None)
            assert mine is None or mine == pytest.approx(other, rel=1e-15)


def decoded(name: str) -> np.ndarray:
    """Every finite value of a type of up to 16 bits that is not negative, in order, from its bits."""
    fraction, least, largest, _ = FLOATS[name]
    exponents = {"f16": 5, "bf16": 8, "e4m3": 4, "e5m2": 5}[name]
    bits = np.arange(2 ** (exponents + fraction), dtype=np.int64)
    exponent, mantissa = bits >> fraction, bits & (2**fraction - 1)
    normal = (mantissa + 2**fraction) * 2.0 ** (exponent - 1.0 + least - fraction)
    values = np.where(exponent == 0, mantissa * 2.0 ** (least - fraction), normal)
    return values[values <= largest]


@pytest.mark.parametrize("name", ["f16", "bf16", "e4m3", "e5m2"])
def test_rounding_of_every_value_and_every_halfway(name: str) -> None:
    values = decoded(name)
    for sign in (1.0, -1.0):
        assert np.array_equal(rounded(name, sign * values), sign * values)
        low, high = values[:-1], values[1:]
        middle = (low + high) / 2
        even = np.where(np.arange(len(low)) % 2 == 0, low, high)  # neighbours differ in the last bit
        assert np.array_equal(rounded(name, sign * middle), sign * even)
        assert np.array_equal(rounded(name, sign * np.nextafter(middle, 0)), sign * low)
        assert np.array_equal(rounded(name, sign * np.nextafter(middle, np.inf)), sign * high)
    saturates = FLOATS[name][3]
    beyond = rounded(name, np.array([1e300, -1e300, np.inf, -np.inf, np.nan]))
    ends = FLOATS[name][2] if saturates else np.inf
    assert np.array_equal(beyond, np.array([ends, -ends, ends, -ends, np.nan]), equal_nan=True)


def test_rounding_to_integers_and_bits() -> None:
    values = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 126.5, 127.5, 300.0, -300.0, 1e300, -np.inf, np.nan, 1e-300, -0.0])
    assert rounded("i8", values).tolist() == [0, 2, 2, 0, -2, 126, 127, 127, -128, 127, -128, 0, 0, 0]
    assert rounded("u8", values).tolist() == [0, 2, 2, 0, 0, 126, 128, 255, 0, 255, 0, 0, 0, 0]
    assert rounded("i32", values)[9:].tolist() == [2**31 - 1, -(2**31), 0, 0, 0]
    assert rounded("b1", values).tolist() == [1] * 13 + [0]
    assert wrapped(np.array([2**31, -(2**31) - 1, 2**33 + 5])).tolist() == [-(2**31), 2**31 - 1, 5]
    assert grain(np.array([3.0, 0.0, -0.75, np.inf])) == 0.25


def exact_arithmetic() -> Arithmetic:
    return Arithmetic(False, 0.0, np.random.default_rng(0))


def at(values: Any) -> Number:
    return Number(np.asarray(values, dtype=float).reshape(1, 1, 1, -1), NO_DOUBT, exact_arithmetic())


#: Where functions are smooth, each at a distance from every kink.
POINTS = np.array([-2.35, -1.27, -0.81, -0.33, 0.21, 0.64, 0.87, 1.43, 2.71, 4.4])


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if row.derivatives])
@pytest.mark.parametrize("primes", [1, 2])
def test_derivatives(name: str, primes: int) -> None:
    """By series, by differences of the meaning, and by evt's formulas in doubles: the three agree."""
    constants = [0.75, 1.1][: len(TABLE[name].parameters) - 1]
    call = Call(name, (Acc(),), primes=primes)
    values, doubt = Derivatives({}, exact_arithmetic())(call, at(POINTS).x, constants)
    series, known = values[0, 0, 0], ~np.broadcast_to(doubt, values[0].shape)[0, 0]
    op = evt.gemm(f"D = {name}{chr(39) * primes}({', '.join(['acc', *map(str, constants)])}) + 0*acc")
    one = torch.ones(1, 1, dtype=torch.float64)
    found = op.reference(one, torch.from_numpy(POINTS).reshape(1, -1), float64=True).numpy()[0]
    np.testing.assert_allclose(found[known], series[known], rtol=1e-9, atol=1e-9)
    if not FUNCTIONS[name].predicate:
        with np.errstate(all="ignore"):
            differences = differentiated(lambda x: meaning(name, x, constants), POINTS, primes)
        finite = known & np.isfinite(differences)
        assert finite.sum() >= 2
        np.testing.assert_allclose(series[finite], differences[finite], rtol=2e-4, atol=2e-4)


def meaning(name: str, x: np.ndarray, constants: list[float]) -> np.ndarray:
    t = exact_arithmetic()
    numbers = [Number(x.reshape(1, 1, 1, -1), NO_DOUBT, t), *map(t.number, constants)]
    return np.broadcast_to(FUNCTIONS[name].meaning(t, *numbers).x[0], (1, 1, x.size))[0, 0]


def test_softplus_may_overflow_below_its_threshold() -> None:
    t = Arithmetic(True, 1.0, np.random.default_rng(0))
    x, threshold = Number(np.array([-90.0, 3.0, 80.0, 90.0, 1e4]).reshape(1, 1, 1, -1), NO_DOUBT, t), t.number(1e3)
    found = FUNCTIONS["softplus"].meaning(t, x, t.number(1.0), threshold)
    assert np.broadcast_to(found.doubt, (1, 1, 5))[0, 0].tolist() == [False, False, False, True, False]
    assert np.isfinite(found.x).all()


LARGEST = FLOATS["f32"][2]
#: Rows of A and of B: numbers that tf32 does not have, infinities, and terms that overflow together.
ENDS = (
    [[2.0**-149, 1], [-np.inf, 1], [LARGEST / 2, 1], [2, 1], [LARGEST, 0]],
    [
        [np.inf, 1],
        [2.0**-149, 0],
        [3, -np.inf],
        [1, 1],
    ],
)


@pytest.mark.parametrize(
    ("off", "doubted"), [(0.0, {(2, 2), (4, 2)}), (2.0**-9, {(0, 0), (1, 1), (2, 2), *((4, n) for n in range(4))})]
)
def test_a_product_is_in_doubt_where_order_or_tf32_decides_what_is_finite(off: float, doubted: set[Any]) -> None:
    program = gemm(Acc())
    (data,) = problems(program)
    a, b = (np.array(rows)[None] for rows in ENDS)
    t = Arithmetic(True, 1.0, np.random.default_rng(0))
    found = accumulated(program, replace(data, a=a, b=b, sizes=data.sizes | {"k": 2}), t, {}, off)
    doubt = np.broadcast_to(found.doubt, (1, len(ENDS[0]), len(ENDS[1])))[0]
    assert {tuple(map(int, each)) for each in np.argwhere(doubt)} == doubted


@pytest.mark.parametrize("single", [True, False])
def test_a_sum_is_in_doubt_where_a_contracted_product_does_not_overflow(single: bool) -> None:
    t = Arithmetic(single, 1.0, np.random.default_rng(0))
    large = t.largest
    rows = (
        (-100.0, large, np.inf, True),  # nan, or inf
        (1.5, large, -0.75 * large, True),  # inf, or finite
        (1.5, large, 1.0, False),
        (1.5, large, np.nan, False),
        (np.inf, 1.0, -np.inf, False),
        (2.0, 3.0, 1.0, False),
        (2.0, 3.0, np.inf, False),
    )
    *columns, doubted = zip(*rows, strict=True)
    x, y, z = (Number(np.array(each).reshape(1, 1, 1, -1), NO_DOUBT, t) for each in columns)
    for found in (x * y + z, z + x * y, -(x * y) - z, z - (-x) * y):
        assert np.broadcast_to(found.doubt, (1, 1, len(rows)))[0, 0].tolist() == list(doubted)
    exact = Arithmetic(single, 0.0, np.random.default_rng(0))
    x, y, z = map(exact.number, (x, y, z))
    assert not (x * y + z).doubt.any()


@pytest.mark.parametrize("modes", [(), ("n",), ("m", "n")])
@pytest.mark.parametrize("kind", ["sum", "max", "mean"])
def test_blocks_of_pairs_meet_pairs_that_are_the_same_in_all_columns(kind: str, modes: tuple[str, ...]) -> None:
    value = Call("mul", (Pair(0, 16, Read("scale")), Block(kind, 32, Pair(1, 16, Acc()))), "*")
    program = gemm(
        Reduce(kind, modes, value) if modes else value,
        Input("scale", ("m",), "f32"),
        outputs=(
            Output("D", tuple(each for each in ("m", "n") if each not in modes) if modes else ("m", "n/2"), "f32"),
        ),
    )
    program = replace(program, sizes=Sizes((), (3,), 192, 4))
    assert kinds(program) == set()


def differentiated(f: Callable[[np.ndarray], np.ndarray], x: np.ndarray, order: int) -> np.ndarray:
    """Central differences, extrapolated once."""

    def difference(h: float) -> np.ndarray:
        return (f(x + h) - f(x - h)) / (2 * h) if order == 1 else (f(x + h) - 2 * f(x) + f(x - h)) / h**2

    return (4 * difference(1e-3) - difference(2e-3)) / 3


# Mistakes that it has to see


def gemm(value: Any, *inputs: Input, **fields: Any) -> Program:
    outputs = fields.pop("outputs", (Output("D", ("m", "n"), "f32"),))
    program = Program(
        a="f32",
        b="f32",
        inputs=inputs,
        outputs=outputs,
        assigns=(Assign("D", value),),
        sizes=Sizes((), (3,), 32, 4),
        **{"data": "normal", **fields},
    )
    return normalised(program)


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

    round_to = extents.round_to
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
    import evt.spec.graphs
    from evt.ir.dtype import BF16
    from evt.ir.node import Cast as Rounding
    from evt.ir.node import Load
    from evt.optimise.rewrite import on, rewrite

    program = gemm(Call("mul", (Acc(), Read("x")), "*"), Input("x", ("n",), "f32"))

    @on(Load)
    def rule(builder: Any, op: Any, operands: tuple[int, ...]) -> int:
        return builder.add(Rounding(BF16), builder.add(op))

    optimise = evt.spec.graphs.optimise
    monkeypatch.setattr(
        evt.spec.graphs, "optimise", lambda dag, *rest, **more: rewrite(optimise(dag, *rest, **more), rule)
    )
    assert kinds(program) == {"optimised: another value"}


def test_crashes_and_faults_of_emission_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    import evt.program

    program = gemm(Call("relu", (Acc(),)))
    emit = evt.program.emit_plan
    monkeypatch.setattr(evt.program, "emit_plan", lambda plan, name: emit(plan, name) + "\nfloat x = nan;\n}\n")
    assert {kind.partition(":")[2] for kind in kinds(program, TARGETS[:1])} == {" a word of Python's", " brackets"}
    monkeypatch.setattr(evt.program, "emit_plan", lambda plan, name: {}[plan])
    assert {kind.partition(" at ")[0] for kind in kinds(program, TARGETS[:1])} == {"emit: KeyError"}


def kinds(program: Program, targets: tuple[str, ...] = ()) -> set[str]:
    return {failure.kind for failure in check(program, targets).failures}


def test_a_failure_is_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a large program that fails for one function the call of that function is left."""
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
