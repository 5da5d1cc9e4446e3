"""How the benchmark measures, without a GPU: rounds, failures, wrong answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest
import torch

import evt.bench.kernel
import evt.bench.run
from evt.bench import BASELINES, Case, convolution_case, suite
from evt.bench.case import draw
from evt.bench.epilogue import measure_epilogues
from evt.bench.host import host_samples
from evt.bench.kernel import kernel_taken, plans_of
from evt.bench.run import build_all, measure
from evt.bench.versions import PRODUCTS, baseline, check_baselines, fastest_convolutions
from evt.cli.bench import KNOWN
from evt.diagnostics import Diagnostic, Source
from evt.errors import ArgumentError, TargetError
from evt.plan import find_target
from evt.program import Program, program_of
from evt.reference.compare import relative_error
from evt.tuning.clock import interleave
from tests.support.benchmarks import CONVOLUTIONS, CPU, FORMULAS, clock, make, make_convolution, shrink_epilogues

# Timing, with clocks of our own


def test_rounds_run_every_version_in_shuffled_order() -> None:
    seen: list[str] = []
    calls = {name: (lambda name=name: seen.append(name)) for name in "abcd"}
    samples, discarded = interleave(calls, 20, clock, seed=5)
    assert discarded == 0
    assert {name: len(times) for name, times in samples.items()} == dict.fromkeys("abcd", 20)
    rounds = [tuple(seen[start : start + 4]) for start in range(0, len(seen), 4)]
    assert all(sorted(each) == list("abcd") for each in rounds)
    assert len(set(rounds)) > 5
    once = list(seen)
    seen.clear()
    interleave(calls, 20, clock, seed=5)
    assert seen == once


def test_samples_that_do_not_count_are_taken_again() -> None:
    fails = iter([True, True] + [False] * 100)

    def flaky(calls: Sequence[Callable[[], object]]) -> list[float | None]:
        return [None if call() == "b" and next(fails) else 1.0 for call in calls]

    samples, discarded = interleave({"a": lambda: "a", "b": lambda: "b"}, 3, flaky)
    assert discarded == 2
    assert {name: len(times) for name, times in samples.items()} == {"a": 3, "b": 3}


def test_a_version_that_never_counts_does_not_hang() -> None:
    samples, discarded = interleave({"a": lambda: None}, 2, lambda calls: [None] * len(calls))
    assert samples == {"a": []}
    assert discarded > 0


def test_host_loop_never_fills_the_queue() -> None:
    waiting = most = 0

    def call() -> None:
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)

    def synchronise() -> None:
        nonlocal waiting
        waiting = 0

    samples = host_samples({"a": call, "b": call}, 3, synchronise)
    assert {name: len(times) for name, times in samples.items()} == {"a": 3, "b": 3}
    assert all(time > 0 for times in samples.values() for time in times)
    assert most <= 201


# Measuring a case: the CPU stands in for a CUDA device, and the times are made up


def test_measure() -> None:
    case = make(FORMULAS["residual"])
    measured = measure(case, ("eager", "mm"), clock, CPU, rounds=5)
    assert [row.version for row in measured.rows] == ["evt", "evt again", "eager", "mm"]
    assert all(row.time is not None and row.time.samples == 5 and not row.failure for row in measured.rows)
    evt, eager = measured.row("evt"), measured.row("eager")
    assert evt is not None
    assert evt.error is not None
    assert evt.error < 1e-5
    assert eager is not None
    assert eager.error is not None
    assert eager.error < 1e-5
    assert not measured.wrong


def test_measure_several_outputs_and_batches() -> None:
    case = make("out D, Z\nZ = acc + bias\nD = gelu(Z)", dtype="bf16", l=2)
    measured = measure(case, ("eager", "mm"), clock, CPU, rounds=2)
    assert all(not row.failure for row in measured.rows)


def test_a_baseline_that_fails_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_triton(*args: object, **kwargs: object) -> object:
        raise RuntimeError("\n  Cannot find a working triton installation.\nMore ...")

    monkeypatch.setattr(torch, "compile", no_triton)
    measured = measure(make("D = acc"), ("compile", "max-autotune", "mm"), clock, CPU, rounds=2)
    for name in ("compile", "max-autotune"):
        row = measured.row(name)
        assert row is not None
        assert row.time is None
        assert row.failure == "RuntimeError: Cannot find a working triton installation."
    assert measured.ratio("evt", "compile") is None
    assert measured.ratio("evt", "mm") is not None


def test_a_wrong_answer_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that leaves its last row unwritten."""

    def half(self: Program, a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor, **inputs: object) -> None:
        out[:-1] = (a @ b)[:-1]

    monkeypatch.setattr(Program, "__call__", half)
    measured = measure(make("D = acc"), ("mm",), clock, CPU, rounds=2)
    row = measured.row("evt")
    assert measured.wrong
    assert row is not None
    assert row.time is None
    assert row.failure.startswith("wrong: relative error inf")
    assert measured.row("evt again") is None
    assert measured.ms("mm") is not None


def test_a_program_that_no_kernel_takes_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> object:
        raise TargetError(Diagnostic("E0503", "no route is left"))

    monkeypatch.setattr(Program, "__call__", refuse)
    measured = measure(make("D = acc"), ("mm",), clock, CPU, rounds=2)
    row = measured.row("evt")
    assert row is not None
    assert row.failure == "E0503: no route is left"
    assert not measured.wrong


def test_measure_a_convolution() -> None:
    case = make_convolution("out D, s: f32[n]\nD = relu(acc + bias)\ns = sum[m](acc)", *CONVOLUTIONS["3x3"])
    measured = measure(case, ("eager", "mm", "conv"), clock, CPU, rounds=3)
    assert [row.version for row in measured.rows] == ["evt", "evt again", "eager", "conv"]
    assert all(row.time is not None and not row.failure for row in measured.rows)
    assert measured.kernel is None  # the reference ran


def test_a_matrix_product_is_mm_by_either_name() -> None:
    measured = measure(make("D = acc"), ("conv",), clock, CPU, rounds=1)
    assert [row.version for row in measured.rows] == ["evt", "evt again", "mm"]


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution_alone(name: str) -> None:
    case = make_convolution("D = acc", *CONVOLUTIONS[name])
    data = draw(case, CPU)
    assert relative_error(baseline("conv", case, data)(), case.program.reference(data.A, data.B).double()) < 2e-6


def test_convolutions_are_tried_by_cudnn() -> None:
    before = torch.backends.cudnn.benchmark
    with fastest_convolutions():
        assert torch.backends.cudnn.benchmark
    assert torch.backends.cudnn.benchmark == before


@pytest.fixture
def planned_for_sm90(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Plans for an H200 that is not there; how many kernels were asked to be built."""
    built: list[int] = []
    monkeypatch.setattr(evt.bench.kernel, "device_target", lambda index: find_target("sm90"))
    monkeypatch.setattr(evt.bench.kernel, "measured_best", lambda request, bound, atomic: request)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=132))
    monkeypatch.setattr(evt.bench.run, "build", lambda sources: built.append(len(sources)))
    monkeypatch.setattr(evt.bench.run, "draw", lambda case, device: draw(case, CPU))
    return built


def test_the_kernel_is_named(planned_for_sm90: list[int]) -> None:
    case = make_convolution("D = acc + C", "conv2d", ((32, 2048, 7, 7), (512, 2048, 1, 1)), dtype="f16")
    data = draw(case, CPU)
    route, config = kernel_taken(case, data)
    assert route.endswith("-3x")
    assert not route.startswith("conv")  # a product of matrices
    assert config in {plan.config.name for plan in plans_of(case, data)}
    forced = convolution_case(
        "case", program_of(case.program.request.forced("conv-evt-2x", "auto")), case.shapes or ((), ()), dtype="f16"
    )
    with pytest.raises(TargetError):
        plans_of(forced, data)
    two = Program(Source("D = acc + C"), "conv2d", route="conv-evt-2x")
    assert kernel_taken(convolution_case("case", two, case.shapes or ((), ()), dtype="f16"), data)[0] == "conv-evt-2x"


def test_all_kernels_are_built_at_once(planned_for_sm90: list[int]) -> None:
    cases = [case for case in suite("resnet", "f16", 16) if case.name.startswith(("1x1 ", "3x3 64->64", "3x3 512"))]
    said: list[str] = []
    build_all(cases, torch.device("cuda"), said.append)
    assert said == ["building the kernels of 6 programs"]
    (count,) = planned_for_sm90
    # shapes are no part of a kernel, but for the widths and the taps of the halo kernel
    assert 3 <= count < 5 * len(cases)
    refused = Case("case", Program(Source("D = acc"), route="nothing"), 8, 8, 8)
    build_all([refused], torch.device("cuda"), said.append)  # it is reported where it is measured
    assert planned_for_sm90 == [count, 0]


def test_max_autotune_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def compiled(function: Callable[..., object], **options: object) -> Callable[..., object]:
        asked.append(options["mode"])
        return function

    monkeypatch.setattr(torch, "compile", compiled)
    case = make("D = acc + bias")
    data = draw(case, CPU)
    for name in ("compile", "max-autotune"):
        assert torch.equal(baseline(name, case, data)(), data.A @ data.B + data.tensors["bias"])
    assert asked == [None, "max-autotune-no-cudagraphs"]


def test_baseline_names() -> None:
    assert check_baselines(("mm", "eager", "mm")) == ("mm", "eager")
    with pytest.raises(ArgumentError, match="did you mean `eager`"):
        check_baselines(("eagre",))
    assert set(KNOWN) == {*BASELINES, *PRODUCTS}


# Epilogues side by side


def test_epilogues_are_measured_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink_epilogues(monkeypatch)
    cases = suite("epilogue")[:11]
    measured = measure_epilogues(cases, clock, CPU, rounds=5)
    names = [row.version for row in measured.rows]
    assert names == ["bare store", "evt again", *(case.name for case in cases[1:])]
    assert all(row.time is not None and row.time.samples == 5 and not row.failure for row in measured.rows)
    assert measured.bare == "bare store"
    assert not measured.wrong
    tile, rows, columns = 24 * 32 * 2, 24 * 4, 32 * 4
    extra = {name: measured.extra_bytes(name) for name in names}
    assert extra == {
        "bare store": 0,
        "evt again": None,
        "bias": 32 * 2,
        "bias+gelu": 32 * 2,
        "two residuals": 2 * tile,
        "row+column scale": rows + columns,
        "aux store": tile,
        "amax": 4,
        "row sum": rows,
        "column sum": columns,
        "bit mask": 24 * 4,
        "dropout": 0,
    }


def test_epilogues_that_fail_are_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink_epilogues(monkeypatch)
    right = Program.__call__

    def call(self: Program, *operands: torch.Tensor, out: object, **inputs: object) -> None:
        if "gelu" in self.request.source.text:
            raise TargetError(Diagnostic("E0503", "no route is left"))
        right(self, *operands, out=out, **inputs)
        if "bias" in self.request.source.text:
            assert isinstance(out, torch.Tensor)
            out.zero_()

    monkeypatch.setattr(Program, "__call__", call)
    measured = measure_epilogues(suite("epilogue")[:4], clock, CPU, rounds=2)
    failures = {row.version: row.failure for row in measured.rows}
    assert failures["bias+gelu"] == "E0503: no route is left"
    assert failures["bias"].startswith("wrong: relative error 1.0e+00")
    assert failures["two residuals"] == failures["bare store"] == ""
    assert measured.wrong == ("bias",)
