"""Tensors that read results with other strides: ``retrace(graph, results, moved)``, in place.

A kernel stores the result of a convolution channels last, also if PyTorch does not. A reshape of it can then be a copy:

    y = evt_launch(...)          y = evt_launch(...)
    v = reshape(y)               c = clone(y)
    z = clone(v)                 v = reshape(c)
    return y, z                  z = clone(v)
                                 return y, z

Inductor removes the clone of a tensor that shares no memory with a result, and writes to such a tensor in place. It
reads this from the traced tensors, but computes a reshape as a view. So copies are operators, and traced views share
memory with the new results.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Graph, Node
from torch.fx.node import map_arg
from torch.utils import _pytree

from evt.fx.aten import base_name
from evt.fx.index_map import all_same
from evt.fx.results import memory_of
from evt.fx.shown import is_alias

aten = torch.ops.aten


def retrace(graph: Graph, results: Collection[Node], moved: Collection[Node]) -> None:
    """Give the readers of new results the strides and the memory that they have now.

    ``moved`` are the results with other strides than traced before. Only views read the others again.
    """
    strided, views = set(moved), set(results)
    for node in list(graph.nodes):
        if not _is_traced(node):
            continue
        is_view = is_alias(node) or base_name(node) == "reshape"
        if not any(each in strided or (is_view and each in views) for each in node.all_input_nodes):
            continue
        before, made = node.meta["val"], _run(node)
        if base_name(node) == "reshape" and not _shares(made, node.all_input_nodes[0]):
            _copy_first(graph, node)
            made = _run(node)
        are_alike = _are_alike(made, before)
        if is_view or not are_alike:
            node.meta["val"] = made
            (views if are_alike else strided).add(node)


def _is_traced(node: Node) -> bool:
    """Return whether an operator can be run on traced tensors again, and its strides follow from its operands'."""
    if node.op != "call_function" or "evt" in node.meta or "unbacked_bindings" in node.meta:
        return False
    if any("val" not in each.meta for each in (node, *node.all_input_nodes)):
        return False
    return node.target is operator.getitem or (
        isinstance(node.target, OpOverload) and not node.target._schema.is_mutable
    )


def _run(node: Node) -> Any:
    args, keywords = map_arg((node.args, node.kwargs), lambda each: each.meta["val"])
    assert callable(node.target)
    return node.target(*args, **keywords)


def _shares(value: torch.Tensor, base: Node) -> bool:
    """Return whether a reshape's result is a view."""
    memory: int = value.untyped_storage()._cdata
    return memory == memory_of(base)


def _copy_first(graph: Graph, node: Node) -> None:
    """Let a reshape read a contiguous copy."""
    base, *_ = node.all_input_nodes
    with graph.inserting_before(node):
        copy = graph.call_function(aten.clone.default, (base,), {"memory_format": torch.contiguous_format})
    copy.meta = {**base.meta, "val": base.meta["val"].clone(memory_format=torch.contiguous_format)}
    node.replace_input_with(base, copy)


def _are_alike(first: Any, second: Any) -> bool:
    """Return whether all tensors of two values have the same strides."""
    pairs = zip(_pytree.tree_leaves(first), _pytree.tree_leaves(second), strict=True)
    return all(not isinstance(one, torch.Tensor) or all_same(one.stride(), other.stride()) for one, other in pairs)


__all__ = ["retrace"]
