"""The fuzzer for GPUs, without a GPU: its draws, and planted faults that it finds."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from evt.compilation import KernelSource
from evt.plan import find_target
from tests.programs.fuzz.calls import Call, made_call
from tests.programs.fuzz.cases import Case, draw_case
from tests.programs.fuzz.judge import judge
from tests.programs.fuzz.kinds import KINDS, ROUTES, TYPES, Slot, schedule
from tests.programs.fuzz.launch import launched, stored
from tests.programs.fuzz.memory import MARGIN, POISON, Freedom, Kept, place
from tests.programs.fuzz.reproduce import describe, read
from tests.programs.fuzz.run import LATE, Finding, Options, Run
from tests.programs.fuzz.table import FEATURES, features_of
from tests.programs.rounding import rounded as rounded_to
from tests.programs.tree import Acc, Assign, Input, Output, Program, Read, Reduce, Sizes
from tests.programs.tree import Call as Apply
from tests.support.depth import in_depth

ROOT = Path(__file__).parents[2]
SM90 = find_target("sm90")
PROGRAM = Program(
    inputs=(Input("bias", ("n",), "f32"),),
    outputs=(Output("D", ("m", "n"), "f16"), Output("E", ("m", "n"), "i32")),
    assigns=(
        Assign("D", Apply("relu", (Apply("add", (Acc(), Read("bias")), "+"),))),
        Assign("E", Apply("mul", (Apply("exp", (Acc(),)), Acc()), "*")),
    ),
    sizes=Sizes((3,), (5,), 24, 8),
    settings=(("route", "evt-2x"),),
)
LAYOUTS = 7


@cache
def case_of(route: str) -> Case:
    """Return the first case of a route; few sizes may take its kernel."""
    slots = (each for each in schedule(200) if each.kind.route == route)
    cases = (draw_case(slot, 0, SM90, launches=2) for slot in slots)
    return next(case for case in cases if case is not None and len(case.problems) == 2)


def test_the_schedule_has_every_route_and_type() -> None:
    slots = schedule(200)
    assert [each.index for each in slots] == list(range(200))
    assert {each.kind.route for each in slots} == set(ROUTES)
    assert {name for each in slots for name in each.pair} == set(TYPES)
    seconds = [each.kind.seconds for each in slots]
    assert sum(seconds) / len(seconds) < 16  # cheap kernels dominate


def test_the_schedule_keeps_to_routes_and_types() -> None:
    slots = schedule(30, ("evt-2x", "conv-depthwise-3x"), ("f32", "f64"))
    assert {(each.kind.route, each.pair[0]) for each in slots} == {
        ("evt-2x", "f32"),
        ("evt-2x", "f64"),
        ("conv-depthwise-3x", "f32"),
    }


@pytest.mark.parametrize("route", in_depth(ROUTES, quick=[each for each in ROUTES if "grouped" not in each][::2]))
def test_a_case_has_problems_of_one_kernel(route: str) -> None:
    case = case_of(route)
    assert case.route == route
    sizes = {(each.sizes, each.geometry, each.groups) for each in case.problems}
    assert len(sizes) == len(case.problems) == 2
    for problem in case.problems:
        assert problem.text == case.program.text
        assert made_call(problem, case.layouts, "cpu").source(SM90) == case.source
    if "grouped" not in route:
        assert dict(case.program.settings)["route"] == route


@pytest.mark.slow
def test_200_programs_cover_routes_types_and_the_language() -> None:
    slots = schedule(200)
    cases = [case for slot in slots if (case := draw_case(slot, 3, SM90, launches=1))]
    assert len(cases) >= 195
    assert {case.route for case in cases} == set(ROUTES)
    assert {name for case in cases for name in case.types.split("*")} == set(TYPES)
    assert {name for case in cases for name in features_of(case)} == set(FEATURES)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_cases() -> None:
    """Two processes with other hashes of strings list the same programs."""
    words = [sys.executable, "-m", "tests.fuzz_gpu", "--list", "--jobs", "1", "--count", "3", "--launches", "2"]
    processes = [
        subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hashes, "PYTHONPATH": str(ROOT)},
        )
        for hashes in ("1", "2")
    ]
    first, second = (process.communicate()[0] for process in processes)
    assert first == second
    assert first.count("\n== ") == 2
    assert "conv-halo-3x" in first


# Memory


@pytest.mark.parametrize("layouts", range(12))
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.uint8, torch.float8_e4m3fn, torch.bool])
def test_a_place_holds_values_and_notices_every_byte_around_them(layouts: int, dtype: torch.dtype) -> None:
    value = torch.arange(2 * 3 * 5).reshape(2, 3, 5).to(torch.float32).to(dtype)
    kept = Kept.of(value, place(value, Freedom(sparse=True), "x", layouts, 1), "cpu", POISON[0])
    assert torch.equal(kept.tensor.to(torch.float64), value.to(torch.float64))
    assert kept.touched() == ""
    assert kept.is_unchanged()
    inside = torch.zeros_like(kept.buffer)
    kept.place.words(inside).fill_(-1 if kept.place.dtype.itemsize > 1 else 255)
    outside = [int(at) for at in (inside == 0).nonzero()]
    assert len(outside) == kept.buffer.numel() - value.numel() * value.dtype.itemsize
    assert len(outside) >= 2 * MARGIN - 16
    for at in outside[:: max(1, len(outside) // 40)]:
        kept.buffer[at] ^= 1
        assert kept.touched().startswith("1 bytes outside")
        kept.buffer[at] ^= 1
    kept.place.words(kept.buffer).zero_()
    assert kept.touched() == ""
    assert not kept.is_unchanged()


def test_pitches_are_padded() -> None:
    value = torch.zeros(3, 5)
    strides = {place(value, Freedom(unit=1), "x", layouts, 1).strides for layouts in range(40)}
    assert {each[1] for each in strides} == {1}
    assert {True, False} == {each[0] % 4 == 0 for each in strides}
    assert (5, 1) in strides


# Planted faults


def call_of(problem: Program = PROGRAM, layouts: int = LAYOUTS) -> Call:
    return made_call(problem, layouts, "cpu")


def buffer_of(call: Call) -> Kept:
    return call.members[0].outputs["D"]


def outside(call: Call, at: int) -> None:
    call.run()
    buffer_of(call).buffer[at] ^= 1


def between_rows(call: Call) -> None:
    call.run()
    kept = buffer_of(call)
    inside = kept.place.buffer("cpu", 0)
    kept.place.words(inside).fill_(-1)
    within = inside.nonzero().flatten()
    gaps = [at for at in range(int(within[0]), int(within[-1])) if not inside[at]]
    kept.buffer[gaps[0]] ^= 1


def left_out(call: Call) -> None:
    kept = buffer_of(call)
    poison = kept.place.words(kept.before)[-1, -1, -1].clone()
    call.run()
    kept.place.words(kept.buffer)[-1, -1, -1] = poison


def into_an_input(call: Call) -> None:
    call.run()
    kept = call.members[0].inputs["bias"]
    assert isinstance(kept, Kept)
    kept.tensor[3] += 1


def another_each_time(call: Call) -> None:
    call.run()
    if buffer_of(call).byte == POISON[1]:
        kept = buffer_of(call)
        kept.place.words(kept.buffer)[0, 0, 0] ^= 1


PLANTED = {
    "before": (lambda call: outside(call, 0), "canary"),
    "just before": (lambda call: outside(call, 2 * buffer_of(call).place.offset - 1), "canary"),
    "after": (lambda call: outside(call, -1), "canary"),
    "between rows": (between_rows, "canary"),
    "unwritten": (left_out, "unwritten"),
    "input": (into_an_input, "input"),
    "bits": (another_each_time, "bits"),
}


def test_a_right_kernel_has_no_faults() -> None:
    launch = launched(call_of())
    assert launch.faults == []
    verdict = judge(PROGRAM, launch.outputs)
    assert verdict.faults == ()
    assert verdict.compared == 2 * 3 * 5 * 24
    assert verdict.doubted < verdict.compared


@pytest.mark.parametrize("types", [("tf32", "f32"), ("f32", "tf32")], ids=str)
@pytest.mark.parametrize("seed", range(8))
def test_an_operand_may_be_rounded_to_tf32_beside_one_that_is_exact(types: tuple[str, str], seed: int) -> None:
    """A rounded element of B is the same in all rows, which a variance over rows shows."""
    variance = Reduce("var", ("m",), Acc())
    outputs = (Output("D", ("m", "n"), "f32"), Output("E", ("n",), "f32"))
    assigns = (Assign("D", Acc()), Assign("E", variance))
    kept = replace(PROGRAM, a=types[0], b=types[1], inputs=(), outputs=outputs, assigns=assigns, seed=seed)
    program = replace(kept, sizes=Sizes((), (129,), 28, 4), data="edge")
    call = made_call(program, 0, "cpu")
    member = call.members[0]
    a, b = (each.tensor.reshape(each.tensor.shape[-2:]).double() for each in (member.a, member.b))
    rounded = [torch.from_numpy(rounded_to("tf32", each.numpy())) for each in (a, b)]
    sums = rounded[0] @ rounded[1]
    found = {"D": sums.float(), "E": sums.var(0, correction=0).float()}
    assert judge(program, [{name: stored(each) for name, each in found.items()}]).faults == ()


@pytest.mark.parametrize("name", list(PLANTED))
def test_a_planted_fault_is_found(name: str) -> None:
    run, kind = PLANTED[name]
    kinds = {fault.kind for fault in launched(call_of(), run=run).faults}
    assert kinds == ({"input", "bits"} if kind == "input" else {kind})  # the second run reads the output of the first


def test_a_wrong_element_is_found() -> None:
    def wrong(call: Call) -> None:
        call.run()
        buffer_of(call).tensor[2, 4, 23] += 1

    launch = launched(call_of(), run=wrong)
    assert launch.faults == []  # both runs agree
    (fault,) = judge(PROGRAM, launch.outputs).faults
    assert fault.kind == "value"
    assert "D[2, 4, 23]" in fault.detail
    assert "1 of 360" in fault.detail


def test_poison_that_is_read_makes_the_runs_differ() -> None:
    def accumulates(call: Call) -> None:
        before = buffer_of(call).tensor.clone()
        call.run()
        buffer_of(call).tensor.add_(before * 0)

    assert [each.kind for each in launched(call_of(), run=accumulates).faults] == ["bits"]


# A run


def cpu_run(**options: object) -> Run:
    return Run(Options(device="cpu", **options))


def test_a_run_counts_and_compares(capsys: pytest.CaptureFixture[str]) -> None:
    run = cpu_run(count=3, launches=2, types=("f16", "f32"), routes=("evt-2x", "stock-2x"))
    assert run.all() == 0
    assert sum(row["launches"] for row in run.table.rows.values()) == 6
    assert sum(row["kernels"] for row in run.table.rows.values()) == 3
    assert run.table.compared > 0
    assert "0 problems fail" in capsys.readouterr().out
    assert run.close()


def test_a_failure_is_printed_and_made_small(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A kernel that is wrong for every program with an exponential."""

    def wrong(call: Call) -> None:
        call.run()
        if "exp(" in call.program.text:
            member = call.members[0]
            kept = member.outputs["E" if "E" in member.outputs else "D"]
            kept.tensor.fill_(77)

    run = Run(Options(device="cpu", save=tmp_path), launch=wrong)
    source = made_call(PROGRAM, LAYOUTS, "cpu").source(SM90)
    case = Case(0, "evt-2x", (PROGRAM,), LAYOUTS, source)
    launch = run.attempt(PROGRAM, LAYOUTS, source)
    faults = judge(PROGRAM, launch.outputs).faults
    assert [each.kind for each in faults] == ["value"]
    run.found_wrong(case, PROGRAM, faults)
    run.shrink_all()
    small, layouts = run.smallest(run.findings[0])
    assert layouts == 0
    assert "exp(acc)" in small.text
    assert "relu" not in small.text
    assert len(small.text) < len(PROGRAM.text)
    assert dict(small.settings)["route"] == "evt-2x"
    assert judge(small, run.attempt(small, layouts, None).outputs).faults
    out = capsys.readouterr().out
    assert "== fails made small" in out
    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == ["case-0-value-made-small.txt", "case-0-value.txt"]
    assert read((tmp_path / written[0]).read_text()) == (small, layouts)


@pytest.mark.parametrize("kind", KINDS[:3], ids=lambda kind: kind.route)
def test_what_is_printed_reproduces(kind) -> None:
    case = case_of(kind.route)
    for problem in case.problems:
        assert read(describe(problem, case.layouts)) == (problem, case.layouts)


@pytest.mark.parametrize("text", ["", "D = acc", "(1, 2)", "__import__('os')"])
def test_other_text_does_not_reproduce(text: str) -> None:
    with pytest.raises(ValueError, match="not a problem"):
        read(text)


def test_a_kernel_that_was_not_planned_is_a_fault() -> None:
    launch = cpu_run().attempt(PROGRAM, LAYOUTS, KernelSource("", "sm_90a"))
    assert [each.kind for each in launch.faults] == ["error"]


def test_findings_say_where_they_come_from() -> None:
    case = replace(case_of("evt-2x"), index=5)
    finding = Finding(case, case.program, tuple(launched(call_of(), run=PLANTED["bits"][0]).faults))
    assert finding.name == "5-bits"
    assert "evt-2x" in str(finding)


def test_slots_are_drawn_for_their_types() -> None:
    slot = Slot(0, KINDS[0], ("e4m3", "e5m2"))
    case = draw_case(slot, 3, SM90, launches=1)
    assert case is not None
    assert case.types == "e4m3*e5m2"


@pytest.mark.slow
@pytest.mark.parametrize("code", [0, 9])
def test_each_kernel_runs_under_a_sanitizer(code: int, tmp_path: Path) -> None:
    """A stand-in for compute-sanitizer runs the program, and reports an error or none."""
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(f'#!/bin/sh\nwhile [ "$1" != {sys.executable} ]; do shift; done\n"$@" || exit 1\nexit {code}\n')
    tool.chmod(0o755)
    words = ["--device", "cpu", "--sanitize", "memcheck", "--count", "1", "--routes", "evt-2x", "--jobs", "1"]
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.fuzz_gpu", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == (1 if code else 0), done.stderr
    assert ("memcheck clean" in done.stdout) == (code == 0)
    assert f"memcheck: 1 kernels, {1 if code else 0} with errors" in done.stdout


def test_a_run_may_build_only() -> None:
    run = Run(Options(device="none"))
    case = Case(0, "evt-2x", (PROGRAM,), LAYOUTS, KernelSource("", "sm_90a"))
    assert list(run.launched(case, 1.0, "")) == []
    assert list(run.launched(case, 1.0, LATE)) == []
    assert run.table.rows["evt-2x", "f16"] == {"seconds": 2.0, "kernels": 1}
    assert (run.late, run.findings) == (1, [])
    assert list(run.launched(case, 1.0, "error[E0703]")) == []
    assert [finding.name for finding in run.findings] == ["0-build"]


@pytest.mark.parametrize("error", ["", "nvcc refuses it"])
def test_a_reproduction_may_build_only(error: str, monkeypatch) -> None:
    run = Run(Options(device="none"))
    monkeypatch.setattr(run, "build", lambda source: error)
    launch = run.attempt(PROGRAM, LAYOUTS, None)
    assert [(fault.kind, fault.detail) for fault in launch.faults] == ([("build", error)] if error else [])
    assert not launch.outputs
