"""Reductions of a kernel: their nodes, where their partial results are, and the small kernels around the main one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evt.ir import Reduce
from evt.plan.plan import Job, Jobs, Node, Parts

if TYPE_CHECKING:
    from evt.plan.epilogue.nodes import NodePlanner

#: What combines values, in reduce.hpp.
OPS = {"sum": "evt::Sum", "max": "evt::Max", "min": "evt::Min"}


class Reductions:
    """Collects the reductions of a plan.

    Each thread block writes its part to the workspace and a kernel at the end combines the parts in a fixed order.
    With ``atomic`` the blocks combine in the output itself, which a kernel has filled with the identity; that needs
    an output of the type that is reduced in.
    """

    def __init__(self, atomic: bool) -> None:
        self.atomic = atomic
        self.parts: list[Parts] = []
        self._initial: list[Job] = []
        self._final: list[Job] = []

    def add(
        self,
        planner: NodePlanner,
        kind: str,
        name: str,
        op: Reduce,
        element: str,
        output: str,
        pointer: str,
        stride: str,
        kept: str,
    ) -> Node:
        """One reduction: ``kind`` Row, Col or Scalar, in ``element``, to ``output``s at ``pointer``."""
        combine = OPS[op.kind]
        over_batch = "l" in op.modes
        typed = f"static_cast<{output}*>(const_cast<void*>({pointer}))"
        if self.atomic and element == output and element != "double":
            batches = "1" if over_batch else "arguments.l"
            members = (("ptr", typed), ("kept", kept), ("batches", batches), ("stride_l", stride))
            self._initial.append(Job(name, f"evt::InitialiseJob<{combine}, {element}>", members))
            arguments = (("ptr", typed), ("stride_l", stride))
            return planner.own(name, f"{kind}Reduction", combine, element, "evt::Atomic", arguments=arguments)
        planner.add_field("workspace", "pointer", "", "workspace")
        count = planner.part_count(name)
        self.parts.append(Parts(name, element, count, kept, ("parts", kept.removeprefix("arguments."))))
        parts = f"parts<{element}>(arguments, workspace.{name})"
        final = (
            ("parts_ptr", parts),
            ("out", typed),
            ("parts", count),
            ("kept", kept),
            ("batches", "arguments.l"),
            ("out_stride_l", stride),
            ("over_batch", "true" if over_batch else "false"),
        )
        self._final.append(Job(name, f"evt::FinishJob<{combine}, {element}, {output}>", final))
        return planner.own(name, f"{kind}Reduction", combine, element, "evt::Partial", arguments=(("ptr", parts),))

    @property
    def before(self) -> tuple[Jobs, ...]:
        summary = "Fills the results of atomic reductions with the identity."
        return (Jobs("evt_initialise", "InitialJobs", summary, tuple(self._initial)),) if self._initial else ()

    @property
    def after(self) -> tuple[Jobs, ...]:
        summary = "Combines the parts of reductions, in a fixed order."
        return (Jobs("evt_finish", "FinalJobs", summary, tuple(self._final)),) if self._final else ()
