"""The oracle's arithmetic: f32 (or f64 in its place), i32, f64 and truth values, with the roundings of kernels.

Values are ``[l, m, n]``, or ``[l, m or n, k]`` in a mainloop fusion, with extent 1 where they are constant, or 0-d.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch

from evt.functions import TABLE
from evt.ir.dag import TypedDag
from evt.ir.dtype import BOOL, I64, DType
from evt.ir.node import (
    MODES,
    MOMENTS,
    PLACES,
    REDUCTIONS,
    Const,
    Input,
    Interleave,
    Operand,
    Output,
    Pick,
    Reduce,
    ReduceBlocks,
    base,
    direct,
    divisor,
    index_of,
    within,
)
from evt.ir.operand_types import multiplied_type
from evt.ir.value_types import cast_constant_type, reduced_type
from evt.reference import functions
from evt.reference.extents import Extents
from evt.reference.indexed import gathered, scattered
from evt.reference.philox import uniform, uniform_wide
from evt.reference.rounding import round_to, working
from evt.reference.translate import Argument, Dialect

_Tensor = TypeVar("_Tensor", Input, Output)


@dataclass(frozen=True)
class Exact(Dialect[torch.Tensor]):
    """The dialect of the oracle, over ``start``, the accumulator or an operand's elements. ``dtype`` replaces f32.

    ``others`` are the products of A with inputs.
    """

    dag: TypedDag
    start: torch.Tensor
    extents: Extents
    inputs: Mapping[str, Any]
    dtype: torch.dtype
    others: Mapping[str, torch.Tensor] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        return self.start.device

    def accumulator(self, name: str) -> torch.Tensor:
        return self.start if name == "B" else self.others[name]

    def element(self, name: str) -> torch.Tensor:
        return self.start

    def load(self, source: Input) -> torch.Tensor:
        if source.name not in self.inputs and source.default is None:
            raise ValueError(f"the input {source.name} is missing")
        given = self.inputs.get(source.name, source.default)
        if not source.is_indexed or not isinstance(given, torch.Tensor):
            return self.extents.load(self.in_order(source), given, self.device, self.dtype)
        own = self.extents.around(source.modes, given.shape)
        return gathered(own.load(self.in_order(source), given, self.device, self.dtype), self.indices(source))

    def indices(self, value: Input | Output) -> dict[str, torch.Tensor]:
        """Return the places of an input or output along the modes that an index gathers or scatters."""
        named = ((base(mode), index_of(mode)) for mode in value.modes)
        return {mode: self.load(self.dag.input[index]) for mode, index in named if index}

    def in_order(self, value: _Tensor) -> _Tensor:
        """Return an input or output as if its rows and columns were in order."""
        return replace(value, modes=tuple(map(direct, value.modes)))

    def constant(self, op: Const) -> torch.Tensor:
        return self.full(op, torch.float64)

    def full(self, op: Const, dtype: torch.dtype) -> torch.Tensor:
        value = torch.full((), op.value, dtype=dtype, device=self.device)
        sizes = {base(mode): self.extents[base(mode)] // divisor(mode) for mode in op.modes}
        return value.expand([sizes.get(mode, 1) for mode in MODES] if op.modes else [])

    def apply(self, function: str, operands: Sequence[torch.Tensor], domain: DType) -> torch.Tensor:
        """Return a function of operands that are converted to its compute type."""
        row, to = TABLE[function], working(domain, self.dtype)
        converted = [x.to(torch.bool if slot in row.conditions else to) for slot, x in enumerate(operands)]
        result: torch.Tensor
        if not row.source:
            result = row.torch(functions, *converted)
        else:
            with torch.device("cpu"):  # PyTorch's own default, for tensors that a user's function makes
                result = row.torch(torch, *converted)
        return result

    def repeat(self, value: torch.Tensor, width: int) -> torch.Tensor:
        broadcasts = value.dim() < 3 or value.shape[2] == 1
        return value if broadcasts else value.repeat_interleave(width, 2)

    def cast(self, dtype: DType, x: Argument[torch.Tensor]) -> torch.Tensor:
        return round_to(dtype, self.cast_operand(x, dtype)).to(working(dtype, self.dtype))

    def cast_operand(self, x: Argument[torch.Tensor], dtype: DType) -> torch.Tensor:
        """Return the operand of a cast or store. A constant remains as written, in the resulting type."""
        return x.value.to(working(cast_constant_type(x.type, dtype), self.dtype)) if x.type.constant else x.value

    def reduce(self, op: Reduce, x: Argument[torch.Tensor]) -> torch.Tensor:
        value, over = self.reduced_value(x), set(map(base, op.modes))
        whole = {"l": 1, "m": 1, "n": max(1, x.width)}
        sizes = [
            self.extents.divided(mode, whole[mode]) if mode in over else size
            for mode, size in zip(MODES, value.shape, strict=True)
        ]
        dims, value = [MODES.index(base(mode)) for mode in op.modes], value.expand(sizes)
        blocks = {base(mode): math.prod(self.extents.dims(mode)) for mode in within(op.modes, x.type.modes)}
        if blocks:  # [l, block, m, block, n]
            dims = [2 * MODES.index(mode) for mode in over]
            batches, rows, columns = value.shape
            images, groups = blocks.get("m", 1), blocks.get("n", 1)
            value = value.reshape(batches, images, rows // images, groups, columns // groups)
        if op.kind in MOMENTS:
            found = moment(op.kind, value, dims, self.dtype)
        else:
            found = place(op.kind, value, dims[0]) if op.kind in PLACES else self.combine(op.kind, value, dims)
        return found.flatten(3).flatten(1, 2) if blocks else found

    def fold(self, op: ReduceBlocks, x: Argument[torch.Tensor]) -> torch.Tensor:
        value = self.reduced_value(x)
        blocks = value.unsqueeze(3).expand(*value.shape, op.width)  # for a value that does not vary over columns
        if x.width:
            count = self.extents.divided("n", op.width * x.width)
            value = value.expand(*value.shape[:2], count * op.width)
            blocks = value.reshape(*value.shape[:2], count, op.width)
        return self.combine(op.kind, blocks, [3]).squeeze(3)

    def combine(self, kind: str, value: torch.Tensor, dims: list[int]) -> torch.Tensor:
        """Return the reduction of some dimensions, which keep 1 element."""
        return reduced(kind, value, dims)

    def reduced_value(self, x: Argument[torch.Tensor]) -> torch.Tensor:
        return spread(x.value).to(working(reduced_type(self.dag, x.type), self.dtype))

    def pick(self, op: Pick, x: Argument[torch.Tensor]) -> torch.Tensor:
        value = spread(x.value)
        if not x.width:
            return value
        pairs = value.reshape(*value.shape[:2], self.extents.divided("n", 2 * op.block), 2, op.block)
        return pairs[:, :, :, op.member].flatten(2)

    def interleave(
        self, op: Interleave, x: Argument[torch.Tensor], y: Argument[torch.Tensor], domain: DType
    ) -> torch.Tensor:
        to = working(domain, self.dtype)
        values = [spread(each.value).to(to) for each in (x, y)]
        pairs = self.extents.divided("n", 2 * op.block)
        rows = torch.broadcast_shapes(*(value.shape[:2] for value in values))  # type: ignore[no-untyped-call]
        halves = [value.expand(*rows, pairs * op.block).reshape(*rows, pairs, op.block) for value in values]
        return torch.stack(halves, 3).flatten(2)

    def index(self, mode: str) -> torch.Tensor:
        shape = [-1 if each == mode else 1 for each in MODES]
        return torch.arange(self.extents[mode], dtype=torch.int32, device=self.device).reshape(shape)

    def extent(self, mode: str) -> torch.Tensor:
        return torch.full((), self.extents.size(mode), dtype=torch.int32, device=self.device)

    def random(self, seed: Argument[torch.Tensor], offset: Argument[torch.Tensor]) -> torch.Tensor:
        sizes = [self.extents[mode] for mode in MODES]
        draw = uniform_wide if I64 in (seed.type.dtype, offset.type.dtype) else uniform
        return draw(self.counter(seed), self.counter(offset), sizes, self.device).to(self.dtype)

    def counter(self, x: Argument[torch.Tensor]) -> torch.Tensor:
        """Return a seed or an offset as 64 bits; an i32 counts as unsigned."""
        return x.value if x.type.dtype == I64 else x.value.long() & 0xFFFFFFFF

    def store(self, output: Output, x: Argument[torch.Tensor]) -> torch.Tensor:
        assert output.dtype is not None
        value = spread(self.cast_operand(x, output.dtype))
        if output.is_indexed:
            return self.scattered(output, value)
        return self.extents.store(output, value, exact=self.dtype == torch.float64)

    def scattered(self, output: Output, value: torch.Tensor) -> torch.Tensor:
        """Return the call's buffer with a value stored where the indices point."""
        if output.name not in self.inputs:
            raise ValueError(f"the buffer of the output {output.name} is missing")
        assert output.dtype is not None
        held = self.inputs[output.name]
        own, plain = self.extents.around(output.memory_modes, held.shape), self.in_order(output)
        modes, indices = set(map(base, output.memory_modes)), self.indices(output)
        sizes, rows = ([each[mode] if mode in modes else 1 for mode in MODES] for each in (self.extents, own))
        new = value.double().expand(sizes)  # f64 has the values of every type that is stored
        values, named = (scattered(new.new_zeros(rows), each, indices) for each in (new, torch.ones_like(new)))
        result = own.store(plain, values, exact=self.dtype == torch.float64)
        named = own.store(replace(plain, dtype=BOOL), named, exact=False)
        # The other elements remain bitwise unchanged.
        return torch.where(named, as_bits(result), as_bits(held.to(result.dtype))).view(result.dtype)

    def feed(self, operand: Operand, x: Argument[torch.Tensor]) -> torch.Tensor:
        dtype = multiplied_type(self.dag.operands, operand.name)
        value = self.cast_operand(x, dtype)
        exact = self.dtype == torch.float64 and dtype.is_float
        value = value.to(working(dtype, self.dtype)) if exact else round_to(dtype, value)
        return value.expand(self.start.shape)


def as_bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bits of elements as integers, which all of PyTorch's functions support."""
    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])


def spread(value: torch.Tensor) -> torch.Tensor:
    """Return a value with three dimensions, also if it is a single one."""
    return value if value.dim() == 3 else value.reshape(1, 1, 1)


def reduced(kind: str, value: torch.Tensor, dims: list[int]) -> torch.Tensor:
    """Return a value reduced over some dimensions, with its dimensions and its type; NaN wins in max and min.

    The reduction halves the extent repeatedly, so that its order and the last bit of a sum depend on the extents only.
    """
    combine = TABLE[REDUCTIONS[kind]].torch
    kept = [dim for dim in range(value.dim()) if dim not in dims]
    rest = value.permute(*kept, *dims).flatten(len(kept))
    while (count := rest.shape[-1]) > 1:
        half = count // 2
        combined = combine(functions, rest[..., :half], rest[..., half : 2 * half])
        rest = torch.cat([combined, rest[..., 2 * half :]], -1) if count % 2 else combined
    if not count:
        rest = torch.full((*rest.shape[:-1], 1), _identity(kind, value.dtype), dtype=value.dtype, device=value.device)
    elif kind == "sum":
        rest = rest + 0  # kernels add to it
    return rest.reshape([1 if dim in dims else size for dim, size in enumerate(value.shape)])


def moment(kind: str, value: torch.Tensor, dims: list[int], dtype: torch.dtype) -> torch.Tensor:
    """Return the mean or the population variance over some dimensions, of integers in ``dtype``; NaN for no values.

    Differences from the first value are small and exact where the spread is small beside the mean. The variance of
    values that are not finite is NaN.
    """
    count = math.prod(value.shape[dim] for dim in dims)
    dtype = value.dtype if value.dtype.is_floating_point else dtype
    if kind == "mean" or not count:
        return reduced("sum", value, dims).to(dtype) / count
    first = value = value.to(dtype)
    for dim in dims:
        first = first.narrow(dim, 0, 1)
    shifted = value - first
    offset = reduced("sum", shifted, dims) / count
    centred = shifted - offset
    return reduced("sum", centred * centred, dims) / count


def place(kind: str, value: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the first place of the extreme value along a dimension, or of the first NaN; 0 for no elements."""
    best, count = reduced(PLACES[kind], value, [dim]), value.shape[dim]
    found = (value == best) | ((value != value) & (best != best))
    places = torch.arange(count, dtype=torch.int32, device=value.device)
    places = places.reshape([-1 if each == dim else 1 for each in range(value.dim())])
    if not count:
        return torch.zeros_like(best, dtype=torch.int32)
    return torch.where(found, places, count).amin(dim, keepdim=True)


def _identity(kind: str, dtype: torch.dtype) -> float:
    """Return the reduction of no elements."""
    if kind == "sum":
        return 0
    if dtype.is_floating_point:
        return -math.inf if kind == "max" else math.inf
    return torch.iinfo(dtype).min if kind == "max" else torch.iinfo(dtype).max
