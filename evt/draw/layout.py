"""A layered layout: each node's position, and each edge's path between the nodes.

The four steps of Sugiyama's method: layers by longest path; order within the layers by barycentres, to avoid crossings;
columns by least squares, to avoid bends; rows from the heights. Nodes are boxes of given sizes. An edge that passes a
layer reserves a lane there.

Lengths and coordinates are whole numbers, :data:`PIXEL` to a pixel, because versions of Python round sums of floats
differently.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import networkx as nx

from evt.draw.box import edges
from evt.ir import Dag, Store

PIXEL = 1000
_NODE_GAP = 26 * PIXEL
_LANE_GAP = 14 * PIXEL
_LAYER_GAP = 42 * PIXEL
_ORDER_SWEEPS = 6
_COLUMN_SWEEPS = 8
#: The weight of an edge's pull for each of its ends that is a lane: long edges should run straight.
_LANE_PULL = 3


@dataclass(frozen=True, slots=True)
class BoxPosition:
    """A box: its centre line, its upper and lower sides, and the lowest side in its layer (``floor``).

    The boxes of a layer hang from one line. A lane is a box of width 0 and the height of its layer.
    """

    x: int
    top: int
    bottom: int
    floor: int
    width: int


@dataclass(frozen=True, slots=True)
class GraphLayout:
    """``nodes`` by id; ``lanes`` of each (operand, user, slot), the boxes that it passes."""

    nodes: tuple[BoxPosition, ...]
    lanes: Mapping[tuple[int, int, int], tuple[BoxPosition, ...]]
    width: int
    height: int


def layout(dag: Dag, sizes: Sequence[tuple[int, int]]) -> GraphLayout:
    """Return the layout of boxes with the given widths and heights; coordinates start at 0."""
    layer_of = _layers(dag)
    links, lanes = _link(dag, layer_of)
    layers = _order(links, layer_of)
    width_of = [width for width, _ in sizes] + [0] * (len(layer_of) - len(dag))
    x = _columns(links, layers, width_of, len(dag))
    left = min((x[v] - width_of[v] // 2 for v in range(len(x))), default=0)
    right = max((x[v] + width_of[v] // 2 for v in range(len(x))), default=0)

    place: dict[int, BoxPosition] = {}
    top = floor = 0
    for layer in layers:
        floor = top + max(sizes[v][1] if v < len(dag) else 0 for v in layer)
        for v in layer:
            bottom = top + sizes[v][1] if v < len(dag) else floor
            place[v] = BoxPosition(x[v] - left, top, bottom, floor, width_of[v])
        top = floor + _LAYER_GAP
    return GraphLayout(
        tuple(place[node] for node in range(len(dag))),
        {edge: tuple(place[v] for v in passed) for edge, passed in lanes.items()},
        right - left,
        floor,
    )


def _layers(dag: Dag) -> list[int]:
    """Return each node's layer: its longest path from the inputs, or just above its first user if there is room."""
    layer_of = [0] * len(dag)
    for layer, nodes in enumerate(nx.topological_generations(dag.graph)):
        for node in nodes:
            layer_of[node] = layer
    for node in reversed(range(len(dag))):
        if not isinstance(dag[node], Store) and dag.users[node]:
            layer_of[node] = min(layer_of[user] for user in dag.users[node]) - 1
    return layer_of


def _link(dag: Dag, layer_of: list[int]) -> tuple[Any, dict[tuple[int, int, int], list[int]]]:
    """Return the graph whose links join neighbouring layers, from user to operand, and the lanes of each edge.

    Lanes are new vertices, appended to ``layer_of``. Edges could need quadratically many lanes, so there is a budget:
    the longest edges get none, and are drawn behind the boxes that they cross.
    """
    lanes: dict[tuple[int, int, int], list[int]] = {edge: [] for edge in edges(dag)}
    budget = 2000 + 2 * len(dag)
    straight = set[tuple[int, int, int]]()
    for edge in sorted(lanes, key=lambda edge: layer_of[edge[1]] - layer_of[edge[0]]):
        budget -= layer_of[edge[1]] - layer_of[edge[0]] - 1
        if budget < 0:
            straight.add(edge)
    links: Any = nx.DiGraph()
    links.add_nodes_from(dag.stores.values())  # the search for a first order starts from these
    links.add_nodes_from(range(len(dag)))
    for edge, passed in lanes.items():
        operand, user, _ = edge
        if edge in straight:
            continue
        previous = user
        for layer in range(layer_of[user] - 1, layer_of[operand], -1):
            lane = len(layer_of)
            layer_of.append(layer)
            passed.append(lane)
            links.add_edge(previous, lane)
            previous = lane
        links.add_edge(previous, operand)
        passed.reverse()
    return links, lanes


def _order(links: Any, layer_of: Sequence[int]) -> list[list[int]]:
    """Return the vertices of each layer from left to right."""
    layers: list[list[int]] = [[] for _ in range(max(layer_of, default=-1) + 1)]
    for vertex in nx.dfs_preorder_nodes(links):  # operands in slot order: a tree starts without crossings
        layers[layer_of[vertex]].append(vertex)
    best, fewest = layers, _crossings(links, layers)
    for sweep in range(_ORDER_SWEEPS):
        if fewest == 0:
            break
        down = sweep % 2 == 1
        layers = [*layers]
        position = {vertex: i for layer in layers for i, vertex in enumerate(layer)}
        for index in range(len(layers)) if down else reversed(range(len(layers))):
            centre = dict[int, float]()
            for vertex in layers[index]:
                others = [position[other] for other in (links.succ if down else links.pred)[vertex]]
                centre[vertex] = sum(others) / len(others) if others else position[vertex]
            layers[index] = sorted(layers[index], key=centre.__getitem__)
            position.update((vertex, i) for i, vertex in enumerate(layers[index]))
        crossings = _crossings(links, layers)
        if crossings < fewest:
            best, fewest = layers, crossings
    return best


def _crossings(links: Any, layers: Sequence[Sequence[int]]) -> int:
    """Return the number of crossing links."""
    crossings = 0
    for upper, lower in pairwise(layers):
        position = {vertex: i for i, vertex in enumerate(upper)}
        seen: list[int] = []
        for vertex in lower:
            ends = sorted(position[other] for other in links.succ[vertex])
            crossings += sum(len(seen) - bisect_right(seen, end) for end in ends)
            for end in ends:
                insort(seen, end)
    return crossings


def _columns(links: Any, layers: Sequence[Sequence[int]], width_of: Sequence[int], first_lane: int) -> dict[int, int]:
    """Return the x of each vertex: as near to the middle of its neighbours as the adjacent boxes allow."""

    def pull(a: int, b: int) -> int:
        return (_LANE_PULL if a >= first_lane else 1) * (_LANE_PULL if b >= first_lane else 1)

    offsets: list[list[int]] = []
    x = dict[int, int]()
    for layer in layers:
        offset = 0
        offsets.append([])
        for left, vertex in zip((None, *layer), layer, strict=False):
            if left is not None:
                gap = _LANE_GAP if min(left, vertex) >= first_lane else _NODE_GAP
                offset += (width_of[left] + width_of[vertex]) // 2 + gap
            offsets[-1].append(offset)
            x[vertex] = offset
    for sweep in range(_COLUMN_SWEEPS):
        down = sweep % 2 == 1
        both = sweep >= _COLUMN_SWEEPS // 2  # first one side, which moves boxes far; then both, which balances
        for index in range(len(layers)) if down else reversed(range(len(layers))):
            wanted, weights = [], []
            for vertex in layers[index]:
                above = links.succ[vertex] if down or both else ()
                below = links.pred[vertex] if both or not down else ()
                others = [*above, *below]
                weight = sum(pull(vertex, other) for other in others)
                centre = sum(pull(vertex, other) * x[other] for other in others)
                wanted.append(centre // weight if weight else x[vertex])
                weights.append(100 * weight or 1)
            slack = _ascending([a - b for a, b in zip(wanted, offsets[index], strict=True)], weights)
            x |= {v: a + b for v, a, b in zip(layers[index], slack, offsets[index], strict=True)}
    return x


def _ascending(values: Sequence[int], weights: Sequence[int]) -> list[int]:
    """Return the sequence nearest to ``values`` that never falls, by least squares (pool adjacent violators)."""
    pools: list[tuple[int, int, int]] = []  # sum, weight, length
    for value, weight in zip(values, weights, strict=True):
        pool = (value * weight, weight, 1)
        while pools and pools[-1][0] * pool[1] > pool[0] * pools[-1][1]:
            total, mass, length = pools.pop()
            pool = (total + pool[0], mass + pool[1], length + pool[2])
        pools.append(pool)
    return [total // mass for total, mass, length in pools for _ in range(length)]
