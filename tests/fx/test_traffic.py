"""The nodes behind a product, found for all products of a graph at once."""

from __future__ import annotations

import random

import pytest
import torch
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx

from evt.fx.product import find_product
from evt.fx.traffic import Followers


def random_graph(seed: int) -> Graph:
    """Return a graph of square matrices, of products, sums and elementwise operators."""
    choose = random.Random(seed)
    steps = choose.choices(("product", "add", "relu", "softmax"), k=choose.randint(2, 30))

    def run(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        values = [x, w]
        for step in steps:
            near, far = choose.choice(values[-3:]), choose.choice(values)
            values.append(
                near @ far
                if step == "product"
                else near + far
                if step == "add"
                else near.relu()
                if step == "relu"
                else near.softmax(-1)
            )
        return values[-2:]

    graph: Graph = make_fx(run, tracing_mode="fake")(torch.randn(8, 8), torch.randn(8, 8)).graph
    return graph


def one_by_one(graph: Graph, product: Node) -> set[Node]:
    """Return the followers of a product by one pass over the graph."""
    found, later = {product}, set[Node]()
    nodes = list(graph.nodes)
    for node in nodes[nodes.index(product) + 1 :]:
        operands = set(node.all_input_nodes)
        if operands & later:
            later.add(node)
        elif operands & found:
            (found if find_product(node) is None else later).add(node)
    return found


@pytest.mark.parametrize("seed", range(40))
def test_followers_end_at_the_next_product(seed: int) -> None:
    graph = random_graph(seed)
    followers = Followers(graph)
    for node in graph.nodes:
        if find_product(node) is not None:
            assert followers[node] == one_by_one(graph, node)
