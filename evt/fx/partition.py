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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch.fx import Graph, Node

from evt.fx.aten import is_tensor
from evt.fx.frame import Frame
from evt.fx.misfit import Misfit
from evt.fx.product import Product, find_product
from evt.fx.region import Region, fit
from evt.fx.views import is_view, source

#: How many states are kept at a node.
WIDTH = 256
#: What a size that is not known before the call is taken for.
_UNKNOWN = 64


@dataclass(frozen=True)
class Partition:
    """The regions of a graph, one for each product, in the order of the products.

    ``misfits`` say why other products are none of evt's, and why nodes that read a region are not in it. ``cost`` is
    the objective, ``steps`` are the choices that were judged, ``exact`` says whether no state was left out.
    """

    regions: tuple[Region, ...]
    misfits: dict[Node, Misfit]
    cost: int
    steps: int
    exact: bool


def partition(graph: Graph, width: int = WIDTH, left: Mapping[Node, Misfit] | None = None) -> Partition:
    """Return the regions that move the fewest bytes, see the module; products that are ``left`` have none."""
    return _Search(list(graph.nodes), width, left or {}).solve()


def moved_bytes(graph: Graph, regions: Iterable[Region]) -> int:
    """Return the objective: the bytes that the kernels of a partition read and write."""
    owner = {node: index for index, region in enumerate(regions) for node in region.frames}
    reads: set[tuple[object, Node]] = set()
    written: set[Node] = set()
    for node in graph.nodes:
        if is_view(node) and node not in owner:
            continue
        for operand in map(source, node.all_input_nodes):
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
    """What was chosen so far, and the front; regions are numbers, and sets of them the bits of an int."""

    cost: int = 0
    #: The nodes of regions that are yet to be read, with their region and frame.
    owner: dict[Node, tuple[int, Frame]] = field(default_factory=dict)
    #: Other nodes that are yet to be read: the regions that they need at first hand, if any.
    needs: dict[Node, int] = field(default_factory=dict)
    #: The nodes of regions that are written, and which region has read which tensor.
    written: frozenset[Node] = frozenset()
    read: frozenset[tuple[int, Node]] = frozenset()
    #: By region, all regions that have to be done before it.
    before: dict[int, int] = field(default_factory=dict)
    #: What the graph's output reads: it is written when it is computed, so that nothing has to wait for the end.
    results: frozenset[Node] = frozenset()
    #: A linked list of what was given to regions, the last first: what came before, the node, its region and frame.
    chosen: _Chosen | None = None

    def copy(self) -> _State:
        owner, needs, before = dict(self.owner), dict(self.needs), dict(self.before)
        return _State(self.cost, owner, needs, self.written, self.read, before, self.results, self.chosen)

    def owns(self, index: int, node: Node) -> bool:
        return node in self.owner and self.owner[node][0] == index

    def readers(self, node: Node) -> list[int]:
        """Return the regions that a node reads, in order."""
        return sorted({self.owner[each][0] for each in node.all_input_nodes if each in self.owner})

    def frames(self, node: Node, index: int) -> dict[Node, Frame]:
        """Return the frames of a node's operands that are in a region."""
        return {each: self.owner[each][1] for each in node.all_input_nodes if self.owns(index, each)}

    def needed(self, node: Node, index: int) -> int:
        """Return the regions that have to be done before a region could compute a node."""
        found = 0
        for operand in node.all_input_nodes:
            if not self.owns(index, operand):
                found |= self.closure(self.first_hand(operand))
        return found

    def first_hand(self, node: Node) -> int:
        owned = self.owner.get(node)
        return 1 << owned[0] if owned else self.needs.get(node, 0)

    def closure(self, regions: int) -> int:
        """Return the regions, and all that have to be done before them."""
        found = regions
        for region in _members(regions):
            found |= self.before.get(region, 0)
        return found

    def leave(self, node: Node) -> None:
        """Make a node a kernel of its own, or none if it is a view."""
        needs = 0
        for each in node.all_input_nodes:
            needs |= self.first_hand(each)
        if needs:
            self.needs[node] = needs
        if is_view(node):
            return
        for operand in dict.fromkeys(map(source, node.all_input_nodes)):
            self._write(operand)
            self.cost += _bytes(operand) if node.op != "output" else 0
        self.cost += _bytes(node) if _is_kernel(node) else 0

    def give(self, node: Node, index: int, frame: Frame) -> None:
        """Give a node to a region."""
        more = self.needed(node, index)
        if more & ~self.before.get(index, 0):
            self.before[index] = self.before.get(index, 0) | more
            for other, before in self.before.items():
                if before >> index & 1:
                    self.before[other] = before | self.before[index]
        for operand in dict.fromkeys(node.all_input_nodes):
            base = source(operand)
            if not self.owns(index, operand):
                self._write(base)
                self.cost += _bytes(base) if (index, base) not in self.read else 0
                self.read |= {(index, base)}
        self.owner[node] = index, frame
        if node in self.results:
            self._write(node)
        self.chosen = _Chosen(self.chosen, node, index, frame)

    def _write(self, node: Node) -> None:
        """Count a result of a region that is written, once; those of other kernels were counted when they came."""
        if node in self.owner and node not in self.written:
            self.written |= {node}
            self.cost += _bytes(node)

    def drop(self, done: Sequence[Node]) -> None:
        """Forget nodes that nothing will read."""
        for node in done:
            self.owner.pop(node, None)
            self.needs.pop(node, None)
        self.written = self.written.difference(done)
        open_regions = {index for index, _ in self.owner.values()}
        self.read = frozenset(each for each in self.read if each[0] in open_regions and each[1] not in done)

    def front(self) -> object:
        """Return what later nodes can see of the state."""
        still = 0
        for index, _ in self.owner.values():
            still |= 1 << index
        owners = tuple((node, index) for node, (index, _) in self.owner.items())
        needs = tuple((node, self.closure(regions) & still) for node, regions in self.needs.items())
        before = tuple(self.before.get(index, 0) & still for index in _members(still))
        return owners, needs, before, self.written, self.read


@dataclass(frozen=True)
class _Chosen:
    before: _Chosen | None
    node: Node
    index: int
    frame: Frame


def _members(regions: int) -> Iterator[int]:
    """Yield the numbers of a set of regions, in order."""
    while regions:
        low = regions & -regions
        yield low.bit_length() - 1
        regions ^= low


class _Search:
    def __init__(self, nodes: Sequence[Node], width: int, left: Mapping[Node, Misfit]) -> None:
        self.nodes, self.width = nodes, width
        self.products: list[Product] = []
        self.product_at: dict[Node, int] = {}
        self.misfits: dict[Node, Misfit] = {}
        self.steps, self.exact = 0, True
        self._fits: dict[object, Frame | Misfit | None] = {}
        for node in nodes:
            found = left.get(node) or find_product(node)
            if isinstance(found, Product):
                self.product_at[node] = len(self.products)
                self.products.append(found)
            elif found is not None:
                self.misfits[node] = found
        self.last = _last_readers(nodes)
        self.results = frozenset(source(each) for node in nodes if node.op == "output" for each in node.all_input_nodes)

    def solve(self) -> Partition:
        states = [_State(results=self.results)]
        for node in self.nodes:
            found: dict[object, _State] = {}
            for state in states:
                choices = self._choices(state, node)
                self.steps += len(choices)
                following = [*(state.copy() for _ in choices[1:]), state]
                for each, choice in zip(following, choices, strict=True):
                    self._take(each, node, choice)
                    front = each.front() if len(states) + len(choices) > 2 else None
                    if front not in found or each.cost < found[front].cost:
                        found[front] = each
            states = list(found.values())
            if len(states) > self.width:
                self.exact = False
                states = sorted(states, key=lambda each: each.cost)[: self.width]
        return self._result(min(states, key=lambda each: each.cost))

    def _choices(self, state: _State, node: Node) -> list[tuple[int, Frame] | None]:
        """Return the regions that a node may be given to; None is staying out."""
        if node in self.product_at:
            index = self.product_at[node]
            return [(index, self.products[index].frame)]
        allowed: list[tuple[int, Frame] | None] = []
        free = False
        for index in state.readers(node):
            frame = self._fit(state, node, index)
            needed = state.needed(node, index)
            if isinstance(frame, Frame) and not needed >> index & 1:
                allowed.append((index, frame))
                free = free or not needed & ~state.before.get(index, 0)
        return allowed if free else [*allowed, None]

    def _fit(self, state: _State, node: Node, index: int) -> Frame | Misfit | None:
        """Return what :func:`fit` says; the frames of a region's nodes are the same in all states that have them."""
        frames = state.frames(node, index)
        key = node, index, tuple(frames)
        if key not in self._fits:
            self._fits[key] = fit(node, frames) if node.op == "call_function" else None
        return self._fits[key]

    def _take(self, state: _State, node: Node, choice: tuple[int, Frame] | None) -> None:
        if choice is None:
            state.leave(node)
        else:
            state.give(node, *choice)
        state.drop(self.last.get(node, ()))

    def _result(self, best: _State) -> Partition:
        given: dict[Node, tuple[int, Frame]] = {}
        chosen = best.chosen
        while chosen is not None:
            given[chosen.node] = chosen.index, chosen.frame
            chosen = chosen.before
        regions = [Region(product) for product in self.products]
        state = _State(results=self.results)
        for node in self.nodes:
            if node in given:
                index, frame = given[node]
                regions[index].frames[node] = frame
            elif node.op == "call_function" and node not in self.misfits and (readers := state.readers(node)):
                self.misfits[node] = self._misfit(state, node, readers[0])
            self._take(state, node, given.get(node))
        for region in regions:
            _leave_last_views(region)
        return Partition(tuple(regions), self.misfits, best.cost, self.steps, self.exact)

    def _misfit(self, state: _State, node: Node, index: int) -> Misfit:
        """Return why a node that reads a region is not in it."""
        found = self._fit(state, node, index)
        if isinstance(found, Misfit):
            return found
        if state.needed(node, index) >> index & 1:
            return Misfit(node, "E1012", "it reads what another kernel computes from the product's own result")
        return Misfit(node, "E1013", "the product would wait for another one's result, and more bytes be moved")


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


def _leave_last_views(region: Region) -> None:
    """Leave views out that nothing in the region reads: they cost nothing outside, and keep its shape."""
    for node in reversed(region.nodes):
        if is_view(node) and not any(user in region for user in node.users):
            del region.frames[node]
