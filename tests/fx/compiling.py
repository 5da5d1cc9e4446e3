"""A small model, graphs of models, and torch.compile(backend="evt") on a CPU, for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor.decomposition import select_decomp_table
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from evt.compilation import KernelSource
from evt.fx import kernels
from evt.fx.backend import backend
from tests.support.stub_device import plan_for_h200

ALWAYS: Mapping[str, Any] = {"evt.rule": "always", "evt.devices": ("cpu",)}


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(16, 32), torch.nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


def inputs(rows: int = 8) -> torch.Tensor:
    return torch.randn(rows, 16, generator=torch.Generator().manual_seed(rows)).half()


def compiled(model: torch.nn.Module, options: Mapping[str, Any] = ALWAYS, **keywords: Any) -> Any:
    mode = keywords.pop("mode", None)
    return torch.compile(model, backend=partial(backend, mode=mode, options=options), **keywords)


def traced(model: torch.nn.Module, *inputs: torch.Tensor) -> GraphModule:
    """Return the graph of a model as Inductor has it."""
    with torch.no_grad():
        made = make_fx(model, select_decomp_table(), "fake", _allow_non_fake_inputs=True)(*inputs)
    for node in made.graph.find_nodes(op="get_attr"):
        node.meta["val"] = getattr(made, str(node.target))
    return made


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=5e-3, atol=5e-3)


def seen_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> list[list[KernelSource]]:
    """Let regions on the CPU be planned as on an H200; return the sources that are built, by call."""
    asked: list[list[KernelSource]] = []

    plan_for_h200(monkeypatch.setattr)

    def build(sources: Sequence[KernelSource], **_: Any) -> list[Path]:
        asked.append(list(sources))
        return [Path()] * len(sources)

    monkeypatch.setattr(kernels, "build", build)
    return asked
