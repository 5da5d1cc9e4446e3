"""Tuning without a GPU, and the use of measurements by calls and `evt explain`."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import evt
from evt.cli import main
from evt.diagnostics import Diagnostic, Source
from evt.errors import ArgumentError, LaunchError
from evt.ir import Output
from evt.ir.dtype import BY_NAME
from evt.measured import Measurement, Store, Timing
from evt.plan import survey
from evt.plan.cards import find_card
from evt.plan.speed import duration
from evt.plan.verdict import Refusal
from evt.program import Program
from evt.request import Request, optimised_graph, packed_problem
from evt.runtime import call as call_module
from evt.runtime import kernels as kernels_module
from evt.runtime import prepare as prepare_module
from evt.runtime.arguments import bind
from evt.runtime.kernels import Kernel, Kernels, call_problem, plan_kernels
from evt.runtime.library import Library
from evt.tuning import tune as tune_module
from evt.tuning.candidates import candidates, names_of
from evt.tuning.table import Tuning
from evt.tuning.tune import time_kernels, tune
from tests.support.measurements import CALLS, FORMULA, GPU, SM90, half, key_of, last, measurement
from tests.support.stand_in import StandIn, race_in_order

pytestmark = pytest.mark.usefixtures("own_cache")

H200 = find_card("h200")
_FORMATS = {"size": "q", "pointer": "Q", "number": "d"}


# Calls


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Return the route and configuration of each kernel that is made, on a simulated H200."""
    made: list[tuple[str, ...]] = []

    def make_kernels(request: Request, bound: Any, target: Any, atomic: bool) -> Kernels:
        plans = plan_kernels(request, bound, target, atomic)
        made.append((plans[0].family, *(plan.config.name for plan in plans)))
        return Kernels(tuple(Kernel(plan, library(plan)) for plan in plans))

    def library(plan: Any) -> Library:
        form = "".join(_FORMATS[field.kind] for field in plan.fields)
        return Library(None, lambda *_: 0, form, lambda _: 0)

    monkeypatch.setattr(call_module, "make_kernels", make_kernels)
    monkeypatch.setattr(call_module, "_needs_no_kernel", lambda bound: False)
    monkeypatch.setattr(call_module, "device_target", lambda index: SM90)
    monkeypatch.setattr(kernels_module, "device_target", lambda index: SM90)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: GPU)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(multi_processor_count=132))
    monkeypatch.setattr(prepare_module, "_current_device", lambda: 0)
    monkeypatch.setattr(prepare_module, "_raw_stream", lambda index: 0)
    return made


A, B = half(40, 24), half(24, 16)
INPUTS = {"bias": half(16), "C": half(40, 16)}


def configs_of(program: Program, a: torch.Tensor, b: torch.Tensor, inputs: dict[str, Any]) -> dict[str, list[str]]:
    """Return the default configurations of the routes that apply, by route."""
    found: dict[str, list[str]] = {}
    problem = call_problem(program.request, bind(program.request, a, b, inputs, {}), SM90)
    for route, config in names_of(survey(problem)):
        found.setdefault(route, []).append(config)
    return found


CONFIGS = configs_of(evt.gemm(FORMULA), A, B, INPUTS)
NEW, OLD = CONFIGS["evt-3x"][0], CONFIGS["evt-2x"][0]
PLAIN, MEASURED = ("own", *CONFIGS["gemm-own-3x"]), ("2x", OLD)
TIMES = (("evt-3x", NEW, 0.25), ("evt-2x", OLD, 0.2))


def test_a_call_takes_what_was_measured(taken: list[tuple[str, ...]]) -> None:
    op = evt.gemm(FORMULA)
    Store().add(key_of(op, A, B), measurement(*TIMES))
    op(A, B, **INPUTS)
    op(A, B, **INPUTS)
    op(half(48, 24), B, bias=INPUTS["bias"], C=half(48, 16))  # of another size: not measured
    assert taken == [MEASURED, PLAIN]
    assert len(op._caller._kernels) == 2


def test_what_is_forced_is_not_overridden(taken: list[tuple[str, ...]]) -> None:
    Store().add(key_of(evt.gemm(FORMULA), A, B), measurement(*TIMES))
    evt.gemm(FORMULA, route="evt-3x")(A, B, **INPUTS)
    evt.gemm(FORMULA, config=NEW)(A, B, **INPUTS)
    assert taken == [("3x", *CONFIGS["evt-3x"]), ("3x", NEW)]


@pytest.mark.parametrize(
    "other",
    [
        measurement(*TIMES, gpu="NVIDIA H100"),
        measurement(("evt-9x", OLD, 0.1)),
        measurement(("evt-2x", "multistage_1x1x1", 0.1)),
        measurement(("conv-evt-2x", OLD, 0.1)),
        replace(measurement(), timings=()),
    ],
    ids=["another GPU", "unknown route", "unknown configuration", "a route that does not apply", "nothing"],
)
def test_what_does_not_fit_is_left_out_of_account(taken: list[tuple[str, ...]], other: Measurement) -> None:
    op = evt.gemm(FORMULA)
    Store().add(key_of(op, A, B), other)
    op(A, B, **INPUTS)
    assert taken == [PLAIN]


def test_a_program_notices_after_it_forgot(taken: list[tuple[str, ...]]) -> None:
    op = evt.gemm(FORMULA)
    op(A, B, **INPUTS)
    Store().add(key_of(op, A, B), measurement(*TIMES))
    op(A, B, **INPUTS)
    op._caller.forget()
    op(A, B, **INPUTS)
    assert taken == [PLAIN, MEASURED]


def test_the_plans_of_a_forced_program() -> None:
    op = evt.gemm(FORMULA)
    forced = op.request.forced("evt-2x", OLD)
    bound = bind(op.request, A, B, INPUTS, {})
    (plan,) = plan_kernels(forced, bound, SM90)
    assert (plan.family, plan.config.name) == MEASURED
    assert [plan.config.name for plan in plan_kernels(op.request, bound, SM90)] == list(PLAIN[1:])
    assert (op.request.settings.route, forced.source) == (None, op.request.source)
    assert optimised_graph(forced) is optimised_graph(op.request)  # tuning forces hundreds of kernels of a program


def test_usual_configurations_are_found_without_the_others() -> None:
    (own,) = survey(packed_problem(evt.gemm("D = acc").request, "sm90", "f16", "f16"), "gemm-own-3x").asked
    usual = own.configs[-1]
    assert (own.find_config(usual.name), "search_space" in vars(own)) == (usual, False)
    for name, config in list(own.search_space.items())[:: len(own.search_space) // 9]:
        assert own.find_config(name) == config
    assert own.find_config("own_pingpong_1x1x1") is None


@pytest.mark.parametrize("text", ["D = gelu(acc + bias) + C", "out D[m, n/2]; D = even(acc)*odd(acc)"])
def test_own_products_are_pruned_before_they_are_planned(text: str) -> None:
    """The estimates are equal to the whole plans' estimates. Tuning plans the kernels that it builds."""
    sizes = {"m": 300, "n": 4096, "k": 4096, "l": 1}
    found = survey(packed_problem(evt.linear(text).request, "sm90", "bf16", "bf16"), "own")
    (own,) = found.asked[:1]
    names = {name for name, config in own.search_space.items() if not isinstance(own.try_plan(config), Refusal)}
    times = {name: duration(own.plan(own.search_space[name]), sizes, H200).total for name in names}
    usual = {config for _, config in names_of(found)}
    best = sorted(names - usual, key=lambda name: times[name])[:12]
    fresh = survey(packed_problem(evt.linear(text).request, "sm90", "bf16", "bf16"), "own")
    made = candidates(fresh, sizes, H200, wide=True, most=12)
    further = {config for _, config in made.plans} - usual
    assert sorted(times[name] for name in further) == pytest.approx([times[name] for name in best][: len(further)])
    assert len(further) > 5
    assert made.pruned > 10 * len(further)


def test_a_convolution_without_padding_needs_a_kernel() -> None:
    op = evt.conv2d("D = acc")
    bound = bind(op.request, last(2, 8, 9, 9), last(8, 8, 3, 3), {}, {})
    assert bound.sizes["pad_height"] == 0
    assert not bound.is_empty
    assert bind(op.request, last(0, 8, 9, 9), last(8, 8, 3, 3), {}, {}).is_empty
    assert bind(evt.gemm("D = acc").request, half(4, 0), half(0, 4), {}, {}).is_empty
    wgrad = Program(Source("D = acc"), "conv2d_wgrad", kernel_size=3)
    assert bind(wgrad.request, last(0, 8, 7, 7), last(0, 8, 9, 9), {}, {}).is_empty


# evt explain


def cli(*arguments: str) -> Any:
    result = CliRunner().invoke(main, arguments, prog_name="evt")
    assert "Traceback" not in result.output
    return result


SIZES = ("--m", "40", "--n", "16", "--k", "24")


def test_explain_shows_what_was_measured() -> None:
    op = evt.gemm(FORMULA)
    before = cli("explain", "--verbose", FORMULA, *SIZES).stdout
    assert "ms measured" not in before
    Store().add(key_of(op, A, B), measurement(*TIMES))
    text = cli("explain", "--verbose", FORMULA, *SIZES).stdout
    assert "-> evt-2x: visitor tree in a multistage tensor-op kernel (CUTLASS 2.x) (by measurement)\n" in text
    assert f"0.2500 ms measured with {NEW}\n" in text
    assert f"0.2000 ms measured with {OLD}\n" in text
    assert f"measured on {GPU}\n" in text
    assert f"configurations: {OLD}\n" in text
    found = json.loads(cli("explain", FORMULA, *SIZES, "--json").stdout)
    assert (found["chosen_by"], found["measured_on"]) == ("measurement", [GPU])
    routes = {route["name"]: route for route in found["routes"]}
    assert routes["evt-2x"]["chosen"]
    assert routes["evt-3x"]["measured"] == [{"config": NEW, "ms": 0.25}]
    assert cli("explain", "--verbose", FORMULA).stdout.count("ms measured") == 0  # of no sizes


def test_explain_of_what_was_measured_on_several_gpus() -> None:
    op = evt.gemm(FORMULA)
    Store().add(key_of(op, A, B), measurement(*TIMES))
    Store().add(key_of(op, A, B), measurement(*((*each[:2], 1 / each[2]) for each in TIMES), gpu="NVIDIA H100"))
    text = cli("explain", "--verbose", FORMULA, *SIZES).stdout
    assert "measured on NVIDIA H100, NVIDIA H200; for which of them is not said, so the rules choose\n" in text
    assert "-> gemm-own-3x: " in text
    assert "ms measured" not in text
    assert "-> evt-2x: " in cli("explain", "--verbose", FORMULA, *SIZES, "--gpu", GPU).stdout
    assert "-> evt-3x: " in cli("explain", "--verbose", FORMULA, *SIZES, "--gpu", "NVIDIA H100").stdout


def test_explain_keeps_to_what_is_forced() -> None:
    Store().add(key_of(evt.gemm(FORMULA), A, B), measurement(*TIMES))
    text = cli("explain", "--verbose", FORMULA, *SIZES, "--route", "evt-3x").stdout
    assert "-> evt-3x: visitor tree in a TMA warp-specialised kernel (CUTLASS 3.x) (by force)\n" in text
    assert "0.2000 ms measured" in text


def test_explain_of_a_convolution() -> None:
    program, a, b, inputs = CALLS["conv2d"]
    configs = configs_of(program, a, b, inputs)
    times = (("conv-evt-3x", configs["conv-evt-3x"][0], 0.5), ("conv-evt-2x", configs["conv-evt-2x"][0], 0.25))
    Store().add(key_of(program, a, b), measurement(*times))
    shapes = ("--a-shape", "2,16,9,7", "--b-shape", "24,16,3,3", "--padding", "1")
    assert "-> conv-evt-2x: " in cli("explain", "--verbose", FORMULA, "--op", "conv2d", *shapes).stdout


# Tuning


def outputs(*dtypes: str) -> list[Output]:
    return [Output(name, BY_NAME[dtype], ("m", "n")) for name, dtype in zip("DEF", dtypes, strict=False)]


def test_kernels_are_compared_and_timed() -> None:
    right = torch.randn(50, 50).half()

    def wrong() -> Any:
        raise LaunchError(Diagnostic("E0804", "refused"))

    calls: dict[tuple[str, str], Callable[[], Any]] = {
        ("first", "a"): lambda: right,
        ("near", "a"): lambda: (right.float() * 1.0001).half(),
        ("far", "a"): lambda: right * 1.1,
        ("nan", "a"): lambda: right * torch.nan,
        ("fails", "a"): wrong,
        ("slow", "a"): lambda: right,
    }
    times = dict(zip(calls.values(), (3.0, 2.0, 1.0, 1.0, 1.0, None), strict=True))
    rows = time_kernels(calls, outputs("f16"), StandIn(times.__getitem__), 5)
    assert list(rows) == list(calls)
    assert (rows["first", "a"].ms, rows["first", "a"].distance) == (3.0, 0.0)
    assert rows["near", "a"].ms == 2.0
    assert "differs from the first kernel's by 1.0e-01" in rows["far", "a"].failure
    assert "differs" in rows["nan", "a"].failure
    assert rows["fails", "a"].failure == "E0804: refused"
    assert rows["slow", "a"].failure == "too slow to be timed"
    assert [name for name, row in rows.items() if row.ms is None] == [
        ("far", "a"),
        ("nan", "a"),
        ("fails", "a"),
        ("slow", "a"),
    ]
    with pytest.raises(LaunchError, match="refused"):
        time_kernels({("fails", "a"): wrong}, outputs("f16"), StandIn(lambda call: 1.0), 5)


def test_every_route_in_its_default_configurations() -> None:
    program, a, b, inputs = CALLS["conv2d"]
    bound = bind(program.request, a, b, inputs, {})
    problem = call_problem(program.request, bound, SM90)
    names = names_of(survey(problem))
    routes = ["conv-evt-3x", "conv-stock-2x", "conv-evt-2x", "conv-halo-3x"]  # of few pixels
    assert list(dict.fromkeys(route for route, _ in names)) == routes
    assert len(set(names)) == len(names)
    found = candidates(survey(problem), bound.sizes, H200)
    assert (list(found.plans), found.failed) == (names, {})


def test_kernels_that_do_not_take_the_sizes_are_not_built() -> None:
    found = survey(packed_problem(evt.gemm("D = relu(acc)").request, "sm90", "f16", "f16"))
    names = [name for name in names_of(found) if name[0] == "gemm-own-3x"]
    split = [name for name in names if name[1].endswith(("x1x4", "x2x4", "x1x8"))]
    eight = [name for name in split if name[1].endswith("x8")]
    assert 0 < len(split) < len(names)
    for sizes, refused in (
        ({"m": 64, "n": 64, "k": 456, "l": 1}, []),
        ({"m": 64, "n": 64, "k": 200, "l": 1}, eight),
        ({"m": 64, "n": 64, "k": 192, "l": 1}, split),
        ({"m": 64, "n": 64, "k": 512, "l": 2}, names),
    ):
        made = candidates(found, sizes, H200)
        assert list(made.failed) == refused
        assert sorted(made.names) == sorted(names_of(found))
        assert all(row.failure for row in made.failed.values())


def test_a_table() -> None:
    calls = {("evt-3x", "wide"): lambda: A, ("evt-2x", "b"): lambda: A + 1}
    rows = time_kernels(calls, outputs("f16"), StandIn(lambda call: 1.0), 3)
    found = Tuning("gemm", GPU, "sm90", {"m": 3, "n": 4}, tuple(rows.values()), Timing("evt-3x", "wide", 1.0))
    assert str(found).splitlines() == [
        f"gemm on {GPU} (sm90): m=3 n=4",
        "-> evt-3x wide  1.0000 ms, 0.9000 ms with a warm L2 cache",
        "   evt-2x b     its D differs from the first kernel's by inf",
    ]
    document = json.loads(json.dumps(found.to_json(), default=str, allow_nan=False))
    assert document["ok"] is True


@pytest.fixture
def _pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tuning finds a GPU; calls are the reference's, and each kernel is faster than the one before."""

    def bind_there(*arguments: Any) -> Any:
        return replace(bind(*arguments), device=torch.device("cuda", 0))

    monkeypatch.setattr(tune_module, "bind", bind_there)
    monkeypatch.setattr(tune_module, "failures_of", lambda sources: {})
    monkeypatch.setattr(tune_module, "Gpu", lambda index: StandIn(lambda call: 1.0))
    monkeypatch.setattr(tune_module, "race", race_in_order)
    monkeypatch.setattr(tune_module, "device_target", lambda index: SM90)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device", lambda index: nullcontext())
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: GPU)


@pytest.mark.usefixtures("_pretended")
@pytest.mark.parametrize("name", CALLS)
def test_tune_keeps_what_it_measures(name: str) -> None:
    program, a, b, inputs = CALLS[name]
    bound = bind(program.request, a, b, inputs, {})
    surveyed = survey(call_problem(program.request, bound, SM90))
    made = candidates(surveyed, bound.sizes, H200)
    names, refused = list(made.plans), made.failed
    found = program.tune(a, b, **inputs)
    assert [(row.route, row.config) for row in found.rows] == names_of(surveyed)
    assert {(row.route, row.config) for row in found.rows if row.failure} == set(refused)
    assert {route for route, _ in refused} <= {"gemm-own-3x", "gemm-own-batches"}
    assert found.chosen == Timing(*names[-1], 1 / len(names))
    assert (found.untuned, found.measured) == (made.untuned, len(names))
    assert (found.failed, found.unfit) == (0, made.unfit + len(refused))
    (kept,) = Store().find(key_of(program, a, b))
    assert (kept.gpu, kept.target, kept.program) == (GPU, "sm90", " ".join(program.request.source.text.split()))
    assert [(timing.route, timing.config) for timing in kept.timings] == names
    explained = program.explain(shapes=(a.shape, b.shape))
    assert explained.chosen_by == "measurement"
    assert [route.name for route in explained.routes if route.chosen] == [names[-1][0]]
    assert str(found).count("->") == 1
    assert json.loads(json.dumps(found.to_json()))["ok"] is True


@pytest.mark.usefixtures("_pretended")
def test_a_buffer_of_scattered_rows_is_left_alone() -> None:
    program, held = evt.gemm("D[index[m], n] = acc"), torch.ones(50, 16).half()
    found = program.tune(A, B, index=torch.randperm(50)[:40].int(), D=held)
    assert not any(row.failure for row in found.rows if row.route != "gemm-own-3x")  # which takes no k as short
    assert torch.equal(held, torch.ones_like(held))
    assert program.explain(shapes=(A.shape, B.shape)).chosen_by == "measurement"


@pytest.mark.usefixtures("_pretended")
def test_an_empty_product_is_not_tuned() -> None:
    with pytest.raises(ArgumentError, match="E0604"):
        evt.gemm("D = acc").tune(half(4, 0), half(0, 4))


@pytest.mark.usefixtures("_no_gpu")
def test_tuning_needs_a_gpu() -> None:
    with pytest.raises(LaunchError, match="E0801"):
        evt.gemm(FORMULA).tune(A, B, **INPUTS)
    assert len(Store()) == 0
    result = cli("tune", FORMULA, *SIZES)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("error[E0801]: no CUDA GPU to measure on")
    found = cli("tune", "D = relu(acc)", "--op", "conv2d", "--json")
    assert found.exit_code == 1
    assert json.loads(found.stdout)["diagnostics"][0]["code"] == "E0801"


def test_what_cannot_be_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    for keyword in ({"route": "evt-2x"}, {"config": "multistage"}):
        with pytest.raises(ArgumentError, match="E0602"):
            evt.gemm(FORMULA, **keyword).tune(A, B, **INPUTS)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ArgumentError, match="E0605"):
        tune(evt.gemm(FORMULA).request, A, B, INPUTS)
    with pytest.raises(ArgumentError, match="E0601"):
        tune(evt.gemm(FORMULA).request, A, B, {})


def test_usage_of_tune() -> None:
    for arguments, said in (
        (["--m", "0"], "not in the range"),
        (["--rounds", "0"], "not in the range"),
        (["--config", "multistage"], "No such option"),
        (["--a-shape", "2,3"], "are for convolutions"),
    ):
        result = cli("tune", FORMULA, *arguments)
        assert result.exit_code == 2
        assert said in result.stderr
    assert cli("tune", "D = foo(acc)").exit_code == 1


def test_cache_clear_removes_measurements(own_cache: Path) -> None:
    Store().add("key", measurement())
    Store().add("other", measurement())
    result = cli("cache", "clear")
    assert result.stdout == "removed 0 libraries, 0.0 MB, and 2 measurements\n"
    assert not (own_cache / "tuning.db").exists()
    assert json.loads(cli("cache", "clear", "--json").stdout)["measurements"] == 0
    (own_cache / "tuning.db").write_text("{")
    assert cli("cache", "clear").exit_code == 0  # without a warning
    assert not (own_cache / "tuning.db").exists()
