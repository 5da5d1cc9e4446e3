"""Tensors that are copied before or after a region's kernel: ``copied(fused) -> nodes``."""

from __future__ import annotations

import math

import torch
from torch.fx import Node

from evt.fx.aten import is_constant
from evt.fx.build import RegionProgram
from evt.fx.example import hint, tensor_of
from evt.fx.index_map import Arrangement
from evt.runtime.memory_format import suggests_channels_last


def copied(fused: RegionProgram) -> list[Node]:
    """Return the nodes whose tensors are copied before a region's kernel, or after it.

    For a convolution: operands whose strides its kernel cannot read. For a matrix product: inputs that cannot be viewed
    as a matrix, and results whose strides differ from PyTorch's, which their readers copy back.
    """
    return _images(fused) if fused.region.product.is_convolution else _matrices(fused)


def _images(fused: RegionProgram) -> list[Node]:
    operands = fused.region.product.a, fused.region.product.b
    varying = (each for each in operands if not is_constant(each))  # constants are copied once
    return [each for each in varying if not _is_channels_last(tensor_of(each, "meta"))]


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
