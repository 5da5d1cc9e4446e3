"""The operator ``convolution_backward``: the first of its three results is a product that evt fuses.

    gradients = convolution_backward(dY, x, w, ..., output_mask=[True, True, False])
    dx, dw = gradients[0], gradients[1]

A region may start with ``dx``, the gradient of the input. The operator then computes only the other gradients: its mask
drops every gradient without readers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from torch.fx import Graph, Node

from evt.fx.aten import Arguments, base_name

_OPERATOR, _MASK = "convolution_backward", "output_mask"


def is_backward(node: Node) -> bool:
    """Return whether a node is a ``convolution_backward``."""
    return base_name(node) == _OPERATOR


def backward_of(node: Node) -> Node | None:
    """Return the ``convolution_backward`` whose input gradient is a node, or None for other nodes."""
    if node.op != "call_function" or node.target is not operator.getitem:
        return None
    made, place = node.args
    return made if isinstance(made, Node) and place == 0 and is_backward(made) else None


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


def copy_alone(graph: Graph, node: Node, placed: Callable[[Node], Node]) -> Node:
    """Return the input gradient of a copy of ``convolution_backward`` that computes this gradient alone."""
    made = graph.node_copy(node, placed)
    _put(made, [True, False, False])
    return made


def _put(node: Node, mask: list[bool]) -> None:
    names = Arguments(node).names
    values: dict[str, Any] = {**dict(zip(names, node.args, strict=False)), **node.kwargs, _MASK: mask}
    node.args, node.kwargs = tuple(values[name] for name in names), {}
