"""Which nodes go into which product's kernel: ``partition(graph) -> Partition``.

The problem. Let P be the products of a graph, and let each other node be given to one product or to none. A node v may
be given to p if :func:`evt.fx.region.fit` says so beside the nodes that p has already, at least one of which v reads,
and if no operand of v from elsewhere needs a result of p's: what a kernel reads is there before it starts.

Then the graph is run as kernels: one for each product with its nodes, and one for each other node that is no view. A
kernel reads each tensor that it needs once, and writes each of its results that another kernel, or the graph's output,
reads. The wanted choice is the one that moves the fewest bytes:

    minimise    sum over kernels K of  bytes(read by K) + bytes(written by K)

The solver walks the nodes in the graph's order and keeps a set of states: what was given to whom so far. A state
is told by its front, which is what later nodes can still see: the owners of the nodes that are yet to be read, which of
them are written, which of them an open kernel has read, and which kernel needs which. Of two states with one front the
cheaper is kept, since whatever follows costs both the same; so the result is a minimum as long as no more than
:data:`WIDTH` fronts arise at one node. Beyond that the cheapest are kept: a beam search.

A node has more than one choice only where it reads several regions, or where joining a region would make that wait for
more than it does (then staying out is a choice too). Else joining is never worse: what the node reads from the region
need not be read again, what it writes is written either way, and whoever may follow may follow still. So most nodes
cost a step for each state, and a chain of layers is solved in time proportional to its length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

import torch
from torch.fx import Graph, Node

from evt.fx.aten import is_tensor
from evt.fx.index_map import IndexMap
from evt.fx.product import Product, find_product
from evt.fx.region import FusionRegion, fit
from evt.fx.skip_reason import SkipReason
from evt.fx.views import Sources, is_view

#: How many states are kept at a node.
WIDTH = 256
#: What a size that is not known before the call is taken for.
_UNKNOWN = 64


@dataclass(frozen=True)
class Partition:
    """The regions of a graph, one for each product, in the order of the products.

    ``skipped`` say why other products are none of evt's, and why nodes that read a region are not in it. ``cost`` is
    the objective, ``steps`` are the choices that were judged, ``exact`` says whether no state was left out.
    """

    regions: tuple[FusionRegion, ...]
    skipped: dict[Node, SkipReason]
    cost: int
    steps: int
    exact: bool


def partition(graph: Graph, width: int = WIDTH, left: Mapping[Node, SkipReason] | None = None) -> Partition:
    """Return the regions that move the fewest bytes, see the module; products that are ``left`` have none."""
    return _Search(list(graph.nodes), width, left or {}).solve()


def moved_bytes(graph: Graph, regions: Iterable[FusionRegion]) -> int:
    """Return the objective: the bytes that the kernels of a partition read and write."""
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


@dataclass
class _State:
    """The choices so far, and the front; regions are numbers, and sets of regions are the bits of an int."""

    #: The tensors whose memory views show, and the tensors that the graph's output reads. A region writes the latter
    #: when it computes them, so that no region stays open until the end.
    sources: Mapping[Node, Node]
    results: Set[Node]
    cost: int = 0
    #: The nodes of regions that are yet to be read, with their region and index map.
    owner: dict[Node, tuple[int, IndexMap]] = field(default_factory=dict)
    #: Other nodes that are yet to be read: all regions that have to be done before them, if any.
    needs: dict[Node, int] = field(default_factory=dict)
    #: The nodes of regions that are written, and the regions that have read a tensor.
    written: set[Node] = field(default_factory=set)
    read: dict[Node, int] = field(default_factory=dict)
    #: By open region, the number of its nodes that are yet to be read, and all regions that have to be done before it.
    open: dict[int, int] = field(default_factory=dict)
    before: dict[int, int] = field(default_factory=dict)
    #: A linked list of the nodes that were given to regions, the last first.
    chosen: _Chosen | None = None

    def copy(self) -> _State:
        copied = (dict(self.owner), dict(self.needs), set(self.written), dict(self.read))
        return _State(self.sources, self.results, self.cost, *copied, dict(self.open), dict(self.before), self.chosen)

    def owns(self, index: int, node: Node) -> bool:
        return node in self.owner and self.owner[node][0] == index

    def readers(self, node: Node) -> dict[int, dict[Node, IndexMap]]:
        """Return by region that a node reads, in order, the index maps of the operands that are in the region."""
        found: dict[int, dict[Node, IndexMap]] = {}
        for operand in node.all_input_nodes:
            if operand in self.owner:
                index, index_map = self.owner[operand]
                found.setdefault(index, {})[operand] = index_map
        return dict(sorted(found.items()))

    def needed(self, node: Node, index: int) -> int:
        """Return the regions that have to be done before a region could compute a node."""
        found = 0
        for operand in node.all_input_nodes:
            if not self.owns(index, operand):
                found |= self.needed_for(operand)
        return found

    def needed_for(self, node: Node) -> int:
        """Return the regions that have to be done before a node is there."""
        owned = self.owner.get(node)
        return 1 << owned[0] | self.before.get(owned[0], 0) if owned else self.needs.get(node, 0)

    def leave(self, node: Node) -> None:
        """Make a node a kernel of its own, or none if it is a view."""
        needs = 0
        for each in node.all_input_nodes:
            needs |= self.needed_for(each)
        if needs:
            self.needs[node] = needs
        if is_view(node):
            return
        for operand in dict.fromkeys(self.sources[each] for each in node.all_input_nodes):
            self._write(operand)
            self.cost += _bytes(operand) if node.op != "output" else 0
        self.cost += _bytes(node) if _is_kernel(node) else 0

    def give(self, node: Node, index: int, index_map: IndexMap) -> None:
        """Give a node to a region."""
        self._wait(index, self.needed(node, index))
        for operand in node.all_input_nodes:
            base = self.sources[operand]
            if not self.owns(index, operand):
                self._write(base)
                known = self.read.get(base, 0)
                self.cost += 0 if known >> index & 1 else _bytes(base)
                self.read[base] = known | 1 << index
        self.owner[node] = index, index_map
        self.open[index] = self.open.get(index, 0) + 1
        if node in self.results:
            self._write(node)
        self.chosen = _Chosen(self.chosen, node, index, index_map)

    def _wait(self, index: int, regions: int) -> None:
        """Let a region, and all that waits for it, wait for other regions."""
        if regions & ~self.before.get(index, 0) == 0:
            return
        self.before[index] = regions = self.before.get(index, 0) | regions
        if index in self.open:  # a new region has no readers
            for waiting in (self.before, self.needs):
                found = [(key, before | regions) for key, before in waiting.items() if before >> index & 1]
                waiting.update(found)  # type: ignore[arg-type]

    def _write(self, node: Node) -> None:
        """Count a result of a region that is written, once; those of other kernels were counted when they came."""
        if node in self.owner and node not in self.written:
            self.written.add(node)
            self.cost += _bytes(node)

    def drop(self, done: Sequence[Node]) -> None:
        """Forget nodes that nothing will read, and regions that have no others."""
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
        """Return what later nodes can see of the state, with open regions numbered by their first node.

        A product never reads a node of its own region before it, so the numbers of the regions do not matter later.
        """
        number: dict[int, int] = {}
        owners = [
            (node, number.setdefault(index, len(number)), kind(index_map))
            for node, (index, index_map) in self.owner.items()
        ]

        def renumbered(regions: int) -> int:
            return sum(1 << new for old, new in number.items() if regions >> old & 1)

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
        sources = Sources()
        ends = (each for node in nodes if node.op == "output" for each in node.all_input_nodes)
        self.start = _State(sources, frozenset(sources[each] for each in ends))

    def solve(self) -> Partition:
        states = [self.start.copy()]
        for node in self.nodes:
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

    def _choices(self, state: _State, node: Node) -> list[tuple[int, IndexMap] | None]:
        """Return the regions that a node may be given to; None is staying out."""
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
            self._kinds[id(index_map)] = number, index_map  # which keeps the object, and so its id
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
        """Return why a node that reads a region is not in it."""
        found = self._fit(node, index, index_maps)
        if isinstance(found, SkipReason):
            return found
        if state.needed(node, index) >> index & 1:
            return SkipReason(node, "E1012", "it reads what another kernel computes from the product's own result")
        return SkipReason(node, "E1013", "the product would wait for another one's result, and more bytes be moved")


def _last_readers(nodes: Sequence[Node]) -> dict[Node, list[Node]]:
    """Return by node those that nothing reads after it but the graph's output, nor a view of them."""
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
    """Leave views out that nothing in the region reads: they cost nothing outside, and keep its shape."""
    for node in reversed(region.nodes):
        if is_view(node) and not any(user in region for user in node.users):
            del region.index_maps[node]
