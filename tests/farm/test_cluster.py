"""Workloads on a Dask cluster: one of two workers is killed half-way."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest
from click.testing import CliRunner

from evt.cli import main
from evt.farm import run_tasks, tasks_of
from evt.farm.cluster import Remote, run_on_cluster
from evt.farm.workers import connected, gpus_here
from evt.measured import Store
from evt.tuning.tune import Options
from evt.workload import read_workload
from tests.support.stand_in import A100, KILL, StandInMachine, machine

ROOT = Path(__file__).parents[2]
LLAMA = ROOT / "samples" / "bench" / "llama8b.toml"


def test_a_killed_worker_loses_nothing(timed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setenv(KILL, str(tmp_path / "kill"))
    command = [sys.executable, "-m", "tests.farm.killed_worker", str(LLAMA), "5"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["dashboard"].startswith("http://127.0.0.1:")
    assert found["killed"]
    tasks = tasks_of(read_workload(LLAMA))[:5]
    assert found["chosen"] == {task.title: True for task in tasks}
    assert (found["measurements"], found["summary"]["measured"], found["summary"]["failed"]) == (5, 10, 0)
    assert (found["again"]["measured"], found["again"]["kept"]) == (0, 10)
    workers = defaultdict(set)
    for line in timed.read_text().splitlines():
        process, title, _ = line.split("|")
        workers[title].add(process)
    assert sorted(map(len, workers.values())) == [1, 1, 1, 1, 2]  # only the task of the killed worker ran again
    assert len(set().union(*workers.values())) >= 2
    monkeypatch.delenv(KILL)
    rounds = len(timed.read_text().splitlines())
    assert all(tuning.measured == 0 for _, tuning in run_tasks(tasks, StandInMachine(), Options(rounds=9, again=False)))
    assert len(timed.read_text().splitlines()) == rounds


@pytest.mark.slow
def test_a_running_cluster(timed: Path, tmp_path: Path) -> None:
    """A scheduler and workers that Dask's commands start: one has a GPU, one only builds."""
    pytest.importorskip("distributed")
    file, local = tmp_path / "scheduler.json", ("--host", "127.0.0.1", "--no-dashboard")
    once = ("--no-nanny", "--nthreads", "1", "--scheduler-file", str(file), *local)
    commands = [
        ("scheduler", "--port", "0", "--scheduler-file", str(file), *local),
        ("worker", *once, "--resources", "GPU=1"),
        ("worker", *once),
    ]
    processes = [
        subprocess.Popen([sys.executable, "-m", "dask", *each], cwd=ROOT, stderr=subprocess.DEVNULL)
        for each in commands
    ]
    try:
        while not file.exists():
            assert processes[0].poll() is None
            time.sleep(0.1)
        tasks = tasks_of(read_workload(LLAMA))[:3]
        with connected(json.loads(file.read_text())["address"]) as client:
            client.wait_for_workers(2, timeout=60)
            found = list(run_on_cluster(tasks, client, Options(rounds=5, again=False), make=machine))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert {task.title for task, tuning in found if tuning.chosen} == {task.title for task in tasks}
    assert len({line.split("|")[0] for line in timed.read_text().splitlines()}) == 1  # one process has the GPU
    assert len(Store()) == 3


def test_workers_start_before_torch_is_imported() -> None:
    """The command reads a workload, counts the GPUs and starts workers, which import torch at the same time."""
    code = "import sys, evt.workload, evt.farm.workers as at; at.gpus_here(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_a_machine_without_a_driver_has_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise OSError

    monkeypatch.setattr("evt.runtime.driver.find_driver", missing)
    assert gpus_here() == 0


def test_a_gpu_of_workers_has_no_clock() -> None:
    name, target, multiprocessors = A100
    gpu = Remote(name, "lock", "580", target, multiprocessors)
    assert gpu.target.name == target
    with pytest.raises(NotImplementedError):
        gpu.clock()


def test_the_command_needs_dask_and_a_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    def tune(*arguments: str, code: int = 1) -> str:
        result = CliRunner().invoke(main, ["tune", str(LLAMA), *arguments])
        assert "Traceback" not in result.output
        assert result.exit_code == code
        return result.stderr

    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "distributed", None)
        for arguments in (("--gpus", "2"), ("--scheduler", "tcp://127.0.0.1:1")):
            assert "pip install distributed" in tune(*arguments)
    pytest.importorskip("distributed")
    monkeypatch.setattr("evt.farm.workers.PATIENCE", 0.5)
    monkeypatch.setattr("evt.farm.workers.gpus_here", lambda: 1)
    assert "--gpus 2: this machine has 1 GPU." in tune("--gpus", "2", code=2)
    assert "no Dask scheduler at tcp://127.0.0.1:1" in tune("--scheduler", "tcp://127.0.0.1:1")
