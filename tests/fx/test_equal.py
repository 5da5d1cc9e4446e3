"""Equal operators of a graph are one; results stay apart, and so does all of a graph that writes to memory."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

import evt
import evt.fx.backend  # registers the backend
from evt.fx.aten import base_name
from evt.fx.equal import merge_equal

from .compiling import ALWAYS
from .training import fused

_STEPS: tuple[Any, ...] = (
    torch.relu, torch.tanh, lambda x: x * 2, lambda x: x.T, lambda x: x[:2, :2], lambda x: x.clone(),
    lambda x: x.add_(1),
)  # fmt: skip


def merged(function: Any, *inputs: Tensor) -> tuple[torch.fx.GraphModule, Counter[str]]:
    """Return the graph of a function with equal operators merged, and its operators."""
    made = make_fx(function)(*inputs)
    for node in made.graph.nodes:
        assert "val" in node.meta or node.op == "output"
    merge_equal(made.graph)
    made.graph.lint()
    made.recompile()
    return made, Counter(base_name(node) for node in made.graph.nodes if node.op == "call_function")


def test_operators_of_equal_operands() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.relu(x.T) @ torch.relu(x.T).T + torch.relu(x.T) @ torch.tanh(x.T).T

    _, found = merged(function, torch.randn(3, 4))
    assert (found["relu"], found["tanh"], found["permute"]) == (1, 1, 3)


def test_results_stay_apart() -> None:
    made, found = merged(lambda x: (torch.relu(x), torch.relu(x).view(-1), torch.relu(x) + 1), torch.randn(3, 4))
    assert found["relu"] == 3
    one, other, _ = made(torch.randn(3, 4))
    assert one.data_ptr() != other.data_ptr()


def test_graphs_that_write_stay() -> None:
    _, found = merged(lambda x: torch.relu(x).add_(1) + torch.relu(x), torch.randn(3, 4))
    assert found["relu"] == 2


@pytest.mark.parametrize("seed", range(40))
def test_functions_with_repeated_steps(seed: int) -> None:
    draw = random.Random(seed)
    steps = [(draw.randrange(len(_STEPS)), draw.randrange(place + 1)) for place in range(12)]

    def function(x: Tensor) -> tuple[Tensor, ...]:
        values = [x]
        for step, operand in steps:
            values.append(_STEPS[step](values[operand]))
        return tuple(values[place] + 1 for place in range(0, len(values), 2)) + tuple(values[-2:])

    def called(call: Any) -> list[Tensor]:
        x = torch.arange(16.0).reshape(4, 4) - 7
        results = call(x)
        results[-1].mul_(3)
        return [x, *results]

    made, _ = merged(function, torch.randn(4, 4))
    for got, want in zip(called(made), called(function), strict=True):
        assert torch.equal(got, want)


def test_a_region_stores_a_repeated_operator_once() -> None:
    """As the embedding of time in a diffusion U-Net, to which each block applies SiLU."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.blocks = nn.Linear(16, 32), nn.ModuleList(nn.Linear(32, 8) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            x = self.embedding(x)
            return torch.cat([block(functional.silu(x)) for block in self.blocks])

    torch._dynamo.reset()
    model, x = Model().half().eval(), torch.randn(8, 16).half()
    made = torch.compile(model, backend="evt", options=dict(ALWAYS))
    with torch.no_grad():
        torch.testing.assert_close(made(x), model(x), rtol=5e-3, atol=5e-3)
    assert "D1" not in str(evt.report(made))


@pytest.mark.parametrize("reduce", [torch.sum, torch.amax, torch.mean, lambda x, dim: torch.var(x, dim, correction=0)])
def test_reductions_of_numbers(reduce: Any) -> None:
    """A number has the dimensions 0 and -1 for PyTorch, and none to reduce."""
    x, w = torch.randn(4, 8), torch.randn(8, 8)

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ w) + reduce(x.sum(), -1)

    with torch.no_grad():
        torch.testing.assert_close(fused(function)(x, w), function(x, w))
