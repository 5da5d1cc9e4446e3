"""Steps that load: the accumulator, C, scalars, vectors, matrices, bits, indices, random numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from evt.ir import Const, Extent, Index, Load
from evt.ir.dtype import B1, F32, F64, I32, I64, DType, accumulator
from evt.ir.node import base, index_of
from evt.plan.epilogue.scope import Scope
from evt.plan.epilogue.step import ADDRESS, Buffers, Context, Share, Slot, Step
from evt.plan.epilogue.values import Access, Number, Places, Single, Size, Stride, Strides, Varies
from evt.plan.fields import Field
from evt.plan.signature import bytes_of


@dataclass(frozen=True, slots=True)
class AccFetch(Step):
    """The accumulator."""

    @classmethod
    def of(cls, slot: Slot, index: int, program: Context) -> Step:
        return cls(name="accumulator")

    @property
    def description(self) -> str:
        return "accumulator fetch"


@dataclass(frozen=True, slots=True)
class SourceFetch(Step):
    """C, which the collective has loaded."""

    dtype: DType

    @classmethod
    def of(cls, slot: Slot, index: int, program: Context) -> Step:
        return cls(program.scope.dtype(slot.name), name="source")

    @property
    def description(self) -> str:
        return "source C, through the collective's own load"

    @property
    def is_prefetched(self) -> bool:
        return True

    @property
    def bytes(self) -> float:
        return self.dtype.bits / 8

    def registers(self, share: Share) -> int:
        return ADDRESS + share.registers(self.dtype, share.elements)


@dataclass(frozen=True, slots=True)
class ScalarBroadcast(Step):
    """A scalar, a size, or a constant of the program."""

    value: Single | Number | Size
    strides: Strides

    @classmethod
    def of(cls, slot: Slot, index: int, program: Context) -> Step:
        scope, op = program.scope, program.scope.dag[slot.value]
        match op:
            case Const():
                dtype = F64 if accumulator(scope.dag.operands[0].dtype) == F64 else F32
                return cls(Number(dtype, op.value), (0, 0, 0), name=f"constant_{index}")
            case Extent():
                return cls(scope.size(op.mode), (0, 0, 0), name=f"size_{op.mode}")
        value = scope.dag.input[slot.name]
        single = scope.single(value)
        return cls(single, scope.with_batch(value.name, 0, 0, "l" in value.modes), name=scope.names[value.name])

    @property
    def description(self) -> str:
        return "scalar broadcast"

    def registers(self, share: Share) -> int:
        return 0 if isinstance(self.value, Number) else 1


@dataclass(frozen=True, slots=True)
class VectorBroadcast(Step):
    """A vector at a pointer, or a flexible one: a vector or a single value, as the strides say."""

    dtype: DType
    values: Field | Single
    strides: Strides

    @classmethod
    def of(cls, slot: Slot, index: int, program: Context) -> Step:
        scope = program.scope
        value = scope.dag.input[slot.name]
        along_columns = issubclass(cls, RowBroadcast)
        mode = scope.columns if along_columns else scope.rows
        dtype, name, batched = scope.dtype(value.name), scope.names[value.name], "l" in value.modes

        def strides(step: Stride) -> Strides:
            if along_columns:
                return scope.with_batch(value.name, 0, step, batched)
            return scope.with_batch(value.name, step, 0, batched)

        if value.flexible:
            single = scope.single(value)
            return cls(dtype, single, strides(Varies(scope.fields.varies(value.name, mode))), name=name)
        if scope.signature[value.name].contiguous is not None:
            return cls(dtype, scope.fields.pointer(value.name), strides(1), name=name)
        stride = scope.fields.stride(value.name, mode)
        if program.any_stride:
            return cls(dtype, scope.fields.pointer(value.name), strides(stride), name=name)
        # No broadcast of CUTLASS steps by a stride: the load of a matrix whose rows, or columns, are the same does.
        return AuxLoad(dtype, scope.fields.pointer(value.name), strides(stride), 1, Access.DIRECT, name=name)

    @property
    def is_flexible(self) -> bool:
        """Whether a call may give a single value instead of the vector."""
        return isinstance(self.values, Single)


class RowBroadcast(VectorBroadcast):
    """A value for each column."""

    __slots__ = ()

    @property
    def description(self) -> str:
        return "row or scalar broadcast" if self.is_flexible else "row broadcast"

    def registers(self, share: Share) -> int:
        return row_registers(self.dtype, share)

    def shared_bytes(self, buffers: Buffers) -> int:
        return buffers.columns * bytes_of(self.dtype) + 128 if buffers.stages_rows else 0


class ColumnBroadcast(VectorBroadcast):
    """A value for each row."""

    __slots__ = ()

    @property
    def description(self) -> str:
        return "column or scalar broadcast" if self.is_flexible else "column broadcast"

    def registers(self, share: Share) -> int:
        return column_registers(self.dtype, share)


def row_registers(dtype: DType, share: Share) -> int:
    """Return the registers of a row vector: a fragment has two rows."""
    return ADDRESS + share.registers(dtype, share.elements // 2)


def column_registers(dtype: DType, share: Share) -> int:
    """Return the registers of a column vector: two rows of a fragment, for every step down the tile."""
    return ADDRESS + share.registers(dtype, 2 * share.steps)


@dataclass(frozen=True, slots=True)
class Auxiliary(Step):
    """A matrix in memory; ``alignment`` is in elements. The kernel's family decides the ``access``."""

    dtype: DType
    pointer: Field
    strides: Strides
    alignment: int
    access: Access

    @classmethod
    def of(cls, slot: Slot, index: int, program: Context) -> Step:
        scope, name = program.scope, slot.name
        pointer, strides = scope.fields.pointer(name), scope.strides(name)
        alignment = scope.signature[name].alignment
        return cls(scope.dtype(name), pointer, strides, alignment, Access.DIRECT, name=scope.names[name])

    @property
    def tensor(self) -> str:
        """The program's name of the matrix."""
        return self.pointer.tensor

    @property
    def bytes(self) -> float:
        return self.dtype.bits / 8 if 0 not in self.strides[:2] else 0


#: Words for the ways in which tiles are moved.
_LOADS = {Access.TILE: "", Access.DIRECT: ", directly from global memory", Access.STRIDED: ", element by element"}


class AuxLoad(Auxiliary):
    """A matrix, or a vector with a stride as a matrix whose rows, or columns, are all the same."""

    __slots__ = ()

    @property
    def description(self) -> str:
        return f"auxiliary load{_LOADS[self.access]}"

    @property
    def is_prefetched(self) -> bool:
        return 0 not in self.strides[:2]

    def registers(self, share: Share) -> int:
        if self.strides[0] == 0:
            return row_registers(self.dtype, share)
        if self.strides[1] == 0:
            return column_registers(self.dtype, share)
        return ADDRESS + share.registers(self.dtype, share.elements)


@dataclass(frozen=True, slots=True)
class Packed(Step):
    """A tensor with contiguous columns, and fewer of them than the accumulator: bits, halves, blocks."""

    pointer: Field
    batch: Field | Literal[0]
    row: Field


def packed(slot: Slot, scope: Scope) -> tuple[Field, Field | Literal[0], Field]:
    """Return the members of a packed tensor: its pointer and strides."""
    pointer = scope.fields.pointer(slot.name)
    batch = scope.batch(slot.name, scope.signature[slot.name].batch == "strided")
    return pointer, batch, scope.fields.stride(slot.name, "m")


@dataclass(frozen=True, slots=True)
class MaskLoad(Packed):
    """Packed bits."""

    @classmethod
    def of(cls, slot: Slot, index: int, program: Context) -> Step:
        return cls(*packed(slot, program.scope), name=program.scope.names[slot.name])

    @property
    def description(self) -> str:
        return "load of packed bits"

    @property
    def is_prefetched(self) -> bool:
        return True

    @property
    def bytes(self) -> float:
        return B1.bits / 8

    def registers(self, share: Share) -> int:
        return ADDRESS + -(-share.elements // 8)


@dataclass(frozen=True, slots=True)
class HalfLoad(Packed):
    """A tensor with half the columns: both columns of a pair, ``distance`` apart, get its value."""

    dtype: DType
    distance: int

    @classmethod
    def of(cls, slot: Slot, index: int, program: Context) -> Step:
        scope = program.scope
        distance = scope.pair_distance(slot.value)
        return cls(*packed(slot, scope), scope.dtype(slot.name), distance, name=scope.names[slot.name])

    @property
    def description(self) -> str:
        return "load of half the columns"

    @property
    def is_prefetched(self) -> bool:
        return True

    @property
    def bytes(self) -> float:
        return self.dtype.bits / 16

    def registers(self, share: Share) -> int:
        return ADDRESS + share.registers(self.dtype, share.elements // 2)


@dataclass(frozen=True, slots=True)
class Indexed(Step):
    """A tensor whose rows, columns or both are at the places that indices name; None: in order."""

    dtype: DType
    pointer: Field
    strides: Strides
    rows: Places | None
    columns: Places | None
    is_tile: bool

    @classmethod
    def of(cls, slot: Slot, index: int, program: Context) -> Step:
        scope, name = program.scope, slot.name
        value, layout = scope.value(name), scope.signature[name]
        indices = {base(mode): index_of(mode) for mode in value.modes}

        def places(mode: str) -> Places | None:
            index = indices.get(mode)
            if not index:
                return None
            batch = scope.batch(index, "l" in scope.dag.input[index].modes)
            return Places(scope.dtype(index), scope.fields.pointer(index), batch, scope.fields.extent_of(name, mode))

        def stride(mode: str) -> Stride:
            if mode not in indices:
                return 0
            return 1 if layout.contiguous == mode else scope.fields.stride(name, mode)

        strided = layout.batch == "strided" and (value.is_tile or "l" in value.modes)
        strides = scope.with_batch(name, stride(scope.rows), stride(scope.columns), strided)
        pointer, rows, columns = scope.fields.pointer(name), places(scope.rows), places(scope.columns)
        return cls(scope.dtype(name), pointer, strides, rows, columns, value.is_tile, name=scope.names[name])

    @property
    def indexed(self) -> str:
        """The kernel's modes along which indices name places, in words."""
        return " and ".join(word for word, places in (("rows", self.rows), ("columns", self.columns)) if places)

    @property
    def bytes(self) -> float:
        return self.dtype.bits / 8 if self.is_tile else 0


class Gather(Indexed):
    """A load; a place out of range reads as 0."""

    __slots__ = ()

    @property
    def description(self) -> str:
        return f"gathered {self.indexed}"

    @property
    def is_prefetched(self) -> bool:
        return True

    def registers(self, share: Share) -> int:
        return ADDRESS + share.registers(self.dtype, share.elements)


Axis: TypeAlias = Literal["row", "column", "batch"]


@dataclass(frozen=True, slots=True)
class Coordinate(Step):
    """The place of an element: its row, column or batch in the kernel's product."""

    axis: Axis

    @classmethod
    def of(cls, slot: Slot, index: int, program: Context) -> Step:
        op = program.scope.dag[slot.value]
        assert isinstance(op, Index)
        axis: Axis = "batch" if op.mode == "l" else "row" if op.mode == program.scope.rows else "column"
        return cls(axis, name=f"index_{op.mode}")

    @property
    def description(self) -> str:
        return "coordinates"


@dataclass(frozen=True, slots=True)
class RandomNumbers(Step):
    """Philox numbers, counted along the program's rows; ``swapped``: these are the kernel's columns.

    ``wide``: the seed and the offset have 64 bits.
    """

    seed: Single | Number
    offset: Single | Number
    swapped: bool
    wide: bool

    @classmethod
    def of(cls, slot: Slot, index: int, program: Context) -> Step:
        scope = program.scope
        seed, offset = (_random_argument(scope, operand) for operand in scope.dag.arguments(slot.value))
        wide = I64 in (seed.dtype, offset.dtype)
        return cls(seed, offset, scope.transposed, wide, name=f"random_{index}")

    @property
    def description(self) -> str:
        return f"random numbers, by Philox-{'4x32' if self.wide else '2x32'}-10"

    def registers(self, share: Share) -> int:
        return 2 * ADDRESS


def _random_argument(scope: Scope, value: int) -> Single | Number:
    """Return the seed or the offset of random numbers."""
    op = scope.dag[value]
    if isinstance(op, Const):
        return Number(I32, op.value)
    assert isinstance(op, Load)
    return scope.single(scope.dag.input[op.name])
