"""Views that show the strides of their base: ``keep_shown(graph, moved)``, in place.

Inductor chooses the strides of computed tensors, and copies a tensor that the graph returns with other strides. For a
view that the graph returns, it restores the order of the strides only. A view with gaps, such as ``y[:, ::2]`` or
``y.unfold(-1, 2, 1)``, also has the steps and the offset of its base. So its base keeps the traced order:

    y = evt_launch(...)          y = evt_launch(...)
    v = slice(y, 1, step=2)      laid = evt.ordered(y, [0, 1, 2, 3])
    return v                     v = slice(laid, 1, step=2)
                                 return v
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from evt.fx.aten import base_name, is_tensor, operator_name
from evt.fx.example import hint
from evt.fx.index_map import Size, same
from evt.fx.views import MEMORY

_Library: Any = torch.library.Library  # has no types
_LIBRARY = _Library("evt", "FRAGMENT")
_LIBRARY.define("ordered(Tensor(a) tensor, int[] dims) -> Tensor(a)", tags=(torch.Tag.pt2_compliant_tag,))


def _ordered(tensor: torch.Tensor, dims: list[int]) -> torch.Tensor:
    back = sorted(range(len(dims)), key=dims.__getitem__)
    copied: torch.Tensor = tensor.permute(dims).clone(memory_format=torch.contiguous_format)
    return copied.permute(back)


def _traced(tensor: torch.Tensor, dims: list[int]) -> torch.Tensor:
    """Return a traced result. It shares memory, for there may be no copy."""
    strides, step = [0] * len(dims), 1
    for dim in reversed(dims):
        strides[dim], step = step, step * tensor.shape[dim]
    room = tensor.untyped_storage().nbytes() // tensor.itemsize - tensor.storage_offset()
    if statically_known_true(step <= room):
        return tensor.as_strided(tensor.shape, strides)
    return tensor.new_empty_strided(tensor.shape, strides)


_LIBRARY.impl("ordered", _ordered, "CompositeExplicitAutograd")
_LIBRARY.impl("ordered", _traced, "Meta")
#: Returns a dense tensor whose dimensions lie in an order, outermost first. Its lowering copies only a tensor that lies
#: otherwise: :mod:`evt.fx.lowering`.
ORDERED = torch.ops.evt.ordered.default


def keep_shown(graph: Graph, moved: Mapping[Node, Sequence[Size]]) -> None:
    """Keep the traced strides of tensors whose views the graph returns, or an operator of memory reads.

    ``moved`` are results of other strides than traced, with the traced ones. Inductor can give other strides to tensors
    computed from these.
    """
    if not moved:
        return
    changed = set(moved)
    for node in list(graph.nodes):
        if node.op != "call_function" or not (node in moved or changed.intersection(node.all_input_nodes)):
            continue
        changed.add(node)
        if not is_tensor(node) or (is_alias(node) and node not in moved):
            continue
        if readers := _shown_by(node):
            _lay(graph, node, moved.get(node, node.meta["val"].stride()), readers)


def _lay(graph: Graph, node: Node, stride: Sequence[Size], readers: Collection[Node]) -> None:
    """Let readers of a tensor read it with its dimensions in the order of strides."""
    steps = list(map(hint, stride))
    dims = sorted(range(len(steps)), key=lambda dim: (-steps[dim], dim))
    with graph.inserting_after(node):
        made = graph.call_function(ORDERED, (node, dims))
    made.meta = {**node.meta, "val": ORDERED(node.meta["val"], dims)}
    for each in readers:
        each.replace_input_with(node, made)


def is_alias(node: Node) -> bool:
    """Return whether a node is a view of its first operand's memory, or an element of a list of views."""
    if node.target is operator.getitem:
        return isinstance(node.args[0], Node) and is_alias(node.args[0])
    schema = getattr(node.target, "_schema", None)
    found = None if schema is None or not schema.returns else schema.returns[0].alias_info
    return found is not None and not found.is_write


def _shown_by(base: Node) -> set[Node]:
    """Return the readers by which a graph returns a tensor or reads its memory, if they need the tensor's strides.

    A single result with all elements needs none: the order of its strides gives it eager mode's strides.
    """
    readers, results, is_read = set[Node](), set[Node](), False
    for reader in base.users:
        aliases = [base] if reader.op == "output" else [*_aliases(reader)]
        shown = {each for each in aliases if any(user.op == "output" for user in each.users)}
        reads = any(map(_reads_memory, (reader, *(user for each in aliases for user in each.users))))
        if shown or reads:
            readers.add(reader)
        results |= shown
        is_read |= reads
    count = base.meta["val"].numel()
    is_part = any(not is_tensor(each) or not same(each.meta["val"].numel(), count) for each in results)
    return readers if is_read or is_part or len(results) > 1 else set()


def _aliases(view: Node) -> Iterator[Node]:
    """Yield a view, and the views of it; nothing for an operator that is none."""
    stack = [view] if is_alias(view) else []
    while stack:
        yield (each := stack.pop())
        stack += filter(is_alias, each.users)


def _reads_memory(node: Node) -> bool:
    return base_name(node) in MEMORY or operator_name(node) in MEMORY


__all__ = ["ORDERED", "is_alias", "keep_shown"]
