"""Group norms of images whose channels are neighbours in memory: statistics and their application by channels.

PyTorch's operators see [images, groups, channels, pixels]. Inductor then reads the pixels of one group after another
for the statistics, and reads the statistics of a group for each element. Both are faster by channels.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from evt.fx.aten import Arguments, base_name, dtype_of, is_tensor, operator_name, shape_of

aten = torch.ops.aten
#: The fewest elements of an image for whose channels the statistics are copied that a convolution computes. Measured in
#: 11 residual blocks of VAEs and U-Nets on an H200, 2026-11: 2**23 elements won, 2**22 lost.
COPIED_ELEMENTS = 2**23
#: The dimensions of images, and of images in groups of channels.
_RANK = 4
_CAST = "convert_element_type"
#: The bytes of an element of 16 bits.
_HALF = 2
#: Operators that keep the elements of an image in their order.
_KEEPS = (_CAST, "clone", "reshape", "view")


def is_divided(variance: Node) -> bool:
    """Return whether a variance of groups and its mean are made of the moments of channels.

    Images of 32 bits keep PyTorch's operators: two steps have up to 2.5 times the rounding error of one there.
    """
    arguments = Arguments(variance)
    if arguments["correction"] != 0 or not arguments["keepdim"]:
        return False
    image = image_of(arguments["self"])[-1:]
    return bool(image) and dtype_of(image[0]).itemsize == _HALF


def divide(graph: Graph, variance: Node, mean: Node) -> None:
    """Compute a variance and a mean of groups from the moments of their channels, which have equal counts."""

    def moments(x: Node, dim: int) -> list[Node]:
        both = call(graph, aten.var_mean.correction, x, [dim], correction=0, keepdim=True)
        return [call(graph, operator.getitem, both, place) for place in range(2)]

    within, means = moments(variance.args[0], 3)  # type: ignore[arg-type]
    between, made = moments(means, 2)
    total = call(graph, aten.add.Tensor, call(graph, aten.mean.dim, within, [2], True), between)
    for each, by in ((variance, total), (mean, made)):
        each.replace_all_uses_with(by)
        graph.erase_node(each)


def apply_by_channels(graph: Graph) -> None:
    """Let group norms read a mean and a factor for each channel, which a kernel writes once.

    ``(x - mean)*factor`` of groups is computed on the image: the same operations on the same elements.
    """
    for node in graph.find_nodes(op="call_function", target=aten.mul.Tensor):
        norm = _norm(node)
        if norm is None:
            continue
        *kept, image = norm.kept
        shape = shape_of(image)
        whole = [user for user in node.users if base_name(user) in ("reshape", "view") and shape_of(user) == shape]
        in_memory = _is_in_memory(norm.mean) and _is_in_memory(norm.factor)
        if not whole or (in_memory and math.prod(shape) < COPIED_ELEMENTS):
            continue
        with graph.inserting_before(node):
            for cast in reversed([each for each in kept if base_name(each) == _CAST]):
                image = call(graph, cast.target, image, *cast.args[1:])
            centred = call(graph, aten.sub.Tensor, image, _of_channels(graph, norm.mean, shape[1]))
            made = call(graph, aten.mul.Tensor, centred, _of_channels(graph, norm.factor, shape[1]))
        for user in whole:
            user.replace_all_uses_with(made)


@dataclass(frozen=True, slots=True)
class _Norm:
    """``(x - mean)*factor`` of groups. ``kept`` are the operators that make x of an image, and the image."""

    kept: list[Node]
    mean: Node
    factor: Node


def _norm(node: Node) -> _Norm | None:
    """Return the norm of groups that a product of tensors is, None without one."""
    difference, factor = node.args
    if not is_tensor(difference) or not is_tensor(factor) or operator_name(difference) != "sub.Tensor":
        return None
    x, mean = difference.args
    if difference.kwargs or not is_tensor(x) or not is_tensor(mean) or not (kept := image_of(x)):
        return None
    groups = (*shape_of(x)[:2], 1, 1)
    if not shape_of(mean) == shape_of(factor) == groups or not dtype_of(x) == dtype_of(mean) == dtype_of(factor):
        return None
    return _Norm(kept, mean, factor)


def image_of(x: Node) -> list[Node]:
    """Return the operators that bring an image into groups, last first, and the image, whose channels are neighbours.

    Return nothing for other nodes, and for sizes that vary. Group norms on GPUs read a copy of the image with pixels as
    neighbours, which Inductor does not write.
    """
    found = [x]
    while base_name(found[-1]) in _KEEPS:
        found.append(found[-1].all_input_nodes[0])
    image, groups = found[-1], shape_of(x)
    if not is_tensor(image) or not len(shape_of(image)) == len(groups) == _RANK:
        return []
    shape, strides = shape_of(image), image.meta["val"].stride()
    if not all(isinstance(size, int) for size in (*shape, *groups, *strides)):
        return []
    divided = shape[:2] == (groups[0], groups[1] * groups[2])
    return found if divided and strides[1] == 1 < strides[3] else []


def _of_channels(graph: Graph, value: Node, channels: int) -> Node:
    """Return a value of each group as one of each of its channels, which has memory: ``as_strided`` needs it.

    A kernel that computes the value writes it for the channels. A value that is in memory is copied.
    """
    images, groups = shape_of(value)[:2]
    wide = call(graph, aten.expand.default, value, [images, groups, channels // groups, 1])
    written = call(graph, aten.clone.default, wide, memory_format=torch.contiguous_format)
    return call(graph, aten.as_strided.default, written, [images, channels, 1, 1], [channels, 1, 1, 1])


def _is_in_memory(value: Node) -> bool:
    """Return whether a value is a result of a kernel that is not Inductor's."""
    while base_name(value) in ("reshape", "view"):
        value = value.all_input_nodes[0]
    return value.target is operator.getitem and base_name(value.all_input_nodes[0]) == "launch"


def call(graph: Graph, target: Any, *args: Any, **kwargs: Any) -> Node:
    """Add a call, with the value that it has on the values of its arguments."""
    node = graph.call_function(target, args, kwargs)
    node.meta["val"] = target(*map_arg(args, lambda each: each.meta["val"]), **kwargs)
    return node


__all__ = ["apply_by_channels", "call", "divide", "image_of", "is_divided"]
