"""The fused graph of a model for one kind of inputs: ``plan(model, watch, inputs, keywords) -> GraphPlan``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree

from evt.diagnostics import Diagnostic
from evt.errors import ArgumentError
from evt.fx.aten import CONSTANT, base_name, is_constant, is_random, is_tensor
from evt.fx.build import is_eager
from evt.fx.capture import Captured, capture
from evt.fx.casts import without_autocast
from evt.fx.elementwise import Joined, join, split_casts
from evt.fx.expand import contract
from evt.fx.fold import Folding, is_small
from evt.fx.kernels import planned, program_text
from evt.fx.lossless import DIFFERS, Comparison, Proof, leave_inexact
from evt.fx.masks import drop_masks
from evt.fx.operands import readable
from evt.fx.product import find_product
from evt.fx.regions import Fusion, Outcome, find_regions
from evt.fx.results import ResultMemory, restore, results_of
from evt.fx.rewrite import RUN, rewrite
from evt.fx.skip_reason import SkipReason
from evt.fx.watch import Watch

_version = torch.Tensor._version.__get__  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Lossless:
    """The leaves of a call's inputs, with which regions are compared, and the products that were refused before.

    ``call`` calls the model with the inputs.
    """

    leaves: Sequence[Any]
    refused: Mapping[str, Outcome]
    call: Callable[[], Any]


@dataclass
class GraphPlan:
    """A module's fused graph for one kind of inputs.

    The inputs of ``graph`` are the watched tensors at the places ``tensors``, the leaves of the call's arguments, and
    folded values: ``folding`` computes them from the watched tensors at ``roots``. ``graph`` writes to its inputs
    at the places ``written``. ``unflatten`` makes the module's result from the graph's results. ``inputs`` are the
    leaves of the capture, with symbols for dynamic sizes. ``results`` describes the memory of the results,
    according to PyTorch's fake tensors, or to a call of the model if ``checked``. ``proven``: regions were compared on
    the tensors of a call, not only of an example. ``joined`` are the kernels of elementwise operators.
    """

    fusion: Fusion
    graph: GraphModule
    folding: GraphModule
    tensors: tuple[int, ...]
    roots: tuple[int, ...]
    unflatten: Callable[[Sequence[Any]], Any]
    written: tuple[int, ...]
    inputs: tuple[Any, ...]
    results: tuple[ResultMemory | None, ...]
    checked: bool
    proven: bool = False
    joined: tuple[Joined, ...] = ()
    _folded: tuple[object, tuple[torch.Tensor, ...]] = (None, ())

    def run(self, watch: Watch, leaves: Sequence[Any]) -> Any:
        """Call the graph; recompute the folded values if one of their tensors has changed."""
        every = watch.tensors
        seen = (watch.epoch, *[_version(every[place]) for place in self.roots])
        known, folded = self._folded
        if seen != known:
            folded = self._fold(every, seen)
        return self._called(every, leaves, folded)

    def trace(self, watch: Watch, leaves: Sequence[Any]) -> Any:
        """Call the graph inside a trace of PyTorch's; the trace contains the folding."""
        every = watch.current()
        with without_autocast():
            folded = self.folding.forward(*[every[place] for place in self.roots])
        return self._called(every, leaves, folded)

    def _called(self, every: Sequence[torch.Tensor], leaves: Sequence[Any], folded: Sequence[torch.Tensor]) -> Any:
        """Call the graph; it contains the casts of autocast."""
        with without_autocast():
            return self.unflatten(self.graph.forward(*[every[place] for place in self.tensors], *leaves, *folded))

    def results_of(
        self, watch: Watch, leaves: Sequence[Any], call: Callable[[], Any]
    ) -> tuple[ResultMemory | None, ...]:
        """Call the model and return the memory of its results; undo the writes of the call."""
        given = self._given(watch, leaves)
        names = (node.name for node in self.graph.graph.find_nodes(op="placeholder"))
        with _undone([given[place] for place in self.written], watch):
            return results_of(zip(names, given, strict=False), _leaves_of(call()))

    def takes(self, leaves: Sequence[Any]) -> bool:
        """Return whether the graph takes inputs, with some values of its symbols."""
        values: dict[Any, Any] = {}
        return len(leaves) == len(self.inputs) and all(
            _fits(known, leaf, values) for known, leaf in zip(self.inputs, leaves, strict=True)
        )

    def is_entangled(self, watch: Watch, leaves: Sequence[Any]) -> bool:
        """Return whether a tensor that the graph writes to shares memory with another one, or between its elements."""
        if not self.written:
            return False
        given = self._given(watch, leaves)
        if any(0 in given[place].stride() for place in self.written):
            return True
        memories = [each.untyped_storage().data_ptr() if isinstance(each, torch.Tensor) else None for each in given]
        return any(memories.count(memories[place]) > 1 for place in self.written)

    def _given(self, watch: Watch, leaves: Sequence[Any]) -> list[Any]:
        """Return the inputs of the graph except the folded values."""
        return [*(watch.tensors[place] for place in self.tensors), *leaves]

    def _fold(self, every: Sequence[torch.Tensor], seen: object) -> tuple[torch.Tensor, ...]:
        roots = [every[place] for place in self.roots]
        with torch.inference_mode(False), torch.no_grad(), without_autocast():
            folded: tuple[torch.Tensor, ...] = self.folding.forward(*roots)
        devices = {each.device for each in folded if each.device.type == "cuda"}
        if devices and torch.cuda.is_current_stream_capturing():
            return folded  # the CUDA graph that is being captured contains the folding
        for device in devices:
            torch.cuda.current_stream(device).synchronize()  # other streams may read the values as well
        self._folded = seen, folded
        return folded


def plan(
    model: torch.nn.Module,
    watch: Watch,
    inputs: Sequence[Any],
    keywords: Mapping[str, Any],
    dynamic_shapes: Any = None,
    settings: Mapping[str, Any] | None = None,
    results: tuple[ResultMemory | None, ...] | None = None,
    lossless: Lossless | None = None,
) -> GraphPlan:
    """Return a module's plan for inputs of this kind, with results in the given memory.

    ``lossless``: regions whose bits differ from eager's on the tensors of a call are not fused. Raise ArgumentError
    (E1020) where torch.export cannot capture the module.
    """
    captured = capture(model, inputs, keywords, dynamic_shapes, is_eager(settings or {}))
    graph = captured.module.graph
    placeholders = captured.inputs
    if parts := [name for name in captured.names if name not in watch.names]:
        said = f"torch.export divides a parameter or buffer of a subclass of torch.Tensor, and makes `{parts[0]}`"
        raise ArgumentError(Diagnostic("E1020", said, help='use torch.compile(module, backend="evt")'))
    tensors = tuple(watch.names[name] for name in captured.names)
    named = list(zip(placeholders, tensors, strict=False))
    folded = [(node, place) for node, place in named if _is_folded(node, watch.tensors[place], captured)]
    for node, _ in folded:
        node.meta[CONSTANT] = True
    folding = Folding.of(node for node, _ in folded)
    folding.take(graph, is_small)
    comparison = None
    if lossless is not None:
        given = [*(watch.tensors[place] for place in tensors), *lossless.leaves]
        with torch.no_grad():
            values = folding.values(captured.module, [watch.tensors[place] for _, place in folded])
        comparison = Comparison(captured, given, values)
        kept = [given[placeholders.index(node)] for node in captured.written]
        call = partial(_called, lossless.call, kept, watch)
        comparison.judge_capture(call)
        if not comparison.of_capture.holds and all(map(drop_masks, (captured.module, captured.whole))):
            comparison.judge_capture(call)
    fusion = _fuse(captured.module, settings or {}, comparison, lossless.refused if lossless is not None else {})
    folding.take(graph, is_constant)
    restore(graph, captured.written, captured.results if results is None else results)
    graph.eliminate_dead_code()
    graph.lint()
    captured.module.recompile()
    written = tuple(placeholders.index(node) for node in captured.written)
    fold, joined = folding.finish(captured.module), tuple[Joined, ...]()
    if comparison is not None and comparison.of_capture.holds:
        with torch.no_grad(), without_autocast():
            constants = fold.forward(*[watch.tensors[place] for _, place in folded])
        with _undone([comparison.inputs[place] for place in written], watch):
            joined = join(captured.module, [*comparison.inputs, *constants])
    return GraphPlan(
        fusion,
        captured.module,
        fold,
        tensors,
        tuple(place for _, place in folded),
        _unflatten(captured.structure),
        written,
        tuple(node.meta["val"] for node in placeholders[len(tensors) :]),
        captured.results if results is None else results,
        results is not None
        or dynamic_shapes is not None
        or any(map(is_random, graph.nodes))
        or any(map(_depends_on_data, captured.results)),
        joined=joined,
    )


def _depends_on_data(result: ResultMemory | None) -> bool:
    """Return whether a result has other sizes for other elements of the inputs, as of ``nonzero``."""
    return result is not None and any(isinstance(each, torch.SymInt) for each in (*result.size, *result.stride))


def _leaves_of(result: Any) -> list[Any]:
    return list(_pytree.tree_leaves(result, is_leaf=lambda value: value is None))


def _called(call: Callable[[], Any], written: Sequence[torch.Tensor], watch: Watch) -> list[Any]:
    """Call the model; return copies of the tensors that it writes, and of its results."""
    with _undone(written, watch):
        result = _leaves_of(call())
        return [each.clone() if isinstance(each, torch.Tensor) else each for each in (*written, *result)]


@contextmanager
def _undone(written: Sequence[torch.Tensor], watch: Watch) -> Iterator[None]:
    """Undo the writes of a model inside a ``with`` block to tensors and to attributes."""
    kept = [(each, each.clone()) for each in written]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, values in kept:
                tensor.copy_(values)
        watch.put_back()


def _fits(known: Any, leaf: Any, values: dict[Any, Any]) -> bool:
    """Return whether a leaf has the kind of a captured leaf; ``values`` collects the values of symbols."""
    if not isinstance(known, torch.Tensor) or not isinstance(leaf, torch.Tensor):
        return type(known) is type(leaf) and bool(known == leaf)
    if (known.dtype, known.device, known.dim()) != (leaf.dtype, leaf.device, leaf.dim()):
        return False
    pairs = zip((*known.shape, *known.stride()), (*leaf.shape, *leaf.stride()), strict=True)
    return all(_is_size(size, given, values) for size, given in pairs)


def _is_size(size: Any, given: Any, values: dict[Any, Any]) -> bool:
    """Return whether a size or stride matches the capture. A symbol is neither 0 nor 1."""
    if isinstance(size, int):
        return isinstance(given, int) and size == given
    expression = size.node.expr
    value = given if isinstance(given, int) else given.node.expr
    if expression.is_Symbol and expression not in values:
        values[expression] = value
        limits = size.node.shape_env.var_to_range[expression]
        return not isinstance(value, int) or max(2, limits.lower) <= value <= limits.upper
    return bool(expression.subs(values) == value)


def _is_folded(node: Node, tensor: torch.Tensor, captured: Captured) -> bool:
    """Return whether values of a tensor are folded: the graph does not write to it, and its version is counted."""
    return is_tensor(node) and node not in captured.written and not tensor.is_inference()


def _fuse(
    module: GraphModule, settings: Mapping[str, Any], comparison: Comparison | None, refused: Mapping[str, Outcome]
) -> Fusion:
    """Replace the regions of a graph, and of its inner graphs (torch.cond), by calls of their programs.

    ``refused`` are the products that earlier comparisons have refused, by name.
    """
    outcomes = []
    for each in [module] if comparison is not None else _graphs(module):
        left = _strided(each.graph)
        if comparison is None:
            every: Sequence[Outcome] = find_regions(each.graph, settings=settings, left=left).outcomes
        else:
            if not comparison.of_capture.holds:
                reason = f"PyTorch's capture changes the model: {comparison.of_capture}"
                left = _all_products(each.graph, DIFFERS, reason)
            every = _proven(each.graph, settings, left, comparison, refused)
        found = [one if one.fused is None else replace(one, fused=readable(each.graph, one.fused)) for one in every]
        regions = {one.product: one.fused for one in found if one.fused is not None}
        _, without = planned(regions, every=comparison is None)  # the comparison has given each call its kernel
        kept = [
            replace(one, fused=None, reason=without[one.product], possible=one.fused) if one.product in without else one
            for one in found
        ]
        rewrite(each.graph, [one.fused for one in kept if one.fused is not None], RUN)
        contract(each.graph)
        each.recompile()
        outcomes += kept
    return Fusion(tuple(outcomes))


def _proven(
    graph: Graph,
    settings: Mapping[str, Any],
    left: Mapping[Node, SkipReason],
    comparison: Comparison,
    before: Mapping[str, Outcome],
) -> Sequence[Outcome]:
    """Return the outcomes whose regions have eager's bits; products take the operators that a refused region frees."""
    known = {node: before[node.name] for node in graph.nodes if node.name in before}
    leave_inexact(graph)
    split_casts(graph)
    reasons = {node: SkipReason(node, one.reason.code, one.reason.reason) for node, one in known.items() if one.reason}
    left, proofs = {**left, **reasons}, dict[tuple[Node, str], Proof]()
    possible = {node: one.possible for node, one in known.items()}
    while True:
        every = find_regions(graph, settings=settings, left=left).outcomes
        found = [one if one.fused is None else replace(one, fused=readable(graph, one.fused)) for one in every]
        regions = {one.product: one.fused for one in found if one.fused is not None}
        new = {node: each for node, each in regions.items() if (node, program_text(each)) not in proofs}
        for node, proof in comparison.prove(list(new.values())).items():
            proofs[node, program_text(new[node])] = proof
        refused = {
            node: reason for node in new if (reason := proofs[node, program_text(new[node])].reason(node)) is not None
        }
        possible |= {node: new[node] for node in refused}
        if not refused:
            return [
                replace(one, proof=str(proofs[one.product, program_text(one.fused)]))
                if one.fused is not None
                else replace(one, possible=possible.get(one.product, one.possible))
                for one in found
            ]
        left = {**left, **refused}


def _strided(graph: Graph) -> dict[Node, SkipReason]:
    """Return all products of a graph in which ``as_strided`` reads an intermediate value, else none.

    ``as_strided`` depends on the strides of eager mode, and an exported graph may have other strides: batch norm of a
    transposed matrix returns packed memory in eager mode, and transposed memory in its decomposition.
    """
    for node in graph.nodes:
        if base_name(node) == "as_strided" and node.all_input_nodes[0].op == "call_function":
            reason = f"`{node.name}` reads the memory of a result as it lies, which eager mode alone decides"
            return _all_products(graph, "E1003", reason)
    return {}


def _all_products(graph: Graph, code: str, reason: str) -> dict[Node, SkipReason]:
    """Return all products of a graph, each with the reason why it is not fused."""
    return {each: SkipReason(each, code, reason) for each in graph.nodes if find_product(each) is not None}


def _graphs(module: GraphModule) -> Iterator[GraphModule]:
    """Yield the module of a graph, and the modules of its inner graphs."""
    yield module
    for node in module.graph.find_nodes(op="get_attr"):
        inner = attrgetter(str(node.target))(module)
        if isinstance(inner, GraphModule):
            yield from _graphs(inner)


def _unflatten(structure: Any) -> Callable[[Sequence[Any]], Any]:
    """Return a function that makes a module's result from its leaves."""
    leaf = _pytree.tree_structure(0)
    for kind, make in ((leaf, lambda leaves: leaves[0]), (_pytree.tree_structure((0,) * structure.num_leaves), tuple)):
        if structure == kind:
            return make
    return lambda leaves: _pytree.tree_unflatten(list(leaves), structure)


__all__ = ["GraphPlan", "Lossless", "plan"]
