"""`evt bench` on a GPU that is not there, and without one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import evt.bench.epilogue
import evt.bench.host
import evt.bench.run
import evt.tuning.clock
from evt.bench import bench, bench_host, describe_machine
from evt.bench.layers import NETWORKS, Layer, Network
from evt.cli import main
from evt.diagnostics import Diagnostic
from evt.errors import LaunchError, TargetError
from evt.program import Program
from evt.tuning.clock import GpuClock
from tests.support.benchmarks import CPU, make, shrink_epilogues

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


# A GPU of our own: events that count, and a host that is too slow twice


class FakeEvent:
    now = 0.0
    behind = 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.at = 0.0

    def record(self) -> None:
        FakeEvent.now += 0.5
        self.at = FakeEvent.now

    def query(self) -> bool:
        FakeEvent.behind -= 1
        return FakeEvent.behind >= 0

    def elapsed_time(self, end: FakeEvent) -> float:
        return end.at - self.at


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the spins of a simulated GPU."""
    spins: list[int] = []
    monkeypatch.setattr(FakeEvent, "now", 0.0)
    monkeypatch.setattr(FakeEvent, "behind", 0)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "_sleep", spins.append)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(L2_cache_size=1 << 10))
    monkeypatch.setattr(evt.tuning.clock, "_FLUSH_BYTES", 1 << 10)
    monkeypatch.setattr(evt.bench.host, "_GROUP", 2)
    monkeypatch.setattr(evt.bench.host, "_GROUPS", 1)
    for module in (evt.bench, evt.bench.run, evt.bench.host, evt.bench.epilogue):
        monkeypatch.setattr(module, "require_gpu", lambda: CPU)
    monkeypatch.setattr(evt.bench, "describe_machine", lambda device: describe_machine())
    return spins


def test_gpu_clock(fake_gpu: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    timer = GpuClock(CPU)
    fake_gpu.clear()
    called: list[str] = []
    assert timer([lambda: called.append("a"), lambda: called.append("b")]) == [0.5, 0.5]
    assert called == ["a", "b"]
    spin = fake_gpu[0]
    assert fake_gpu == [spin, spin]
    monkeypatch.setattr(FakeEvent, "behind", 1)
    assert timer([lambda: None, lambda: None]) == [None, 0.5]
    timer([lambda: None])
    assert fake_gpu[-1] == 2 * spin


@pytest.mark.usefixtures("fake_gpu")
def test_command_measures(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    sizes = ["--m", "24", "--n", "16", "--k", "32", "--dtype", "f32"]
    options = ["--baselines", "eager,mm", "--rounds", "3", "--json", str(path)]
    outcome = CliRunner().invoke(main, ["bench", "D = gelu(acc + bias[n])", *sizes, *options])
    assert outcome.exit_code == 0, outcome.output
    assert "D = gelu(acc + bias[n]) (gemm f32, m=24, n=16, k=32)" in outcome.stdout
    document = json.loads(path.read_text())
    assert list(document["cases"][0]["versions"]) == ["evt", "evt again", "eager", "mm"]
    assert document["settings"]["baselines"] == ["eager", "mm"]


@pytest.mark.usefixtures("fake_gpu")
def test_command_measures_a_convolution(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    shapes = ["--a-shape", "2,8,9,9", "--b-shape", "16,8,3,3", "--stride", "2", "--padding", "1", "--dtype", "f32"]
    options = ["--baselines", "eager,mm", "--rounds", "2", "--json", str(path)]
    outcome = CliRunner().invoke(main, ["bench", "D = relu(acc + bias)", "--op", "conv2d", *shapes, *options])
    assert outcome.exit_code == 0, outcome.output
    shown = " ".join(outcome.stdout.split())
    assert "(conv2d f32, A 2x8x9x9, B 16x8x3x3, stride 2, padding 1, m=50, n=16, k=72)" in shown
    assert "/ conv" in outcome.stdout
    (case,) = json.loads(path.read_text())["cases"]
    assert list(case["versions"]) == ["evt", "evt again", "eager", "conv"]
    outcome = CliRunner().invoke(main, ["bench", "--op", "conv1d", "--baselines", "conv", "--rounds", "1"])
    assert outcome.exit_code == 0, outcome.output
    shown = " ".join(outcome.stdout.split())
    assert "D = relu(acc + bias) + residual (conv1d bf16, A 2x64x784, B 64x64x3, m=1564" in shown


WORKLOAD = """
dtype = "f32"
[[program]]
name = "up"
formula = "D = gelu(acc + bias)"
operation = "linear"
shapes = [{m = [24, 8], n = 16, k = 32, weight = 3}]
[[program]]
name = "layer"
formula = "D = relu(acc + bias)"
operation = "conv2d"
padding = 1
shapes = [{a = [2, 8, 9, 9], b = [16, 8, 3, 3]}]
"""


@pytest.mark.usefixtures("fake_gpu")
def test_command_measures_a_workload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workload, path = tmp_path / "w.toml", tmp_path / "bench.json"
    workload.write_text(WORKLOAD)
    options = ["--baselines", "eager,mm", "--rounds", "2", "--json", str(path)]
    outcome = CliRunner().invoke(main, ["bench", str(workload), *options])
    assert outcome.exit_code == 0, outcome.output
    document = json.loads(path.read_text())
    names = ["up 24x16x32", "up 8x16x32", "layer 2x8x9x9 16x8x3x3"]
    assert [case["name"] for case in document["cases"]] == names
    assert [case["weight"] for case in document["cases"]] == [3.0, 3.0, 1.0]
    assert document["settings"]["suite"] == str(workload)
    assert re.search(r"weighted time: evt \d\.\d{4} ms, eager \d\.\d{4} ms: \d\.\d{3}, 3 of 3 cases", outcome.stdout)
    outcome = CliRunner().invoke(main, ["bench", str(workload), "--filter", "layer", *options])
    assert [case["name"] for case in json.loads(path.read_text())["cases"]] == names[2:]
    for extra, said in ((["--m", "3"], "A workload names"), (["--filter", "no"], "no case of the suite")):
        outcome = CliRunner().invoke(main, ["bench", str(workload), *extra])
        assert (outcome.exit_code, said in outcome.stderr) == (2, True)
    monkeypatch.setattr(evt.bench, "bench", interrupted(evt.bench.bench, 1))
    outcome = CliRunner().invoke(main, ["bench", str(workload), *options])
    assert outcome.exit_code == 130
    assert outcome.stdout.count("up 24x16x32") == 2  # in its table, and in the summary


def interrupted(function: Callable[..., Iterator[Any]], count: int) -> Callable[..., Iterator[Any]]:
    """Return a function that yields a few results and is then interrupted."""

    def run(*arguments: Any, **keywords: Any) -> Iterator[Any]:
        yield from islice(function(*arguments, **keywords), count)
        raise KeyboardInterrupt

    return run


@pytest.mark.usefixtures("fake_gpu")
def test_command_measures_resnet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layers = Layer(3, 16, 16, 4, 2), Layer(1, 16, 32, 4), Layer(1, 16, 24, 4)
    monkeypatch.setitem(NETWORKS, "resnet", Network(7, layers))
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    path = tmp_path / "bench.json"
    options = ["--batch", "3", "--dtype", "bf16", "--filter", "3x3,->32", "--rounds", "1", "--json", str(path)]
    outcome = CliRunner().invoke(main, ["bench", "--suite", "resnet", *options])
    assert outcome.exit_code == 0, outcome.output
    shown = " ".join(outcome.stdout.split())
    assert "(conv2d bf16, A 3x16x4x4, B 16x16x3x3, stride 2, padding 1, m=12, n=16, k=144)" in shown
    assert outcome.stdout.count("1x1 16->32 @4 relu(acc + bias) + residual") == 2  # in its table, and in the summary
    assert re.search(r"geometric mean \d+\.\d{3} over 6 cases", outcome.stdout)
    document = json.loads(path.read_text())
    assert document["settings"]["baselines"] == ["eager", "compile", "cudnn", "conv"]
    assert [list(case["versions"]) for case in document["cases"]] == [
        ["evt", "evt again", "eager", "compile", "cudnn", "conv"]
    ] * 6
    assert {case["contender"] for case in document["cases"]} <= {"eager", "compile"}  # the CPU has no cuDNN


def test_the_name_of_a_suite_is_no_program() -> None:
    outcome = CliRunner().invoke(main, ["bench", "llm"])
    assert outcome.exit_code == 2
    assert "`llm` is a suite: add --suite before its name." in outcome.output


@pytest.mark.slow
@pytest.mark.usefixtures("fake_gpu")
def test_command_measures_the_host(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    arguments = ["bench", "D = acc", "--host", "--m", "2", "--json", str(path)]
    outcome = CliRunner().invoke(main, arguments)
    assert outcome.exit_code == 0, outcome.output
    assert list(json.loads(path.read_text())["host"]["calls"]) == ["evt", "evt out=", "mm", "mm out="]


@pytest.mark.usefixtures("fake_gpu")
def test_command_says_what_went_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["bench", "D = acc", "--m", "8", "--baselines", "mm", "--rounds", "1"]
    monkeypatch.setattr(Program, "__call__", lambda self, a, b, *, out: out.zero_())
    outcome = CliRunner().invoke(main, arguments)
    assert outcome.exit_code == 3
    assert "failed: wrong: relative error" in outcome.stdout

    def refuse(*args: object, **kwargs: object) -> object:
        raise TargetError(Diagnostic("E0503", "no route is left"))

    monkeypatch.setattr(Program, "__call__", refuse)
    outcome = CliRunner().invoke(main, arguments)
    assert outcome.exit_code == 1
    assert "failed: E0503: no route is left" in outcome.stdout


@pytest.mark.usefixtures("fake_gpu")
def test_command_measures_epilogues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shrink_epilogues(monkeypatch)
    path = tmp_path / "bench.json"
    outcome = CliRunner().invoke(main, ["bench", "--suite", "epilogue", "--rounds", "2", "--json", str(path)])
    assert outcome.exit_code == 0, outcome.output
    assert "epilogues of gemm bf16, m=24, n=32, k=40" in outcome.stdout
    assert "epilogues of gemm bf16, m=48, n=16, k=8" in outcome.stdout
    document = json.loads(path.read_text())
    assert [len(each["epilogues"]) for each in document["epilogues"]] == [12, 12]
    assert document["settings"]["suite"] == "epilogue"
    assert document["cases"] == []
    asked = ["--baselines", "mm", "--rounds", "1", "--json", str(path)]
    outcome = CliRunner().invoke(main, ["bench", "--suite", "epilogue", *asked])
    assert outcome.exit_code == 0, outcome.output
    cases = json.loads(path.read_text())["cases"]
    assert [list(case["versions"]) for case in cases] == 22 * [["evt", "evt again", "mm"]]


# Without a GPU, and the command line


@no_gpu
def test_without_a_gpu_nothing_is_timed() -> None:
    with pytest.raises(LaunchError, match="E0801"):
        bench([make("D = acc")])
    with pytest.raises(LaunchError, match="E0801"):
        bench_host(make("D = acc"))


@no_gpu
@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["D = acc"],
        ["--suite", "gemm"],
        ["--suite", "epilogue"],
        ["--host"],
        ["--suite", "resnet"],
        ["--op", "conv2d"],
    ],
)
def test_command_without_a_gpu(arguments: list[str]) -> None:
    outcome = CliRunner().invoke(main, ["bench", *arguments])
    assert outcome.exit_code == 1
    assert "error[E0801]: no CUDA GPU to measure on" in outcome.stderr
    assert not outcome.stdout


def test_command_help_is_light() -> None:
    code = (
        "import sys; from evt.cli import main\n"
        "try: main(['bench', 'run', '--help'])\n"
        "except SystemExit: pass\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--suite [gemm|epilogue|llm|fp8|resnet|unet|detector|depthwise|models|training]" in done.stdout
    assert "eager,compile,max-autotune,mm" in done.stdout
    assert done.stdout.endswith("False\n")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--baselines", "jax"], 2, "there is no baseline `jax`"),
        (["--suite", "gemm", "--m", "8"], 2, "--suite has fixed programs"),
        (["--suite", "gemm", "--host"], 2, "--suite has fixed programs"),
        (["--suite", "epilogue", "--fast-math"], 2, "--suite has fixed programs"),
        (["D = acc", "--op", "linear", "--l", "2"], 2, "--l is for gemm"),
        (["--suite", "resnet", "--stride", "2"], 2, "--suite has fixed programs"),
        (["--suite", "resnet", "--a-shape", "2,8,5,5"], 2, "--suite has fixed programs"),
        (["--suite", "gemm", "--batch", "8"], 2, "--batch is for the suites resnet, unet, detector, depthwise"),
        (["--suite", "models", "--rounds", "0"], 2, "0 is not in the range"),
        (["--suite", "training", "--filter", "alexnet"], 2, "no case of the suite has `alexnet` in its name"),
        (["--suite", "models", "--dtype", "f17"], 1, "E0303"),
        (["--suite", "training", "--baselines", "cudnn"], 2, "Baselines of training: eager, compile, max-autotune"),
        (["--suite", "gemm", "--baselines", "evt-measured"], 2, "there is no baseline `evt-measured`"),
        (["--suite", "gemm", "--build-first"], 2, "--build-first is for the suites models and training"),
        (["--suite", "models", "--dtype", "e4m3"], 2, "measured in f16, bf16 or f32, not e4m3"),
        (["--filter", "3x3"], 2, "--filter selects cases of a suite"),
        (["--suite", "epilogue", "--filter", "bias"], 2, "--filter selects cases of a suite"),
        (["--suite", "unet", "--filter", "9x9"], 2, "no case of the suite has `9x9` in its name"),
        (["--op", "conv2d", "--host"], 2, "--host measures matrix products"),
        (["--op", "conv2d", "--m", "8"], 2, "--m is for matrix products"),
        (["--op", "conv2d", "--a-shape", "2,8,5,5"], 2, "together"),
        (["--a-shape", "2,8,5,5"], 2, "for convolutions"),
        (["--stride", "2"], 1, "E0602"),
        (["--op", "conv2d", "--stride", "0"], 1, "E0607"),
        (["--op", "conv2d_wgrad"], 1, "E0601"),
        (["--op", "conv4d"], 1, "E0501"),
        (["D = acc", "--json", "/nonexistent/bench.json"], 2, "not a writable directory"),
        (["D = acc", "--json", "/"], 2, "it is a directory"),
        (["D = relo(acc)"], 1, "E0201"),
        (["D = acc", "--dtype", "f17"], 1, "E0303"),
    ],
)
def test_command_refuses(arguments: list[str], code: int, message: str) -> None:
    outcome = CliRunner().invoke(main, ["bench", *arguments])
    assert outcome.exit_code == code
    assert message in outcome.stderr
