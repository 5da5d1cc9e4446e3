"""The benchmark of whole models, on a GPU that is not there."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import evt.bench.machine
from evt.bench import compiled
from evt.bench.compiled import ModelResult, bench_models
from evt.bench.models import LATER, MODELS, Model, memory_format
from evt.bench.unet import UNet
from evt.bench.vae import Decoder
from evt.cli import main
from tests.support.benchmarks import CPU


class _Event:
    """An event of a GPU that takes half a millisecond for everything."""

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        pass

    def elapsed_time(self, end: _Event) -> float:
        return 0.5


class _Profile:
    """A profiler that has seen two kernels."""

    def __init__(self, activities: object) -> None:
        pass

    def __enter__(self) -> _Profile:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def events(self) -> list[SimpleNamespace]:
        seen = [("CPU", "aten::relu"), ("CUDA", "relu"), ("CUDA", "Memcpy DtoD"), ("CUDA", "sum"), ("CUDA", "Memset")]
        return [SimpleNamespace(device_type=SimpleNamespace(name=device), name=name) for device, name in seen]


class _Small(nn.Module):
    """A convolution with batch norm, dropout, and a head of zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(4, 2)
        for each in self.head.parameters():
            nn.init.zeros_(each)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"scores": self.head(self.drop(torch.relu(self.norm(self.conv(x))).mean((2, 3))))}


def _images(device: torch.device, dtype: torch.dtype, count: int) -> Any:
    x = torch.randn(count, 3, 5, 6, generator=torch.Generator(device).manual_seed(0))
    return (x.to(dtype).contiguous(memory_format=torch.channels_last),), {}


def _missing() -> nn.Module:
    raise ImportError("it is not there")


def _broken() -> nn.Module:
    raise RuntimeError("Unknown model")


#: All models, before the fixture replaces them.
KNOWN = dict(MODELS)


@pytest.fixture(autouse=True)
def small_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small models be all there are, on a simulated GPU, without Inductor."""
    known = {
        "small": Model("torch", _Small, _images, 4, "bfloat16"),
        "missing": Model("nowhere", _missing, _images, 1),
        "broken": Model("torch", _broken, _images, 1),
    }
    for name in list(MODELS):
        monkeypatch.delitem(MODELS, name)
    for name, model in known.items():
        monkeypatch.setitem(MODELS, name, model)
    versions = {"eager": None, "compile": {"backend": "aot_eager"}, "evt": {"backend": "eager"}}
    monkeypatch.setattr(compiled, "VERSIONS", versions)
    monkeypatch.setattr(compiled, "_captured", lambda call: call)
    monkeypatch.setattr(torch.cuda, "Event", _Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    monkeypatch.setattr(torch.profiler, "profile", _Profile)
    for module in (compiled, evt.bench.machine):
        monkeypatch.setattr(module, "require_gpu", lambda: CPU)
    monkeypatch.setattr(evt.bench.machine, "describe_machine", lambda device: {"gpu": "none"})


def measure(name: str, **keywords: Any) -> ModelResult:
    """Return a model's result after its last version."""
    *_, (result, _) = bench_models([name], rounds=2, **keywords)
    return result


def test_inference() -> None:
    result = measure("small", versions=("eager", "compile"))
    assert (result.name, result.dtype, result.batch, result.training) == ("small", "bfloat16", 4, False)
    assert result.times == {"eager": 0.5, "compile": 0.5}
    assert result.gpu_times == {"compile": 0.5}
    assert result.kernels == {"eager": 2, "compile": 2}
    assert set(result.errors) == set(result.first) == {"eager", "compile"}
    assert 0 < result.errors["eager"] < 3e-2  # of a head that is no longer zero
    assert not result.saved
    assert not result.failures


def test_a_training_step() -> None:
    result = measure("small", training=True, batch=6, versions=("eager", "compile"))
    assert (result.batch, result.training) == (6, True)
    assert result.times == {"eager": 0.5, "compile": 0.5}
    assert 0 < result.errors["eager"] < 0.1  # dropout would draw other numbers
    assert result.errors["compile"] < 0.1
    assert set(result.saved) == {"eager", "compile"}
    assert "small, bfloat16, batch 6, a training step" in str(result)
    assert "saved 0 MB" in str(result)


def test_what_fails_is_said_and_the_rest_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(module: Any, inputs: Any) -> Any:
        raise ValueError("too hard")

    monkeypatch.setattr(compiled, "VERSIONS", {"eager": None, "compile": {"backend": refuse}})
    result = measure("small", versions=("eager", "compile"))
    assert list(result.times) == ["eager"]
    assert "too hard" in result.failures["compile"]
    assert "too hard" in result.verdict
    for name, why in (("missing", "nowhere is not installed"), ("broken", "RuntimeError: Unknown model")):
        skipped = measure(name)
        assert not skipped.times
        assert skipped.verdict == f"skipped: {why}"


def test_a_call_without_a_cuda_graph_has_a_wall_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(call: object) -> Any:
        raise RuntimeError("a stream is being captured")

    monkeypatch.setattr(compiled, "_captured", refuse)
    result = measure("small", versions=("compile", "evt"))
    assert result.ratios == {"wall": 1.0}
    assert "no CUDA graph: RuntimeError: a stream is being captured" in result.line("evt")


def test_versions_come_one_by_one() -> None:
    """An interrupted run has printed and written its measurements."""
    seen = [
        (version, sorted(result.times))
        for result, version in bench_models(["small", "missing"], rounds=1, versions=("compile", "evt"))
    ]
    assert seen == [("compile", ["compile"]), ("evt", ["compile", "evt"]), ("", [])]


@pytest.mark.parametrize(
    ("wall", "gpu", "said"),
    [
        (0.9, 1.02, "wall time 0.900, GPU time 1.020"),
        (1.03, 0.8, "wall time 1.030, GPU time 0.800, above 1.02"),
        (0.9, 1.021, "wall time 0.900, GPU time 1.021, above 1.02"),
    ],
)
def test_the_bar(wall: float, gpu: float, said: str) -> None:
    result = ModelResult("a", "float16", 1, times={"compile": 2.0, "evt": 2 * wall})
    result.gpu_times = {"compile": 1.0, "evt": gpu}
    assert result.verdict == f"evt / torch.compile: {said}"
    assert result.to_json()["ratios"] == {"wall": pytest.approx(wall), "gpu": pytest.approx(gpu)}
    assert result.is_slower == ("above" in said)


def test_kernels_of_all_models_are_built_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that cannot be made has none."""
    monkeypatch.setattr(
        "evt.fx.prebuild.kernels_of", lambda model, inputs, **keywords: (["a", type(model).__name__], [])
    )
    built: list[object] = []
    monkeypatch.setattr(compiled, "build_all", built.extend)
    wanted = [ModelResult(name, "bfloat16", 1, training) for name in MODELS for training in (False, True)]
    with ThreadPoolExecutor(1) as pool:
        compiled.build_kernels(wanted, CPU, pool, lambda text: None)
    assert sorted(built) == ["_Small", "a"]  # type: ignore[type-var]


def test_models_of_later() -> None:
    """Models of transformers are made without memory; other packages may be missing."""
    assert len(LATER) >= 20
    assert {each.dtype for each in KNOWN.values()} == {"float16", "bfloat16"}
    made = 0
    for name, model in KNOWN.items():
        if name in LATER and model.package == "transformers":
            pytest.importorskip("transformers")
            with torch.device("meta"):
                found = model.make()
            made += 1
            args, keywords = model.inputs(torch.device("cpu"), torch.float32, 1)
            assert sum(each.numel() for each in found.parameters()) > 1e7
            assert len(args) + len(keywords) == 1
    assert made >= 10


def test_errors_are_those_of_the_worst_tensor() -> None:
    big, little = torch.full((4,), 100.0), torch.full((4,), 1e-9)
    assert compiled._error([big, little * 2], [big, little]) < 1e-7  # nothing but rounding
    assert compiled._error([big * 1.5, little], [big, little]) == pytest.approx(0.5)


@pytest.mark.parametrize(("suite", "graphs"), [("models", [""]), ("training", ["forward", "backward"])])
def test_command_measures_models(
    suite: str, graphs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [SimpleNamespace(graph=graph, fused=True, absorbed=("relu", "add")) for graph in graphs]
    rows.append(SimpleNamespace(graph=graphs[0], fused=False, absorbed=()))
    monkeypatch.setattr("evt.fx.report.report", lambda model: SimpleNamespace(rows=rows))
    path = tmp_path / "models.json"
    options = ["--filter", "small missing", "--batch", "2", "--dtype", "bf16", "--rounds", "1", "--json", str(path)]
    outcome = CliRunner().invoke(main, ["bench", "--suite", suite, *options])
    assert outcome.exit_code == 0, outcome.output
    assert "small, bfloat16, batch 2" in outcome.stdout
    assert "1 of 2 products fused, with 2 operators" in outcome.stdout
    assert "evt / torch.compile: wall time 1.000, GPU time 1.000" in outcome.stdout
    small, missing = json.loads(path.read_text())["models"]
    assert small["training"] == (suite == "training")
    assert list(small["times"]) == ["eager", "compile", "evt"]
    assert list(small["products"]["evt"]) == graphs
    assert missing["skipped"] == "nowhere is not installed"


def test_command_measures_the_versions_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is cut off while a version is compiled has written the others."""
    monkeypatch.setattr("evt.fx.report.report", lambda model: SimpleNamespace(rows=[]))

    def interrupted(module: Any, inputs: Any) -> Any:
        raise KeyboardInterrupt

    path = tmp_path / "models.json"
    command = ["bench", "--suite", "training", "--filter", "small", "--rounds", "1", "--json", str(path)]
    outcome = CliRunner().invoke(main, [*command, "--baselines", "compile"])
    assert outcome.exit_code == 0, outcome.output
    assert list(json.loads(path.read_text())["models"][0]["times"]) == ["compile", "evt"]
    monkeypatch.setitem(compiled.VERSIONS, "evt", {"backend": interrupted})
    outcome = CliRunner().invoke(main, [*command, "--baselines", "compile"])
    assert outcome.exit_code != 0
    assert "compile" in outcome.stdout
    assert list(json.loads(path.read_text())["models"][0]["times"]) == ["compile"]
    outcome = CliRunner().invoke(main, [*command, "--baselines", "cudnn"])
    assert outcome.exit_code == 2
    assert "Baselines of training: eager, compile, max-autotune, evt-measured, evt-max-autotune" in outcome.stderr


def test_the_unet_keeps_the_size() -> None:
    model = UNet((4, 8, 16), classes=3)
    found = model(torch.randn(2, 3, 8, 12))
    assert found.shape == (2, 3, 8, 12)
    assert all(each.requires_grad for each in model.parameters())
    found.sum().backward()
    assert all(each.grad is not None for each in model.parameters())


@pytest.mark.parametrize("shape", [(4, 2, 3), (4, 2, 2, 3)])
def test_decoders_upsample(shape: tuple[int, ...]) -> None:
    """Images become 8 times as wide and high; videos have 4 times the frames, too. Weights take any memory format."""
    volume = len(shape) == 4
    x = torch.randn(2, *shape)
    model = Decoder(4, (64, 32, 32, 32), volume=volume).to(memory_format=memory_format(x.shape))
    *frames, high, wide = shape[1:]
    assert model(x).shape == (2, 3, *(4 * each for each in frames), 8 * high, 8 * wide)


def test_convolutions_of_videos_see_no_later_frame() -> None:
    x = torch.randn(1, 4, 3, 2, 2)
    model = Decoder(4, (64, 32, 32, 32), volume=True).eval()
    with torch.no_grad():
        found = model(x)
        x[:, :, 2:] = 0
        assert torch.equal(model(x)[:, :, :8], found[:, :, :8])
