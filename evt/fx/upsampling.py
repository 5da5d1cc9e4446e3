"""Nearest upsampling by 2 inside the convolution that reads it: ``fold_upsampling(graph, devices) -> convolutions``.

In each dimension, two taps of a 3x3 convolution read the same pixel of the small image. The convolution equals a
transposed convolution of the small image: stride 2, padding 1, and a filter of 4x4 sums of taps. For a row of taps
(a, b, c) the sums are (c, b + c, a + b, a). It multiplies 4 taps for each pixel instead of 9, and the large image
disappears.

The sums are rounded to the type of the weight. Batch norms are folded into weights with the same rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg
from torch.utils._python_dispatch import _disable_current_modes

from evt.fx.aten import Arguments, base_name, dtype_of, is_tensor, operator_name, shape_of
from evt.fx.example import hint

aten = torch.ops.aten
#: A node with its target, arguments, keywords and meta.
_Record = tuple[Node, Callable[..., Any], tuple[Any, ...], dict[str, Any], dict[str, Any]]
#: The key in ``node.meta`` of a convolution's own arguments and of the large image, while it reads the small one.
_OWN = "evt_upsampled"
_TYPES = (torch.float16, torch.bfloat16)
#: Operators that upsample, before their decomposition.
_NEAREST = ("upsample_nearest2d", "_upsample_nearest_exact2d")
#: A cast, of the small image to f32 and back, and operators that copy the large one.
_CAST = "convert_element_type"
_COPIES = ("clone", _CAST)
#: The most nodes that compute an index of a decomposed upsampling.
_MOST_NODES = 16


def fold_upsampling(graph: Graph, devices: Collection[str]) -> list[Node]:
    """Let convolutions read the images that were upsampled for them; return the convolutions."""
    found = []
    for node in graph.find_nodes(op="call_function", target=aten.convolution.default):
        small = _small_image(node) if _is_plain(node) and node.meta["val"].device.type in devices else None
        if small is None:
            continue
        node.meta[_OWN] = node.args, _records(node.args[0], small)
        weight, bias = node.args[1:3]
        with graph.inserting_before(node):
            made = _sums_of_taps(graph, weight)
        node.args = (small, made, bias, [2, 2], [1, 1], [1, 1], True, [0, 0], 1)
        found.append(node)
    return found


def unfold(node: Node) -> None:
    """Let a convolution read the large image again, whose operators may be erased."""
    args, records = node.meta.pop(_OWN)
    made: dict[Node, Node] = {}
    with node.graph.inserting_before(node):
        for each, target, given, keywords, meta in records:
            if each._erased:
                given, keywords = map_arg((given, keywords), lambda old: made.get(old, old))
                made[each] = node.graph.call_function(target, given, dict(keywords))
                made[each].meta = meta
    node.args = map_arg(args, lambda old: made.get(old, old))


def is_upsampled(node: Node) -> bool:
    """Return whether a convolution reads the small image."""
    return _OWN in node.meta


def _records(large: Node, small: Node) -> list[_Record]:
    """Return the operators from the small image to the large one, in order."""
    found: dict[Node, _Record] = {}

    def visit(node: Node) -> None:
        if node is small or node.op != "call_function" or node in found:
            return
        for each in node.all_input_nodes:
            visit(each)
        found[node] = node, node.target, node.args, node.kwargs, dict(node.meta)  # type: ignore[assignment]

    visit(large)
    return list(found.values())


def _is_plain(node: Node) -> bool:
    """Return whether a node is a convolution of 3x3 taps that keeps the image's size, of aligned 16-bit channels."""
    given = Arguments(node)
    weight, image = given["weight"], given["input"]
    if given["transposed"] or given["groups"] != 1 or dtype_of(node) not in _TYPES or len(shape_of(weight)) != 4:
        return False
    ones = all(list(given[name]) in ([1], [1, 1]) for name in ("stride", "padding", "dilation"))
    filters, channels, *taps = map(hint, shape_of(weight))
    sizes = all(isinstance(size, int) for size in shape_of(image))
    return ones and sizes and taps == [3, 3] and filters % 8 == channels % 8 == 0


def _small_image(node: Node) -> Any:
    """Return the node of the image that was upsampled for a convolution alone, channels last in memory, or None."""
    large: Any = node.args[0]
    while base_name(large) in _COPIES and len(large.users) == 1:
        large = large.args[0]
    if len(large.users) != 1 or large.op != "call_function":
        return None
    small: Any = large.args[0]
    while is_tensor(small) and base_name(small) == _CAST:
        small = small.args[0]
    exact = (
        is_tensor(small) and dtype_of(small) == dtype_of(node) and dtype_of(large) in (torch.float32, dtype_of(node))
    )
    if not exact or not small.meta["val"].is_contiguous(memory_format=torch.channels_last):
        return None
    *batch, height, width = shape_of(small)
    if list(shape_of(large)) != [*batch, 2 * height, 2 * width]:
        return None
    if base_name(large) in _NEAREST:
        given = Arguments(large)
        factors = given["scale_factors"] or (given["scales_h"], given["scales_w"])
        return small if all(factor in (None, 2.0) for factor in factors) else None
    if operator_name(large) not in ("_unsafe_index.Tensor", "index.Tensor"):
        return None
    indices = large.args[1]
    if not isinstance(indices, list | tuple) or len(indices) != 4 or list(indices[:2]) != [None, None]:
        return None
    rows, columns = indices[2:]
    places = rows, columns
    shapes = [(2 * height, 1), (2 * width,)]
    for place, shape in zip(places, shapes, strict=True):
        if not isinstance(place, Node) or shape_of(place) != shape or not _halves(place):
            return None
    return small


def _halves(index: Node) -> bool:
    """Return whether an index is 0, 0, 1, 1, 2, 2 and so on, computed from nothing but numbers."""
    order: list[Node] = []

    def visit(node: Node) -> bool:
        if node in order:
            return True
        if node.op != "call_function" or len(order) > _MOST_NODES or not all(map(visit, node.all_input_nodes)):
            return False
        order.append(node)
        return True

    if not visit(index):
        return False
    values: dict[Node, Any] = {}
    with _disable_current_modes():  # type: ignore[no-untyped-call, unused-ignore]
        for node in order:
            args, given = map_arg((node.args, node.kwargs), values.__getitem__)
            kwargs = {name: torch.device("cpu") if name == "device" else value for name, value in given.items()}
            values[node] = node.target(*args, **kwargs)  # type: ignore[operator]
        found = values[index].flatten()
        return torch.equal(found, torch.arange(len(found), dtype=found.dtype) // 2)


def _sums_of_taps(graph: Graph, weight: Node) -> Node:
    """Return the filter of the transposed convolution: [channels, filters, 4, 4], channels last in memory."""

    def call(target: Callable[..., Any], *args: Any, **kwargs: Any) -> Node:
        node = graph.call_function(target, args, kwargs)
        values = map_arg((args, kwargs), lambda each: each.meta["val"])
        node.meta["val"] = target(*values[0], **values[1])
        return node

    found = call(torch.ops.prims.convert_element_type.default, weight, torch.float32)
    for dim in (2, 3):
        a, b, c = (call(aten.slice.Tensor, found, dim, place, place + 1) for place in range(3))
        both = call(aten.add.Tensor, b, c), call(aten.add.Tensor, a, b)
        found = call(aten.cat.default, [c, *both, a], dim)
    found = call(aten.permute.default, found, [1, 0, 2, 3])
    found = call(torch.ops.prims.convert_element_type.default, found, dtype_of(weight))
    return call(aten.clone.default, found, memory_format=torch.channels_last)


__all__ = ["fold_upsampling", "is_upsampled", "unfold"]
