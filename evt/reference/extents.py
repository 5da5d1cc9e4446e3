"""The tensors of a call in the oracle's form, with one dimension for each mode, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from evt.ir.dtype import B1, I32, I64
from evt.ir.node import MODES, Input, Output, base, blocks_of, direct, divisor, index_of
from evt.reference.rounding import pack_bits, packed, round_to, unpack_bits, working

#: The dimensions of each mode in shapes: a batch may have several, and so may the rows of ``linear``.
Leads = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Extents:
    """The dimensions of each mode, and the ``order`` of the modes in values; ``sizes`` are the extents of all modes."""

    leads: Leads
    order: tuple[str, ...] = MODES
    sizes: Mapping[str, int] = field(default_factory=dict)

    def __getitem__(self, mode: str) -> int:
        """Return the extent of an undivided mode."""
        return math.prod(self.leads[mode])

    def size(self, mode: str) -> int:
        """Return the extent of any mode. Raise ValueError for an unknown one."""
        if mode not in self.sizes:
            raise ValueError(f"the program reads size({mode}), which is not given")
        return self.sizes[mode]

    def load(self, source: Input, given: Any, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        """Return an input with the dimensions of the order, 1 for modes that it lacks, or 0-d for a scalar.

        ``dtype`` replaces f32.
        """
        if "l" not in self.leads:  # an operand of one group
            source = replace(source, modes=tuple(mode for mode in source.modes if mode != "l"))
        assert source.dtype is not None
        number = not isinstance(given, torch.Tensor)
        tensor = as_scalar(source, given, device) if number else given.to(device)
        if source.dtype != B1:
            tensor = tensor.to(working(source.dtype, dtype))
        if not source.modes:
            return tensor.reshape(())
        if number or (source.flexible and tensor.numel() == 1):
            have = {base(mode): math.prod(self.dims(mode)) for mode in source.modes}
            return tensor.reshape(()).expand([have.get(mode, 1) for mode in self.order])
        if source.is_blocked:
            return self._spread_blocks(source, tensor)
        batch = [] if "l" in source.modes or not source.batchable else ["l"]
        for modes in ([*batch, *source.modes], source.modes):
            flat = [math.prod(self.dims(mode)) for mode in modes]
            if source.dtype == B1 and tuple(tensor.shape) in (packed(self.shape(modes)), packed(flat)):
                tensor = unpack_bits(tensor, self.leads["n"][0])
            if tuple(tensor.shape) in (self.shape(modes), tuple(flat)):
                places = sorted(range(len(modes)), key=lambda position: self.order.index(base(modes[position])))
                have = {base(mode): size for mode, size in zip(modes, flat, strict=True)}
                return tensor.reshape(flat).permute(places).reshape([have.get(mode, 1) for mode in self.order])
        shape, expected = tuple(tensor.shape), self.shape(source.modes)
        raise ValueError(f"the input {source.name} has shape {shape}; expected {expected}")

    def _spread_blocks(self, source: Input, tensor: torch.Tensor) -> torch.Tensor:
        """Return the values of blocks, each repeated for the elements of its block."""
        shape = [blocks_of(mode, self[base(mode)]) for mode in source.modes]
        own = [
            size
            for mode, blocks in zip(source.modes, shape, strict=True)
            for size in (self.leads[mode] if divisor(mode) == 1 else (blocks,))
        ]
        if tuple(tensor.shape) not in (tuple(own), tuple(shape)):
            raise ValueError(f"the input {source.name} has shape {tuple(tensor.shape)}; expected {tuple(own)}")
        tensor = tensor.reshape(shape)
        for dim, mode in enumerate(source.modes):
            tensor = tensor.repeat_interleave(divisor(mode), dim).narrow(dim, 0, self[base(mode)])
        places = sorted(range(len(shape)), key=lambda position: self.order.index(base(source.modes[position])))
        have = {base(mode): self[base(mode)] for mode in source.modes}
        return tensor.permute(places).reshape([have.get(mode, 1) for mode in self.order])

    def around(self, modes: Sequence[str], shape: Sequence[int]) -> Extents:
        """Return the extents of a tensor: its own along indexed modes, and the call's along other modes."""
        flat: dict[str, tuple[int, ...]] = {mode: (math.prod(dims),) for mode, dims in self.leads.items()}
        for leads in (dict(self.leads), flat):
            place = 0
            for mode in modes:
                if index_of(mode):
                    leads[base(mode)] = tuple(shape[place : place + 1])
                place += len(leads[base(mode)])
            found = Extents(leads, self.order)
            if found.shape([direct(mode) for mode in modes]) == tuple(shape):
                return found
        raise ValueError(f"a tensor of [{', '.join(modes)}] has shape {tuple(shape)}")

    def store(self, output: Output, value: torch.Tensor, exact: bool) -> torch.Tensor:
        """Return a value with the output's modes, in their order, packed and rounded; ``exact`` floats remain f64."""
        modes = output.memory_modes
        result = self.in_order(modes, value).clone(memory_format=torch.contiguous_format).reshape(self.shape(modes))
        assert output.dtype is not None
        if exact and output.dtype.is_float:
            return result.to(torch.float64)
        result = round_to(output.dtype, result)
        return pack_bits(result) if output.dtype == B1 else result

    def in_order(self, modes: Sequence[str], value: torch.Tensor) -> torch.Tensor:
        """Return a view of a value with these modes in their order, followed by dimensions of extent 1."""
        names = {base(mode): mode for mode in modes}
        value = value.expand([math.prod(self.dims(names[mode])) if mode in names else 1 for mode in MODES])
        order = [MODES.index(base(mode)) for mode in (*modes, *(mode for mode in MODES if mode not in names))]
        return value.permute(order)

    def dims(self, mode: str) -> tuple[int, ...]:
        """Return the dimensions of a mode; a divided mode has one."""
        if divisor(mode) == 1:
            return self.leads[mode]
        return (_divide(self.leads[base(mode)][0], divisor(mode)),)

    def divided(self, mode: str, width: int) -> int:
        """Return the number of blocks along a mode. Raise ValueError for a partial block."""
        return _divide(self[mode], width)

    def shape(self, modes: Sequence[str]) -> tuple[int, ...]:
        return tuple(size for mode in modes for size in self.dims(mode))


def _divide(columns: int, width: int) -> int:
    if columns % width:
        raise ValueError(f"{columns} columns do not divide into blocks of {width}")
    return columns // width


def as_scalar(source: Input, given: float, device: torch.device) -> torch.Tensor:
    """Return a number in an input's type, as a kernel receives it; a seed beyond i32 or i64 is given by its bits."""
    dtype = source.dtype
    assert dtype is not None
    if dtype == I64:
        return torch.full((), (int(given) + 2**63) % 2**64 - 2**63, dtype=torch.int64, device=device)
    if dtype == I32 and float(given).is_integer():
        given = (int(given) + 2**31) % 2**32 - 2**31
    return round_to(dtype, torch.full((), float(given), dtype=torch.float64, device=device))
