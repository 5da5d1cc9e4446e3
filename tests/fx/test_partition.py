"""The partition is a minimum of its objective, which counts bytes; its time is linear, its width bounded."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import networkx as nx
import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx

from evt.fx.index_map import IndexMap
from evt.fx.partition import moved_bytes, partition
from evt.fx.product import Product, find_product
from evt.fx.region import FusionRegion, fit
from evt.fx.views import is_view

SIZE = 8


def traced(function: Callable[..., Any], *inputs: torch.Tensor) -> Graph:
    graph: Graph = make_fx(function, tracing_mode="fake")(*inputs).graph
    return graph


def random_graph(seed: int, products: int, others: int) -> Graph:
    """Return a graph of square matrices, which may meet in any way: sums, casts, views, softmaxes and products."""
    choose = random.Random(seed)
    kinds = ("add", "add", "relu", "half", "t", "softmax")
    steps = ["product"] * products + [choose.choice(kinds) for _ in range(others)]
    first, *rest = steps
    choose.shuffle(rest)

    def run(x: torch.Tensor, w: torch.Tensor) -> Sequence[torch.Tensor]:
        values = [x]
        for step in (first, *rest):
            near = choose.choice(values[-3:])
            if step == "product":
                values.append(near.float() @ w)
            elif step == "add":
                values.append(near + choose.choice(values))
            elif step == "half":
                values.append(near.half())
            elif step == "t":
                values.append(near.t())
            else:
                values.append(torch.relu(near) if step == "relu" else torch.softmax(near, -1))
        return [values[-1], *(value for value in values[1:-1] if choose.random() < 0.2)]

    return traced(run, torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE))


def all_partitions(graph: Graph) -> Iterator[list[FusionRegion]]:
    """Yield every choice that the problem allows."""
    nodes = [node for node in graph.nodes if node.op == "call_function"]
    products = [found for node in nodes if isinstance(found := find_product(node), Product)]
    free = [node for node in nodes if all(node is not each.node for each in products)]
    for choice in itertools.product(range(-1, len(products)), repeat=len(free)):
        regions = [FusionRegion(each) for each in products]
        if all(index < 0 or joined(regions[index], node) for node, index in zip(free, choice, strict=True)):
            kernels = {node: index for index, region in enumerate(regions) for node in region.index_maps}
            edges = {(kernels.get(x, x), kernels.get(y, y)) for y in nodes for x in y.all_input_nodes if x in nodes}
            if nx.is_directed_acyclic_graph(nx.DiGraph((x, y) for x, y in edges if x != y)):
                yield regions


def joined(region: FusionRegion, node: Node) -> bool:
    if not any(operand in region for operand in node.all_input_nodes):
        return False
    index_map = fit(node, region.index_maps)
    if isinstance(index_map, IndexMap):
        region.index_maps[node] = index_map
    return isinstance(index_map, IndexMap)


@pytest.mark.parametrize("seed", range(24))
def test_it_is_a_minimum(seed: int) -> None:
    graph = random_graph(seed, 1 + seed % 3, 5 if seed % 3 == 2 else 6)
    found = partition(graph)
    assert found.exact
    assert found.cost == moved_bytes(graph, found.regions)
    assert found.cost == min(moved_bytes(graph, regions) for regions in all_partitions(graph))


def test_the_objective_counts_bytes() -> None:
    """One kernel reads A, B and the bias and writes D; alone relu and the sum would each read and write a matrix."""
    graph = traced(lambda a, b, c: torch.relu(a @ b + c), *(torch.randn(SIZE, SIZE) for _ in range(3)))
    matrix = SIZE * SIZE * 4
    assert partition(graph).cost == 4 * matrix
    assert moved_bytes(graph, []) == (3 + 3 + 2) * matrix


def test_a_value_read_twice_is_written_once() -> None:
    graph = traced(lambda a, b: (torch.softmax(a @ b, 0), torch.softmax(a @ b, 1)), *[torch.randn(SIZE, SIZE)] * 2)
    assert partition(graph).cost == moved_bytes(graph, partition(graph).regions)


def test_a_gate_goes_where_fewer_bytes_are_moved() -> None:
    """Both products could take the sum; the one with a value in half precision is read from memory."""
    a, b = torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE)
    graph = traced(lambda a, b: (a @ b).half() + torch.relu(b @ a), a, b)
    first, second = partition(graph).regions
    names = [[node.name for node in region.index_maps] for region in (first, second)]
    assert names == [["mm", "_to_copy"], ["mm_1", "relu", "add"]]


def test_a_region_does_not_wait_for_what_waits_for_it() -> None:
    graph = traced(lambda a, b: torch.softmax(a @ b, -1) + a @ b, torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE))
    assert [len(region.index_maps) for region in partition(graph).regions] == [1, 2]
    graph = traced(lambda a, b: (x := a @ b) + torch.softmax(x, -1), torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE))
    found = partition(graph)
    (region,) = found.regions
    assert len(region.index_maps) == 1
    assert {reason.code for reason in found.skipped.values()} == {"E1001", "E1012"}


def deep(layers: int, results: bool = False) -> Graph:
    """Return layers of a gated unit with a residual, each with a choice; ``results``: the gates and their sums, too."""

    def run(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = []
        for _ in range(layers):
            gate = torch.sigmoid(x @ w) * torch.relu(w @ x)
            found += [gate, gate.sum(0)]
            x = x + gate @ w
        return (x, *(found if results else ()))

    return traced(run, torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE))


@pytest.mark.parametrize("results", [pytest.param(False, marks=pytest.mark.slow), True])
def test_time_is_linear(results: bool) -> None:
    """Graphs of 2,000 and of 100 nodes take equal steps for each node, also if each layer has a gradient."""
    small, large = deep(13, results), deep(286, results)
    assert len(large.nodes) >= 2000
    found, whole = partition(small), partition(large)
    assert found.exact
    assert whole.exact
    assert whole.steps / len(large.nodes) <= 1.1 * found.steps / len(small.nodes)
    assert whole.steps <= 8 * len(large.nodes)


def test_a_sum_of_products_takes_few_states() -> None:
    """Any region may own the sum so far: such states differ in the numbers of their regions alone."""

    def function(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        total = torch.zeros_like(x)
        for weight in weights:
            total = total + torch.tanh(x @ weight)
        return total

    with FakeTensorMode():
        graph = traced(function, *(torch.empty(8, 8) for _ in range(301)))
    found = partition(graph)
    assert found.exact
    assert found.steps < 4 * len(graph.nodes)
    assert len(found.regions) == 300


def test_a_narrow_search_is_a_beam() -> None:
    """With one state at a node the result is a partition still, and says that it may not be the best."""

    def run(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        values = [a @ b, b @ a, a @ a, b @ b]
        return (values[0] + values[1]) * (values[2] + values[3]) + values[0] * values[2]

    graph = traced(run, torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE))
    best, beam = partition(graph), partition(graph, width=1)
    assert (best.exact, beam.exact) == (True, False)
    assert beam.cost == moved_bytes(graph, beam.regions) >= best.cost
    assert beam.steps < best.steps


def test_views_belong_to_what_reads_them() -> None:
    graph = traced(lambda a, b: torch.relu((a @ b).t()).t(), torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE))
    (region,) = partition(graph).regions
    assert [node.name for node in region.index_maps] == ["mm", "t", "relu"]
    assert any(is_view(node) for node in graph.nodes if node not in region)


def attend(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(queries, keys, values)


def multiply(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return torch.softmax(queries @ keys.transpose(-1, -2), -1) @ values


def normalise(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return torch.softmax(queries + keys * values, -1)


@pytest.mark.parametrize(("read", "joins"), [(attend, False), (multiply, False), (normalise, True)])
def test_a_copy_of_heads_is_no_part_of_a_region(read: Callable[..., torch.Tensor], joins: bool) -> None:
    """With it, Inductor would copy the queries, keys and values one by one for their readers."""

    def heads(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        packed = (x @ weight + bias).view(2, 5, 3, 4, 8).permute(2, 0, 3, 1, 4).contiguous()
        return read(*packed.unbind(0))

    graph = traced(heads, torch.randn(10, 16), torch.randn(16, 96), torch.randn(96))
    region = partition(graph).regions[0]
    names = {node.name for node in region.index_maps}
    assert "add" in names
    assert ("clone" in names) is joins


def test_a_copy_in_the_order_that_a_kernel_writes_joins() -> None:
    """A convolution's pixels are rows as they lie: the copy that a product reads costs nothing."""

    def tokens(x: torch.Tensor, filters: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        rows = torch.relu(torch.conv2d(x, filters)).flatten(2).transpose(1, 2).contiguous()
        return rows @ weight

    graph = traced(tokens, torch.randn(2, 8, 5, 5), torch.randn(16, 8, 2, 2), torch.randn(16, 24))
    region = partition(graph).regions[0]
    assert "clone" in {node.name for node in region.index_maps}
