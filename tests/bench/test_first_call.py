"""First calls of compiled models, each in a separate process, on a GPU that is not there."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import evt.bench.machine
from evt.bench import compiled, first_call
from evt.bench.first_call import FirstCalls, first_calls, run_process
from evt.bench.models import MODELS, Model
from evt.cli import main
from tests.support.benchmarks import CPU

pytestmark = pytest.mark.filterwarnings("ignore")


def _rows(device: torch.device, dtype: torch.dtype, count: int) -> Any:
    return (torch.randn(count, 16, device=device).to(dtype),), {}


def _tiny() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 8), nn.Dropout(0.5), nn.ReLU())


@pytest.fixture(autouse=True)
def tiny_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a tiny model be all there is, on a simulated GPU, without Inductor."""
    for name in list(MODELS):
        monkeypatch.delitem(MODELS, name)
    monkeypatch.setitem(MODELS, "tiny", Model("torch", _tiny, _rows, 4, "bfloat16"))
    monkeypatch.setattr(compiled, "VERSIONS", {"compile": {"backend": "aot_eager"}, "evt": {"backend": "eager"}})
    monkeypatch.setattr(evt.bench.machine, "describe_machine", lambda device: {"gpu": "none"})
    for module in (first_call, evt.bench.machine):
        monkeypatch.setattr(module, "require_gpu", lambda: CPU)


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Measure in this process; return the folder of the caches of each process."""
    folders: list[Path] = []

    def run(job: dict[str, Any], folder: Path) -> dict[str, float]:
        folders.append(folder)
        assert folder.is_dir()
        torch._dynamo.reset()
        return first_call.measure(**json.loads(json.dumps(job)))

    monkeypatch.setattr(first_call, "run_process", run)
    return folders


@pytest.mark.parametrize("training", [False, True])
def test_each_version_has_two_processes_and_its_own_caches(processes: list[Path], training: bool) -> None:
    (found,) = first_calls(["tiny"], training=training)
    assert found.title == f"tiny, bfloat16, batch 4{', a training step' if training else ''}"
    assert not found.failures
    for version in ("compile", "evt"):
        assert list(found.seconds[version]) == list(found.cpu_seconds[version]) == ["first", "second"]
        assert all(0 < each < 60 for each in found.seconds[version].values())
    first, second, third, fourth = processes
    assert first == second != third == fourth
    assert not any(map(Path.exists, processes))
    assert found.ratios["first"] == found.seconds["evt"]["first"] / found.seconds["compile"]["first"]


def test_ratios_are_compared_with_the_bars() -> None:
    seconds = {"compile": {"first": 10.0, "second": 2.0}, "evt": {"first": 19.0, "second": 3.0}}
    said = str(FirstCalls("tiny", "float16", 4, seconds=seconds, cpu_seconds=seconds))
    assert "evt / torch.compile: first process 1.90; second process 1.50, above 1.2" in said
    assert "first process   19.00 s (19.0 CPU s)  second process    3.00 s (3.0 CPU s)" in said


def test_a_process_gets_its_caches_and_its_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def run(command: list[str], env: dict[str, str], **_: Any) -> SimpleNamespace:
        asked.update(command=command, env=env)
        return SimpleNamespace(returncode=0, stdout='noise\n{"seconds": 1.5, "cpu_seconds": 2.5}\n', stderr="")

    monkeypatch.setattr(subprocess, "run", run)
    assert run_process({"name": "tiny"}, tmp_path) == {"seconds": 1.5, "cpu_seconds": 2.5}
    assert json.loads(asked["command"][-1]) == {"name": "tiny"}
    caches = {asked["env"][name] for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "EVT_CACHE_DIR")}
    assert caches == {str(tmp_path / name) for name in ("torchinductor", "triton", "evt")}
    assert asked["env"].items() >= {name: os.environ[name] for name in ("PATH", "HOME")}.items()


@pytest.mark.slow
def test_a_failed_process_says_why(tmp_path: Path) -> None:
    """The process is a real one."""
    job = {"name": "unet", "dtype": "float17", "batch": 1, "training": False, "version": "compile", "device": "cpu"}
    assert "float17" in str(run_process(job, tmp_path))


def test_a_version_that_fails_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(job: dict[str, Any], folder: Path) -> dict[str, float] | str:
        return "no memory" if job["version"] == "evt" else {"seconds": 1.0, "cpu_seconds": 1.0}

    monkeypatch.setattr(first_call, "run_process", run)
    (found,) = first_calls(["tiny"])
    assert found.failures == {"evt": "first process: no memory"}
    assert "not measured" in str(found)
    done = CliRunner().invoke(main, ["bench", "--suite", "models", "--first-call"])
    assert done.exit_code == 1
    assert "evt              first process: no memory" in done.output


@pytest.mark.usefixtures("processes")
def test_the_command_writes_the_numbers(tmp_path: Path) -> None:
    file = tmp_path / "first.json"
    done = CliRunner().invoke(main, ["bench", "--suite", "training", "--first-call", "--json", str(file)])
    assert done.exit_code == 0, done.output
    assert "tiny, bfloat16, batch 4, a training step" in done.output
    written = json.loads(file.read_text())
    (found,) = written["first_calls"]
    assert set(found["ratios"]) == set(written["bars"]) == {"first", "second"}


@pytest.mark.parametrize("options", [[], ["--suite", "gemm"], ["--suite", "models", "--build-first"]])
def test_first_calls_belong_to_models(options: list[str]) -> None:
    done = CliRunner().invoke(main, ["bench", "--first-call", *options])
    assert done.exit_code == 2
    assert "--first-call begins with empty caches" in done.output


@pytest.mark.parametrize("options", [("--seed", "5"), ("--seed", "0"), ("--first-call", "--rounds", "3")])
@pytest.mark.parametrize("suite", ["models", "training"])
def test_models_refuse_options_that_they_would_ignore(suite: str, options: tuple[str, ...]) -> None:
    done = CliRunner().invoke(main, ["bench", "--suite", suite, *options])
    assert done.exit_code == 2
    assert options[-2] in done.stderr.splitlines()[-1]
