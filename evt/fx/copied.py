"""Tensors that are copied before or after a region's kernel: ``copied(fused) -> nodes``."""

from __future__ import annotations

import math
from collections.abc import Set

import torch
from torch._inductor.lowering import fallbacks
from torch.fx import Node

from evt.fx.aten import base_name, is_constant
from evt.fx.build import RegionProgram
from evt.fx.example import hint, tensor_of
from evt.fx.index_map import Arrangement
from evt.fx.product import PADS, find_product
from evt.fx.views import is_view, readers
from evt.runtime.memory_format import suggests_channels_last


def copied(fused: RegionProgram, computed: Set[Node] = frozenset()) -> list[Node]:
    """Return the nodes whose tensors are copied before a region's kernel, or after it.

    ``computed`` are the nodes that regions compute; Inductor computes the others. For a convolution: operands whose
    strides its kernel cannot read. For a matrix product: inputs that cannot be viewed as a matrix, and results whose
    strides differ from PyTorch's, which their readers copy back.
    """
    return _images(fused, computed) if fused.region.product.is_convolution else _matrices(fused)


def _images(fused: RegionProgram, computed: Set[Node]) -> list[Node]:
    product = fused.region.product
    varying = (each for each in (product.a, product.b) if not is_constant(each))  # constants are copied once
    return [
        each
        for each in varying
        if not _is_channels_last(tensor_of(each, "meta")) and not _has_any_layout(each, product.node, computed)
    ]


def _has_any_layout(node: Node, product: Node, computed: Set[Node]) -> bool:
    """Return whether Inductor computes a tensor for one product only, and so writes it as the kernel reads it.

    The kernel does the padding between the two.
    """
    found = readers(node)
    while len(found) == 1 and base_name(next(iter(found))) in PADS:
        found = readers(found.pop())
    return is_inductors(node) and not is_view(node) and node not in computed and found == {product}


def is_inductors(node: Node) -> bool:
    """Return whether a kernel of Inductor computes a node, and not a library or a kernel of evt."""
    return node.op == "call_function" and node.target not in fallbacks and find_product(node) is None


def _is_channels_last(tensor: torch.Tensor) -> bool:
    """Return whether a convolution can read a tensor with its strides."""
    return suggests_channels_last(tensor) or tensor.shape[1] == 1 or math.prod(tensor.shape[2:]) == 1


def _matrices(fused: RegionProgram) -> list[Node]:
    given = ((each.node, each.arrangement) for each in fused.arguments)
    found = [node for node, how in given if _arranged(tensor_of(node, "meta"), how) is None]
    for result in fused.results:
        packed = torch.empty(tuple(map(hint, result.stored)), device="meta")
        lies = _arranged(packed, result.arrangement)
        if lies is None or not _lies_as(lies, tensor_of(result.node, "meta")):
            found.append(result.node)
    return found


def _arranged(tensor: torch.Tensor, how: Arrangement) -> torch.Tensor | None:
    """Return a tensor in an arrangement as a view, or None if that needs a copy."""
    split, merged = (tuple(map(hint, sizes)) for sizes in (how.split, how.merged))
    try:
        return tensor.view(split).permute(how.order).view(merged)
    except (RuntimeError, ValueError):  # the meta device raises ValueError
        return None


def _lies_as(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors of one shape have the same order of elements in memory."""
    strides = zip(one.shape, one.stride(), other.stride(), strict=True)
    return all(size == 1 or x == y for size, x, y in strides)
