"""Results with the strides and aliases of eager mode: ``restore(graph, written_to, results)``.

In an exported graph with side effects, fake tensors share memory exactly where real tensors do. PyTorch then removes
the side effects. :func:`restore` gives the results of the rewritten graph these strides and aliases again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.fx.node import map_arg

from evt.fx.aten import is_constant, is_tensor
from evt.fx.example import hint
from evt.fx.index_map import Size, all_same, same
from evt.fx.sizes import written
from evt.fx.views import is_view

aten = torch.ops.aten


@dataclass(frozen=True)
class ResultMemory:
    """A tensor of a module's result.

    ``owner`` is the tensor whose memory it shares: the name of an input, or the place of the largest result.
    The tensor begins ``offset`` elements after the owner. ``owner`` None means separate memory, where the tensor begins
    at element ``start``.
    """

    size: tuple[Size, ...]
    stride: tuple[Size, ...]
    owner: str | int | None = None
    offset: Size = 0
    start: Size = field(default=0, compare=False)


def results_of(inputs: Iterable[tuple[str, Any]], leaves: Iterable[Any]) -> tuple[ResultMemory | None, ...]:
    """Return the leaves of a result, with owners among named inputs; None for leaves that are no dense tensors."""
    owners: dict[int, tuple[str | int, torch.Tensor]] = {}
    for name, value in inputs:
        if _is_dense(value):
            owners.setdefault(_memory(value), (name, value))
    every = list(leaves)
    tensors = [(place, value) for place, value in enumerate(every) if _is_dense(value)]
    for place, value in sorted(tensors, key=lambda each: -hint(each[1].numel())):
        owners.setdefault(_memory(value), (place, value))
    found: list[ResultMemory | None] = [None] * len(every)
    for place, value in tensors:
        owner, first = owners[_memory(value)]
        offset = _distance(first, value)
        shown = tuple(value.shape), tuple(value.stride())
        found[place] = (
            ResultMemory(*shown, start=value.storage_offset())
            if owner == place
            else ResultMemory(*shown, owner, offset)
        )
    return tuple(found)


def results_in(exported: ExportedProgram) -> tuple[ResultMemory | None, ...]:
    """Return the results of a graph with side effects."""
    nodes = list(exported.graph.nodes)
    inputs = ((node.name, node.meta.get("val")) for node in nodes if node.op == "placeholder")
    return results_of(inputs, (_value(each) if is_tensor(each) else None for each in _leaves(exported.graph)))


def restore(graph: Graph, written_to: Sequence[Node], results: Sequence[ResultMemory | None]) -> None:
    """Write the new values of inputs to the inputs, and give results the strides and aliases of eager mode.

    The graph then returns the results alone.
    """
    for node in graph.nodes:
        if is_view(node):  # the sizes may belong to replaced nodes
            node.meta["val"] = _run(node)
    output, every = graph.output_node(), _leaves(graph)
    values, found = every[: len(written_to)], every[len(written_to) :]
    inputs = {node.name: node for node in graph.nodes if node.op == "placeholder"}
    with graph.inserting_before(output):
        owners = list(inputs.values())
        for place, result in enumerate(results):
            if result is not None and result.owner is None:
                is_part = not same(result.start, 0) or any(each and each.owner == place for each in results)
                made = _apart(graph, found[place], owners, is_part)
                owners.append(made)
                found[place] = _laid(graph, keep_strides(graph, made, result.stride), result)
        new = [
            (node, value)
            for node, value in zip(written_to, values, strict=True)
            if value is not node and not _is_written_in_place(node, value, [*owners, *written_to, *values])
        ]
        for node, value in [(node, _apart(graph, value, written_to)) for node, value in new]:
            graph.call_function(aten.copy_.default, (node, value)).meta["val"] = node.meta["val"]
        for place, result in enumerate(results):
            if result is None or result.owner is None:
                continue
            owner = inputs.get(result.owner) if isinstance(result.owner, str) else found[result.owner]
            if owner is not None and (owner in written_to or not _shares(found[place], owner, result)):
                found[place] = _view(graph, owner, result, found[place].meta["val"].dtype) or found[place]
    output.args = (tuple(found),)


def _laid(graph: Graph, node: Node, result: ResultMemory) -> Node:
    """Return a result with eager mode's strides also in dimensions of size 1."""
    return (
        node
        if all_same(node.meta["val"].stride(), result.stride)
        else _view(graph, node, replace(result, offset=0), node.meta["val"].dtype) or node
    )


#: Operators that write to parts of a tensor, and their in-place versions. A second write changes nothing.
_IN_PLACE = {aten.index_copy.default: aten.index_copy_.default, aten.index_put.default: aten.index_put_.default}


def _is_written_in_place(node: Node, value: Node, others: Sequence[Any]) -> bool:
    """Return whether an operator was changed to write to its input in place.

    It must be the only reader of the input, and no other returned or written value may share its result's memory.
    """
    alone = value.args[:1] == (node,) and set(node.users) <= {value} and value.args.count(node) == 1
    memory = _memory(_value(value))
    if not alone or sum(is_tensor(each) and _memory(_value(each)) == memory for each in others) > 1:
        return False
    accumulates = value.args[3:4] == (True,) or value.kwargs.get("accumulate", False)
    if value.target not in _IN_PLACE or accumulates:
        return False
    value.target = _IN_PLACE[value.target]
    return True


def keep_strides(graph: Graph, node: Node, stride: Sequence[Size]) -> Node:
    """Return the node, or a copy with these strides.

    Dimensions with stride 0 are copied once and expanded.
    """
    value = node.meta["val"]
    if all(same(size, 1) or same(x, y) for size, x, y in zip(value.shape, value.stride(), stride, strict=True)):
        return node
    expanded = [dim for dim, step in enumerate(stride) if same(step, 0) and not same(value.shape[dim], 1)]
    for dim in expanded:
        part = graph.call_function(aten.slice.Tensor, (node, dim, 0, 1))
        part.meta["val"] = aten.slice.Tensor(node.meta["val"], dim, 0, 1)
        node = part
    shape = tuple(node.meta["val"].shape)
    made = graph.call_function(torch.ops.prims.copy_strided.default, (node, [written(graph, each) for each in stride]))
    made.meta["val"] = value.new_empty_strided(shape, tuple(stride))
    if not expanded:
        return made
    whole = graph.call_function(aten.expand.default, (made, [written(graph, size) for size in value.shape]))
    whole.meta["val"] = made.meta["val"].expand(tuple(value.shape))
    return whole


def view_of(tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int, dtype: Any) -> torch.Tensor:
    """Return a view of a tensor's memory as elements of a type, ``offset`` of them after its first element."""
    first = _begin(tensor, dtype) + offset
    if tensor.dtype != dtype:
        largest = max(tensor.itemsize, dtype.itemsize)
        count = tensor.untyped_storage().nbytes() // largest * largest // tensor.itemsize
        tensor = tensor.as_strided((count,), (1,), 0).view(dtype)
    return tensor.as_strided(size, stride, first)


def _distance(first: torch.Tensor, second: torch.Tensor) -> Size:
    """Return how many elements of a tensor's type it begins after another one, in the same memory."""
    return second.storage_offset() - _begin(first, second.dtype)


def _begin(tensor: torch.Tensor, dtype: torch.dtype) -> Size:
    """Return the number of elements of a type before a tensor in its memory."""
    offset = tensor.storage_offset()
    return offset if tensor.itemsize == dtype.itemsize else offset * tensor.itemsize // dtype.itemsize


def _apart(graph: Graph, node: Node, others: Iterable[Any], is_part: bool = False) -> Node:
    """Return the node, or a copy if it shares memory with one of the others.

    With ``is_part``, a view of a folded value becomes a view of the value's copy: other results may be views of it.
    """
    memory = _memory(node.meta["val"])
    if not any(is_tensor(each) and _memory(each.meta["val"]) == memory for each in others):
        return node
    views, base = list[Node](), node
    while is_part and is_view(base):
        views.append(base)
        base = base.all_input_nodes[0]
    if not is_constant(base):
        views, base = [], node
    made = graph.call_function(aten.clone.default, (base,))
    made.meta["val"] = base.meta["val"].clone()
    for view in reversed(views):
        made = graph.node_copy(view, partial(_other, view.all_input_nodes[0], made))
        made.meta["val"] = _run(made)
    return made


def _other(old: Node, new: Node, node: Node) -> Node:
    return new if node is old else node


def _run(node: Node) -> Any:
    """Return an operator's result for traced tensors."""
    assert callable(node.target)
    return node.target(*map_arg(node.args, _value), **map_arg(node.kwargs, _value))


def _shares(node: Node, owner: Node, result: ResultMemory) -> bool:
    """Return whether a node has the strides and the aliasing of a result."""
    value, first = node.meta["val"], owner.meta["val"]
    offset = _distance(first, value)
    return _memory(value) == _memory(first) and all_same((*value.stride(), offset), (*result.stride, result.offset))


def _view(graph: Graph, owner: Node, result: ResultMemory, dtype: torch.dtype) -> Node | None:
    """Return a result as a view of its owner, or None if the view exceeds the owner's memory."""
    value = owner.meta["val"]
    is_same = all_same((*value.shape, *value.stride(), 0), (*result.size, *result.stride, result.offset))
    if is_same and value.dtype == dtype:
        return owner
    first = _begin(value, dtype) + result.offset
    last = first + sum((size - 1) * stride for size, stride in zip(result.size, result.stride, strict=True))
    if not statically_known_true(first >= 0) or not statically_known_true(
        last < value.untyped_storage().size() // dtype.itemsize
    ):
        return None
    sizes = ([written(graph, each) for each in sizes] for sizes in (result.size, result.stride))
    made = graph.call_function(view_of, (owner, *sizes, written(graph, result.offset), dtype))
    made.meta["val"] = view_of(value, result.size, result.stride, result.offset, dtype)
    return made


def _value(node: Node) -> Any:
    value: Any = node.meta["val"]
    return value


def memory_of(node: Node) -> int:
    """Return the identity of the memory of a node's tensor."""
    return _memory(node.meta["val"])


def _is_dense(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def _memory(value: torch.Tensor) -> int:
    """Return the identity of a tensor's memory; every sparse tensor has its own."""
    memory: int = value.untyped_storage()._cdata if _is_dense(value) else -id(value)
    return memory


def _leaves(graph: Graph) -> list[Any]:
    """Return the results of a graph."""
    leaves: Any = graph.output_node().args[0]
    return list(leaves)


__all__ = ["ResultMemory", "keep_strides", "memory_of", "restore", "results_in", "results_of", "view_of"]
