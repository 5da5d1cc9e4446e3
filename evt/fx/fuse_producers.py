"""Compute operands inside a region's kernel: ``fuse_producers(graph, regions, once)``, in place.

If an elementwise operator computes a tensor that only one region reads, the region's kernel computes the operator
instead and reads the operator's operands. This always moves fewer bytes and adds no dependency, so it runs after
:mod:`evt.fx.partition`.

If other nodes read the tensor as well, the kernel recomputes it where the operands have fewer bytes. For example, a
normalised activation in float32 is computed from a float16 activation and vectors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

from torch.fx import Graph, Node

from evt.fx.example import bytes_of
from evt.fx.index_map import IndexMap
from evt.fx.norms import reads_aside
from evt.fx.op_semantics import number_of, operands_of, semantics
from evt.fx.region import FusionRegion, fit_operand
from evt.fx.views import Sources, is_view

#: The longest chain of operators that a kernel recomputes.
_DEEPEST = 8


def fuse_producers(graph: Graph, regions: Iterable[FusionRegion], once: Set[Node]) -> None:
    """Move producers that one region alone reads into the region; recompute others where that reads fewer bytes.

    The tensors in ``once`` stay: no second kernel computes them.
    """
    regions = list(regions)
    stored = {*once, *(node for region in regions for node in region.index_maps)}
    for region in regions:
        _Producers(graph, region, stored).run()
    order = {node: place for place, node in enumerate(graph.nodes)}
    for region in regions:
        _sort(region, order)


@dataclass
class _Producers:
    """The operands of a region: ``readers`` counts the nodes that read each, ``read_in`` has their common index map.

    ``stored`` are the tensors that other kernels compute.
    """

    graph: Graph
    region: FusionRegion
    stored: Set[Node]
    sources: Sources = field(default_factory=Sources)
    readers: dict[Node, int] = field(default_factory=dict)
    read_in: dict[Node, IndexMap | None] = field(default_factory=dict)

    def run(self) -> None:
        index_maps = self.region.index_maps
        for node in index_maps:
            self.count(node)
        stack = [node for node in index_maps if not self.is_opaque(node)]
        while stack:
            for operand in dict.fromkeys(operands_of(semantics(stack.pop()))):
                index_map = self.index_map(operand)
                if index_map is None:
                    continue
                if self.readers[operand] < len(operand.users):
                    if self.is_kept(operand) and self.reads(operand, index_map) >= self.moved(operand):
                        continue
                    operand = self.copy(operand)
                index_maps[operand] = index_map
                self.count(operand)
                stack.append(operand)

    def is_opaque(self, node: Node) -> bool:
        """Return whether a node of the region does not read its operands elementwise."""
        return node is self.region.product.node or is_view(node)

    def count(self, node: Node) -> None:
        """Count a node of the region as a reader of its operands."""
        mine = None if self.is_opaque(node) else self.region.index_maps[node]
        for operand in node.all_input_nodes:
            self.readers[operand] = self.readers.get(operand, 0) + 1
            known = self.read_in.setdefault(operand, mine)
            if known is not None and (mine is None or not mine.equals(known)):
                self.read_in[operand] = None

    def index_map(self, operand: Node) -> IndexMap | None:
        """Return the index map with which the region can compute an operand, or None."""
        index_map = self.read_in.get(operand)
        return index_map if index_map is not None and self.fits(operand, index_map) else None

    def fits(self, node: Node, index_map: IndexMap) -> bool:
        return node not in self.stored and node not in self.region and fit_operand(node, index_map)

    def is_kept(self, node: Node) -> bool:
        """Return whether a node outside of the region reads a tensor; a product that takes a norm in reads none."""
        return any(user not in self.region and not reads_aside(user, node) for user in node.users)

    def reads(self, node: Node, index_map: IndexMap, depth: int = 0) -> int:
        """Return the bytes that the region reads if it computes a tensor itself."""
        total = 0
        for operand in dict.fromkeys(operands_of(semantics(node))):
            if number_of(operand) is not None or self.sources[operand] in self.readers:
                continue
            least = self.moved(operand)
            if depth < _DEEPEST and self.fits(operand, index_map):
                least = min(least, self.reads(operand, index_map, depth + 1))
            total += least
        return total

    def moved(self, node: Node) -> int:
        """Return the bytes read for a tensor, plus the bytes written if an elementwise kernel stores it."""
        inlined = node.op == "call_function" and not is_view(node) and operands_of(semantics(node))
        return bytes_of(self.sources[node]) * (2 if inlined else 1)

    def copy(self, node: Node) -> Node:
        with self.graph.inserting_after(node):
            made = self.graph.node_copy(node)
        node.replace_all_uses_with(made, delete_user_cb=lambda user: user in self.region)
        self.readers[made], self.read_in[made] = self.readers.pop(node), self.read_in.pop(node)
        return made


def _sort(region: FusionRegion, order: Mapping[Node, int]) -> None:
    """Sort the nodes in the graph's order, after the product."""
    product = region.product.node
    for node in sorted(region.index_maps, key=lambda each: (each is not product, order[each])):
        region.index_maps[node] = region.index_maps.pop(node)
