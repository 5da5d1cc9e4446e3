"""The operands of an epilogue's steps: scalars, sizes, strides, indices, shapes. Flat and frozen."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal, TypeAlias

from evt.ir.dtype import DType
from evt.plan.fields import Field


@dataclass(frozen=True, slots=True)
class Varies:
    """The stride of a vector or a single value: 1 if the call's stride is not 0, else 0."""

    given: Field

    def __str__(self) -> str:
        return f"{self.given} != 0"


Stride: TypeAlias = Field | Varies | Literal[0, 1]
#: (rows, columns, batch).
Strides: TypeAlias = tuple[Stride, Stride, Stride]


@dataclass(frozen=True, slots=True)
class Single:
    """A scalar of the call: by device pointer, or by value if that pointer is null."""

    dtype: DType
    number: Field
    pointer: Field

    def __str__(self) -> str:
        return f"{self.number} or *{self.pointer}"


@dataclass(frozen=True, slots=True)
class Number:
    """A constant of the program."""

    dtype: DType
    value: float

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True, slots=True)
class Size:
    """The extent of a mode, an i32."""

    extent: Field

    def __str__(self) -> str:
        return f"size {self.extent}"


@dataclass(frozen=True, slots=True)
class Places:
    """A vector of indices: it names, for each row or column, one of the ``extent`` rows or columns of a tensor.

    ``batch`` is the batch stride of the indices.
    """

    dtype: DType
    indices: Field
    batch: Field | Literal[0]
    extent: Field


@dataclass(frozen=True, slots=True)
class Pointer:
    """The address of a tensor of a type; ``is_const``: the step only reads it."""

    field: Field
    dtype: DType
    is_const: bool


@dataclass(frozen=True, slots=True)
class Register:
    """The type of a value in registers, as an argument of an operation."""

    dtype: DType


class Access(Enum):
    """The way in which a tile is moved."""

    TILE = "by the family's own node: by TMA through shared memory (3.x), in vector accesses (2.x)"
    DIRECT = "directly from or to global memory (3.x)"
    STRIDED = "element by element (2.x)"

    def __str__(self) -> str:
        return self.name.lower()


class Destination(Enum):
    """The output type of a root whose value the collective stores: D's."""

    D = "D"

    def __str__(self) -> str:
        return self.value


class ResultShape(Enum):
    """The shape of a value smaller than a matrix, in CUTLASS's words: a row has a value for each column."""

    ROW = "row"
    COLUMN = "column"
    SCALAR = "scalar"

    def __str__(self) -> str:
        return self.value


#: A compile-time argument of an operation: an element type, a register type, a number, a flag, an axis or a reduction,
#: a shape, the places of indices (None: in order), strides.
Constant: TypeAlias = DType | Register | int | bool | str | ResultShape | Places | Strides | None
#: A run-time argument of an operation: an address, a number, a stride, the places of indices, strides.
Member: TypeAlias = Pointer | Single | Size | Stride | Places | Strides


def pointer_of(values: Field | Single) -> Field:
    """Return the pointer to a vector's values, or to a single value."""
    return values.pointer if isinstance(values, Single) else values
