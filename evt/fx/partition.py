"""Which nodes go into which product's kernel: ``partition(graph) -> Partition``.

The problem. Let P be the products of a graph, and let each node v be given to one product or to none, so that

1. v is given to p only if :func:`evt.fx.region.fit` says so beside the nodes that p has already, at least one of which
   v reads;
2. no cycle arises when the nodes of each product become one node: what a kernel reads is there before it starts.

A tensor that one kernel writes and another reads is moved twice. Of all such choices the one is wanted that moves the
fewest bytes: the objective is the sum, over all nodes v given to a product, of the bytes of those operands of v in the
same region that then need no longer be read (:func:`saved_bytes`), and of those that need not be written since nothing
else reads them.

The solver. A node that only one product can have is always given to it: it saves bytes, and it only adds choices for
the nodes behind it. A node that several can have (the sum of two products) is a choice, and its consequences are
searched exactly, depth first, as long as a component of the graph has few of them (:data:`BUDGET`); beyond that the
later product takes it, whose other operands are computed by then in any case.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch.fx import Graph, Node

from evt.fx.frame import Frame
from evt.fx.product import Product, find_product
from evt.fx.region import Misfit, Region, fit, is_view

#: How many assignments of one graph are searched before the rest is decided greedily.
BUDGET = 512


@dataclass
class Partition:
    """The regions of a graph, in the order of their products.

    ``misfits`` say why nodes behind a product are in none; ``alone`` are products that nothing joined.
    """

    regions: list[Region]
    misfits: dict[Node, Misfit]
    alone: list[Product]


def partition(graph: Graph) -> Partition:
    """Return the regions that move the fewest bytes; see the module."""
    nodes = list(graph.nodes)
    products = [found for node in nodes if (found := find_product(node)) is not None]
    return _Search(nodes, products).best()


def saved_bytes(region: Region) -> float:
    """Return how many bytes a region moves less than its nodes one after the other."""
    saved = 0.0
    for node in region.frames:
        readers = [user for user in node.users if user in region and not is_view(user)]
        saved += _bytes(node) * len(readers)
        if not is_view(node) and node.users and all(user in region for user in node.users):
            saved += _bytes(node)
    return saved


def _bytes(node: Node) -> float:
    value = node.meta["val"]
    try:
        return float(int(value.numel()) * value.dtype.itemsize)
    except (TypeError, ValueError, RuntimeError):  # a size that is not known yet
        return float(value.dtype.itemsize) * math.prod(size if isinstance(size, int) else 64 for size in value.shape)


class _Search:
    def __init__(self, nodes: Sequence[Node], products: Sequence[Product]) -> None:
        self.nodes = nodes
        self.order = {node: place for place, node in enumerate(nodes)}
        self.products = products
        self.tried = 0

    def best(self) -> Partition:
        start = _State([Region(product) for product in self.products], {})
        start.owner = {region.product.node: index for index, region in enumerate(start.regions)}
        found = self._search(start, 0)
        regions = [region for region in found.regions if len(region.frames) > 1 or region.product.terms]
        alone = [region.product for region in found.regions if region not in regions]
        return Partition(regions, found.misfits, alone)

    def _search(self, state: _State, place: int) -> _State:
        """Give the nodes from ``place`` on to regions, the best way."""
        while place < len(self.nodes):
            node = self.nodes[place]
            place += 1
            choices = self._choices(state, node)
            if not choices:
                continue
            if len(choices) > 1 and self.tried < BUDGET:
                self.tried += len(choices)
                tried = [self._search(state.given(node, *choice), place) for choice in choices]
                return max(tried, key=lambda each: each.saved())
            state.give(node, *choices[-1])
        return state

    def _choices(self, state: _State, node: Node) -> list[tuple[int, Frame]]:
        if node.op != "call_function" or node in state.owner:
            return []
        owners = dict.fromkeys(state.owner[each] for each in node.all_input_nodes if each in state.owner)
        choices = []
        for index in sorted(owners, key=lambda each: self.order[state.regions[each].product.node]):
            frame = fit(node, state.regions[index].frames)
            if isinstance(frame, Misfit):
                state.misfits.setdefault(node, frame)
            elif self._closes_cycle(state, node, index):
                state.misfits.setdefault(node, Misfit(node, "it needs what is computed from the product's own result"))
            else:
                choices.append((index, frame))
        return choices

    def _closes_cycle(self, state: _State, node: Node, index: int) -> bool:
        """Return whether an operand of the node, outside of the region, needs something of the region."""
        region = state.regions[index]
        stack = [each for each in node.all_input_nodes if each not in region]
        seen: set[Node] = set()
        while stack:
            each = stack.pop()
            if each in region:
                return True
            if each in seen:
                continue
            seen.add(each)
            owner = state.owner.get(each)
            if owner is not None:  # all of a region is computed at once
                found = [*state.regions[owner].frames, *state.regions[owner].reads()]
                stack += [other for other in found if other not in seen]
            else:
                stack += each.all_input_nodes
        return False


@dataclass
class _State:
    regions: list[Region]
    owner: dict[Node, int]
    misfits: dict[Node, Misfit] = field(default_factory=dict)

    def give(self, node: Node, index: int, frame: Frame) -> None:
        self.regions[index].frames[node] = frame
        self.owner[node] = index

    def given(self, node: Node, index: int, frame: Frame) -> _State:
        made = _State([region.copy() for region in self.regions], dict(self.owner), dict(self.misfits))
        made.give(node, index, frame)
        return made

    def saved(self) -> float:
        return sum(map(saved_bytes, self.regions))
