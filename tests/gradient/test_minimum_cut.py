"""Minimum cuts against networkx's, and in networks that its algorithms take long for."""

from __future__ import annotations

import random

import networkx as nx
import pytest

from evt.gradient.flow import UNBOUNDED, minimum_cut


def network(seed: int) -> tuple[dict[tuple[int, int], int], int]:
    """Return random edges by their ends, and the sink; the capacity out of vertex 0 is bounded."""
    draw = random.Random(seed)
    count = draw.randrange(3, 30)
    edges = {}
    for _ in range(draw.randrange(1, 4 * count)):
        tail, head = sorted(draw.sample(range(count), 2))
        edges[tail, head] = draw.choice([0, 1, 1, 2, 5, 16, UNBOUNDED if tail else 50])
    return edges, count - 1


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_random_networks(first: int) -> None:
    for seed in range(first, first + 100):
        edges, sink = network(seed)
        graph = nx.DiGraph()
        graph.add_nodes_from(range(sink + 1))
        for (tail, head), capacity in edges.items():
            graph.add_edge(tail, head, **({} if capacity == UNBOUNDED else {"capacity": capacity}))
        _, (near, _) = nx.minimum_cut(graph, 0, sink)
        assert minimum_cut([(tail, head, capacity) for (tail, head), capacity in edges.items()], sink) == near


def test_the_nearest_of_equal_cuts_to_the_sink() -> None:
    assert minimum_cut([(0, 1, 3), (1, 2, 3), (2, 3, 3)], 3) == {0, 1, 2}


def test_paths_of_all_lengths() -> None:
    """Each value of a long chain feeds the sink a little."""
    count = 1000
    edges = [(0, 1, count + 5)]
    for vertex in range(1, count):
        edges += [(vertex, vertex + 1, UNBOUNDED), (vertex, count + 1, 1)]
    assert minimum_cut(edges, count + 1) == set(range(count + 1))
