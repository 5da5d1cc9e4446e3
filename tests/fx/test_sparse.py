"""Sparse tensors in evt.fuse: a model that has some, or is called with one, runs by itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import evt
from evt.fx.fuse import fuse


def test_a_sparse_input_runs_the_model() -> None:
    model, x = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval(), torch.eye(4)
    fused: Any = fuse(model, (x,))
    with torch.no_grad():
        torch.testing.assert_close(fused(x.to_sparse()), model(x.to_sparse()))
    with pytest.raises(evt.ArgumentError, match="E0606"):
        fuse(model, (x.to_sparse(),))


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
