"""Minimum cuts of acyclic networks: ``minimum_cut(edges, sink) -> vertices``, by Dinic's algorithm.

The first blocking flow goes along all edges, and is nearly always the maximum. Later flows, along shortest paths of the
residual network, correct it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

#: The capacity of an edge that no cut contains.
UNBOUNDED = 1 << 62


class _Network:
    """A residual network: edge ``e`` leads to ``heads[e]`` with remaining capacity ``room[e]``; ``e ^ 1`` is its
    reverse.
    """

    def __init__(self, edges: Iterable[tuple[int, int, int]], sink: int) -> None:
        self.sink = sink
        self.heads: list[int] = []
        self.room: list[int] = []
        self.leaving: list[list[int]] = [[] for _ in range(sink + 1)]
        for tail, head, capacity in edges:
            self.leaving[tail].append(len(self.heads))
            self.leaving[head].append(len(self.heads) + 1)
            self.heads += [head, tail]
            self.room += [capacity, 0]

    def block(self, level: Sequence[int]) -> None:
        """Push flow from vertex 0 along edges to higher levels until each such path has a full edge."""
        heads, room, leaving = self.heads, self.room, self.leaving
        tried = [0] * len(leaving)
        path: list[int] = []
        vertex = 0
        while True:
            if vertex == self.sink:
                flow = min(room[edge] for edge in path)
                for edge in path:
                    room[edge] -= flow
                    room[edge ^ 1] += flow
                full = next(place for place, edge in enumerate(path) if not room[edge])
                vertex = heads[path[full] ^ 1]
                del path[full:]
            elif tried[vertex] < len(leaving[vertex]):
                edge = leaving[vertex][tried[vertex]]
                if room[edge] and level[heads[edge]] > level[vertex]:
                    path.append(edge)
                    vertex = heads[edge]
                else:
                    tried[vertex] += 1
            elif path:
                vertex = heads[path.pop() ^ 1]
                tried[vertex] += 1
            else:
                return

    def distances(self) -> list[int] | None:
        """Return each vertex's distance from vertex 0, or -1 beyond the sink's; None if no path leads to the sink."""
        found = [-1] * len(self.leaving)
        found[0] = 0
        reached = [0]
        for vertex in reached:
            if vertex == self.sink:
                return found
            for edge in self.leaving[vertex]:
                head = self.heads[edge]
                if self.room[edge] and found[head] < 0:
                    found[head] = found[vertex] + 1
                    reached.append(head)
        return None

    def cut_off(self) -> set[int]:
        """Return the vertices from which no path leads to the sink."""
        reaching, reached = {self.sink}, [self.sink]
        for vertex in reached:
            for edge in self.leaving[vertex]:
                tail = self.heads[edge]
                if self.room[edge ^ 1] and tail not in reaching:
                    reaching.add(tail)
                    reached.append(tail)
        return set(range(len(self.leaving))) - reaching


def minimum_cut(edges: Iterable[tuple[int, int, int]], sink: int) -> set[int]:
    """Return the side of vertex 0 of a minimum cut; among equal cuts, of the cut nearest to the sink.

    An edge is (tail, head, capacity), and its head has the higher number.
    """
    network = _Network(edges, sink)
    level: Sequence[int] | None = range(sink + 1)
    while level is not None:
        network.block(level)
        level = network.distances()
    return network.cut_off()
