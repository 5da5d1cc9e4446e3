"""Steps that compute: each element apart (apply), or from elements of other lanes (exchange)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from evt.functions import TABLE
from evt.ir import Extent, Interleave, Pick, Reduce, ReduceBlocks
from evt.ir.columns import columns_of
from evt.ir.dtype import F32, DType
from evt.ir.node import divisor
from evt.plan.epilogue.loads import AccFetch
from evt.plan.epilogue.regions import Region, identity, make_region, single_function
from evt.plan.epilogue.step import ADDRESS, Context, Share, Slot, Step
from evt.plan.epilogue.values import Constant, Destination, Register


@dataclass(frozen=True, slots=True)
class Compute(Step):
    """One function, by CUTLASS's functor; ``function`` is a row of evt.functions.TABLE, or empty: the identity."""

    function: str
    output: DType | Destination

    @property
    def functor(self) -> str:
        """The name of CUTLASS's functor."""
        if not self.function:
            return "cutlass::epilogue::thread::Identity"
        found = TABLE[self.function].stock
        assert found is not None
        return found.name

    @property
    def description(self) -> str:
        return f"compute of {self.functor}"


@dataclass(frozen=True, slots=True)
class Apply(Step):
    """One or several operations, as a region; it becomes a functor of evt's own."""

    region: Region
    output: DType | Destination

    @classmethod
    def of(cls, slot: Slot, index: int, program: Context) -> Step:
        """Return the region, or :class:`Compute` if CUTLASS has a functor for its only operation."""
        scope, dag, name = program.scope, program.scope.dag, f"compute_{index}"
        sources = [program.slots[operand] for operand in slot.operands]
        values = [source.value for source in sources]
        is_root = program.converts_root and slot is program.slots[-1]
        output = Destination.D if is_root else scope.compute_type(slot.value)
        # CUTLASS's functors convert to integers by wrapping.
        converts_well = scope.dtype(dag.primary.name).is_float if is_root else output == F32
        plain = program.uses_functors and converts_well
        if values == [slot.value]:
            dtype = scope.compute_type(slot.value)
            if plain and dtype == F32:
                return Compute("", output, name=name)
            return cls(identity(scope.next_region(), dtype), output, name=name)
        function = single_function(dag, slot.value, values)
        if function and plain:
            return Compute(function, output, name=name)
        parameters: dict[int, str] = {}
        for position, source in enumerate(sources):
            op = dag[source.value]
            label = scope.names.get(source.name) or ("acc" if source.step is AccFetch else f"x{position}")
            parameters[source.value] = f"size_{op.mode}" if isinstance(op, Extent) else label
        return cls(make_region(dag, scope.next_region(), slot.value, parameters), output, name=name)

    @property
    def description(self) -> str:
        return f"compute of {self.region.name}"


@dataclass(frozen=True, slots=True)
class FirstColumns(Step):
    """A value that several columns hold, in the first ``distance`` of every ``width`` columns, else 0: summed once."""

    width: int
    distance: int

    header: ClassVar[str] = "first"

    @property
    def constants(self) -> tuple[Constant, ...]:
        return self.width, self.distance

    @classmethod
    def of(cls, slot: Slot, index: int, program: Context) -> Step:
        distance = program.scope.pair_distance(slot.value)
        width = divisor(columns_of(program.scope.dag.types[slot.value])) * distance
        return cls(width, distance, name=f"first_{index}")

    @property
    def description(self) -> str:
        return "first columns of a value that several hold"

    def registers(self, share: Share) -> int:
        return 2 * ADDRESS


@dataclass(frozen=True, slots=True)
class PlaceKeys(Step):
    """Values with their places, as integers of 64 bits: ordered by value (``least`` first or last), then by place."""

    axis: Literal["row", "column"]
    least: bool

    header: ClassVar[str] = "key"

    @property
    def constants(self) -> tuple[Constant, ...]:
        return self.axis, self.least

    @property
    def reads_rows(self) -> bool:
        return self.axis == "row"

    @classmethod
    def of(cls, slot: Slot, index: int, program: Context) -> Step:
        assert slot.reduction is not None
        reduce = program.scope.dag[slot.reduction]
        assert isinstance(reduce, Reduce)
        along: Literal["row", "column"] = "row" if reduce.modes == (program.scope.rows,) else "column"
        return cls(along, reduce.kind == "argmin", name=f"keys_{index}")

    @property
    def description(self) -> str:
        return "values with their places"

    def registers(self, share: Share) -> int:
        return 2 * ADDRESS


@dataclass(frozen=True, slots=True)
class PairMember(Step):
    """The value of a pair's first (``member`` 0) or second column; the two are ``distance`` columns apart."""

    member: int
    distance: int

    header: ClassVar[str] = "pair"
    exchanges: ClassVar[bool] = True

    @property
    def operation(self) -> str:
        return "Odd" if self.member else "Even"

    @property
    def constants(self) -> tuple[Constant, ...]:
        return (self.distance,)

    @classmethod
    def of(cls, slot: Slot, index: int, program: Context) -> Step:
        op = program.scope.dag[slot.value]
        assert isinstance(op, Pick)
        return cls(op.member, op.block, name=f"pair_{index}")

    @property
    def description(self) -> str:
        return f"{'second' if self.member else 'first'} columns of pairs"

    def registers(self, share: Share) -> int:
        return 2 * ADDRESS


@dataclass(frozen=True, slots=True)
class PairInterleave(Step):
    """The first operand in the first columns of pairs, the second operand in the second columns, in type ``dtype``."""

    distance: int
    dtype: DType

    header: ClassVar[str] = "interleave"

    @property
    def operation(self) -> str:
        return "Interleave"

    @property
    def constants(self) -> tuple[Constant, ...]:
        return self.distance, Register(self.dtype)

    @classmethod
    def of(cls, slot: Slot, index: int, program: Context) -> Step:
        op = program.scope.dag[slot.value]
        assert isinstance(op, Interleave)
        return cls(op.block, program.scope.compute_type(slot.value), name=f"interleave_{index}")

    @property
    def description(self) -> str:
        return "two values, in the first and the second columns of pairs"


@dataclass(frozen=True, slots=True)
class PairSwap(Step):
    """The value of a pair's other column, ``distance`` columns away."""

    distance: int

    header: ClassVar[str] = "swap"
    exchanges: ClassVar[bool] = True

    @property
    def operation(self) -> str:
        return "Swap"

    @property
    def constants(self) -> tuple[Constant, ...]:
        return (self.distance,)

    @classmethod
    def of(cls, slot: Slot, index: int, program: Context) -> Step:
        op = program.scope.dag[slot.value]
        assert isinstance(op, Interleave)
        return cls(op.block, name=f"swap_{index}")

    @property
    def description(self) -> str:
        return "the other columns of pairs"

    def registers(self, share: Share) -> int:
        return 2 * ADDRESS


@dataclass(frozen=True, slots=True)
class BlockReduce(Step):
    """The reduction of every block of ``width`` columns, held by all of its columns."""

    kind: str
    width: int

    header: ClassVar[str] = "block"
    exchanges: ClassVar[bool] = True

    @property
    def constants(self) -> tuple[Constant, ...]:
        return self.kind, self.width

    @classmethod
    def of(cls, slot: Slot, index: int, program: Context) -> Step:
        op = program.scope.dag[slot.value]
        assert isinstance(op, ReduceBlocks)
        return cls(op.kind, divisor(columns_of(program.scope.dag.types[slot.value])), name=f"block_{index}")

    @property
    def description(self) -> str:
        return f"reduction of blocks of columns, {self.kind}"

    def registers(self, share: Share) -> int:
        return 2 * ADDRESS
