"""Workloads on a Dask cluster: one of two workers is killed half-way."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from evt.cli import main
from evt.farm import run_tasks, tasks_of
from evt.farm.cluster import run_on_cluster
from evt.farm.workers import connected
from evt.measured import Store
from evt.plan import find_target
from evt.tuning import device
from evt.tuning.device import GpuModel
from evt.tuning.space import Options
from evt.workload import read_workload
from tests.support.stand_in import KILL, StandInMachine, machine

ROOT = Path(__file__).parents[2]
LLAMA = ROOT / "samples" / "bench" / "llama8b.toml"


@pytest.mark.slow
def test_a_killed_worker_loses_nothing(timed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setenv(KILL, str(tmp_path / "kill"))
    command = [sys.executable, "-m", "tests.farm.killed_worker", str(LLAMA), "3"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["dashboard"].startswith("http://127.0.0.1:")
    assert found["killed"]
    tasks = tasks_of(read_workload(LLAMA))[:3]
    assert found["chosen"] == {task.title: True for task in tasks}
    assert (found["measurements"], found["summary"]["measured"], found["summary"]["failed"]) == (3, 6, 0)
    assert (found["again"]["measured"], found["again"]["kept"]) == (0, 6)
    workers = defaultdict(set)
    for line in timed.read_text().splitlines():
        process, title, _ = line.split("|")
        workers[title].add(process)
    assert sorted(map(len, workers.values())) == [1, 1, 2]  # only the task of the killed worker ran again
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


def test_the_client_imports_no_torch(own_cache: Path) -> None:
    """It plans and builds while workers import torch, which takes seconds."""
    code = (
        "import sys\n"
        "from evt.farm import builders, cluster, summarise, tasks_of\n"
        "from evt.plan import find_target\n"
        "from evt.tuning.device import GpuModel, gpus_here\n"
        "from evt.tuning.space import DEFAULTS\n"
        "from evt.workload import read_workload\n"
        "gpus_here()\n"
        "class Client:\n"
        "    def submit(self, function, *given, **how): raise NotImplementedError(function.__name__)\n"
        "builders.build_each = lambda sources, build: None\n"
        "gpu = GpuModel('NVIDIA H200', '580', find_target('sm90'), 132)\n"
        "tasks = tasks_of(read_workload(sys.argv[1]))[:1]\n"
        "try: list(cluster.run_on_cluster(tasks, Client(), here=1, gpu=gpu))\n"
        "except NotImplementedError as error: print(error, 'torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(LLAMA)], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "_measure False\n", done.stderr


def test_workers_end_without_unloading_torch() -> None:
    """Dask waits four seconds for a worker, and then kills it."""
    code = (
        "import atexit, sys, evt.farm.preloaded as at\n"
        "at.dask_setup(None)\n"
        "atexit.register(print, 'ended', flush=True)\n"
        "class Module: __del__ = lambda self: print('unloaded', flush=True)\n"
        "sys.modules['kept'] = Module()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr


def test_a_machine_without_a_driver_has_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise OSError

    monkeypatch.setattr(device, "find_driver", missing)
    assert device.gpus_here() == []


def test_the_driver_describes_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    class Driver:
        def devices(self) -> tuple[int, int]:
            return 0, 2

        def name(self, index: int) -> tuple[int, str]:
            return 0, f"GPU {index}"

        def capability(self, index: int) -> tuple[int, tuple[int, int]]:
            return 0, (9, 0)

        def multiprocessors(self, index: int) -> tuple[int, int]:
            return 0, 132

    monkeypatch.setattr(device, "find_driver", Driver)
    monkeypatch.setattr(device, "driver_version", lambda: "580")
    assert device.gpus_here() == [GpuModel(f"GPU {index}", "580", find_target("sm90"), 132) for index in range(2)]


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
    monkeypatch.setattr(device, "gpus_here", lambda: [GpuModel("NVIDIA H200", "580", find_target("sm90"), 132)])
    assert "--gpus 2: this machine has 1 GPU." in tune("--gpus", "2", code=2)
    assert "no Dask scheduler at tcp://127.0.0.1:1" in tune("--scheduler", "tcp://127.0.0.1:1")
    assert "--gpus is for this machine" in tune("--scheduler", "tcp://127.0.0.1:1", "--gpus", "1", code=2)


def test_workers_take_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    given = dict[str, Any]()

    def run(*arguments: Any, **options: Any) -> list[Any]:
        given.update(options)
        return []

    monkeypatch.setattr("evt.cli.tune.workers", lambda *arguments: nullcontext((object(), None)))
    monkeypatch.setattr("evt.farm.cluster.run_on_cluster", run)
    monkeypatch.setattr("evt.farm.machine.GpuMachine", lambda index=0, seed=0: seed)
    assert CliRunner().invoke(main, ["tune", str(LLAMA), "--gpus", "2", "--seed", "7"]).exit_code == 0
    assert given["make"]() == 7
