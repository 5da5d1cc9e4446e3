"""What is copied around a region's kernel: ``copied(fused) -> nodes``, by kernels of Inductor's or a copying kernel."""

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

    For a convolution they are the operands that it does not read as they lie. For a matrix product they are the inputs
    that no view gives the shape of a matrix, and the results that lie otherwise than PyTorch's: what reads these later
    copies them back.
    """
    return _images(fused) if fused.region.product.is_convolution else _matrices(fused)


def _images(fused: RegionProgram) -> list[Node]:
    operands = fused.region.product.a, fused.region.product.b
    varying = (each for each in operands if not is_constant(each))  # constants are copied once
    return [each for each in varying if not _is_channels_last(tensor_of(each, "meta"))]


def _is_channels_last(tensor: torch.Tensor) -> bool:
    """Return whether a convolution reads a tensor as it lies."""
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
    """Return the view of a tensor that an arrangement asks for, or None where that is a copy."""
    split, merged = (tuple(map(hint, sizes)) for sizes in (how.split, how.merged))
    try:
        return tensor.view(split).permute(how.order).view(merged)
    except (RuntimeError, ValueError):  # the latter on the meta device
        return None


def _lies_as(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether the elements of two tensors of a shape have the same order in memory."""
    strides = zip(one.shape, one.stride(), other.stride(), strict=True)
    return all(size == 1 or x == y for size, x, y in strides)
