"""Steps that load tiles: the accumulator, C, matrices, packed bits, half columns, gathered tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from evt.ir.dtype import B1, DType
from evt.ir.node import base, index_of
from evt.plan.epilogue.scope import Scope
from evt.plan.epilogue.step import ADDRESS, Context, Share, Slot, Step
from evt.plan.epilogue.values import (
    Access,
    Constant,
    Member,
    Places,
    Pointer,
    Stride,
    Strides,
)
from evt.plan.fields import Field


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

    header: ClassVar[str] = "matrix"

    @classmethod
    def of(cls, slot: Slot, index: int, program: Context) -> Step:
        scope, name = program.scope, slot.name
        pointer, strides = scope.fields.pointer(name), scope.strides(name)
        alignment = scope.signature[name].alignment
        return cls(scope.dtype(name), pointer, strides, alignment, Access.DIRECT, name=scope.names[name])

    @property
    def constants(self) -> tuple[Constant, ...]:
        return self.dtype, self.strides

    @property
    def members(self) -> tuple[tuple[str, Member], ...]:
        return ("ptr", Pointer(self.pointer, self.dtype, is_const=not self.passes)), ("stride", self.strides)

    @property
    def reads_rows(self) -> bool:
        return self.access is not Access.TILE

    @property
    def element(self) -> DType:
        """The type of the matrix's elements."""
        return self.dtype

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
    fetches: ClassVar[bool] = True

    @property
    def operation(self) -> str:
        return "MatrixLoad"

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

    @property
    def element(self) -> DType:
        """The type of the tensor's elements."""
        raise NotImplementedError

    @property
    def members(self) -> tuple[tuple[str, Member], ...]:
        pointer = Pointer(self.pointer, self.element, is_const=not self.passes)
        return ("ptr", pointer), ("stride_m", self.row), ("stride_l", self.batch)

    @property
    def reads_rows(self) -> bool:
        return True


def packed(slot: Slot, scope: Scope) -> tuple[Field, Field | Literal[0], Field]:
    """Return the members of a packed tensor: its pointer and strides."""
    pointer = scope.fields.pointer(slot.name)
    batch = scope.batch(slot.name, scope.signature[slot.name].batch == "strided")
    return pointer, batch, scope.fields.stride(slot.name, "m")


@dataclass(frozen=True, slots=True)
class MaskLoad(Packed):
    """Packed bits."""

    header: ClassVar[str] = "mask"
    fetches: ClassVar[bool] = True

    @property
    def element(self) -> DType:
        return B1

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

    header: ClassVar[str] = "pair"
    fetches: ClassVar[bool] = True

    @property
    def element(self) -> DType:
        return self.dtype

    @property
    def constants(self) -> tuple[Constant, ...]:
        return self.dtype, self.distance

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

    header: ClassVar[str] = "indexed"

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
    def constants(self) -> tuple[Constant, ...]:
        return self.dtype, self.rows, self.columns, self.strides

    @property
    def members(self) -> tuple[tuple[str, Member], ...]:
        places = (("rows", self.rows), ("columns", self.columns))
        return (
            ("ptr", Pointer(self.pointer, self.dtype, is_const=not self.passes)),
            ("stride", self.strides),
            *((name, each) for name, each in places if each is not None),
        )

    @property
    def reads_rows(self) -> bool:
        return True

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
    fetches: ClassVar[bool] = True

    @property
    def description(self) -> str:
        return f"gathered {self.indexed}"

    @property
    def is_prefetched(self) -> bool:
        return True

    def registers(self, share: Share) -> int:
        return ADDRESS + share.registers(self.dtype, share.elements)
