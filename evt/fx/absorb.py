"""Operands that only one region reads, computed in its kernel: ``absorb(graph, regions)``, in place.

A tensor that a region alone reads, and that an elementwise operator computes of others, need not be written and read
again: the region reads those others instead. That moves fewer bytes whatever was chosen before, and waits for nothing
else, so it is done after :mod:`evt.fx.partition`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

from torch.fx import Graph, Node

from evt.fx.frame import Frame
from evt.fx.meaning import meaning, operands_of
from evt.fx.region import Region, fit_operand
from evt.fx.views import is_view


def absorb(graph: Graph, regions: Iterable[Region]) -> None:
    """Compute in each region what it alone reads, if no other region computes that."""
    regions = list(regions)
    owned = {node for region in regions for node in region.frames}
    order = {node: place for place, node in enumerate(graph.nodes)}
    for region in regions:
        _absorb(region, owned, order)


def _absorb(region: Region, owned: Set[Node], order: Mapping[Node, int]) -> None:
    stack = [node for node in region.frames if node is not region.product.node and not is_view(node)]
    while stack:
        node = stack.pop()
        for operand in operands_of(meaning(node)):
            frame = _frame(region, operand)
            if operand not in owned and operand not in region and frame is not None and fit_operand(operand, frame):
                region.frames[operand] = frame
                stack.append(operand)
    product = region.product.node
    for node in sorted(region.frames, key=lambda each: (each is not product, order[each])):
        region.frames[node] = region.frames.pop(node)


def _frame(region: Region, operand: Node) -> Frame | None:
    """Return the frame in which a region reads a tensor that nothing else reads, or None."""
    frames = [region.frames.get(user) for user in operand.users]
    first = frames[0] if frames else None
    if first is None or any(each is None or not each.equals(first) for each in frames):
        return None
    elementwise = all(not is_view(user) and user is not region.product.node for user in operand.users)
    return first if elementwise else None
