"""Measured kernels of groups without a GPU: the key of a measurement, and its use by calls and ``evt explain``."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import evt
from evt.cli import main
from evt.errors import ArgumentError, LaunchError, TargetError
from evt.grouped import GroupedProgram
from evt.measured import Measurement, Store, Timing, groups_key, is_measured, problem_key, size_class
from evt.plan import find_target, survey
from evt.request import LOOP, grouped_problem, problem_sizes
from evt.runtime import grouped as grouped_module
from evt.runtime import table
from evt.runtime.grouped import GroupedCaller
from evt.tuning import grouped as tune_groups_module
from evt.tuning import tune as tune_module
from tests.support.stand_in import StandIn, race_in_order

FORMULA = "D = relu(acc + bias) + C"
GPU = "NVIDIA H200"
SM90 = find_target("sm90")
ROWS, N, K = (24, 0, 40), 16, 8


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the test an empty cache."""
    monkeypatch.setenv("EVT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def half(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.float16)


def call(rows: tuple[int, ...] = ROWS, n: int = N, k: int = K) -> tuple[list[torch.Tensor], list[torch.Tensor], Any]:
    inputs = {"bias": half(n), "C": [half(m, n) for m in rows]}
    return [half(m, k) for m in rows], [half(k, n) for _ in rows], inputs


def key_of(op: GroupedProgram, rows: tuple[int, ...] = ROWS, n: int = N, k: int = K) -> str:
    shapes = [((m, k), (k, n)) for m in rows]
    sizes = size_class([problem_sizes(op.request, each) for each in shapes])
    return problem_key(grouped_problem(op.request, "sm90", "f16", "f16", shapes), sizes)


def key_of_call(op: GroupedProgram, a: Any, b: Any, inputs: Any, offsets: Any = None) -> str:
    problem_for, _, bounds = GroupedCaller(op.request).ask(a, b, inputs, offsets)
    return problem_key(problem_for(SM90), size_class([bound.sizes for bound in bounds]))


def measurement(*timings: tuple[str, str, float], gpu: str = GPU) -> Measurement:
    return Measurement(gpu, "sm90", FORMULA, {"groups": 2}, tuple(Timing(*each) for each in timings))


ROUTE = "evt-3x-grouped"
CONFIGS = [config.name for config in survey(grouped_problem(evt.grouped_gemm(FORMULA).request, "sm90")).chosen.configs]
GENERAL, FAST = CONFIGS[0], CONFIGS[3]


# The key of a measurement


@pytest.mark.parametrize(
    ("groups", "found"),
    [
        ([(24, 16, 8), (0, 16, 8), (40, 16, 8)], {"groups": 2, "mean_m": 32, "n": 16, "k": 8}),
        ([(24, 16, 8)] * 3, {"groups": 4, "mean_m": 32, "n": 16, "k": 8}),
        ([(1, 16, 8), (1, 24, 8), (2, 40, 0)], {"groups": 2, "mean_m": 1, "mean_n": 32, "k": 8}),
        ([(128, 16, 8), (128, 16, 9)], {"groups": 2, "mean_m": 128, "n": 16, "mean_k": 16}),
        ([(129, 16, 8)], {"groups": 1, "mean_m": 256, "n": 16, "k": 8}),
        ([], {"groups": 1, "mean_m": 1, "n": 0, "k": 0}),
    ],
)
def test_the_class_of_sizes(groups: list[tuple[int, int, int]], found: dict[str, int]) -> None:
    assert size_class([dict(zip("mnk", each, strict=True)) for each in groups]) == found


def test_a_call_and_its_sizes_have_one_key() -> None:
    op = evt.grouped_gemm(FORMULA)
    assert key_of_call(op, *call()) == key_of(op)
    whole = torch.cat([half(m, K) for m in ROWS])
    inputs = {"bias": half(N), "C": half(sum(ROWS), N)}
    assert key_of_call(op, whole, half(3, K, N), inputs, [0, 24, 24, 64]) == key_of(op)


def test_what_makes_another_key() -> None:
    op = evt.grouped_gemm(FORMULA)
    keys = [
        key_of(op),
        key_of(op, (64, 64)),
        key_of(op, (24, 40, 24)),
        key_of(op, n=24),
        key_of(op, k=16),
        key_of(evt.grouped_gemm("D = relu(acc + bias) - C")),
        key_of_call(op, [half(m, 9)[:, :K] for m in ROWS], *call()[1:]),
    ]
    assert len(set(keys)) == len(keys)
    assert key_of(op, (17, 33)) == key_of(op)
    problem = grouped_problem(op.request, "sm90", "f16", "f16")
    assert all(key.startswith(groups_key(problem)) for key in keys[:5])
    assert not is_measured(problem)
    Store().add(keys[1], measurement((ROUTE, FAST, 1.0)))
    assert is_measured(problem)
    assert not is_measured(grouped_problem(evt.grouped_gemm("D = acc").request, "sm90", "f16", "f16"))


# Calls


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the launches: configurations of the grouped kernel, or the loop, on a simulated H200."""
    launched: list[str] = []

    class Loop:
        def __init__(self, request: Any) -> None:
            self.request = request

        def run(self, *values: Any) -> None:
            launched.append(LOOP)

    def launch(plan: Any, *_: Any) -> None:
        launched.append(plan.config.name)

    bind = grouped_module.bind  # type: ignore[attr-defined]

    def bind_there(*arguments: Any) -> Any:
        bound = bind(*arguments)
        object.__setattr__(bound, "device", torch.device("cuda", 0))
        return bound

    monkeypatch.setattr(grouped_module, "Caller", Loop)
    monkeypatch.setattr(grouped_module, "bind", bind_there)
    monkeypatch.setattr(grouped_module, "launch", launch)
    monkeypatch.setattr(grouped_module, "make_table", lambda *_: None)
    monkeypatch.setattr(grouped_module, "build_and_use", lambda sources, use: [None])
    monkeypatch.setattr(grouped_module, "device_target", lambda index: SM90)
    monkeypatch.setattr(table, "prototype_of", lambda bound, output: half(*bound.output_shape(output)))
    monkeypatch.setattr(GroupedCaller, "_evaluate", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "device", lambda index: nullcontext())
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: GPU)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    return launched


def run(op: GroupedProgram, *sizes: Any) -> None:
    a, b, inputs = call(*sizes)
    op(a, b, **inputs)


def test_a_call_takes_what_was_measured(taken: list[str]) -> None:
    op = evt.grouped_gemm(FORMULA)
    Store().add(key_of(op), measurement((ROUTE, GENERAL, 0.5), (ROUTE, FAST, 0.25), (LOOP, "", 0.75)))
    Store().add(key_of(op, (64, 64)), measurement((ROUTE, GENERAL, 0.5), (LOOP, "", 0.25)))
    run(op)
    run(op, (17, 0, 33))  # of the same class
    run(op, (64, 64))
    run(op, (8, 8))  # of another, which was not measured
    run(op)
    assert taken == [FAST, FAST, LOOP, LOOP, GENERAL, FAST]
    (kernels,) = op._caller._kernels.values()
    assert list(kernels.made) == [FAST, None]


def test_where_nothing_is_measured_no_call_asks(taken: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    op, asked = evt.grouped_gemm(FORMULA), []
    Store().add(key_of(evt.grouped_gemm("D = acc")), measurement((ROUTE, FAST, 0.25)))
    ask = is_measured
    monkeypatch.setattr(grouped_module, "is_measured", lambda problem: asked.append(problem) or ask(problem))
    monkeypatch.setattr(grouped_module, "size_class", None)
    monkeypatch.setattr(grouped_module, "measurements", None)
    run(op)
    run(op)
    run(op, (64, 64))
    assert (taken, len(asked)) == ([GENERAL] * 3, 1)


@pytest.mark.parametrize(
    "other",
    [
        measurement((ROUTE, FAST, 0.25), gpu="NVIDIA H100"),
        measurement((ROUTE, "pingpong_1x1x1", 0.25)),
        measurement(("evt-3x", GENERAL, 0.25)),
        measurement(),
    ],
    ids=["another GPU", "unknown configuration", "a route of one product", "nothing"],
)
def test_what_does_not_fit_is_left_out_of_account(taken: list[str], other: Measurement) -> None:
    op = evt.grouped_gemm(FORMULA)
    Store().add(key_of(op), other)
    run(op)
    assert taken == [GENERAL]


def test_what_is_forced_is_not_overridden(taken: list[str]) -> None:
    Store().add(key_of(evt.grouped_gemm(FORMULA)), measurement((ROUTE, FAST, 0.25)))
    run(evt.grouped_gemm(FORMULA, route=ROUTE))
    run(evt.grouped_gemm(FORMULA, config=CONFIGS[1]))
    run(evt.grouped_gemm(FORMULA, route=LOOP))
    assert taken == [GENERAL, CONFIGS[1], *[LOOP] * 3]


def test_a_program_notices_after_it_forgot(taken: list[str]) -> None:
    op = evt.grouped_gemm(FORMULA)
    run(op)
    Store().add(key_of(op), measurement((ROUTE, FAST, 0.25)))
    run(op)
    op._caller.forget()
    run(op)
    assert taken == [GENERAL, GENERAL, FAST]


# evt explain


def cli(*words: str) -> Any:
    result = CliRunner().invoke(main, words, prog_name="evt")
    assert "Traceback" not in result.output
    return result


OP = ("--op", "grouped_gemm")
SIZES = (*OP, "--m", "24,0,40", "--n", "16", "--k", "8")


def test_explain() -> None:
    op = evt.grouped_gemm(FORMULA)
    text = cli("explain", "--verbose", FORMULA, *SIZES).stdout
    assert f"-> {ROUTE}: visitor tree in a grouped TMA" in text
    assert "   loop: a kernel for each group, by the route gemm-own-3x\n      it applies, and a call takes it" in text
    assert "in_bias: row broadcast\n" in text
    assert "costs of groups=3 n=16 k=8: " in text
    assert text == f"{op.explain(shapes=[((m, K), (K, N)) for m in ROWS]).details()}\n"
    one = [evt.gemm(FORMULA).explain(shapes=((m, K), (K, N))).costs for m in ROWS]
    assert json.loads(cli("explain", FORMULA, *SIZES, "--json").stdout)["costs"]["flops"] == sum(
        each.flops for each in one if each is not None
    )
    assert cli("explain", "--verbose", FORMULA, *OP).stdout == f"{op.explain().details()}\n"


def test_explain_of_the_loop() -> None:
    for arch in ("sm90", "sm80"):
        explained = evt.grouped_gemm(FORMULA, route=LOOP).explain(arch, "f16", "f16")
        single = evt.gemm(FORMULA).explain(arch, "f16", "f16")
        assert explained.plan == single.plan
        assert explained.configurations == single.configurations
        assert [route.name for route in explained.routes if route.chosen] == [LOOP]
        assert explained.chosen_by == "force"
    with pytest.raises(TargetError, match=r'E0503(.|\n)*route="loop"'):
        evt.grouped_gemm(FORMULA).explain("sm80")
    with pytest.raises(TargetError, match="E0501"):
        evt.gemm(FORMULA, route=LOOP).explain("sm90")


def test_a_loop_that_no_route_can_take() -> None:
    explained = evt.grouped_gemm("D = acc", config=FAST).explain()
    assert [route.applies for route in explained.routes] == [True, True]
    with pytest.raises(TargetError, match="E0503"):
        evt.grouped_gemm("D = acc", route=LOOP).explain("sm80", "e4m3", "e4m3")


def test_explain_shows_what_was_measured() -> None:
    op = evt.grouped_gemm(FORMULA)
    Store().add(key_of(op), measurement((ROUTE, GENERAL, 0.5), (ROUTE, FAST, 0.25), (LOOP, "", 0.75)))
    text = cli("explain", "--verbose", FORMULA, *SIZES).stdout
    assert "(CUTLASS 3.x) (by measurement)\n" in text
    assert f"0.5000 ms measured with {GENERAL}, 0.2500 ms measured with {FAST}\n" in text
    assert "0.7500 ms measured\n" in text
    assert f"configurations: {FAST}\n" in text
    Store().add(key_of(op), measurement((ROUTE, GENERAL, 0.5), (LOOP, "", 0.25)))
    text = cli("explain", "--verbose", FORMULA, *SIZES).stdout
    assert "-> loop: a kernel for each group, by the route gemm-own-3x (by measurement)\n" in text


# Tuning


@pytest.fixture
def _pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tuning finds a GPU; calls are the reference's, and each kernel is faster than the one before."""
    monkeypatch.setattr(tune_module, "failures_of", lambda sources: {})
    monkeypatch.setattr(tune_module, "race", race_in_order)
    monkeypatch.setattr(tune_groups_module, "Gpu", lambda index: StandIn(lambda call: 1.0))
    monkeypatch.setattr(tune_groups_module, "check_call", lambda bound: 0)
    monkeypatch.setattr(tune_groups_module, "device_target", lambda index: SM90)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device", lambda index: nullcontext())
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: GPU)


@pytest.mark.usefixtures("_pretended")
@pytest.mark.parametrize("text", [FORMULA, "out D, z: f32[m, n]; z = acc + bias; D = relu(z) + C"])
def test_tune_keeps_what_it_measures(text: str) -> None:
    op = evt.grouped_gemm(text)
    a, b, inputs = call()
    found = op.tune(a, b, **inputs)
    assert [(row.route, row.config) for row in found.rows] == [*((ROUTE, each) for each in CONFIGS), (LOOP, "")]
    assert not any(row.failure for row in found.rows)
    assert found.chosen == Timing(LOOP, "", 1 / (len(CONFIGS) + 1))
    (kept,) = Store().find(key_of(op))
    assert (kept.gpu, kept.sizes) == (GPU, {"groups": 2, "mean_m": 32, "n": 16, "k": 8})
    explained = op.explain(shapes=[((m, K), (K, N)) for m in ROWS])
    assert (explained.chosen_by, [each.name for each in explained.routes if each.chosen]) == ("measurement", [LOOP])
    lines = str(found).splitlines()
    assert lines[0] == f"grouped_gemm on {GPU} (sm90): groups=2 mean_m=32 n=16 k=8"
    (taken,) = (line for line in lines if line.startswith("->"))
    assert taken.split()[:3] == ["->", "loop", f"{found.chosen.ms:.4f}"]
    assert json.loads(json.dumps(found.to_json()))["ok"] is True


@pytest.mark.usefixtures("_pretended")
def test_a_kernel_whose_group_differs_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    right = GroupedCaller.__call__

    def wrong(self: GroupedCaller, *values: Any) -> Any:
        made = right(self, *values)
        if self._looped:
            made[-1][3, 5] += 1  # the empty group is not among them
        return made

    monkeypatch.setattr(GroupedCaller, "__call__", wrong)
    a, b, inputs = call()
    found = evt.grouped_gemm(FORMULA).tune(a, b, **inputs)
    assert found.rows[-1].failure.startswith("its D differs from the first kernel's by ")
    assert found.chosen == Timing(ROUTE, CONFIGS[-1], 1 / len(CONFIGS))


@pytest.mark.usefixtures("_pretended")
def test_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evt.bench.require_gpu", lambda: torch.device("cpu"))
    found = json.loads(cli("tune", FORMULA, *SIZES, "--json").stdout)
    assert (found["ok"], found["operation"]) == (True, "grouped_gemm")
    assert found["sizes"] == {"groups": 2, "mean_m": 32, "n": 16, "k": 8}
    assert [row["config"] for row in found["rows"]] == [*CONFIGS, ""]


@pytest.mark.usefixtures("_pretended")
def test_what_cannot_be_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, inputs = call()
    with pytest.raises(ArgumentError, match="E0602"):
        evt.grouped_gemm(FORMULA, route=LOOP).tune(a, b, **inputs)
    with pytest.raises(ArgumentError, match="E0601"):
        evt.grouped_gemm(FORMULA).tune(a, b)
    with pytest.raises(TargetError, match="E0503"):
        evt.grouped_gemm("D = acc; r = sum[n](acc)").tune(a, b)
    monkeypatch.setattr(tune_groups_module, "check_call", tune_module.check_call)
    with pytest.raises(ArgumentError, match="E0605"):
        evt.grouped_gemm("D = acc").tune(a, b)
    with pytest.raises(ArgumentError, match="E0604"):
        evt.grouped_gemm("D = acc").tune([half(0, 8)], [half(8, 8)])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(LaunchError, match="E0801"):
        evt.grouped_gemm(FORMULA).tune(a, b, **inputs)
    assert cli("tune", FORMULA, *SIZES).stderr.startswith("error[E0801]")
