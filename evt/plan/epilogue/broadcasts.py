"""Steps whose values are smaller than a tile: scalars, vectors, coordinates, random numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from evt.ir import Const, Extent, Index, Load
from evt.ir.dtype import F32, F64, I32, I64, DType, accumulator
from evt.plan.epilogue.loads import AuxLoad, column_registers, row_registers
from evt.plan.epilogue.scope import Scope
from evt.plan.epilogue.step import ADDRESS, Buffers, Context, Share, Slot, Step
from evt.plan.epilogue.values import (
    Access,
    Constant,
    Member,
    Number,
    Pointer,
    Register,
    Single,
    Size,
    Stride,
    Strides,
    Varies,
    pointer_of,
)
from evt.plan.fields import Field
from evt.plan.signature import bytes_of


@dataclass(frozen=True, slots=True)
class ScalarBroadcast(Step):
    """A scalar, a size, or a constant of the program."""

    value: Single | Number | Size
    strides: Strides

    header: ClassVar[str] = "vector"

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
    def operation(self) -> str:
        return "Scalar"

    @property
    def constants(self) -> tuple[Constant, ...]:
        dtype = I32 if isinstance(self.value, Size) else self.value.dtype
        return dtype, Register(dtype.compute)

    @property
    def members(self) -> tuple[tuple[str, Member], ...]:
        match self.value:
            case Single(dtype, _, pointer) as single:
                batch = self.strides[2]
                return (
                    ("ptr", Pointer(pointer, dtype, is_const=True)),
                    ("number", single),
                    *((("stride_l", batch),) if batch else ()),
                )
            case Size() as size:
                return (("number", size),)
            case Number():
                return ()

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

    header: ClassVar[str] = "vector"
    #: Whether the vector has values along the columns.
    is_row: ClassVar[bool] = True

    @classmethod
    def of(cls, slot: Slot, index: int, program: Context) -> Step:
        scope = program.scope
        value = scope.dag.input[slot.name]
        mode = scope.columns if cls.is_row else scope.rows
        dtype, name, batched = scope.dtype(value.name), scope.names[value.name], "l" in value.modes

        def strides(step: Stride) -> Strides:
            if cls.is_row:
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
    def constants(self) -> tuple[Constant, ...]:
        return self.dtype, Register(self.dtype.compute)

    @property
    def members(self) -> tuple[tuple[str, Member], ...]:
        rows, columns, batch = self.strides
        return (
            ("ptr", Pointer(pointer_of(self.values), self.dtype, is_const=True)),
            *((("number", self.values),) if isinstance(self.values, Single) else ()),
            ("stride", columns if self.is_row else rows),
            ("stride_l", batch),
        )

    @property
    def is_flexible(self) -> bool:
        """Whether a call may give a single value instead of the vector."""
        return isinstance(self.values, Single)

    @property
    def is_packed(self) -> bool:
        """Whether the vector's stride is 1 in all calls."""
        return not self.is_flexible and 1 in self.strides[:2]


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


class PairBroadcast(VectorBroadcast):
    """A value for each pair of neighbouring columns, in both columns."""

    __slots__ = ()
    header: ClassVar[str] = "pair_vector"

    @property
    def description(self) -> str:
        return "row broadcast to pairs of columns"

    def registers(self, share: Share) -> int:
        return row_registers(self.dtype, share)


class ColumnBroadcast(VectorBroadcast):
    """A value for each row."""

    __slots__ = ()
    is_row: ClassVar[bool] = False
    fetches: ClassVar[bool] = True

    @property
    def reads_rows(self) -> bool:
        return True

    @property
    def description(self) -> str:
        return "column or scalar broadcast" if self.is_flexible else "column broadcast"

    def registers(self, share: Share) -> int:
        return column_registers(self.dtype, share)


Axis: TypeAlias = Literal["row", "column", "batch"]


@dataclass(frozen=True, slots=True)
class Coordinate(Step):
    """The place of an element: its row, column or batch in the kernel's product."""

    axis: Axis

    header: ClassVar[str] = "index"

    @property
    def operation(self) -> str:
        return "Index"

    @property
    def constants(self) -> tuple[Constant, ...]:
        return (self.axis,)

    @property
    def reads_rows(self) -> bool:
        return self.axis == "row"

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

    @property
    def operation(self) -> str:
        return "WideRandom" if self.wide else "Random"

    @property
    def header(self) -> str:
        return "random_wide" if self.wide else "random"

    @property
    def constants(self) -> tuple[Constant, ...]:
        return (self.swapped,)

    @property
    def reads_rows(self) -> bool:
        return True

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
