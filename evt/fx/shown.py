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
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

from evt.fx.aten import base_name, is_tensor, operator_name
from evt.fx.example import hint
from evt.fx.index_map import Size, same
from evt.fx.views import MEMORY

_Library: Any = torch.library.Library  # has no types
_LIBRARY = _Library("evt", "FRAGMENT")
_LIBRARY.define("ordered(Tensor tensor, int[] dims) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))


def _ordered(tensor: torch.Tensor, dims: list[int]) -> torch.Tensor:
    back = sorted(range(len(dims)), key=dims.__getitem__)
    copied: torch.Tensor = tensor.permute(dims).clone(memory_format=torch.contiguous_format)
    return copied.permute(back)


_LIBRARY.impl("ordered", _ordered, "CompositeExplicitAutograd")
#: Returns a dense copy of a tensor whose dimensions lie in an order, outermost first. Its lowering copies only a tensor
#: that lies otherwise: :mod:`evt.fx.lowering`.
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
        if not is_tensor(node) or (_is_alias(node) and node not in moved):
            continue
        if views := [user for user in node.users if _is_alias(user) and _is_shown(user, node)]:
            stride = moved.get(node, node.meta["val"].stride())
            _lay(graph, node, stride, {*views, *(user for user in node.users if user.op == "output")})


def _lay(graph: Graph, node: Node, stride: Sequence[Size], readers: Collection[Node]) -> None:
    """Let readers of a tensor read it with its dimensions in the order of strides."""
    value: torch.Tensor = node.meta["val"]
    steps = list(map(hint, stride))
    dims = sorted(range(value.dim()), key=lambda dim: (-steps[dim], dim))
    with graph.inserting_after(node):
        made = graph.call_function(ORDERED, (node, dims))
    made.meta = {**node.meta, "val": value.new_empty_strided(tuple(value.shape), tuple(stride))}
    for each in readers:
        each.replace_input_with(node, made)


def _is_alias(node: Node) -> bool:
    """Return whether a node is a view of its first operand's memory, or an element of a list of views."""
    if node.target is operator.getitem:
        return isinstance(node.args[0], Node) and _is_alias(node.args[0])
    schema = getattr(node.target, "_schema", None)
    found = None if schema is None or not schema.returns else schema.returns[0].alias_info
    return found is not None and not found.is_write


def _is_shown(view: Node, base: Node) -> bool:
    """Return whether the graph returns a part of a tensor as a view, or an operator of memory reads a view.

    The order of its strides gives a view of all elements eager mode's strides.
    """
    count, stack = base.meta["val"].numel(), [view]
    while stack:
        each = stack.pop()
        for user in each.users:
            if base_name(user) in MEMORY or operator_name(user) in MEMORY:
                return True
            if user.op == "output" and not (is_tensor(each) and same(each.meta["val"].numel(), count)):
                return True
            stack += (user,) if _is_alias(user) else ()
    return False


__all__ = ["ORDERED", "keep_shown"]
