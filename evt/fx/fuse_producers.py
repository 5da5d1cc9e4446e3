"""Operands computed in a region's kernel instead of before it: ``fuse_producers(graph, regions)``, in place.

A tensor that a region alone reads, and that an elementwise operator computes of others, need not be written and read
again: the region reads those others instead. That moves fewer bytes whatever was chosen before, and waits for nothing
else, so it is done after :mod:`evt.fx.partition`.

A tensor that others read too is computed a second time, by a copy of its operator, where what the copy reads has fewer
bytes: a normalised activation is 32 bits wide, and made of 16 bits and of vectors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

from torch.fx import Graph, Node

from evt.fx.example import bytes_of
from evt.fx.index_map import IndexMap
from evt.fx.op_semantics import number_of, operands_of, semantics
from evt.fx.region import FusionRegion, fit_operand
from evt.fx.views import Sources, is_view

#: How many operators are computed a second time, one behind the other.
_DEEPEST = 8


def fuse_producers(graph: Graph, regions: Iterable[FusionRegion]) -> None:
    """Compute in each region what it alone reads, and what is read as fewer bytes, if no other region computes that."""
    regions = list(regions)
    owned = {node for region in regions for node in region.index_maps}
    for region in regions:
        _Producers(graph, region, owned).run()
    order = {node: place for place, node in enumerate(graph.nodes)}
    for region in regions:
        _sort(region, order)


@dataclass
class _Producers:
    """The operands of a region: how many of its nodes read each, and the index map in which all of them do, or None."""

    graph: Graph
    region: FusionRegion
    owned: Set[Node]
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
                    if self.reads(operand, index_map) >= self.moved(operand):
                        continue
                    operand = self.copy(operand)
                index_maps[operand] = index_map
                self.count(operand)
                stack.append(operand)

    def is_opaque(self, node: Node) -> bool:
        """Return whether a node of the region reads its operands in another way than elementwise."""
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
        """Return the index map in which the region could compute an operand, or None."""
        index_map = self.read_in.get(operand)
        return index_map if index_map is not None and self.fits(operand, index_map) else None

    def fits(self, node: Node, index_map: IndexMap) -> bool:
        return node not in self.owned and node not in self.region and fit_operand(node, index_map)

    def reads(self, node: Node, index_map: IndexMap, depth: int = 0) -> int:
        """Return the bytes that are moved for a tensor that the region computes of others."""
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
        """Return the bytes that are read for a tensor, and written where an elementwise operator has to store it."""
        inlined = node.op == "call_function" and not is_view(node) and operands_of(semantics(node))
        return bytes_of(self.sources[node]) * (2 if inlined else 1)

    def copy(self, node: Node) -> Node:
        with self.graph.inserting_after(node):
            made = self.graph.node_copy(node)
        node.replace_all_uses_with(made, delete_user_cb=lambda user: user in self.region)
        self.readers[made], self.read_in[made] = self.readers.pop(node), self.read_in.pop(node)
        return made


def _sort(region: FusionRegion, order: Mapping[Node, int]) -> None:
    """Put the nodes into the graph's order, after the product."""
    product = region.product.node
    for node in sorted(region.index_maps, key=lambda each: (each is not product, order[each])):
        region.index_maps[node] = region.index_maps.pop(node)
