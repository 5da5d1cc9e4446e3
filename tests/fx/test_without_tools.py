"""Graphs on a machine without nvcc: own kernels take the place of CUTLASS's, and the report says so."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import evt
from evt.compilation import Cache, KernelSource, has_tools, missing_tools, source_key
from evt.diagnostics import Diagnostic
from evt.errors import BuildError
from evt.fx import kernels
from tests.support.stub_device import plan_for_h200

from .compiling import ALWAYS, Net, close, compiled, inputs

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("fresh_compiler", "own_cache")]

_MESSAGE = "no CUDA compiler (nvcc) was found"


def _find_nothing() -> None:
    raise BuildError(Diagnostic("E0701", _MESSAGE))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[KernelSource]:
    """Hide the tools, and return the sources that are built as on an H200: own kernels only."""
    found: list[KernelSource] = []

    def build(sources: Sequence[KernelSource], **_: Any) -> list[Path]:
        if not all(each.alone for each in sources):
            _find_nothing()
        found.extend(sources)
        return [Path()] * len(sources)

    plan_for_h200(monkeypatch.setattr)
    monkeypatch.setattr("evt.compilation.builder.find_toolchain", _find_nothing)
    monkeypatch.setattr(kernels, "missing_tools", missing_tools)
    monkeypatch.setattr(kernels, "build", build)
    return found


@pytest.fixture
def model() -> Net:
    return Net().half().eval()


def test_products_take_own_kernels(model: Net, asked: list[KernelSource]) -> None:
    close(compiled(model)(inputs()), model(inputs()))
    assert not has_tools()
    assert {each.kernel.split()[0] for each in asked} == {"gemm-own-3x"}
    rows = evt.report(model).rows
    assert all(row.fused for row in rows)
    assert "in place of" not in str(evt.report(model))


def test_regions_without_an_own_kernel_go_to_inductor(asked: list[KernelSource]) -> None:
    """Own kernels take no f64."""
    mine = Net().double().eval()
    x = inputs().double()
    torch.testing.assert_close(compiled(mine)(x), mine(x))
    assert [row.reason.split()[0] for row in evt.report(mine).rows] == ["E1019", "E1019"]
    assert _MESSAGE in evt.report(mine).rows[0].reason
    assert asked == []


def test_the_estimate_is_of_the_own_kernel(asked: list[KernelSource], monkeypatch: pytest.MonkeyPatch) -> None:
    """Products take evt's kernel with and without tools."""
    wide = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.GELU()).half().eval()
    x, options = torch.ones(2048, 1024).half(), {**ALWAYS, "evt.rule": "estimate"}
    compiled(wide, options)(x)
    (own,) = evt.report(wide).rows
    monkeypatch.setattr(kernels, "missing_tools", lambda sources: "")
    monkeypatch.setattr(kernels, "build", lambda sources, **_: [Path()] * len(sources))
    other = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.GELU()).half().eval()
    compiled(other, options)(x)
    (with_tools,) = evt.report(other).rows
    assert own.benefit is not None
    assert with_tools.benefit is not None
    assert own.benefit.lost == with_tools.benefit.lost
    assert "in place of" not in str(with_tools.said)


def test_imported_kernels_need_no_tools(asked: list[KernelSource]) -> None:
    source = KernelSource("__global__ void kernel() {}", "sm_90a")
    assert missing_tools(lambda: [source]) == _MESSAGE
    cache = Cache()
    cache.prepare()
    cache.put(source_key(source), lambda: {"kernel.so": b"library", "kernel.cu": b"source"}, {})
    assert missing_tools(lambda: [source]) == ""
