"""A kernel while its parts are planned: the program in its scope, and the finished plan."""

from __future__ import annotations

from dataclasses import dataclass, fields

from evt.functions import TABLE
from evt.ir import Apply, TypedDag
from evt.ir.dtype import DType, accumulator
from evt.ir.interface import format_interface
from evt.ir.operand import epilogue_of
from evt.plan.configurations.config import Config
from evt.plan.epilogue.cost import instructions_of
from evt.plan.epilogue.facts import stores_d
from evt.plan.epilogue.program import EpilogueProgram
from evt.plan.epilogue.registers import estimate_registers
from evt.plan.epilogue.scope import Scope
from evt.plan.epilogue.writes import AuxStore
from evt.plan.fields import Field, Fields, GroupFields, mangle
from evt.plan.kernels.parameters import parameters
from evt.plan.plan import Epilogue, GroupedPlan, Mainloop, Plan, Tensor
from evt.plan.problem import Problem
from evt.plan.quotients import straight_functions
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
    """A planned epilogue with the tensors that the collective itself moves: see :class:`Plan`.

    ``program`` is the epilogue's steps, even if a stock epilogue takes their place.
    """

    epilogue: Epilogue
    program: EpilogueProgram
    source: Tensor | None
    destination: Tensor | None
    dtype: DType
    shared_memory: int
    elements_per_access: int = 0


class Draft(Scope):
    """A kernel that is being planned; its parts add the members that they need to ``fields``."""

    def __init__(self, selection: Selection, *, transposed: bool = False, batched: bool = True) -> None:
        self.selection = selection
        self.problem = problem = selection.problem
        self.config = selection.config
        dag, signature = epilogue_of(problem.dag), problem.signature
        if problem.dag.feeds or problem.dag.scales or problem.written:
            signature = signature.only({*dag.input, *dag.output})
        program = problem.program
        names = mangle([value.name for value in program.inputs], [value.name for value in program.outputs])
        fields = Fields(names, [Field(mode, "size", "", mode) for mode in ("m", "n", "k", "l")])
        super().__init__(
            dag,
            signature,
            names,
            fields,
            transposed=transposed,
            batched=batched,
            atomic=problem.options.atomic,
            in_pairs=problem.written is not None,
        )

    @property
    def stores_tile(self) -> bool:
        """Whether a collective can store the primary output itself, as its D."""
        return stores_d(self.dag, self.signature)

    @property
    def primary(self) -> str:
        """The name of the output that the kernel is built around."""
        return self.dag.primary.name

    def finish(self, frame: KernelTemplate, mainloop: Mainloop, epilogue: Collective) -> Plan:
        """Return the plan of a kernel made of these parts."""
        dag, program = self.dag, self.problem.program
        operations = map(program.__getitem__, range(len(program)))
        rows = (TABLE[op.function] for op in operations if isinstance(op, Apply))
        operand_bits = dag.operands[0].dtype.bits
        straight = straight_functions(mainloop, self.config, operand_bits) if frame.family == "own" else ()
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
            registers=self._registers(epilogue.program) if frame.family in _ESTIMATED else 0,
            operand_bits=operand_bits,
            read_bytes=epilogue.program.bytes(written=False),
            written_bytes=self._written(epilogue),
            epilogue_instructions=instructions_of(dag, fast=self.problem.options.fast_math, straight=straight),
        )
        if not isinstance(self.fields, GroupFields):
            return made
        return GroupedPlan(
            **{each.name: getattr(made, each.name) for each in fields(Plan)}, group_fields=self.fields.rows
        )

    def _written(self, epilogue: Collective) -> float:
        """Return the bytes that are stored for each element of the product; D may have no step."""
        has_step = any(step.tensor == self.primary for step in epilogue.program.of(AuxStore))
        d = epilogue.destination
        if d is None or has_step:
            return epilogue.program.bytes(written=True)
        columns = 2 if "n/2" in self.dag.primary.modes else 1
        return epilogue.program.bytes(written=True) + d.dtype.bits / 8 / columns

    def _registers(self, program: EpilogueProgram) -> int:
        """Return the estimate of the registers of an epilogue's thread."""
        return estimate_registers(
            program, self.config, accumulator(self.dag.operands[0].dtype), self.dtype(self.primary)
        )


def describe(dag: TypedDag, signature: Signature) -> str:
    """Return the layouts of the operands that a kernel is specialised for, in words."""
    layouts = zip(dag.operands, (signature.a, signature.b), strict=True)
    return ", ".join(f"{operand.name} {layout.contiguous}-contiguous" for operand, layout in layouts)
