"""Partition a graph into kernels so that the fewest bytes move: ``partition(graph) -> Partition``.

The problem. Each node that is not a product joins the region of one product, or none. A node v may join the region of p
if :func:`evt.fx.region.fit` accepts v beside the region's nodes, and if v reads one of these nodes. No other operand of
v may depend on p, since a kernel starts after all its inputs are complete.

The kernels are the regions, and each other node that is not a view. A kernel reads each of its inputs once. It writes
each result that another kernel, or the graph's output, reads. The objective is

    minimise    sum over kernels K of  bytes(read by K) + bytes(written by K)

The solver visits the nodes in the graph's order and keeps a set of states. A state records the choices so far. Its
front is the part that affects later nodes. It contains the regions of the nodes that are still to be read, the nodes
that are written, the tensors that open regions have read, and the dependencies between regions. The solver keeps the
cheaper of two states with equal fronts, since the rest of the graph costs both the same. The result is a minimum if at
most :data:`WIDTH` fronts arise at each node. Otherwise the solver keeps the cheapest states: a beam search.

A node has several choices if it reads several regions. It may also stay out if a region would gain a dependency by it.
In all other cases joining is never worse. The node does not read the region's value from memory and writes the same
bytes. Later nodes keep their choices. So most nodes take one step per state, and the time for a chain of layers is
proportional to its length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch.fx import Graph, Node

from evt.fx.aten import is_tensor
from evt.fx.index_map import IndexMap
from evt.fx.product import Product, find_product
from evt.fx.region import FusionRegion, fit
from evt.fx.skip_reason import SkipReason
from evt.fx.views import Sources, is_view

#: The most states that are kept at a node.
WIDTH = 256
#: The assumed extent of a symbolic dimension. It does not depend on the call, so every call gets the same regions.
_UNKNOWN = 64


@dataclass(frozen=True)
class Partition:
    """The regions of a graph, one for each product, in the order of the products.

    ``skipped`` has the reasons of products that evt cannot compute, and of readers of a region that do not join it.
    ``cost`` is the objective, ``steps`` the number of visited choices. ``exact``: no state was dropped.
    """

    regions: tuple[FusionRegion, ...]
    skipped: dict[Node, SkipReason]
    cost: int
    steps: int
    exact: bool


def partition(graph: Graph, width: int = WIDTH, left: Mapping[Node, SkipReason] | None = None) -> Partition:
    """Return the regions that move the fewest bytes; products in ``left`` get none, for these reasons."""
    return _Search(list(graph.nodes), width, left or {}).solve()


def moved_bytes(graph: Graph, regions: Iterable[FusionRegion]) -> int:
    """Return the objective: the bytes that the kernels of regions, and of the other nodes, read and write."""
    owner = {node: index for index, region in enumerate(regions) for node in region.index_maps}
    sources = Sources()
    reads: set[tuple[object, Node]] = set()
    written: set[Node] = set()
    for node in graph.nodes:
        if is_view(node) and node not in owner:
            continue
        for operand in map(sources.__getitem__, node.all_input_nodes):
            if node.op == "output" or operand not in owner or owner[operand] != owner.get(node):
                written.add(operand)
                if node.op != "output":
                    reads.add((owner.get(node, node), operand))
    loose = (node for node in graph.nodes if _is_kernel(node) and node not in owner)
    return sum(_bytes(operand) for _, operand in reads) + sum(map(_bytes, {*loose, *(written & owner.keys())}))


def _is_kernel(node: Node) -> bool:
    return node.op == "call_function" and not is_view(node)


def _bytes(node: Node) -> int:
    if not is_tensor(node):
        return 0
    value: torch.Tensor = node.meta["val"]
    return math.prod(size if isinstance(size, int) else _UNKNOWN for size in value.shape) * value.dtype.itemsize


class _Facts:
    """The facts about a graph's nodes that all states share.

    ``sources`` are the base tensors of views, ``results`` the tensors that the graph's output reads. A region writes
    such results at once, so that no region stays open until the end.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.sources = Sources()
        ends = (each for node in nodes if node.op == "output" for each in node.all_input_nodes)
        self.results = frozenset(self.sources[each] for each in ends)
        self.operands = {node: tuple(node.all_input_nodes) for node in nodes}
        self.views = {node for node in nodes if is_view(node)}
        self.bytes = {node: _bytes(node) for node in nodes}
        #: The bytes that a node moves as a kernel: its operands and its result.
        self.alone = {node: 0 if node in self.views else self._alone(node) for node in nodes}

    def bases(self, node: Node) -> Iterable[Node]:
        """Return the tensors that a node reads."""
        return dict.fromkeys(self.sources[each] for each in self.operands[node])

    def _alone(self, node: Node) -> int:
        read = sum(self.bytes[each] for each in self.bases(node)) if node.op != "output" else 0
        return read + (self.bytes[node] if _is_kernel(node) else 0)


@dataclass
class _State:
    """The choices so far, with their front. Regions are numbers, and sets of regions are the bits of an int."""

    facts: _Facts
    cost: int = 0
    #: The nodes of regions that are still to be read, with their region and index map.
    owner: dict[Node, tuple[int, IndexMap]] = field(default_factory=dict)
    #: The other nodes that are still to be read, if they depend on regions: these regions.
    needs: dict[Node, int] = field(default_factory=dict)
    #: The written nodes of regions, and by tensor the regions that have read it.
    written: set[Node] = field(default_factory=set)
    read: dict[Node, int] = field(default_factory=dict)
    #: By open region, the number of its nodes that are still to be read, and the regions on which it depends.
    open: dict[int, int] = field(default_factory=dict)
    before: dict[int, int] = field(default_factory=dict)
    #: A linked list of the nodes that have joined regions, the last node first.
    chosen: _Chosen | None = None

    def copy(self) -> _State:
        copied = (dict(self.owner), dict(self.needs), set(self.written), dict(self.read))
        return _State(self.facts, self.cost, *copied, dict(self.open), dict(self.before), self.chosen)

    def owns(self, index: int, node: Node) -> bool:
        return node in self.owner and self.owner[node][0] == index

    def readers(self, node: Node) -> dict[int, dict[Node, IndexMap]]:
        """Return the regions that a node reads, in order, each with the index maps of the node's operands there."""
        found: dict[int, dict[Node, IndexMap]] = {}
        for operand in self.facts.operands[node]:
            if operand in self.owner:
                index, index_map = self.owner[operand]
                found.setdefault(index, {})[operand] = index_map
        return dict(sorted(found.items()))

    def needed(self, node: Node, index: int) -> int:
        """Return the regions on which a node depends by operands outside of a region."""
        found = 0
        for operand in self.facts.operands[node]:
            if not self.owns(index, operand):
                found |= self.needed_for(operand)
        return found

    def needed_for(self, node: Node) -> int:
        """Return the regions on which a node depends, with its own."""
        owned = self.owner.get(node)
        return 1 << owned[0] | self.before.get(owned[0], 0) if owned else self.needs.get(node, 0)

    def leave(self, node: Node) -> None:
        """Let a node stay out: it becomes a kernel, unless it is a view."""
        needs = 0
        for each in self.facts.operands[node]:
            needs |= self.needed_for(each)
        if needs:
            self.needs[node] = needs
        self.cost += self.facts.alone[node]
        if needs and node not in self.facts.views:
            for operand in self.facts.bases(node):
                self._write(operand)

    def give(self, node: Node, index: int, index_map: IndexMap) -> None:
        """Let a node join a region."""
        self._wait(index, self.needed(node, index))
        for operand in self.facts.operands[node]:
            base = self.facts.sources[operand]
            if not self.owns(index, operand):
                self._write(base)
                known = self.read.get(base, 0)
                self.cost += 0 if known >> index & 1 else self.facts.bytes[base]
                self.read[base] = known | 1 << index
        self.owner[node] = index, index_map
        self.open[index] = self.open.get(index, 0) + 1
        if node in self.facts.results:
            self._write(node)
        self.chosen = _Chosen(self.chosen, node, index, index_map)

    def _wait(self, index: int, regions: int) -> None:
        """Let a region, and everything that depends on it, depend on other regions."""
        if regions & ~self.before.get(index, 0) == 0:
            return
        self.before[index] = regions = self.before.get(index, 0) | regions
        if index in self.open:  # a new region has no readers
            for waiting in (self.before, self.needs):
                found = [(key, before | regions) for key, before in waiting.items() if before >> index & 1]
                waiting.update(found)  # type: ignore[arg-type]

    def _write(self, node: Node) -> None:
        """Count the write of a region's result once; writes of other kernels are counted when the kernel is made."""
        if node in self.owner and node not in self.written:
            self.written.add(node)
            self.cost += self.facts.bytes[node]

    def drop(self, done: Sequence[Node]) -> None:
        """Drop nodes without further readers, and regions without other nodes."""
        for node in done:
            self.needs.pop(node, None)
            self.read.pop(node, None)
            self.written.discard(node)
            if (owned := self.owner.pop(node, None)) is None:
                continue
            self.open[owned[0]] -= 1
            if self.open[owned[0]] == 0:
                del self.open[owned[0]]
                self.before.pop(owned[0], None)

    def front(self, kind: Callable[[IndexMap], int]) -> object:
        """Return the front: the part of the state that affects later nodes.

        Open regions are numbered by their first node that is still to be read. So states are equal if they differ only
        in which of several equivalent regions owns a value, such as a running sum of many products.
        """
        number: dict[int, int] = {}
        owners = [
            (node, number.setdefault(index, len(number)), kind(index_map))
            for node, (index, index_map) in self.owner.items()
        ]
        bits = {1 << index: 1 << place for index, place in number.items()}
        every, known = sum(bits), dict[int, int]()

        def renumbered(regions: int) -> int:
            left = mine = regions & every
            if mine not in known:
                found = 0
                while left:
                    found |= bits[left & -left]
                    left &= left - 1
                known[mine] = found
            return known[mine]

        needs = [(node, renumbered(regions)) for node, regions in self.needs.items()]
        before = [renumbered(self.before.get(index, 0)) for index in number]
        read = frozenset((node, found) for node, regions in self.read.items() if (found := renumbered(regions)))
        return tuple(owners), tuple(needs), tuple(before), frozenset(self.written), read


@dataclass(frozen=True)
class _Chosen:
    before: _Chosen | None
    node: Node
    index: int
    index_map: IndexMap


class _Search:
    def __init__(self, nodes: Sequence[Node], width: int, left: Mapping[Node, SkipReason]) -> None:
        self.nodes, self.width = nodes, width
        self.products: list[Product] = []
        self.product_at: dict[Node, int] = {}
        self.skipped: dict[Node, SkipReason] = {}
        self.steps, self.exact = 0, True
        self._fits: dict[object, IndexMap | SkipReason | None] = {}
        self._maps: list[IndexMap] = []
        self._kinds: dict[int, tuple[int, IndexMap]] = {}
        for node in nodes:
            found = left.get(node) or find_product(node)
            if isinstance(found, Product):
                self.product_at[node] = len(self.products)
                self.products.append(found)
            elif found is not None:
                self.skipped[node] = found
        self.last = _last_readers(nodes)
        self.start = _State(_Facts(nodes))
        #: The nodes that depend on no region.
        self.apart: set[Node] = set()
        for node in nodes:
            if node not in self.product_at and self.apart.issuperset(node.all_input_nodes):
                self.apart.add(node)

    def solve(self) -> Partition:
        states = [self.start.copy()]
        for node in self.nodes:
            if self._passes(states, node):
                continue
            found: dict[object, _State] = {}
            for state in states:
                choices = self._choices(state, node)
                self.steps += len(choices)
                following = [*(state.copy() for _ in choices[1:]), state]
                for each, choice in zip(following, choices, strict=True):
                    self._take(each, node, choice)
                    front = each.front(self._kind) if len(states) + len(choices) > 2 else None
                    if front not in found or each.cost < found[front].cost:
                        found[front] = each
            states = list(found.values())
            if len(states) > self.width:
                self.exact = False
                states = sorted(states, key=lambda each: each.cost)[: self.width]
        return self._result(min(states, key=lambda each: each.cost))

    def _passes(self, states: Sequence[_State], node: Node) -> bool:
        """Let a node that depends on no region stay out; return False, and do nothing, if that changes a front."""
        if node not in self.apart or any(each in state.read for each in self.last.get(node, ()) for state in states):
            return False
        self.steps += len(states)
        for state in states:
            self._take(state, node, None)
        return True

    def _choices(self, state: _State, node: Node) -> list[tuple[int, IndexMap] | None]:
        """Return the regions that a node may join; None means that it stays out."""
        if node in self.product_at:
            index = self.product_at[node]
            return [(index, self.products[index].index_map)]
        allowed: list[tuple[int, IndexMap] | None] = []
        free = False
        for index, index_maps in state.readers(node).items():
            index_map = self._fit(node, index, index_maps)
            if not isinstance(index_map, IndexMap):
                continue
            needed = state.needed(node, index)
            if not needed >> index & 1:
                allowed.append((index, index_map))
                free = free or not needed & ~state.before.get(index, 0)
        return allowed if free else [*allowed, None]

    def _fit(self, node: Node, index: int, index_maps: Mapping[Node, IndexMap]) -> IndexMap | SkipReason | None:
        """Return the result of :func:`fit`; a node has the same index map in every state of a region."""
        key = node, index, tuple(index_maps)
        if key not in self._fits:
            self._fits[key] = fit(node, index_maps) if node.op == "call_function" else None
        return self._fits[key]

    def _kind(self, index_map: IndexMap) -> int:
        """Return a number that equal index maps share."""
        if id(index_map) not in self._kinds:
            equal = (number for number, known in enumerate(self._maps) if known.equals(index_map))
            number = next(equal, len(self._maps))
            self._maps += [index_map] if number == len(self._maps) else []
            self._kinds[id(index_map)] = number, index_map  # the reference keeps the id valid
        return self._kinds[id(index_map)][0]

    def _take(self, state: _State, node: Node, choice: tuple[int, IndexMap] | None) -> None:
        if choice is None:
            state.leave(node)
        else:
            state.give(node, *choice)
        state.drop(self.last.get(node, ()))

    def _result(self, best: _State) -> Partition:
        given: dict[Node, tuple[int, IndexMap]] = {}
        chosen = best.chosen
        while chosen is not None:
            given[chosen.node] = chosen.index, chosen.index_map
            chosen = chosen.before
        regions = [FusionRegion(product) for product in self.products]
        state = self.start.copy()
        for node in self.nodes:
            if node in given:
                index, index_map = given[node]
                regions[index].index_maps[node] = index_map
            elif node.op == "call_function" and node not in self.skipped and (readers := state.readers(node)):
                self.skipped[node] = self._skip_reason(state, node, *next(iter(readers.items())))
            self._take(state, node, given.get(node))
        for region in regions:
            _leave_last_views(region)
        return Partition(tuple(regions), self.skipped, best.cost, self.steps, self.exact)

    def _skip_reason(self, state: _State, node: Node, index: int, index_maps: Mapping[Node, IndexMap]) -> SkipReason:
        """Return why a node that reads a region does not join it."""
        found = self._fit(node, index, index_maps)
        if isinstance(found, SkipReason):
            return found
        if state.needed(node, index) >> index & 1:
            return SkipReason(node, "E1012", "it also reads the result of another kernel that reads the product")
        return SkipReason(
            node, "E1013", "the product would wait for another product, and its kernel would move more bytes"
        )


def _last_readers(nodes: Sequence[Node]) -> dict[Node, list[Node]]:
    """Return by node the values whose last reader it is, through views; the graph's output does not count."""
    place = {node: index for index, node in enumerate(nodes)}
    end: dict[Node, int] = {}
    for node in reversed(nodes):
        readers = (user for user in node.users if user.op != "output")
        end[node] = max([place[node], *(end[user] if is_view(user) else place[user] for user in readers)])
    found: dict[Node, list[Node]] = {}
    for node, index in end.items():
        found.setdefault(nodes[index], []).append(node)
    return found


def _leave_last_views(region: FusionRegion) -> None:
    """Remove views without readers in the region: outside they cost nothing, and the region keeps its shape."""
    for node in reversed(region.nodes):
        if is_view(node) and not any(user in region for user in node.users):
            del region.index_maps[node]
