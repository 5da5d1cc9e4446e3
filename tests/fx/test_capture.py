"""Graphs that torch.export captures with difficulty: transforms of torch.func, sizes that depend on data."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd import forward_ad
from torch.nn import functional

import evt
from evt.fx.aten import base_name
from evt.fx.capture import capture
from evt.fx.fuse import fuse, fusion
from evt.fx.strides import correct_strides

from .fusing import Function, check_answers, compare

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # torch's own


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def test_a_transform_that_cannot_be_captured_leaves_no_trace() -> None:
    """PyTorch fails to decompose this graph of torch.func.jvp, and left the transform for all later operators."""

    def function(x: torch.Tensor, w: torch.Tensor) -> Any:
        return torch.func.jvp(lambda v: functional.linear(v, w).tanh(), (x,), (x * 2,))

    x, w = torch.randn(4, 8), torch.randn(6, 8)
    with suppress(evt.ArgumentError):  # a later PyTorch may succeed
        fuse(Function(function), (x, w))
    with torch.enable_grad():
        torch.ones(2).requires_grad_()
    with forward_ad.dual_level():
        pass


@pytest.mark.parametrize("results", [lambda x, y, rows: y.index_add(0, rows, x), lambda x, y, rows: (x, rows)])
def test_sizes_that_depend_on_data(results: Callable[..., Any]) -> None:
    """The rows of an expert are found as the model runs; their number is a size of the products."""

    def function(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> Any:
        (rows,) = torch.where(x[:, 0] > 0)
        return results(torch.relu(functional.linear(x[rows], w)) * scale[rows, None], torch.zeros_like(x), rows)

    x, w, scale = torch.randn(10, 8), torch.randn(8, 8), torch.randn(10)
    model = Function(function).eval()
    made = fuse(model, (x, w, scale))
    for given in (x, -x, x.abs() + 1, -x.abs()):
        compare(model(given, w, scale), made(given, w, scale))
    assert len(fusion(made).regions) == 1
    check_answers(made)


def test_copies_of_fresh_values_are_dropped() -> None:
    """PyTorch's capture of dropout copies its input, which eager mode returns. Results stay apart from each other."""

    def function(x: torch.Tensor, w: torch.Tensor) -> Any:
        y = functional.dropout(torch.sin(x @ w), training=False)
        return torch.softmax(y, -1), x.clone(), y, y.clone(), y.t().contiguous()

    x, w = torch.randn(4, 8), torch.randn(8, 6)
    made = fuse(Function(function), (x, w))
    whole = [base_name(node) for node in capture(Function(function), (x, w)).module.graph.nodes]
    assert whole.count("clone") == 2  # of an input, and into another order
    results = made(x, w)
    compare(function(x, w), results)
    assert len({each.data_ptr() for each in (x, *results)}) == 6


def test_strides_after_convolutions_are_computed_again() -> None:
    """torch.export records contiguous results for a GPU, where PyTorch's kernels return them channels last."""
    layers = torch.nn.Conv2d(4, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten(2)
    module = torch.nn.Sequential(*layers).eval().to(memory_format=torch.channels_last)
    x = torch.randn(2, 4, 8, 8).to(memory_format=torch.channels_last)
    graph = capture(module, (x,)).module.graph
    images = [node for node in graph.nodes if _is_image(node)]
    strides = {node: node.meta["val"].stride() for node in images}
    assert {*strides.values()} == {(288, 1, 48, 8)}
    for node in images:
        node.meta["val"] = node.meta["val"].contiguous()
    correct_strides(graph)
    assert {node: node.meta["val"].stride() for node in images} == strides


def _is_image(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and tuple(node.meta["val"].shape) == (2, 8, 6, 6)


@pytest.mark.parametrize(
    "draw",
    [
        random.random,
        lambda: random.choice([1.0, 2.0]),
        lambda: random.shuffle(numbers := [1.0, 2.0]) or numbers[0],
        lambda: float(np.random.rand()),
        lambda: np.random.normal(size=3)[0],
        lambda: torch.manual_seed(0) and torch.rand(()),
        lambda: torch.random.seed() and 1.0,
    ],
)
def test_random_numbers_that_no_graph_draws_are_refused(draw: Callable[[], Any]) -> None:
    """Else each call would repeat the numbers of the capture, or draw other numbers than the seed's."""
    x, kept = torch.randn(4, 8), torch.get_rng_state()
    with pytest.raises(evt.ArgumentError, match=r"E1020.*no graph can"):
        fuse(Function(lambda x: torch.relu(x @ x.t()) * draw()), (x,))
    assert torch.equal(torch.get_rng_state(), kept)


def test_numbers_that_another_thread_draws_are_no_reason() -> None:
    count = 0

    def run(x: torch.Tensor) -> torch.Tensor:
        nonlocal count
        count += 1
        if count == 1:
            random.random()
        return torch.relu(x @ x.t())

    assert fuse(Function(run), (torch.randn(4, 8),)) is not None


def test_pytorchs_numbers_are_drawn_in_each_call() -> None:
    x = torch.randn(4, 8)
    fused: Any = fuse(Function(lambda x: torch.relu(x @ x.t()) + torch.rand(4)), (x,))
    assert not torch.equal(fused(x), fused(x))


@pytest.mark.parametrize("of_buffer", [False, True])
@pytest.mark.parametrize(
    ("change", "refused"),
    [
        (lambda x: x.t_(), True),
        (lambda x: x.t_().add_(1), True),
        (lambda x: x.add_(1).unsqueeze_(0).mul_(2), True),
        (lambda x: x.t_().add_(1).t_(), False),
        (lambda x: x.squeeze_().add_(1), False),
        (lambda x: x[1:].t_().add_(1), False),
    ],
)
def test_shapes_of_inputs_that_change_are_refused(change: Callable[..., Any], refused: bool, of_buffer: bool) -> None:
    class Changing(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("buffer", torch.ones(4, 6))

        def forward(self, a: torch.Tensor, x: torch.Tensor) -> Any:
            change(self.buffer if of_buffer else x)
            return functional.relu(a @ a.t())

    model, a, x = Changing().eval(), torch.randn(3, 5), torch.ones(4, 6)
    if refused:
        with pytest.raises(evt.ArgumentError, match="E1020"):
            fuse(model, (a, x))
        return
    made, other = fuse(model, (a, x.clone())), Changing().eval()
    mine, theirs = x.clone(), x.clone()
    torch.testing.assert_close(made(a, mine), other(a, theirs))
    assert torch.equal(mine, theirs)
    assert torch.equal(model.buffer, other.buffer)
