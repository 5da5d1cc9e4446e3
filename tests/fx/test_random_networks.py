"""Networks whose products read one another's vectors: compiled equals eager; malformed graphs are found."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

from evt.errors import InternalError
from evt.fx.backend import backend
from evt.fx.build import RegionProgram
from evt.fx.choose import RegionPass
from evt.fx.norms import restore
from evt.fx.options import Options
from evt.fx.records import RECORDS
from evt.fx.regions import find_regions
from evt.fx.rewrite import LAUNCH, rewrite
from evt.fx.skip_reason import SkipReason
from evt.fx.verify import verify
from tests.support.work import count_calls

from .random_networks import check
from .training import fused

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("fresh_compiler")]
_GENERATOR = torch.Generator().manual_seed(0)
X, V, W = (torch.randn(shape, generator=_GENERATOR) for shape in ((24, 16), (16, 24), (16, 24)))
#: Seeds in which, without the rule of :mod:`evt.fx.build`, regions read values that no kernel stores.
READING = (2, 3, 4, 5, 7, 10, 11, 20, 27)


@pytest.mark.parametrize(
    "seed",
    [*READING[::2], *(pytest.param(each, marks=pytest.mark.slow) for each in (*READING[1::2], *range(100, 400)))],
)
def test_networks_are_eager(seed: int) -> None:
    check(seed)


@pytest.mark.parametrize("seed", [2, *(pytest.param(each, marks=pytest.mark.slow) for each in range(3, 23))])
def test_networks_are_eager_under_inductor(seed: int) -> None:
    check(seed, inductor=True)


def test_checkpoints_compute_vectors_again() -> None:
    """The backward graph computes a product and its norm again, beside the products that read them."""

    def block(x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x @ v)
        return y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)

    def function(x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = x + checkpoint(block, x, v, use_reentrant=False) @ v.T
        return (x * x).sum()

    with torch.enable_grad():
        found = []
        for each in (function, fused(function)):
            given = X.clone().requires_grad_(), V.clone().requires_grad_()
            each(*given).backward()
            found.append([x.grad for x in given])
    for got, want in zip(*found, strict=True):
        assert float((got - want).norm() / want.norm()) < 1e-5  # single elements cancel
    assert sum(row.fused for record in RECORDS for row in record.rows if row.graph == "backward") > 3


@pytest.mark.parametrize(
    "dead",
    [
        lambda x, v: (x @ v + 1).sum(),
        lambda x, v: torch.relu(x @ v),
        lambda x, v: torch.relu(x @ v) @ v.T @ v,
        lambda x, v: (x @ v).amax(-1, keepdim=True),
    ],
)
def test_products_that_nothing_reads_are_no_kernels(dead: Callable[..., torch.Tensor]) -> None:
    def function(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ w) + 0 * dead(x, v)

    options: Any = {"evt.rule": "always", "evt.devices": ("cpu",)}
    compiled = torch.compile(function, backend=backend, options=options)
    torch.testing.assert_close(compiled(X, V, W), function(X, V, W), rtol=1e-4, atol=1e-4)
    assert [row.fused for record in RECORDS for row in record.rows] == [True]


def test_malformed_regions_are_found() -> None:
    def function(x: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.relu(x @ v)
        s = torch.sqrt(y.amax(-1, keepdim=True) + 1)
        return torch.relu(x @ v.roll(1, 0)) * s, torch.tanh(y)

    graph = make_fx(function, tracing_mode="fake")(X, V).graph
    first, second = find_regions(graph).regions
    verify(graph, [first, second])
    with pytest.raises(InternalError, match="no kernel stores"):
        verify(graph, [replace(first, results=first.results[:1]), second])
    with pytest.raises(InternalError, match="nothing reads"):
        verify(graph, [replace(first, results=()), second])
    argument = replace(second.arguments[0], node=second.results[0].node)
    with pytest.raises(InternalError, match="wait for one another"):
        verify(graph, [replace(first, arguments=(argument,)), second])


def _chain(x: torch.Tensor, w: torch.Tensor, count: int) -> torch.Tensor:
    y = x @ w
    for index in range(count):
        y = torch.relu(y) if index % 2 else y * 0.5
    return y


def _readers(x: torch.Tensor, w: torch.Tensor, count: int) -> torch.Tensor:
    y = x @ w
    found = y
    for _ in range(count // 2):
        found = found + torch.relu(y)
    return found


def _views(x: torch.Tensor, w: torch.Tensor, count: int) -> torch.Tensor:
    y = x @ w
    for _ in range(count):
        y = y.t()
    return y + 1


def _layers(x: torch.Tensor, w: torch.Tensor, count: int) -> torch.Tensor:
    for _ in range(count // 8):
        x = torch.relu(x @ w) + x
    return x


def _branches(x: torch.Tensor, w: torch.Tensor, count: int) -> torch.Tensor:
    return torch.cat([torch.relu((x * float(index)) @ w) for index in range(count // 8)])


def _factors(x: torch.Tensor, w: torch.Tensor, count: int) -> torch.Tensor:
    y = x @ w
    for index in range(count):
        y = y * x if index % 2 else x * y
    return y @ w


def _copies(x: torch.Tensor, w: torch.Tensor, count: int) -> torch.Tensor:
    y, one = x @ w, torch.ones(())
    for index in range(count // 2):
        one = one.clone()
        y = y.clone() if index % 2 else y.double().float()
    return (y + one) @ w


_SHAPES = [_chain, _readers, _views, _layers, _branches, _factors, _copies]


class _Estimates(RegionPass):
    """A pass that estimates the regions of a model on the CPU for a GPU, and builds nothing."""

    target = "sm90"

    def __call__(self, graph: Graph) -> None:
        self.choose(graph)
        restore(graph)

    def prepare(self, regions: Mapping[Node, RegionProgram]) -> dict[Node, SkipReason]:
        return {}


@pytest.mark.parametrize("function", _SHAPES)
@pytest.mark.parametrize("rule", ["estimate", pytest.param("always", marks=pytest.mark.slow)])
def test_depth_of_the_graph_is_not_depth_of_the_stack(function: Callable[..., torch.Tensor], rule: str) -> None:
    """Deep graphs pass with a stack that is not as deep: no function calls itself for each operator of a chain."""
    half = (X[:16, :16].half(), W[:, :16].half())
    graph = make_fx(lambda x, w: function(x, w, 400), tracing_mode="fake")(*half).graph
    shallow = make_fx(lambda x, w: function(x, w, 16), tracing_mode="fake")(*half).graph
    estimates = _Estimates(Options(rule, ("cpu", "cuda")))
    estimates(shallow)  # imports and fills caches
    limit = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(len(inspect.stack(0)) + 150)
        estimates(graph)
    finally:
        sys.setrecursionlimit(limit)


@pytest.mark.parametrize("size", [50, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("function", _SHAPES)
def test_work_is_proportional_to_the_graph(function: Callable[..., torch.Tensor], size: int) -> None:
    """Four times the operators take about four times the calls, and no recursion reaches Python's limit."""

    def calls(count: int) -> int:
        graph = make_fx(lambda x, w: function(x, w, count), tracing_mode="fake")(X[:16, :16], W[:, :16]).graph
        with count_calls() as counted:
            rewrite(graph, find_regions(graph, inlined=True).regions, LAUNCH)
        return counted[0]

    calls(size // 2)  # fills caches
    assert calls(4 * size) < 6 * calls(size)  # sixteen times where the work is quadratic
