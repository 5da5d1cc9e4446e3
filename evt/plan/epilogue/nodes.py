"""The visitor nodes of a kernel: what each of them loads, computes or stores. Flat and frozen; no C++.

::

    Node = AccFetch                                       the accumulator
         | SourceFetch(dtype)                             C, which the collective has loaded
         | ScalarBroadcast(value, strides)                a scalar, or a number of the program
         | RowBroadcast(dtype, values, strides)           a value for each column
         | ColumnBroadcast(...)                           a value for each row
         | RowOrScalarBroadcast(dtype, values, stride, batch)       the same, by nodes of ours (2.x)
         | ColumnOrScalarBroadcast(...)
         | AuxLoad(dtype, pointer, strides, alignment, access)              a tile of an input
         | AuxStore(...)                                  a tile of an output
         | Compute(function, output)                      one function, by CUTLASS's functor
         | Apply(region, output)                          several operations, by a functor of ours
         | Coordinate(axis)                               the place of an element
         | RandomNumbers(seed, offset, swapped, wide)     Philox
         | PairMember(member, distance)                   of each pair of columns the first or the second
         | PairInterleave(distance, dtype)                of each pair of columns one of two values
         | FirstColumns(width, distance)                  of what several columns hold one, and zeros
         | PlaceKeys(axis, least)                         values together with their places
         | BlockReduce(kind, width)                       of each block of columns
         | MaskLoad(pointer, row, batch)                  packed bits
         | MaskStore(...)
         | HalfLoad(dtype, distance, pointer, row, batch) a tensor of half as many columns
         | HalfStore(...)
         | BlockStore(dtype, width, pointer, row, batch)  one value a block of columns
         | Gather(dtype, pointer, strides, rows, columns) an input, whose rows or columns indices name
         | Scatter(...)                                   an output
         | VectorStore(shape, dtype, pointer, ...)        a value for each row, for each column, or one
         | Reduction(shape, kind, dtype, extent, ...)     over rows, columns or both

    Strides = (rows, columns, batch), each a Field, 0, 1, or Varies: 1 where a call gives a vector, else 0

    Result  = the output of a reduction, or of several and of inputs, by the kernel that combines their parts
    Operand = Combined(reduction, ...) | Given(dtype, values, ...) | Size(extent) | Number(...) | ResultIndex(batch)

Every node has a name in its kernel, and ``operands``: the places of the nodes whose values it visits, all before it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, TypeAlias

from evt.ir.dtype import DType
from evt.plan.epilogue.regions import Region
from evt.plan.fields import Field


@dataclass(frozen=True, slots=True)
class Varies:
    """The stride of a vector or a single value: 1 where the call's stride is not 0, else 0."""

    given: Field

    def __str__(self) -> str:
        return f"{self.given} != 0"


Stride: TypeAlias = Field | Varies | Literal[0, 1]
Strides: TypeAlias = tuple[Stride, Stride, Stride]


@dataclass(frozen=True, slots=True)
class Single:
    """A value that a call gives: by device pointer, or by value where that pointer is null."""

    dtype: DType
    number: Field
    pointer: Field

    def __str__(self) -> str:
        return f"{self.number} or *{self.pointer}"


@dataclass(frozen=True, slots=True)
class Number:
    """A value of the program."""

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


class Access(Enum):
    """How a tile is moved."""

    TILE = "as the family's own node does: by TMA through shared memory (3.x), in accesses of several elements (2.x)"
    DIRECT = "directly from or to global memory (3.x)"
    STRIDED = "element by element (2.x)"

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A node's place in the visitor graph; ``origin`` is the part of the program that it comes from, in words."""

    name: str
    operands: tuple[int, ...] = ()
    origin: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class AccFetch(Placed):
    pass


@dataclass(frozen=True, slots=True)
class SourceFetch(Placed):
    dtype: DType


@dataclass(frozen=True, slots=True)
class ScalarBroadcast(Placed):
    value: Single | Number | Size
    strides: Strides


def pointer_of(values: Field | Single) -> Field:
    """Return where a vector's values are, or a single one."""
    return values.pointer if isinstance(values, Single) else values


@dataclass(frozen=True, slots=True)
class VectorBroadcast(Placed):
    """``values`` are a vector at a pointer, or a flexible one: a vector or a single value, as the strides say."""

    dtype: DType
    values: Field | Single
    strides: Strides


class RowBroadcast(VectorBroadcast):
    __slots__ = ()


class ColumnBroadcast(VectorBroadcast):
    __slots__ = ()


@dataclass(frozen=True, slots=True)
class VectorOrScalarBroadcast(Placed):
    """The same with a node of ours that reads element by element; ``stride`` is the vector's."""

    dtype: DType
    values: Field | Single
    stride: Field | Literal[1]
    batch: Field | Literal[0]


class RowOrScalarBroadcast(VectorOrScalarBroadcast):
    __slots__ = ()


class ColumnOrScalarBroadcast(VectorOrScalarBroadcast):
    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Auxiliary(Placed):
    dtype: DType
    pointer: Field
    strides: Strides
    alignment: int
    access: Access


class AuxLoad(Auxiliary):
    __slots__ = ()


class AuxStore(Auxiliary):
    __slots__ = ()


class Destination(Enum):
    """The output type of a root whose value the collective stores: D's."""

    D = "D"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class Compute(Placed):
    """``function`` is a row of evt.functions.TABLE for which CUTLASS has a functor, or empty: the identity."""

    function: str
    output: DType | Destination


@dataclass(frozen=True, slots=True)
class Apply(Placed):
    region: Region
    output: DType | Destination


@dataclass(frozen=True, slots=True)
class Coordinate(Placed):
    axis: Literal["row", "column", "batch"]


@dataclass(frozen=True, slots=True)
class RandomNumbers(Placed):
    """``swapped``: the kernel's rows are the program's columns, by which numbers are counted.

    ``wide``: the seed and the offset have 64 bits.
    """

    seed: Single | Number
    offset: Single | Number
    swapped: bool
    wide: bool


@dataclass(frozen=True, slots=True)
class PairMember(Placed):
    """``member`` 0 is the first; the members are ``distance`` columns apart."""

    member: int
    distance: int


@dataclass(frozen=True, slots=True)
class PairInterleave(Placed):
    """In the first columns of pairs the first operand, in the second ones the second, in the type ``dtype``."""

    distance: int
    dtype: DType


@dataclass(frozen=True, slots=True)
class FirstColumns(Placed):
    """Zeros but in the first ``distance`` of every ``width`` columns: a value that others hold too is summed once."""

    width: int
    distance: int


@dataclass(frozen=True, slots=True)
class PlaceKeys(Placed):
    """Integers of 64 bits that are ordered as values, ``least`` first or last, and of equal values by their places."""

    axis: Literal["row", "column"]
    least: bool


@dataclass(frozen=True, slots=True)
class BlockReduce(Placed):
    kind: str
    width: int


@dataclass(frozen=True, slots=True)
class Packed(Placed):
    """A tensor whose columns are contiguous, and fewer than the accumulator's."""

    pointer: Field
    row: Field
    batch: Field | Literal[0]


class MaskLoad(Packed):
    __slots__ = ()


class MaskStore(Packed):
    __slots__ = ()


@dataclass(frozen=True, slots=True)
class HalfLoad(Packed):
    dtype: DType
    distance: int


@dataclass(frozen=True, slots=True)
class HalfStore(Packed):
    dtype: DType
    distance: int


@dataclass(frozen=True, slots=True)
class BlockStore(Packed):
    dtype: DType
    width: int


@dataclass(frozen=True, slots=True)
class Places:
    """Where along a mode elements lie: at the ``extent`` places that a vector of indices of a type names.

    ``batch`` is the stride of the indices.
    """

    dtype: DType
    indices: Field
    batch: Field | Literal[0]
    extent: Field


@dataclass(frozen=True, slots=True)
class Indexed(Placed):
    """A tensor whose rows, columns or both are where indices say; None of those in order."""

    dtype: DType
    pointer: Field
    strides: Strides
    rows: Places | None
    columns: Places | None


class Gather(Indexed):
    __slots__ = ()


class Scatter(Indexed):
    __slots__ = ()


class ResultShape(Enum):
    """What has fewer values than a matrix, in CUTLASS's words: a row has a value for each column."""

    ROW = "row"
    COLUMN = "column"
    SCALAR = "scalar"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class VectorStore(Placed):
    """A store of values that do not vary over what the ``shape`` lacks, of which the first are written.

    ``stride`` is that of the values, ``batch`` that of the batches, or 0 where one vector is for all of them.
    """

    shape: ResultShape
    dtype: DType
    pointer: Field
    stride: Field | Literal[1]
    batch: Field | Literal[0]


@dataclass(frozen=True, slots=True)
class Combined:
    """A reduction's value at the place of a result, by the name of its node.

    Of a result with fewer columns, ``width`` columns of the kernel's hold ``distance`` values, the first so many.
    """

    reduction: str
    width: int = 1
    distance: int = 1


@dataclass(frozen=True, slots=True)
class Given:
    """An input at the place of a result: a vector with a ``stride``, or a single value."""

    dtype: DType
    values: Field | Single
    stride: Field | Literal[0, 1]
    batch: Field | Literal[0]


@dataclass(frozen=True, slots=True)
class ResultIndex:
    """The place of a result: its row or column, or its ``batch``."""

    batch: bool


Operand: TypeAlias = Combined | Given | Size | Number | ResultIndex


@dataclass(frozen=True, slots=True)
class Result:
    """An output that is stored by the kernel at the end, in which the parts of reductions are combined.

    Of one reduction as it is, or what ``region`` makes of ``operands``. ``extent`` is that of the mode that is kept,
    of which ``divisor`` have one result. ``batch`` is the stride of results, ``origin`` the statement that stores it.
    """

    name: str
    dtype: DType
    pointer: Field
    extent: Field | Literal[1]
    divisor: int
    batch: Field | Literal[0]
    over_batch: bool
    operands: tuple[Operand, ...]
    region: Region | None = None
    origin: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Reduction(Placed):
    """A reduction in ``dtype``: each thread block writes its part to the workspace, for the kernel at the end.

    An atomic one combines in the output of its only result itself, ``atomic``, which a kernel has filled with the
    identity. ``extent`` is that of the mode that is kept. Where a place is wanted, parts are the keys of PlaceKeys.
    """

    shape: ResultShape
    kind: str
    dtype: DType
    extent: Field | Literal[1]
    over_batch: bool
    atomic: Result | None = None


Node: TypeAlias = (
    AccFetch | SourceFetch | ScalarBroadcast | RowBroadcast | ColumnBroadcast | RowOrScalarBroadcast
    | ColumnOrScalarBroadcast | AuxLoad | AuxStore | Compute | Apply | Coordinate | RandomNumbers | PairMember
    | PairInterleave | FirstColumns | PlaceKeys | BlockReduce | MaskLoad | MaskStore | HalfLoad | HalfStore
    | BlockStore | Gather | Scatter | VectorStore | Reduction
)  # fmt: skip
