"""Workloads on one machine: candidates, builds, early stops, resumption, and several runs on one database."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import evt
from evt.compilation.source import source_key
from evt.diagnostics import Diagnostic
from evt.errors import BuildError
from evt.farm import Task, run_tasks, summarise, tasks_of
from evt.farm import builders as builders_module
from evt.farm.machine import Calls
from evt.farm.progress import Remaining
from evt.measured import Store
from evt.plan import Plan
from evt.request import packed_problem
from evt.tuning import space as space_module
from evt.tuning import tune as tune_module
from evt.tuning.space import Options
from evt.workload import read_workload
from tests.support.stand_in import A100, DRIVER, H200, KILL, LOG, StandInMachine, true_ms

LLAMA = Path(__file__).parents[2] / "samples" / "bench" / "llama8b.toml"
RESUMED = Options(rounds=9, again=False)


def tasks(count: int = 3) -> list[Task]:
    return tasks_of(read_workload(LLAMA))[:count]


def lines(log: Path) -> list[list[str]]:
    """Return the timed rounds: process, title, kernel."""
    return [line.split("|") for line in log.read_text().splitlines()]


def kernels(log: Path) -> dict[tuple[str, str], set[str]]:
    """Return the processes that timed each kernel of each problem."""
    found = defaultdict(set)
    for process, title, kernel in lines(log):
        found[title, kernel].add(process)
    return dict(found)


def test_results_are_kept_and_used(timed: Path) -> None:
    results = list(run_tasks(tasks(), StandInMachine(), Options(rounds=9, again=False, wide=True, most=5)))
    assert [task for task, _ in results] == tasks()
    for task, tuning in results:
        assert tuning.chosen is not None
        assert tuning.pruned > 10
        assert tuning.gain is not None
        assert tuning.gain >= 0.99
        (kept,) = Store().find(task.work("sm80", lambda name: lambda: None).key)
        assert (kept.gpu, kept.origin.driver, kept.best()) == (A100[0], DRIVER, tuning.chosen)
        assert Task.read(kept.call, task.title) == replace(task, weight=1.0)
        program = evt.linear(str(evt.linear("D = acc"))) if task.title.startswith("qkv") else None
        if program is not None:
            explained = program.explain("sm80", "bf16", "bf16", shapes=task.shapes)
            assert (explained.chosen_by, explained.gpus) == ("measurement", (A100[0],))
            assert explained.plan.config.name == tuning.chosen.config
    summary = summarise(results)
    assert (summary.problems, summary.kept, summary.failed) == (3, 0, 0)
    assert summary.measured == sum(len(tuning.rows) for _, tuning in results)
    assert summary.gain >= 0.99
    assert "3 problems" in str(summary)


@pytest.fixture
def _unbuilt(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of an H200 need no builds."""
    monkeypatch.setattr(tune_module, "failures_of", lambda sources: {})
    monkeypatch.setattr(builders_module, "build_each", lambda sources, build: ({}, {}))


@pytest.mark.usefixtures("_unbuilt")
def test_a_kernel_of_the_search_space_is_called_by_its_name() -> None:
    (task,) = tasks(1)
    ((_, tuning),) = run_tasks([task], StandInMachine(gpu=H200), Options(rounds=5, wide=True, most=8))
    names = {row.config for row in tuning.rows}
    usual = {each.config.name for each in task.survey("sm90").defaults}
    new = names - usual
    assert len(new) >= 8
    for row in tuning.rows:
        forced = task.request.forced(row.route, row.config)
        found = packed_problem(forced, "sm90", "bf16", "bf16", task.shapes)
        made = evt.plan.survey(found, row.route, row.config).plan
        assert isinstance(made, Plan)
        assert made.config.name == row.config


@pytest.mark.usefixtures("_unbuilt")
@pytest.mark.slow
def test_the_search_finds_nearly_the_best_kernel() -> None:
    """Three problems against an exhaustive search: times are estimates, give or take a tenth."""
    chosen = [tasks(27)[number] for number in (1, 10, 22)]
    for task, tuning in run_tasks(chosen, StandInMachine(gpu=H200), Options(rounds=5, wide=True, most=24)):
        every = [
            true_ms(task, (each.route.name, name), H200)
            for each in task.survey("sm90").candidates
            if each.applies
            for name in each.search_space
        ]
        assert len(every) > 50
        assert tuning.chosen is not None
        assert tuning.chosen.ms * 0.98 <= min(every), task.title


@pytest.mark.usefixtures("_unbuilt")
def test_slow_kernels_are_stopped_early() -> None:
    ((_, tuning),) = run_tasks(tasks(1), StandInMachine(gpu=H200), Options(rounds=31))
    by_time = sorted(tuning.rows, key=lambda row: row.ms or 0.0)
    assert by_time[0].samples == 31
    assert by_time[-1].samples == 4
    assert sum(row.samples for row in by_time) < 0.6 * 31 * len(by_time)
    assert [row.warm_ms is not None for row in by_time[:4]] == [True, True, True, False]


def test_a_finished_run_measures_nothing_again(timed: Path) -> None:
    first = list(run_tasks(tasks(), StandInMachine(), RESUMED))
    rounds = len(lines(timed))
    again = list(run_tasks(tasks(), StandInMachine(), RESUMED))
    assert len(lines(timed)) == rounds
    assert summarise(again).kept == summarise(first).measured
    assert [tuning.chosen for _, tuning in again] == [tuning.chosen for _, tuning in first]
    assert "measured earlier" in str(again[0][1])


def test_another_driver_and_another_kernel_text_are_measured(timed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (task,) = tasks(1)
    list(run_tasks([task], StandInMachine(), RESUMED))
    other = StandInMachine()
    other.device.driver = "590.00"
    ((_, tuning),) = run_tasks([task], other, RESUMED)
    assert tuning.measured == len(tuning.rows)
    changed = "evt-2x"
    monkeypatch.setattr(
        space_module, "source_key", lambda source: "f" * 64 if changed in source.kernel else source_key(source)
    )
    ((_, again),) = run_tasks([task], other, RESUMED)
    assert {row.route for row in again.rows if not row.kept} == {changed} < {row.route for row in tuning.rows}


def test_a_wider_search_measures_only_the_new_kernels(timed: Path) -> None:
    (task,) = tasks(1)
    ((_, narrow),) = run_tasks([task], StandInMachine(), RESUMED)
    ((_, wide),) = run_tasks([task], StandInMachine(), replace(RESUMED, wide=True, most=5))
    assert wide.measured == len(wide.rows) - len(narrow.rows) == 5


def test_a_kernel_that_cannot_be_built_is_a_row_with_the_reason(timed: Path, tmp_path: Path) -> None:
    (tmp_path / "script" / "log.orders").write_text("// fail device boom\n")
    (task,) = tasks(1)
    results = list(run_tasks([task], StandInMachine(), RESUMED))
    assert all("E0703" in row.failure for row in results[0][1].rows)
    assert results[0][1].chosen is None
    assert summarise(results).failed == len(results[0][1].rows)


# Nothing is lost

RUN = """
import sys
from evt.errors import BuildError
from evt.farm import run_tasks, tasks_of
from evt.tuning.space import Options
from evt.workload import read_workload
from tests.support.stand_in import StandInMachine
tasks = tasks_of(read_workload(sys.argv[1]))[: int(sys.argv[2])]
try:
    for task, tuning in run_tasks(tasks, StandInMachine(float(sys.argv[3])), Options(rounds=9, again=False)):
        print(task.title, tuning.measured, flush=True)
except BuildError as error:
    print(error.diagnostics[0].code)
"""


def start(count: int = 3, seconds: float = 0.0, **more: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", RUN, str(LLAMA), str(count), str(seconds)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, cwd=Path(__file__).parents[2], **pipes, **more)


def test_a_killed_run_goes_on(timed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kill = tmp_path / "kill"
    with monkeypatch.context() as patch:
        patch.setenv(KILL, str(kill))
        child = start(seconds=0.001)
        assert child.stdout is not None
        finished = [child.stdout.readline().split("x")[0] for _ in range(2)]
        kill.touch()
        child.communicate()
    assert child.returncode == -signal.SIGKILL
    assert len(finished) == 2
    kept = len(Store())
    assert kept in (2, 3)  # of the third problem, the kernels after a stage are kept
    results = list(run_tasks(tasks(), StandInMachine(), RESUMED))
    assert [tuning.measured for _, tuning in results][:2] == [0, 0]
    assert all(tuning.chosen for _, tuning in results)
    for (title, _), processes in kernels(timed).items():
        if title != tasks()[2].title:
            assert len(processes) == 1  # not even one of them was timed again


def test_two_runs_at_once_measure_nothing_twice(timed: Path) -> None:
    child = start(seconds=0.002)
    assert child.stdout is not None
    first = child.stdout.readline()  # it is at work
    mine = list(run_tasks(tasks(), StandInMachine(0.002), RESUMED))
    output, errors = child.communicate()
    assert errors == ""
    measured = [int(line.rsplit(" ", 1)[1]) for line in (first + output).splitlines()]
    assert [here + there for (_, here), there in zip([(t, x.measured) for t, x in mine], measured, strict=True)] == [
        len(tuning.rows) for _, tuning in mine
    ]
    assert all(len(processes) == 1 for processes in kernels(timed).values())
    assert len(Store()) == 3


@pytest.mark.slow
def test_a_full_disk_ends_a_run_and_loses_nothing(timed: Path) -> None:
    list(run_tasks(tasks(1), StandInMachine(), RESUMED))
    before = Store().all()
    size = Store().path.stat().st_size

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    list(run_tasks(tasks(3), StandInMachine(), RESUMED))  # builds all kernels
    Store().forget((key, each.gpu) for key, each in Store().all() if (key, each) not in before)
    child = start(preexec_fn=limit, env={name: value for name, value in os.environ.items() if name != LOG})
    output, errors = child.communicate()
    assert output.splitlines()[-1] == "E0704", errors
    for key, each in before:
        assert (key, each) in Store().all()
    assert all(tuning.chosen for _, tuning in run_tasks(tasks(3), StandInMachine(), RESUMED))


def test_a_newer_database_ends_a_run_before_it_begins(timed: Path) -> None:
    import sqlite3

    list(run_tasks(tasks(1), StandInMachine(), RESUMED))
    with sqlite3.connect(Store().path) as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    rounds = len(lines(timed))
    with pytest.raises(BuildError, match=r"E0704(.|\n)*newer version"):
        list(run_tasks(tasks(2), StandInMachine(), RESUMED))
    assert len(lines(timed)) == rounds


def test_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("evt.farm.progress.time.monotonic", lambda: now[0])
    left = Remaining(3)
    left.start()
    for number, kernels in enumerate((10, 20, 30)):
        assert (left.seconds(), left.text()) == (None, "")
        left.expect(number, kernels)
    assert (left.seconds(), left.text()) == (None, "")
    now[0] = 110.0
    left.done(0)
    assert left.text() == "; about 50 s left"
    left.done(1)
    now[0] = 600.0
    assert left.text() == "; about 8 min left"
    left.done(2)
    assert left.text() == ""


def test_an_error_of_a_build_ends_the_run(timed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Builds run in threads. A kernel that cannot be built is no error."""

    def full(*given: object) -> None:
        raise BuildError(Diagnostic("E0704", "the disk is full"))

    monkeypatch.setattr(builders_module, "build_each", full)
    with pytest.raises(BuildError, match="the disk is full"):
        list(run_tasks(tasks(2), StandInMachine(), RESUMED))
    assert lines(timed) == []


def test_progress_names_the_problem(timed: Path) -> None:
    said: list[str] = []
    list(run_tasks(tasks(2), StandInMachine(), RESUMED, progress=said.append))
    assert said[0] == "2 problems; planning and building their kernels"
    assert said[1:3] == [f"the kernels of {count} problems are built" for count in (1, 2)]
    assert said[3].startswith("[1/2] qkv 1x6144x4096: 2 kernels")


def test_random_tensors_of_a_task() -> None:
    """The calls of a GPU's machine, on a CPU: tensors of the task's types, in the layouts of a packed call."""
    import torch

    for task in (tasks(1)[0], replace(tasks(13)[12], shapes=((4, 64), (64, 64)))):
        (a, b), inputs, held = Calls(replace(task, shapes=((4, 64), (64, 64))), torch.device("cpu"), 0).tensors
        assert (a.shape, b.shape, a.dtype) == ((4, 64), (64, 64), torch.bfloat16)
        assert (set(inputs), held) == (set(task.request.inputs), {})
