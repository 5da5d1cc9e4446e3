"""The benchmark of whole models, on a GPU that is not there."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from benchmarks import CPU
from click.testing import CliRunner
from torch import nn

import evt.bench.machine
from evt.bench import compiled
from evt.bench.compiled import ModelResult, bench_models
from evt.bench.models import MODELS, Model
from evt.bench.unet import UNet
from evt.cli import main


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
        nn.init.zeros_(self.head.weight)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"scores": self.head(self.drop(torch.relu(self.norm(self.conv(x))).mean((2, 3))))}


def _images(device: torch.device, dtype: torch.dtype, count: int) -> Any:
    x = torch.randn(count, 3, 5, 6, generator=torch.Generator(device).manual_seed(0))
    return (x.to(dtype).contiguous(memory_format=torch.channels_last),), {}


def _missing() -> nn.Module:
    raise ImportError("it is not there")


@pytest.fixture(autouse=True)
def small_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small models be all there are, on a simulated GPU, without Inductor."""
    known = {
        "small": Model("torch", _Small, _images, 4),
        "missing": Model("nowhere", _missing, _images, 1),
    }
    for name in list(MODELS):
        monkeypatch.delitem(MODELS, name)  # type: ignore[misc]
    for name, model in known.items():
        monkeypatch.setitem(MODELS, name, model)  # type: ignore[misc]
    versions = {"compile": {"backend": "aot_eager"}, "evt": {"backend": "evt"}}
    monkeypatch.setattr(compiled, "VERSIONS", versions)
    monkeypatch.setattr(torch.cuda, "Event", _Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    monkeypatch.setattr(torch.profiler, "profile", _Profile)
    for module in (compiled, evt.bench.machine):
        monkeypatch.setattr(module, "require_gpu", lambda: CPU)
    monkeypatch.setattr(evt.bench.machine, "describe_machine", lambda device: {"gpu": "none"})


def measure(name: str, **keywords: Any) -> ModelResult:
    (result,) = bench_models([name], ["bfloat16"], rounds=2, **keywords)
    return result


def test_inference() -> None:
    result = measure("small", versions=("compile",))
    assert (result.name, result.dtype, result.batch, result.training) == ("small", "bfloat16", 4, False)
    assert result.times == {"eager": 0.5, "compile": 0.5}
    assert result.kernels == {"eager": 2, "compile": 2}
    assert set(result.errors) == {"eager", "compile"}
    assert 0 < result.errors["eager"] < 3e-2  # of a head that is no longer zero
    assert not result.saved
    assert not result.failures


def test_a_training_step() -> None:
    result = measure("small", training=True, batch=6, versions=("compile",))
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

    monkeypatch.setattr(compiled, "VERSIONS", {"compile": {"backend": refuse}})
    result = measure("small", versions=("compile",))
    assert list(result.times) == ["eager"]
    assert "too hard" in result.failures["compile"]
    assert "too hard" in str(result)
    missing = measure("missing", versions=("compile",))
    assert not missing.times
    assert "nowhere is not installed" in str(missing)


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
    monkeypatch.setattr(compiled, "VERSIONS", {"compile": {"backend": "eager"}, "evt": {"backend": "eager"}})
    options = ["--filter", "small,missing", "--batch", "2", "--dtype", "bf16", "--rounds", "1", "--json", str(path)]
    outcome = CliRunner().invoke(main, ["bench", "--suite", suite, *options])
    assert outcome.exit_code == 0, outcome.output
    assert "small, bfloat16, batch 2" in outcome.stdout
    assert "1 of 2 products fused, with 2 operators" in outcome.stdout
    small, missing = json.loads(path.read_text())["models"]
    assert small["training"] == (suite == "training")
    assert list(small["products"]["evt"]) == graphs
    assert missing["failures"] == {"eager": "nowhere is not installed"}


def test_the_unet_keeps_the_size() -> None:
    model = UNet((4, 8, 16), classes=3)
    found = model(torch.randn(2, 3, 8, 12))
    assert found.shape == (2, 3, 8, 12)
    assert all(each.requires_grad for each in model.parameters())
    found.sum().backward()
    assert all(each.grad is not None for each in model.parameters())
