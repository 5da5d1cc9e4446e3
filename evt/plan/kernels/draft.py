"""A kernel while its parts are planned: the program as they see it, the call's members, and the finished plan."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Literal

from evt.functions import TABLE
from evt.ir import Apply, Input, Output, TypedDag
from evt.ir.columns import pair_distances
from evt.ir.dtype import I32, I64, DType, accumulator
from evt.ir.interface import format_interface
from evt.ir.node import divisor
from evt.ir.operand import epilogue_of
from evt.plan.configurations.config import Config
from evt.plan.epilogue.nodes import Number, Single, Size, Stride, Strides
from evt.plan.epilogue.registers import estimate_registers
from evt.plan.epilogue.visitors import Graph, stores_d
from evt.plan.fields import Field, Fields, GroupFields, mangle
from evt.plan.kernels.parameters import parameters
from evt.plan.plan import Epilogue, GroupedPlan, Mainloop, Plan, Tensor
from evt.plan.problem import Problem
from evt.plan.signature import Signature
from evt.plan.target import Family
from evt.plan.verdict import Matches

#: The families whose registers are estimated.
_ESTIMATED: tuple[Family, ...] = ("2x", "3x", "own")


@dataclass(frozen=True, slots=True)
class Selection:
    """A problem with its selected route and configuration: the input of a kernel's planner.

    ``matches`` are the results of the route's rules. ``fused=False`` makes every operation a separate node.
    """

    problem: Problem
    route: str
    config: Config
    fused: bool
    matches: Matches


@dataclass(frozen=True, slots=True)
class KernelTemplate:
    """The template that prints a kernel, and the shared memory that one of its thread blocks may have."""

    family: Family
    template: str
    instructions: int
    memory_limit: int


@dataclass(frozen=True, slots=True)
class Collective:
    """A planned epilogue, and what the collective itself does of it: see :class:`Plan`.

    ``graph`` has the program's visitors, even if the epilogue is not made of them.
    """

    epilogue: Epilogue
    graph: Graph
    source: Tensor | None
    destination: Tensor | None
    dtype: DType
    shared_memory: int
    elements_per_access: int = 0


class Draft:
    """A kernel that is being planned; its parts add the members that they need to ``fields``.

    ``dag`` and ``signature`` are the epilogue's. ``transposed``: D' = B' A' is computed. ``batched``: whether
    strides have a batch mode.
    """

    def __init__(self, selection: Selection, *, transposed: bool = False, batched: bool = True) -> None:
        self.selection = selection
        self.problem = problem = selection.problem
        self.config = selection.config
        self.transposed = transposed
        self.batched = batched
        self.dag: TypedDag = epilogue_of(problem.dag)
        self.signature: Signature = problem.signature
        if problem.dag.feeds:
            self.signature = self.signature.only({*self.dag.input, *self.dag.output})
        program = problem.dag
        self.names = mangle([value.name for value in program.inputs], [value.name for value in program.outputs])
        self.fields: Fields = Fields(self.names, [Field(mode, "size", "", mode) for mode in ("m", "n", "k", "l")])
        self.regions = 0

    @property
    def rows(self) -> str:
        """The mode along the kernel's own rows."""
        return "n" if self.transposed else "m"

    @property
    def columns(self) -> str:
        """The mode along the kernel's own columns."""
        return "m" if self.transposed else "n"

    @property
    def stores_tile(self) -> bool:
        """Return whether a collective can store the primary output itself, as its D."""
        return stores_d(self.dag, self.signature)

    @property
    def primary(self) -> str:
        """Return the name of the output that the kernel is built around."""
        return self.dag.primary.name

    def next_region(self) -> int:
        """Return the number of a new region."""
        self.regions += 1
        return self.regions - 1

    def dtype(self, name: str) -> DType:
        """Return the type of an input or output."""
        dtype = self.value(name).dtype
        assert dtype is not None
        return dtype

    def value(self, name: str) -> Input | Output:
        return self.dag.input.get(name) or self.dag.output[name]

    def strides(self, name: str) -> Strides:
        """Return the strides of a tile's tensor."""
        layout = self.signature[name]
        rows: Stride = 1 if layout.contiguous == self.rows else self.fields.stride(name, self.rows)
        columns: Stride = 1 if layout.contiguous == self.columns else self.fields.stride(name, self.columns)
        return self.with_batch(name, rows, columns, layout.batch == "strided")

    def with_batch(self, name: str, rows: Stride, columns: Stride, strided: bool) -> Strides:
        """Return strides that end with the batch's, where there is one."""
        return rows, columns, self.fields.stride(name, "l") if strided and self.batched else 0

    def batch(self, name: str, strided: bool) -> Field | Literal[0]:
        """Return the stride along the batch, or 0; the tensor must be one for which every kernel has a batch."""
        return self.fields.stride(name, "l") if strided else 0

    def single(self, value: Input) -> Single:
        """Return the number and the pointer, one of which gives a scalar, or a flexible vector's single value."""
        assert value.dtype is not None
        number = self.fields.number(value.name, "integer" if value.dtype == I64 else "number")
        return Single(value.dtype, number, self.fields.pointer(value.name))

    def size(self, mode: str) -> Size | Number:
        """Return the extent of a mode, of k what the product sums over."""
        if mode == "l" and not self.batched:
            return Number(I32, 1)
        of_taps = mode == "k" and self.signature.convolution is not None
        return Size(self.fields.size("contraction") if of_taps else self.fields.extent(mode))

    def pair_distance(self, value: int) -> int:
        """Return how far apart the columns are that hold a value of fewer columns than the accumulator."""
        return min(self._distances[value], default=1)

    @cached_property
    def _distances(self) -> list[frozenset[int]]:
        return pair_distances(self.dag, self.dag.types)

    def finish(self, frame: KernelTemplate, mainloop: Mainloop, epilogue: Collective) -> Plan:
        """Return the plan of a kernel made of these parts."""
        dag, program = self.dag, self.problem.dag
        operations = map(program.__getitem__, range(len(program)))
        rows = (TABLE[op.function] for op in operations if isinstance(op, Apply))
        made = Plan(
            route=self.selection.route,
            family=frame.family,
            template=frame.template,
            instructions=frame.instructions,
            target=self.problem.target,
            config=self.config,
            options=self.problem.options,
            program=dag.source.text if dag.source else str(dag),
            interface=format_interface(program),
            signature=describe(dag, self.signature),
            functions=tuple(dict.fromkeys(row.source for row in rows if row.source)),
            transposed=self.transposed,
            accumulator=accumulator(dag.operands[0].dtype),
            mainloop=mainloop,
            epilogue=epilogue.epilogue,
            source=epilogue.source,
            destination=epilogue.destination,
            epilogue_dtype=epilogue.dtype,
            elements_per_access=epilogue.elements_per_access,
            whole_accesses=self.stores_tile,
            parameters=parameters(self.problem),
            fields=self.fields.members,
            shared_memory=epilogue.shared_memory,
            memory_limit=frame.memory_limit,
            registers=estimate_registers(dag, epilogue.graph, self.config) if frame.family in _ESTIMATED else 0,
            operand_bits=dag.operands[0].dtype.bits,
            read_bytes=sum(map(tile_bytes, dag.inputs)),
            written_bytes=sum(map(tile_bytes, dag.outputs)),
        )
        if not isinstance(self.fields, GroupFields):
            return made
        return GroupedPlan(
            **{each.name: getattr(made, each.name) for each in fields(Plan)}, group_fields=self.fields.rows
        )


def tile_bytes(value: Input | Output) -> float:
    """Return the bytes of a tile's tensor for each element of the product; 0 for anything smaller than a matrix."""
    assert value.dtype is not None
    return value.dtype.bits / 8 / max(map(divisor, value.modes), default=1) if value.is_tile else 0


def describe(dag: TypedDag, signature: Signature) -> str:
    """Return which layouts of the operands a kernel is specialised for, in words."""
    layouts = zip(dag.operands, (signature.a, signature.b), strict=True)
    return ", ".join(f"{operand.name} {layout.contiguous}-contiguous" for operand, layout in layouts)
