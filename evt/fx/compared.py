"""Tensors that are compared with their own elements: ``self_compared(graph) -> set[Node]``.

The gradient of ``amax`` counts the elements that equal the maximum: ``x == amax(x)``. If two kernels compute ``x`` with
different bits, no element may be equal, and the gradient is 0/0. So one kernel computes such a tensor:

    SaveCompared      lets the backward graph read the tensor from the forward graph
    store_compared    lets Inductor's kernels read the tensor from memory, instead of computing it again
"""

from __future__ import annotations

import operator
from functools import partial
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph, Node
from torch.utils.checkpoint import CheckpointPolicy

from evt.fx.aten import base_name, dtype_of, is_tensor
from evt.fx.op_semantics import IDENTITIES
from evt.fx.views import is_view

#: The key of the nodes in whose joint graph :class:`SaveCompared` has found a comparison.
_COMPARED = "evt_compared"
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
#: Operators that compare their operands if a comparison or a sign reads them.
_DIFFERENCES = ("sub", "div")
_SIGNS = ("sign", "sgn")
#: Functions of single elements that do not round. A cast does not round if its type is wider.
_EXACT = (*IDENTITIES, "abs", "neg")
_CASTS = ("convert_element_type", "_to_copy", "to")
#: Operators whose results are elements of their operands, or constants.
_SELECTIONS = (
    *("amax", "amin", "aminmax", "max", "min", "median", "nanmedian", "mode", "kthvalue", "topk", "sort"),
    *("maximum", "minimum", "clamp", "clamp_min", "clamp_max", "relu", "where", "masked_fill"),
    *("gather", "index", "index_select", "cat", "flip", "roll", "constant_pad_nd"),
)


def self_compared(graph: Graph) -> set[Node]:
    """Return the operators whose results are compared with elements of the same result, here or in the joint graph.

    In a graph for a GPU, tensors on the CPU are not among them. Inductor moves masks that code makes on the CPU to the
    GPU. It moves no mask that other operators than ATen's read, or that the graph returns.
    """
    order = {node: place for place, node in enumerate(graph.nodes)}
    found = {node for node in graph.nodes if _COMPARED in node.meta}
    for node in graph.nodes:
        operands = [each for each in node.args if is_tensor(each)]
        if len(operands) == 2 and _compares(node):
            shared = set.intersection(*map(_origins, operands))
            if shared:
                found.add(_exact_origin(max(shared, key=order.__getitem__)))
    found = {node for node in found if node.op == "call_function" and node.meta["val"].is_floating_point()}
    devices = {node.meta["val"].device.type for node in graph.nodes if is_tensor(node)}
    return {node for node in found if len(devices) == 1 or node.meta["val"].device.type != "cpu"}


def _compares(node: Node) -> bool:
    """Return whether an operator compares its operands, itself or by the sign of their difference or quotient."""
    if base_name(node) not in _DIFFERENCES:
        return base_name(node) in _COMPARISONS
    stack = [node]
    while stack:
        for user in stack.pop().users:
            if base_name(user) in (*_COMPARISONS, *_SIGNS):
                return True
            if _is_exact(user) or base_name(user) in (*_SELECTIONS, "mul"):
                stack.append(user)
    return False


def _origins(node: Node) -> set[Node]:
    """Return a tensor, and the tensors whose elements it has, or exact functions of them."""
    found, stack = {node}, [node]
    while stack:
        each = stack.pop()
        if _is_exact(each) or each.target is operator.getitem or base_name(each) in _SELECTIONS:
            new = [operand for operand in each.all_input_nodes if operand not in found]
            found.update(new)
            stack += new
    return {each for each in found if is_tensor(each)}


def _exact_origin(node: Node) -> Node:
    """Return the operand of a chain of exact functions, the node itself if it is none."""
    while _is_exact(node):
        node = node.all_input_nodes[0]
    return node


def _is_exact(node: Node) -> bool:
    """Return whether a node is a view, or an exact function, of its first operand."""
    if base_name(node) in _CASTS:
        before, after = dtype_of(node.all_input_nodes[0]), dtype_of(node)
        return before == after or before.itemsize < after.itemsize
    return is_view(node) or base_name(node) in _EXACT


class SaveCompared(CustomGraphPass):  # type: ignore[misc, unused-ignore]
    """A pass over a joint graph of autograd's: the backward graph reads self-compared tensors from the forward graph.

    ``others`` are the user's own passes, as Inductor takes them: None, one, or a list. They run first.
    """

    def __init__(self, others: Any = None) -> None:
        self.others: tuple[Any, ...] = tuple(others) if isinstance(others, tuple | list) else (others,)
        self.others = tuple(each for each in self.others if each is not None)

    def __call__(self, graph: Graph) -> None:
        for each in self.others:
            each(graph)
        for node in self_compared(graph):
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
            node.meta[_COMPARED] = True

    def uuid(self) -> Any:
        """Return the identity of the passes for PyTorch's keys, None if a pass has none."""
        identities = [each.uuid() if isinstance(each, CustomGraphPass) else None for each in self.others]
        return None if None in identities else ("evt", *identities)


def store_compared(graph: Graph) -> None:
    """Let all readers of self-compared tensors read ``torch.ops.evt.stored(tensor)``, in place.

    A result of a region is an element of a list, which lies in memory already.
    """
    for node in self_compared(graph):
        if node.target is not operator.getitem:
            with graph.inserting_after(node):
                made = graph.call_function(STORED, (node,))
            made.meta = dict(node.meta)
            node.replace_all_uses_with(made, delete_user_cb=partial(operator.is_not, made))


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone()


_Library: Any = torch.library.Library  # has no types
_LIBRARY = _Library("evt", "FRAGMENT")
_LIBRARY.define("stored(Tensor tensor) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
_LIBRARY.impl("stored", _copy, "CompositeExplicitAutograd")
#: Returns a copy of a tensor. Its lowering makes none, but lets one kernel compute the tensor: :mod:`evt.fx.lowering`.
STORED = torch.ops.evt.stored.default
