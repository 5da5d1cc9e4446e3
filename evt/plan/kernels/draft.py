"""A kernel while its parts are planned: what they ask of the program, the call's members, and the finished plan."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from evt.functions import TABLE
from evt.ir import Apply, Input, Output, TypedDag
from evt.ir.dtype import DType, accumulator
from evt.ir.node import divisor
from evt.ir.operand import epilogue_of
from evt.plan.configurations.config import Config
from evt.plan.epilogue.nodes import Single, Stride, Strides
from evt.plan.epilogue.registers import estimate_registers
from evt.plan.epilogue.visitors import Graph, is_collective, is_reduced
from evt.plan.fields import Field, Fields, GroupFields, mangle
from evt.plan.kernels.parameters import parameters
from evt.plan.plan import Epilogue, GroupedPlan, Mainloop, Plan, Tensor
from evt.plan.problem import Problem
from evt.plan.signature import Signature
from evt.plan.target import Family
from evt.plan.verdict import Matches


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked of a kernel's planner; ``matches`` are those of the route's rules.

    ``fused`` False makes every operation a node of its own.
    """

    problem: Problem
    route: str
    config: Config
    fused: bool
    matches: Matches


@dataclass(frozen=True, slots=True)
class Frame:
    """What a kernel is printed by, and the shared memory that a thread block of it may have."""

    family: Family
    template: str
    instructions: int
    memory_limit: int


@dataclass(frozen=True, slots=True)
class Collective:
    """An epilogue that has been planned, and what of it the collective does itself: see :class:`Plan`.

    ``graph`` are the visitors that the program has whether or not the epilogue is made of them.
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

    ``dag`` and ``signature`` are those of the epilogue. ``transposed``: D' = B' A' is computed. ``batched``: whether
    strides have a batch mode.
    """

    def __init__(self, request: Request, *, transposed: bool = False, batched: bool = True) -> None:
        self.request = request
        self.problem = problem = request.problem
        self.config = request.config
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
        """Return the mode along the kernel's own rows."""
        return "n" if self.transposed else "m"

    @property
    def columns(self) -> str:
        """Return the mode along the kernel's own columns."""
        return "m" if self.transposed else "n"

    @property
    def stores_tile(self) -> bool:
        """Return whether D is a tile that a collective can store."""
        return is_collective(self.dag.output["D"]) and not is_reduced(self.dag, "D")

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
        """Return strides whose last is that of the batch, where there is one."""
        return rows, columns, self.fields.stride(name, "l") if strided and self.batched else 0

    def batch(self, name: str, strided: bool) -> Field | Literal[0]:
        """Return the stride along the batch of what every kernel has a batch for, or 0."""
        return self.fields.stride(name, "l") if strided else 0

    def single(self, value: Input) -> Single:
        """Return the number and the pointer of which one gives a scalar, or a flexible vector's single value."""
        assert value.dtype is not None
        return Single(value.dtype, self.fields.number(value.name), self.fields.pointer(value.name))

    def finish(self, frame: Frame, mainloop: Mainloop, epilogue: Collective) -> Plan:
        """Return the plan of a kernel that is made of these parts."""
        dag, program = self.dag, self.problem.dag
        operations = map(program.__getitem__, range(len(program)))
        rows = (TABLE[op.function] for op in operations if isinstance(op, Apply))
        made = Plan(
            route=self.request.route,
            family=frame.family,
            template=frame.template,
            instructions=frame.instructions,
            target=self.problem.target,
            config=self.config,
            options=self.problem.options,
            program=dag.source.text if dag.source else str(dag),
            signature=f"{dag.operation}, {describe(dag, self.signature)}",
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
            registers=estimate_registers(dag, epilogue.graph, self.config) if frame.family in ("2x", "3x") else 0,
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
    """Return the bytes of a tile's tensor for each element of the product; 0 for what is smaller than a matrix."""
    assert value.dtype is not None
    return value.dtype.bits / 8 / max(map(divisor, value.modes), default=1) if value.is_tile else 0


def describe(dag: TypedDag, signature: Signature) -> str:
    """Return what a kernel is specialised for, in words."""
    parts = [
        f"{o.name}: {o.dtype} {layout.contiguous}-contiguous"
        for o, layout in zip(dag.operands, (signature.a, signature.b), strict=True)
    ]
    values: tuple[Input | Output, ...] = (*dag.inputs, *dag.outputs)
    parts += [f"{value.name}: {value.dtype}[{', '.join(value.modes)}]" for value in values]
    text = ", ".join(parts)
    return text if len(text) <= 400 else f"{text[:160]}..."
