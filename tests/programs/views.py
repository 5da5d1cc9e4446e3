"""Tensors of a call as parts of larger ones: with pitches, in any order in memory, as far as the manual allows it."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any

from .interface import counts, reductions, walk_values
from .tree import Input, Output, Program, Read, index_name, walk

if TYPE_CHECKING:
    from .call import Data


class Views:
    """Gives tensors of a program's call other strides, where the program asks for that."""

    def __init__(self, program: Program, data: Data) -> None:
        self.program = program
        self.random = random.Random(f"{program.seed} views")
        batch = data.leads["l"]
        whole = len(batch) < 2 or not counts(program, "l")
        several = any(len(data.leads[mode]) > 1 for mode in ("m", "n"))
        self.active = program.views and whole and not several and 0 not in batch
        self.unit = {name for feed in program.feeds for name in _read(walk(feed.value))} | _read_when_complete(program)
        self.unit |= {index_name(index) for each in program.inputs for index in each.indexed}
        self.unit |= {index_name(index) for each in program.outputs for index in each.indexed}

    def operand(self, tensor: Any) -> Any:
        """Return A or B: of its last two dimensions that of stride 1 keeps it."""
        if not self.active or tensor.dim() < 2:
            return tensor
        return self.moved(tensor, tensor.dim() - (1 if tensor.stride(-1) == 1 else 2))

    def input(self, value: Input, tensor: Any) -> Any:
        """Return an input; bits, fewer columns, and vectors that are read one by one are contiguous."""
        unit = value.flexible or value.type == "b1" or "n/2" in value.modes or value.name in self.unit
        return self.moved(tensor, tensor.dim() - 1 if unit else None) if self.active else tensor

    def output(self, value: Output, tensor: Any) -> Any:
        """Return a buffer; columns that are packed, and vectors, are contiguous."""
        unit = value.type == "b1" or not {"m", "n"} <= set(value.modes)
        return self.moved(tensor, tensor.dim() - 1 if unit else None) if self.active else tensor

    def moved(self, tensor: Any, unit: int | None) -> Any:
        """Return a tensor's elements at places of a larger one; along the dimension ``unit`` they stay together."""
        import torch

        if not tensor.numel() or not tensor.dim() or self.random.random() < 0.3:
            return tensor
        order = self.random.sample(range(tensor.dim()), tensor.dim())
        if unit is not None:
            order = [*(each for each in order if each != unit), unit]
        steps = [1 if each == unit else self.random.choice((1, 1, 2)) for each in order]
        more = [self.random.choice((0, 0, 3, 8)) for _ in order]
        sizes = [tensor.shape[each] * step + extra for each, step, extra in zip(order, steps, more, strict=True)]
        larger = poisoned(torch.empty(sizes, dtype=tensor.dtype))
        part = larger[tuple(slice(0, tensor.shape[each] * step, step) for each, step in zip(order, steps, strict=True))]
        found = part.permute([order.index(each) for each in range(tensor.dim())])
        found.copy_(tensor)
        return found


def poisoned(tensor: Any) -> Any:
    """Return a buffer like a tensor, with the same strides, of NaN or of a pattern that is unlikely."""
    import torch

    return torch.empty_like(tensor).fill_(math.nan if tensor.dtype.is_floating_point else 0x55)


def _read(nodes: Any) -> set[str]:
    return {node.name for node in nodes if isinstance(node, Read)}


def _read_when_complete(program: Program) -> set[str]:
    """Return the inputs that arithmetic after reductions reads."""
    values = {each.name: each.value for each in program.assigns}
    found, stack = set[str](), list(reductions(program))
    while stack:
        read = _read(walk_values(values[stack.pop()])) - found
        found |= read
        stack += read & values.keys()
    return found
