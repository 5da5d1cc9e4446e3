"""Example arguments of a region's program: ``example(fused, device)``, for plans and measurements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.fx import Node

from evt.fx.build import RegionProgram
from evt.fx.index_map import Arrangement, Size

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


@dataclass(frozen=True)
class Memory:
    """A tensor's size, strides and type."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @staticmethod
    def of(node: Node) -> Memory:
        value: torch.Tensor = node.meta["val"]
        return Memory(tuple(map(hint, value.shape)), tuple(map(hint, value.stride())), value.dtype)

    def empty(self, device: torch.device | str) -> torch.Tensor:
        return torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=device)


def tensor_of(node: Node, device: torch.device | str) -> torch.Tensor:
    """Return a tensor like a node's value, with random numbers; without memory on the meta device."""
    made = Memory.of(node).empty(device)
    if made.device.type != "meta":
        size = tuple(made.shape)
        made.copy_(_normal(size, made) if made.is_floating_point() else torch.randint(0, 2, size, device=device))
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


@dataclass(frozen=True)
class Form:
    """The tensors of a region's call: A, B and the inputs in the graph, and how the program reads them.

    Equal layers have equal forms.
    """

    memory: tuple[Memory, ...]
    batches: tuple[int, ...] | None
    inputs: tuple[tuple[str, Arrangement], ...]

    @staticmethod
    def of(fused: RegionProgram) -> Form:
        def known(sizes: Sequence[Size]) -> tuple[int, ...]:
            return tuple(map(hint, sizes))

        ways = ((each.name, each.arrangement) for each in fused.arguments)
        inputs = tuple((name, Arrangement(known(how.split), how.order, known(how.merged))) for name, how in ways)
        batches = None if fused.batches is None else known(fused.batches)
        return Form(tuple(map(Memory.of, _operands(fused))), batches, inputs)

    def empty(self) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
        """Return A, B and the inputs of the program, without memory."""
        return self.arranged([each.empty("meta") for each in self.memory])

    def arranged(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
        """Return A, B and the inputs of the program, of tensors of the graph."""
        a, b, *others = tensors
        if self.batches is not None:
            a, b = (each.reshape((*self.batches, *each.shape[-2:])) for each in (a, b))
        inputs = {
            name: each.reshape(how.split).permute(how.order).reshape(how.merged)
            for each, (name, how) in zip(others, self.inputs, strict=True)
        }
        return a, b, inputs


def _operands(fused: RegionProgram) -> tuple[Node, ...]:
    """Return the nodes that a region's call reads: A, B and the inputs."""
    product = fused.region.product
    return product.a, product.b, *(each.node for each in fused.arguments)


def example(
    fused: RegionProgram, device: torch.device | str = "meta", make: Callable[[Node, Any], torch.Tensor] = tensor_of
) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """Return A, B and the inputs of a region's program, with the strides of the rewritten graph."""
    ends, nodes = fused.region.product.ends, _operands(fused)
    if ends is not None and str(device) != "meta":
        make = partial(_or_ends, make, ends, hint(nodes[0].meta["val"].shape[0]))
    return Form.of(fused).arranged([make(each, device) for each in nodes])
