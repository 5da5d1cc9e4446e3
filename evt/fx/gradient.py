"""Gradients: the graphs of autograd, and the operator ``convolution_backward``.

The first two of the operator's three results are products that evt fuses.

    gradients = convolution_backward(dY, x, w, ..., output_mask=[True, True, False])
    dx, dw = gradients[0], gradients[1]

A region may start with ``dx``, the gradient of the input, or with ``dw``, the gradient of the filters. The operator
then computes only the other gradients: its mask drops every gradient without readers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from torch._functorch._aot_autograd.logging_utils import get_aot_compilation_context
from torch.fx import Graph, Node

from evt.fx.aten import Arguments, base_name

_OPERATOR, _MASK = "convolution_backward", "output_mask"
#: The places of the gradients of the input, the filters and the bias among the results.
INPUT, FILTERS, BIAS = range(3)


def graph_name() -> str:
    """Return "forward" or "backward" for a graph of autograd's that is being compiled, else ""."""
    names, *_ = get_aot_compilation_context()
    name = names[-1].rpartition("_")[2] if names else ""
    return name if name in ("forward", "backward") else ""


def is_backward(node: Node) -> bool:
    """Return whether a node is a ``convolution_backward``."""
    return base_name(node) == _OPERATOR


def backward_of(node: Node) -> tuple[Node, int] | None:
    """Return the ``convolution_backward`` whose gradient of the input or the filters is a node, and its place."""
    if node.op != "call_function" or node.target is not operator.getitem:
        return None
    made, place = node.args
    if not isinstance(made, Node) or not isinstance(place, int) or place == BIAS or not is_backward(made):
        return None
    return made, place


def has_bias(node: Node) -> bool:
    """Return whether a ``convolution_backward`` computes the gradient of a bias."""
    return bool(Arguments(node)[_MASK][BIAS])


def leave_unread(graph: Graph) -> None:
    """Drop gradients without readers from the masks of all ``convolution_backward`` nodes."""
    for node in [each for each in graph.nodes if is_backward(each)]:
        read = {user.args[1] for user in node.users}
        mask = [bool(wanted) and place in read for place, wanted in enumerate(Arguments(node)[_MASK])]
        if not any(mask):
            graph.erase_node(node)
        elif mask != list(Arguments(node)[_MASK]):
            _put(node, mask)
            node.meta["val"] = [value if kept else None for value, kept in zip(node.meta["val"], mask, strict=True)]


def copy_alone(graph: Graph, node: Node, place: int, placed: Callable[[Node], Node]) -> Node:
    """Return a copy of ``convolution_backward`` that computes the gradient at a place alone."""
    made = graph.node_copy(node, placed)
    _put(made, [each == place for each in (INPUT, FILTERS, BIAS)])
    return made


def _put(node: Node, mask: list[bool]) -> None:
    names = Arguments(node).names
    values: dict[str, Any] = {**dict(zip(names, node.args, strict=False)), **node.kwargs, _MASK: mask}
    node.args, node.kwargs = tuple(values[name] for name in names), {}
