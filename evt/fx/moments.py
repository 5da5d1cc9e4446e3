"""Variances and means: ``split_moments(graph)`` divides operators that return both, so that a region can compute each.

:func:`join_moments` makes one operator again of a variance and a mean that no region computes.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Graph, Node

from evt.fx.aten import Arguments, base_name, dtype_of, is_tensor, operator_name, shape_of
from evt.fx.group_norms import divide, is_divided

aten = torch.ops.aten
#: The key in ``node.meta`` of a variance: the mean that was one operator with it.
_MEAN = "evt_mean"
#: The key in ``node.meta`` of a tensor whose statistics are of its rounded elements, as a product reads them.
ROUNDED = "evt_rounded"
#: The dimensions of images, and of images in groups of channels.
_IMAGE_RANK = _GROUPED_RANK = 4
_CASTS = ("convert_element_type", "_to_copy")


def split_moments(graph: Graph) -> None:
    """Divide each operator that returns a variance and a mean into two; let one operator be a variance written out."""
    for node in list(graph.nodes):
        if (written := _squares(node)) is not None:
            x, dims, keep = written
            with graph.inserting_before(node):
                made = graph.call_function(aten.var.correction, (x, dims), {"correction": 0, "keepdim": keep})
            made.meta = dict(node.meta)
            node.replace_all_uses_with(made)
        if operator_name(node) != "var_mean.correction":
            continue
        if any(user.target is not operator.getitem for user in node.users):
            continue
        arguments = Arguments(node)
        x, dims, keep = arguments["self"], arguments["dim"], arguments["keepdim"]
        variance, mean = node.meta["val"]
        with graph.inserting_before(node):
            correction = {"correction": arguments["correction"], "keepdim": keep}
            made = graph.call_function(aten.var.correction, (x, dims), correction)
            second = graph.call_function(aten.mean.dim, (x, dims or [*range(len(shape_of(x)))], keep))
        made.meta = {**node.meta, "val": variance, _MEAN: second}
        second.meta = {**node.meta, "val": mean}
        for user in list(node.users):
            user.replace_all_uses_with((made, second)[user.args[1]])
            graph.erase_node(user)
        graph.erase_node(node)


def join_moments(graph: Graph) -> None:
    """Make one operator of each variance and its mean, if no region computes them, or moments of channels first."""
    places = {node: place for place, node in enumerate(graph.nodes)}
    for node in places:
        mean = node.meta.pop(_MEAN, None)
        if mean is not None and not mean._erased and _are_one(node, mean):
            with graph.inserting_before(min(node, mean, key=places.__getitem__)):  # a region may have moved one of them
                (divide if is_of_groups(node) and is_divided(node) else _join)(graph, node, mean)


def moments_of(node: Node) -> list[Node]:
    """Return a variance, and the mean that was one operator with it."""
    mean = node.meta.get(_MEAN)
    return [node] if mean is None else [node, mean]


def is_applied(variance: Node) -> bool:
    """Return whether a variance is of a norm that is part of the products that read it."""
    return ROUNDED in uncast(variance.all_input_nodes[0]).meta


def is_of_groups(variance: Node) -> bool:
    """Return whether a variance is that of a group norm, which reads [images, groups, channels, pixels]."""
    x = variance.all_input_nodes[0]
    rank = len(shape_of(x))
    return rank == _GROUPED_RANK and tuple(Arguments(variance)["dim"] or ()) == (rank - 2, rank - 1)


def is_of_channels(variance: Node) -> bool:
    """Return whether a variance is that of a batch norm of a convolution without groups, which makes [N, C, H, W]."""
    made, dims = uncast(variance.all_input_nodes[0]), Arguments(variance)["dim"]
    if len(shape_of(made)) != _IMAGE_RANK or tuple(dims or ()) != (0, 2, 3) or base_name(made) != "convolution":
        return False
    return bool(Arguments(made)["groups"] == 1)


def uncast(node: Node) -> Node:
    """Return the operand of conversions between floats."""
    while base_name(node) in _CASTS and dtype_of(node.all_input_nodes[0]).is_floating_point:
        node = node.all_input_nodes[0]
    return node


def _squares(node: Node) -> tuple[Node, Any, bool] | None:
    """Return the operand, dimensions and ``keepdim`` of ``mean((x - mean(x))**2)``, or None."""
    if operator_name(node) != "mean.dim" or Arguments(node)["dtype"] is not None:
        return None
    square, dims = node.all_input_nodes[0], node.args[1]
    name = operator_name(square)
    if name not in ("pow.Tensor_Scalar", "mul.Tensor"):
        return None
    centred = square.args[0]
    if square.args[1] != (2 if name == "pow.Tensor_Scalar" else centred):
        return None
    if not isinstance(centred, Node) or operator_name(centred) != "sub.Tensor" or centred.kwargs:
        return None
    x, mean = centred.args
    kept = isinstance(mean, Node) and operator_name(mean) == "mean.dim" and Arguments(mean)["keepdim"]
    if not kept or not is_tensor(x) or mean.args[:2] != (x, dims):  # type: ignore[union-attr]
        return None
    return x, dims, bool(Arguments(node)["keepdim"])


def _are_one(variance: Node, mean: Node) -> bool:
    return variance.args[0] is mean.args[0] and not variance._erased


def _join(graph: Graph, variance: Node, mean: Node) -> None:
    """Replace a variance and a mean by one operator."""
    both = graph.call_function(aten.var_mean.correction, variance.args, variance.kwargs)
    both.meta = {**variance.meta, "val": (variance.meta["val"], mean.meta["val"])}
    for place, each in enumerate((variance, mean)):
        part = graph.call_function(operator.getitem, (both, place))
        part.meta = dict(each.meta)
        each.replace_all_uses_with(part)
    graph.erase_node(variance)
    graph.erase_node(mean)


__all__ = [
    "ROUNDED",
    "is_applied",
    "is_of_channels",
    "is_of_groups",
    "join_moments",
    "moments_of",
    "split_moments",
    "uncast",
]
