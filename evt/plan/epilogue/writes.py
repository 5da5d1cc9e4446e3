"""Steps that write: stores, and reductions over rows, columns or both. Each returns its operand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from evt.ir import Reduce
from evt.ir.columns import columns_of
from evt.ir.dtype import B1, I64, DType
from evt.ir.node import MOMENTS, PLACES, divisor
from evt.plan.epilogue.loads import Auxiliary, Indexed, Packed, packed
from evt.plan.epilogue.results import Result, kept_modes
from evt.plan.epilogue.step import ADDRESS, Buffers, Context, Share, Slot, Step
from evt.plan.epilogue.values import Access, Constant, Member, Pointer, ResultShape
from evt.plan.fields import Field
from evt.plan.signature import bytes_of

#: CUTLASS's names of shapes, in the names of reductions.
_SHAPES = {ResultShape.ROW: "Row", ResultShape.COLUMN: "Col", ResultShape.SCALAR: "Scalar"}
#: The kind of a reduction whose parts are moments, which means and variances share.
MERGED = "moments"
_STORES = {Access.TILE: "", Access.DIRECT: ", directly to global memory", Access.STRIDED: ", element by element"}


class AuxStore(Auxiliary):
    """A matrix."""

    __slots__ = ()
    passes: ClassVar[bool] = True

    @property
    def operation(self) -> str:
        return "MatrixStore"

    @property
    def description(self) -> str:
        return f"auxiliary store{_STORES[self.access]}"

    def registers(self, share: Share) -> int:
        return ADDRESS


@dataclass(frozen=True, slots=True)
class MaskStore(Packed):
    """Packed bits."""

    passes: ClassVar[bool] = True
    header: ClassVar[str] = "mask"

    @property
    def element(self) -> DType:
        return B1

    @classmethod
    def of(cls, slot: Slot, index: int, program: Context) -> Step:
        return cls(*packed(slot, program.scope), name=program.scope.names[slot.name])

    @property
    def description(self) -> str:
        return "store of packed bits"

    @property
    def bytes(self) -> float:
        return B1.bits / 8

    def registers(self, share: Share) -> int:
        return ADDRESS


@dataclass(frozen=True, slots=True)
class HalfStore(Packed):
    """A tensor with half the columns, from the first columns of pairs ``distance`` apart."""

    dtype: DType
    distance: int

    passes: ClassVar[bool] = True
    header: ClassVar[str] = "pair"

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
        return "store of half the columns"

    @property
    def bytes(self) -> float:
        return self.dtype.bits / 16

    def registers(self, share: Share) -> int:
        return ADDRESS


@dataclass(frozen=True, slots=True)
class BlockStore(Packed):
    """A tensor with one value for each block of ``width`` columns."""

    dtype: DType
    width: int

    passes: ClassVar[bool] = True
    header: ClassVar[str] = "block"

    @property
    def element(self) -> DType:
        return self.dtype

    @property
    def constants(self) -> tuple[Constant, ...]:
        return self.dtype, self.width

    @classmethod
    def of(cls, slot: Slot, index: int, program: Context) -> Step:
        scope = program.scope
        width = divisor(columns_of(scope.dag.types[slot.value]))
        return cls(*packed(slot, scope), scope.dtype(slot.name), width, name=scope.names[slot.name])

    @property
    def description(self) -> str:
        return "store of one value a block"

    @property
    def bytes(self) -> float:
        return self.dtype.bits / 8 / self.width

    def registers(self, share: Share) -> int:
        return ADDRESS


class Scatter(Indexed):
    """A store; a place out of range is not stored."""

    __slots__ = ()
    passes: ClassVar[bool] = True

    @property
    def description(self) -> str:
        return f"scattered {self.indexed}"

    def registers(self, share: Share) -> int:
        return ADDRESS


@dataclass(frozen=True, slots=True)
class VectorStore(Step):
    """A value that varies along the modes of ``shape`` only, written once.

    ``stride`` leads from value to value, ``batch`` from batch to batch: 0 if all batches share one vector.
    """

    shape: ResultShape
    dtype: DType
    pointer: Field
    stride: Field | Literal[1]
    batch: Field | Literal[0]

    passes: ClassVar[bool] = True
    header: ClassVar[str] = "vector_store"

    @property
    def constants(self) -> tuple[Constant, ...]:
        return self.dtype, self.shape

    @property
    def members(self) -> tuple[tuple[str, Member], ...]:
        pointer = Pointer(self.pointer, self.dtype, is_const=False)
        return ("ptr", pointer), ("stride", self.stride), ("stride_l", self.batch)

    @property
    def reads_rows(self) -> bool:
        return True

    @classmethod
    def of(cls, slot: Slot, index: int, program: Context) -> Step:
        scope = program.scope
        output = scope.dag.output[slot.name]
        kept = set(output.modes) - {"l"}
        shape, pointer = scope.shape(kept), scope.fields.pointer(output.name)
        stride: Field | Literal[1] = scope.fields.stride(output.name, kept.pop()) if kept else 1
        batch = scope.batch(output.name, "l" in output.memory_modes)
        return cls(shape, scope.dtype(output.name), pointer, stride, batch, name=scope.names[output.name])

    @property
    def description(self) -> str:
        return f"store of a {self.shape}, once"

    def registers(self, share: Share) -> int:
        return ADDRESS


@dataclass(frozen=True, slots=True)
class Reduction(Step):
    """A reduction in ``dtype``: each thread block writes its part to the workspace, for the kernel at the end.

    An ``atomic`` one combines in the output of its only result, which a kernel has filled with the identity.
    ``extent`` is the extent of the mode that is kept. The parts of argmax and argmin are the keys of PlaceKeys. The
    parts of :data:`MERGED` are moments: four numbers of ``dtype``.
    """

    shape: ResultShape
    kind: str
    dtype: DType
    extent: Field | Literal[1]
    over_batch: bool
    atomic: Result | None = None

    passes: ClassVar[bool] = True
    header: ClassVar[str] = "reduce"

    @property
    def operation(self) -> str:
        return f"{_SHAPES[self.shape]}Reduction"

    @property
    def reads_rows(self) -> bool:
        return True

    @property
    def part_bytes(self) -> int:
        """The bytes of a partial result: the keys of argmax and argmin have 64 bits."""
        return bytes_of(I64 if self.kind in PLACES else self.dtype) * (4 if self.kind == MERGED else 1)

    @classmethod
    def of(cls, slot: Slot, index: int, program: Context) -> Step:
        scope, node = program.scope, slot.reduction
        assert node is not None
        op = scope.dag[node]
        assert isinstance(op, Reduce)
        kept, name = kept_modes(op), f"reduction_{index}"
        shape, atomic = scope.shape(kept), program.results.add(node, name)
        extent: Field | Literal[1] = scope.fields.size(kept.pop()) if kept else 1
        kind = MERGED if op.kind in MOMENTS else op.kind
        return cls(shape, kind, scope.dag.types[node].dtype, extent, "l" in op.modes, atomic, name=name)

    @property
    def description(self) -> str:
        return f"{self.shape} reduction, {self.kind}, {'by atomics' if self.atomic else 'in parts'}"

    def registers(self, share: Share) -> int:
        totals = 1 if self.shape is ResultShape.SCALAR else share.elements // 2
        return ADDRESS + totals * (4 if self.kind == MERGED and self.shape is not ResultShape.COLUMN else 1)

    def shared_bytes(self, buffers: Buffers) -> int:
        if self.shape is not ResultShape.ROW:
            return 0
        size = self.part_bytes if self.kind in (*PLACES, MERGED) else bytes_of(self.result)
        return buffers.warps * buffers.columns * size
