"""Operands computed in a region's kernel instead of before it: ``absorb(graph, regions)``, in place.

A tensor that a region alone reads, and that an elementwise operator computes of others, need not be written and read
again: the region reads those others instead. That moves fewer bytes whatever was chosen before, and waits for nothing
else, so it is done after :mod:`evt.fx.partition`.

A tensor that others read too is computed a second time, by a copy of its operator, where what the copy reads has fewer
bytes: a normalised activation is 32 bits wide, and made of 16 bits and of vectors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from torch.fx import Graph, Node

from evt.fx.example import bytes_of
from evt.fx.frame import Frame
from evt.fx.meaning import meaning, number_of, operands_of
from evt.fx.region import Region, fit_operand
from evt.fx.views import is_view, source

#: How many operators are computed a second time, one behind the other.
_DEEPEST = 8


def absorb(graph: Graph, regions: Iterable[Region]) -> None:
    """Compute in each region what it alone reads, and what is read as fewer bytes, if no other region computes that."""
    regions = list(regions)
    owned = {node for region in regions for node in region.frames}
    for region in regions:
        _Absorbing(graph, region, owned).run()
    order = {node: place for place, node in enumerate(graph.nodes)}
    for region in regions:
        _sort(region, order)


@dataclass(frozen=True)
class _Absorbing:
    graph: Graph
    region: Region
    owned: Set[Node]

    def run(self) -> None:
        frames = self.region.frames
        stack = [node for node in frames if node is not self.region.product.node and not is_view(node)]
        while stack:
            for operand in dict.fromkeys(operands_of(meaning(stack.pop()))):
                frame = self.frame(operand)
                if frame is None or not self.fits(operand, frame):
                    continue
                if any(user not in frames for user in operand.users):
                    if self.reads(operand, frame) >= _moved(operand):
                        continue
                    operand = self.copy(operand)
                frames[operand] = frame
                stack.append(operand)

    def fits(self, node: Node, frame: Frame) -> bool:
        return node not in self.owned and node not in self.region and fit_operand(node, frame)

    def frame(self, operand: Node) -> Frame | None:
        """Return the frame in which the region reads a tensor, or None where it has several, or reads a view of it."""
        users = [user for user in operand.users if user in self.region]
        first = self.region.frames[users[0]] if users else None
        if first is None or not all(self.region.frames[user].equals(first) for user in users):
            return None
        elementwise = all(not is_view(user) and user is not self.region.product.node for user in users)
        return first if elementwise else None

    def reads(self, node: Node, frame: Frame, depth: int = 0) -> int:
        """Return the bytes that are moved for a tensor that the region computes of others."""
        total = 0
        for operand in dict.fromkeys(operands_of(meaning(node))):
            if number_of(operand) is not None or any(user in self.region for user in source(operand).users):
                continue
            least = _moved(operand)
            if depth < _DEEPEST and self.fits(operand, frame):
                least = min(least, self.reads(operand, frame, depth + 1))
            total += least
        return total

    def copy(self, node: Node) -> Node:
        with self.graph.inserting_after(node):
            made = self.graph.node_copy(node)
        node.replace_all_uses_with(made, delete_user_cb=lambda user: user in self.region)
        return made


def _moved(node: Node) -> int:
    """Return the bytes that are read for a tensor, and those written where an elementwise operator has to store it."""
    inlined = node.op == "call_function" and not is_view(node) and operands_of(meaning(node))
    return bytes_of(source(node)) * (2 if inlined else 1)


def _sort(region: Region, order: Mapping[Node, int]) -> None:
    """Put the nodes into the graph's order, after the product."""
    product = region.product.node
    for node in sorted(region.frames, key=lambda each: (each is not product, order[each])):
        region.frames[node] = region.frames.pop(node)
