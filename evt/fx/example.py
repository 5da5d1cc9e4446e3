"""Example arguments of a region's program: ``example(fused, device)``, for plans and measurements."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.fx import Node

from evt.fx.build import RegionProgram
from evt.fx.index_map import Size

#: The assumed value of a symbolic size without a hint.
_UNKNOWN = 64


def hint(size: Size) -> int:
    """Return a size; for a symbol, its value in the call that is compiled."""
    if isinstance(size, int):
        return size
    known = getattr(size.node, "hint", None)
    return _UNKNOWN if known is None else int(known)


def bytes_of(node: Node) -> int:
    """Return the bytes of a node's tensor, or 0 if the node is not a tensor."""
    value = node.meta.get("val")
    return math.prod(map(hint, value.shape)) * value.dtype.itemsize if isinstance(value, torch.Tensor) else 0


def tensor_of(node: Node, device: torch.device | str) -> torch.Tensor:
    """Return a tensor like a node's value, with random numbers; without memory on the meta device."""
    value: torch.Tensor = node.meta["val"]
    size, stride = (tuple(map(hint, each)) for each in (value.shape, value.stride()))
    made = torch.empty_strided(size, stride, dtype=value.dtype, device=device)
    if made.device.type != "meta":
        made.copy_(torch.randint(0, 2, size, device=device) if not value.is_floating_point() else _normal(size, made))
    return made


def _normal(size: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    return torch.randn(size, device=like.device, dtype=torch.float32)


def _or_ends(make: Callable[[Node, Any], torch.Tensor], ends: Node, rows: int, node: Node, device: Any) -> torch.Tensor:
    """Return a tensor of a node; of the ends of groups of rows, the ends of equal groups."""
    made = make(node, device)
    if node is ends:
        groups = made.numel()
        made.copy_(torch.arange(1, groups + 1) * rows // groups)
    return made


def example(
    fused: RegionProgram, device: torch.device | str = "meta", make: Callable[[Node, Any], torch.Tensor] = tensor_of
) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """Return A, B and the inputs of a region's program, with the strides of the rewritten graph."""
    product = fused.region.product
    a, b = (make(each, device) for each in (product.a, product.b))
    if fused.batches is not None:
        batches = tuple(map(hint, fused.batches))
        a, b = (each.reshape((*batches, *each.shape[-2:])) for each in (a, b))
    inputs = {}
    if product.ends is not None and str(device) != "meta":
        make = partial(_or_ends, make, product.ends, a.shape[0])
    for argument in fused.arguments:
        how = argument.arrangement
        split = make(argument.node, device).reshape(tuple(map(hint, how.split)))
        inputs[argument.name] = split.permute(how.order).reshape(tuple(map(hint, how.merged)))
    return a, b, inputs
