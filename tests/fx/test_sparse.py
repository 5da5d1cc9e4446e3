"""Sparse and nested tensors, and subclasses, in evt.fuse.

A model that has sparse tensors, or is called with one, runs by itself.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

import evt
from evt.fx.fuse import fuse, fusion, graph


def test_a_sparse_input_runs_the_model() -> None:
    model, x = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval(), torch.eye(4)
    fused: Any = fuse(model, (x,))
    with torch.no_grad():
        torch.testing.assert_close(fused(x.to_sparse()), model(x.to_sparse()))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("kind", ["sparse_coo", "mkldnn", "strided", "jagged"])
def test_an_example_is_dense(kind: str) -> None:
    """Every function that takes inputs says so."""
    model, x = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval(), torch.eye(4)
    if kind in ("strided", "jagged"):
        given = torch.nested.nested_tensor([x, x[:2]], layout=getattr(torch, kind))
    else:
        given = x.to_mkldnn() if kind == "mkldnn" else x.to_sparse()
    fused: Any = fuse(model, (x,))
    for call in (fuse, lambda _, inputs: fusion(fused, inputs), lambda _, inputs: graph(fused, inputs)):
        with pytest.raises(evt.ArgumentError, match="E0606"):
            call(model, (given,))
        with pytest.raises(evt.ArgumentError, match="E0606"):
            call(model, {"input": given})
    with pytest.raises(evt.ArgumentError, match="E0606"):
        evt.report(fused, (given,))


@pytest.mark.parametrize(
    ("where", "settings"), [("parameter", {}), ("buffer", {"rule": "lossless"}), ("buffer", {"numerics": "eager"})]
)
def test_a_subclass_in_the_model_is_for_torch_compile(where: str, settings: dict[str, Any]) -> None:
    class Scaled(torch.nn.Linear):
        scale: torch.Tensor

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(super().forward(x)) * self.scale

    model, pair = Scaled(4, 4).eval(), TwoTensor(torch.ones(4, 4), torch.zeros(4, 4))
    model.register_buffer("scale", pair if where == "buffer" else torch.ones(4))
    if where == "parameter":
        model.weight = torch.nn.Parameter(pair)
    with pytest.raises(evt.ArgumentError, match=r"E1020.*subclass"):
        fuse(model, (torch.eye(4),), **settings)


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_a_sparse_buffer_runs_the_model(layout: torch.layout) -> None:
    class Graph(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)
            self.register_buffer("edges", torch.eye(4).to_sparse(layout=layout))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sparse.mm(self.edges, torch.relu(self.linear(x)))

    model, x = Graph().eval(), torch.randn(4, 4)
    fused: Any = fuse(model, (x,))
    with torch.no_grad():
        torch.testing.assert_close(fused(x), model(x))
    assert "a parameter or buffer is sparse" in str(evt.report(fused))
