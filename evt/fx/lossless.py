"""Compare regions with eager PyTorch, bit for bit, on the tensors of a call: ``Comparison(...).prove(regions)``.

The captured graph runs once, operator by operator. When the values of a region are known, the region's kernel runs on
its operands, and its results are compared. Every region gets eager's own operands, so that a difference does
not spread. Only the values of regions that are still to be compared are kept.

Few elements may be equal by luck although a kernel sums in another order: rounding to 16 bits hides the last bits of a
sum. On a GPU, a second comparison has operands whose exact products are 0. Each result is then the rounding error of
the sum, which another order changes. Sums and means of results depend on an order too. They are never fused.

On a GPU, a region with eager's bits is also timed against eager's operators, and the faster of both runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Interpreter, Node

from evt.errors import BuildError, EvtError, InternalError
from evt.functions import Function
from evt.fx.aten import shape_of
from evt.fx.build import RegionProgram
from evt.fx.capture import Captured
from evt.fx.cost_model import Benefit
from evt.fx.example import example
from evt.fx.expand import ORIGINAL
from evt.fx.kernels import built, planned, program_text, reason_of
from evt.fx.measure import compared
from evt.fx.op_semantics import Applied, Reduced, semantics
from evt.fx.operands import given_operand
from evt.fx.product import Product
from evt.fx.region import LEFT
from evt.fx.skip_reason import SkipReason
from evt.reference.bits import different_bits

#: Functions without PyTorch's own formula: their bits differ for few arguments.
_INEXACT = ("xlogy", "softshrink", "floor_divide", "trunc_divide")
#: The code of a region whose bits differ from eager's.
DIFFERS = "E1023"
#: The codes under which a comparison refuses a region.
REFUSED = (DIFFERS, "E1017")


@dataclass(frozen=True)
class Proof:
    """A comparison of a region's results with eager's: the number of elements, and of elements with other bits.

    ``reordered`` counts the elements that differ for operands that cancel. ``failure`` is the reason why the kernel
    does not run, or "". ``benefit`` has the times of the region and of eager's operators, if they were measured.
    """

    elements: int
    different: int
    reordered: int = 0
    failure: str = ""
    benefit: Benefit | None = None

    @property
    def holds(self) -> bool:
        return not (self.different or self.reordered or self.failure)

    @property
    def share(self) -> float:
        """The share of the elements with other bits than eager's."""
        return self.different / self.elements if self.elements else 0.0

    def __str__(self) -> str:
        if self.failure:
            return self.failure
        if self.holds:
            times = "" if self.benefit is None else f"; {self.benefit}"
            return f"all bits of {self.elements} elements are eager's{times}"
        if self.different:
            return f"{self.share:.2%} of {self.elements} elements have other bits than eager's"
        share = self.reordered / self.elements
        return f"the kernel sums in another order: {share:.2%} of the elements differ for operands that cancel"

    def reason(self, node: Node) -> SkipReason | None:
        """Return why a product is not fused, or None if all bits are equal and the region is faster."""
        if not self.holds:
            return SkipReason(node, "E1018" if self.failure else DIFFERS, str(self))
        return (
            SkipReason(node, "E1017", str(self.benefit)) if self.benefit is not None and not self.benefit.wins else None
        )


class Comparison:
    """A comparison of regions of a captured graph with eager, on the inputs of a call.

    ``folded`` are the values of inputs that were added to the graph.
    """

    def __init__(self, captured: Captured, inputs: Sequence[Any], folded: Mapping[Node, torch.Tensor]) -> None:
        self.whole, self.inputs, self.folded = captured.whole, inputs, folded
        self.of_capture = Proof(0, 0)
        found = {node: captured.copies.get(node.meta.get(ORIGINAL, node)) for node in captured.module.graph.nodes}
        #: The nodes of the captured graph. Values of other nodes are computed from the values of these.
        self.known = {node: original for node, original in found.items() if original is not None}
        self._times: dict[object, Benefit | None] = {}

    def judge_capture(self, call: Callable[[], Sequence[Any]]) -> None:
        """Compare the captured graph's results with the model's: a model may ask whether PyTorch traces it.

        ``call`` calls the model, and returns the written tensors and the results. Two calls that differ prove nothing.
        """
        with torch.inference_mode(False), torch.no_grad(), torch.random.fork_rng():
            found = self.whole.forward(*self.inputs)
        with torch.no_grad(), torch.random.fork_rng():
            wanted = call()
        proof = _of_results(found, wanted)
        if not proof.holds:
            with torch.no_grad(), torch.random.fork_rng():
                again = call()
            proof = proof if _of_results(again, wanted).holds else self.of_capture
        self.of_capture = proof

    def prove(self, regions: Sequence[RegionProgram]) -> dict[Node, Proof]:
        """Return the comparison of each region, by its product. Random operators leave PyTorch's generators alone."""
        by_product = {each.region.product.node: each for each in regions}
        waiting = {
            node: {*self._read(_operands(each)), *self._read(_results(each))} for node, each in by_product.items()
        }
        if not waiting:
            return {}
        kernels, _ = planned(by_product)
        with suppress(BuildError):  # raised again by the region's call
            libraries = built([source for each in kernels.values() for source in each.sources]).libraries
            for each in kernels.values():
                if all(source in libraries for source in each.sources):
                    each.provide(libraries)
        found: dict[Node, Proof] = {}
        values: dict[Node, Any] = {}

        def see(seen: Node, value: Any) -> None:
            if not any(seen in nodes for nodes in waiting.values()):
                return
            values[seen] = value
            for product in [each for each, nodes in waiting.items() if nodes <= values.keys()]:
                found[product] = self._compare(by_product[product], values)
                del waiting[product]
            for done in [each for each in values if not any(each in nodes for nodes in waiting.values())]:
                del values[done]

        with torch.inference_mode(False), torch.no_grad(), torch.random.fork_rng():
            _Watched(self.whole, see).run(*self.inputs)
        return found

    def _read(self, nodes: Iterable[Node]) -> Iterator[Node]:
        """Yield the captured nodes from whose values the values of nodes are computed."""
        stack = [*nodes]
        while stack:
            node = stack.pop()
            if node in self.known:
                yield self.known[node]
            elif node not in self.folded:
                stack += node.all_input_nodes

    def _compare(self, fused: RegionProgram, values: Mapping[Node, Any]) -> Proof:
        """Return the comparison of a region's results with eager's values."""
        read = self.reader(values)
        wanted = [read[each.node] for each in fused.results]
        elements = sum(each.numel() for each in wanted)
        try:
            different = _count(fused, read, wanted)
            if different or wanted[0].device.type != "cuda":
                return Proof(elements, different)
            operands, reordered = cancelling(fused.region.product, read), 0
            if operands is not None:
                again = self.again(fused, read, operands)
                reordered = _count(fused, again, [again[each.node] for each in fused.results])
            return Proof(elements, 0, reordered, benefit=None if reordered else self.timed(fused, values, wanted))
        except InternalError:
            raise
        except EvtError as error:
            return Proof(elements, 0, failure=reason_of(error))

    def timed(self, fused: RegionProgram, values: Mapping[Node, Any], wanted: Sequence[torch.Tensor]) -> Benefit | None:
        """Return the times of a region and of eager's operators, once for regions of a program and sizes."""
        key = program_text(fused), *((each.shape, each.stride()) for each in (*wanted, *example(fused)[:2]))
        if key not in self._times:
            eager, strides = self.eager(fused, values), [each.stride() for each in wanted]
            self._times[key] = eager and compared(
                lambda: _laid_out(fused, self.reader(values), strides), eager, wanted[0].device
            )
        return self._times[key]

    def eager(self, fused: RegionProgram, values: Mapping[Node, Any]) -> Callable[[], Mapping[Node, Any]] | None:
        """Return a call of the captured graph's operators that compute a region's results from its operands.

        The call returns the values by node. Return None if a result is none of the captured graph.
        """
        if any(each not in self.known for each in _results(fused)):
            return None
        given = dict(zip(self.whole.graph.find_nodes(op="placeholder"), self.inputs, strict=True))
        given |= {node: values[node] for node in self._read(_operands(fused))}
        needed, stack = set[Node](), [self.known[each] for each in _results(fused)]
        while stack:
            node = stack.pop()
            if node not in given and node not in needed:
                needed.add(node)
                stack += node.all_input_nodes
        steps = [node for node in self.whole.graph.nodes if node in needed]

        def call() -> Mapping[Node, Any]:
            found = dict(given)
            run = Interpreter(self.whole)
            run.env = found
            for node in steps:
                found[node] = run.run_node(node)
            return found

        return call

    def reader(self, captured: Mapping[Node, Any]) -> _Values:
        """Return the values of nodes, from values of the captured graph."""
        return _Values(self, captured)

    def again(self, fused: RegionProgram, read: _Values, operands: Mapping[Node, torch.Tensor]) -> _Values:
        """Return values for other operands of a product: eager computes the region's nodes from them."""
        return _Values(self, read.captured, dict(operands), {node for node in fused.nodes if node not in operands})


class _Values(dict[Node, Any]):
    """The values of nodes: given ones, values of the captured graph, and computed ones.

    Values of nodes that a pass has added are computed, and so are the values of the nodes ``anew``.
    """

    def __init__(
        self,
        comparison: Comparison,
        values: Mapping[Node, Any],
        given: Mapping[Node, Any] | None = None,
        anew: Set[Node] = frozenset(),
    ) -> None:
        super().__init__(given or {})
        self.comparison, self.captured, self.anew = comparison, values, anew

    def __missing__(self, node: Node) -> Any:
        known, folded = self.comparison.known, self.comparison.folded
        if node in known and node not in self.anew:
            return self.captured[known[node]]
        if node in folded:
            return folded[node]
        assert callable(node.target), node
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), self.__getitem__)
        self[node] = node.target(*args, **kwargs)
        return self[node]


def _of_results(found: Sequence[Any], wanted: Sequence[Any]) -> Proof:
    """Return the comparison of a call's results."""
    elements = different = 0
    for one, other in zip(found, wanted, strict=True):
        if isinstance(other, torch.Tensor):
            elements += max(other.numel(), 1)
            different += _differing(one, other)
    return Proof(elements, different)


def _differing(found: torch.Tensor, wanted: torch.Tensor) -> int:
    """Return the number of elements with other bits; tensors of other kinds differ in all elements."""
    if (found.dtype, found.shape) != (wanted.dtype, wanted.shape):
        return max(wanted.numel(), 1)
    if found.is_complex():
        found, wanted = (torch.view_as_real(each.resolve_conj()) for each in (found, wanted))
    return different_bits(found.resolve_neg(), wanted.resolve_neg())


def _operands(fused: RegionProgram) -> list[Node]:
    """Return the nodes that a region reads."""
    product = fused.region.product
    stack = [product.a, product.b, *(each.node for each in fused.arguments)]
    return stack + [each for node in fused.nodes for each in node.all_input_nodes if each not in fused.region]


def _results(fused: RegionProgram) -> list[Node]:
    return [each.node for each in fused.results]


def _run(fused: RegionProgram, read: Mapping[Node, Any]) -> list[torch.Tensor]:
    """Run a region's kernel; return its results in eager's shapes."""
    a, b, inputs = example(fused, make=lambda node, _: read[node])
    stored = torch.ops.evt.run.default(a, b, list(inputs.values()), program_text(fused))
    arranged = [
        made.reshape(tuple(map(int, each.arrangement.split))).permute(each.arrangement.order)
        for made, each in zip(stored, fused.results, strict=True)
    ]
    return [made.reshape(read[each].shape) for made, each in zip(arranged, _results(fused), strict=True)]


def _laid_out(fused: RegionProgram, read: Mapping[Node, Any], strides: Sequence[tuple[int, ...]]) -> list[torch.Tensor]:
    """Return the results of a region's kernel with these strides, as the fused graph makes them."""
    made = _run(fused, read)
    return [
        each if each.stride() == stride else torch.ops.prims.copy_strided.default(each, stride)
        for each, stride in zip(made, strides, strict=True)
    ]


def _count(fused: RegionProgram, read: Mapping[Node, Any], wanted: Sequence[torch.Tensor]) -> int:
    """Run a region's kernel, and return the number of elements with other bits than the wanted results."""
    return sum(map(different_bits, _run(fused, read), wanted))


def cancelling(product: Product, read: Mapping[Node, Any]) -> dict[Node, torch.Tensor] | None:
    """Return large operands like a product's whose exact products are 0, or None if there are none.

    Half of A's elements along the contraction are the negative of the other half, and B's halves are equal.
    """
    a, b = (given_operand(each, product) for each in (product.a, product.b))
    dims = _contracted(product)
    spread = [0 in each.stride() for each in (read[a], read[b])]
    is_copied = not {a, b} <= set(product.node.all_input_nodes)
    if a is b or is_copied or dims is None or any(spread) or not read[a].is_floating_point():
        return None
    groups = int(product.geometry.get("groups", 1))
    halves = read[a].shape[dims[0]] // groups // 2
    if not halves:
        return None
    generator = torch.Generator(read[a].device).manual_seed(0)
    made = {}
    for node, dim, sign, count in ((a, dims[0], -1.0, groups), (b, dims[1], 1.0, 1)):
        like = read[node]
        large = 64.0 if like.element_size() == 1 else 4096.0
        values = torch.randn(like.shape, generator=generator, device=like.device).mul_(large / 4)
        split = values.view(*like.shape[:dim], count, -1, *like.shape[dim + 1 :])
        parts = split.transpose(0, dim + 1)
        parts[halves : 2 * halves] = sign * parts[:halves]
        parts[2 * halves :] = 0.0
        made[node] = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)
        made[node].copy_(values.clamp_(-large, large))
    return made


def _contracted(product: Product) -> tuple[int, int] | None:
    """Return the dimensions of A and B over which a product sums channels, or None for transposed convolutions."""
    if product.is_convolution:
        return None if product.operation.endswith("grad") else (1, 1)
    a, b = (len(shape_of(each)) for each in (product.a, product.b))
    return a - 1, b - 1 if product.operation == "linear" else b - 2


def leave_inexact(graph: Graph) -> None:
    """Mark operators whose bits a comparison cannot settle: no region may compute them."""
    for node in graph.nodes:
        found = semantics(node) if node.op == "call_function" else None
        if isinstance(found, Reduced) and found.kind not in ("max", "min"):
            node.meta[LEFT] = (DIFFERS, "its bits depend on the order of the sum")
        elif isinstance(found, Applied) and isinstance(found.what, Function) and found.what.name in _INEXACT:
            node.meta[LEFT] = (DIFFERS, f"a few bits of evt's `{found.what.name}` differ from PyTorch's")


class _Watched(Interpreter):
    """An interpreter that shows each value, and keeps a value up to its last reader."""

    def __init__(self, module: GraphModule, see: Any) -> None:
        super().__init__(module)
        self.see = see

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        self.see(n, value)
        return value


__all__ = ["DIFFERS", "REFUSED", "Comparison", "Proof", "cancelling", "leave_inexact"]
