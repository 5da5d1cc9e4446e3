"""The strides that convolutions give their results: ``correct_strides(graph)``, in place.

torch.export keeps convolutions whole. For a GPU it records that their results are contiguous, also where PyTorch's
kernels return them channels last. The graph would copy every result, and its reader would copy it back. A convolution
of fake tensors outside of torch.export has the right strides.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves

from evt.fx.aten import base_name


def correct_strides(graph: Graph) -> None:
    """Compute the values of convolutions again, and of all operators after a convolution with other strides."""
    corrected: set[Node] = set()
    for node in graph.nodes:
        follows = not corrected.isdisjoint(node.all_input_nodes)
        if (follows or _is_convolution(node)) and _is_computed(node):
            found = _computed(node)
            if follows or found.stride() != node.meta["val"].stride():
                node.meta["val"] = found
                corrected.add(node)


def _is_convolution(node: Node) -> bool:
    return base_name(node).startswith("conv") and isinstance(node.target, torch._ops.OpOverload)


def _is_computed(node: Node) -> bool:
    """Return whether a node's operator gives its value again; a size that depends on data would get a new symbol."""
    if not isinstance(node.target, torch._ops.OpOverload) and node.target is not operator.getitem:
        return False
    values = [each.meta.get("val") for each in (node, *node.all_input_nodes)]
    return all(each is not None for each in values) and not any(map(free_unbacked_symbols, tree_leaves(values)))


def _computed(node: Node) -> Any:
    """Return the value that a node's operator gives for the values of its operands."""
    args, kwargs = map_arg((node.args, node.kwargs), lambda each: each.meta["val"])
    mode = detect_fake_mode(tree_leaves((args, kwargs)))
    assert callable(node.target)
    assert mode is not None
    cached, mode.cache_enabled = mode.cache_enabled, False  # torch.export has filled the cache
    try:
        with mode, torch.no_grad():
            return node.target(*args, **kwargs)
    finally:
        mode.cache_enabled = cached


__all__ = ["correct_strides"]
