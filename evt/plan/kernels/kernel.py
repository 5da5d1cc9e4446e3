"""A kernel's planner, composed of parts: ``planner(selection) -> Plan``.

Each part is a function of the draft and adds the members that it needs. The parts run in the order of the members. The
draft decides whether the problem is transposed; the main loop adds A and B, the epilogue its tensors, the scheduler its
settings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from evt.plan.kernels.draft import Collective, Draft, KernelTemplate, Selection
from evt.plan.kernels.epilogue_3x import Make, MayBeSource, collective
from evt.plan.kernels.memory import Space
from evt.plan.plan import Mainloop, Plan
from evt.plan.target import Family


class Planner(Protocol):
    """Decides everything about a kernel, even if it needs more shared memory than there is."""

    @property
    def template(self) -> str:
        """The template of codegen/templates that prints the kernel."""

    def __call__(self, selection: Selection) -> Plan:
        """Return the plan of a kernel."""


@dataclass(frozen=True, slots=True)
class Kernel2x:
    """A kernel of CUTLASS 2.x: multistage, on tensor cores."""

    template: str
    draft: Callable[[Selection], Draft]
    mainloop: Callable[[Draft], Mainloop]
    epilogue: Callable[[Draft], Collective]

    def __call__(self, selection: Selection) -> Plan:
        draft = self.draft(selection)
        mainloop = self.mainloop(draft)
        operand, target = draft.dag.operands[0].dtype, selection.problem.target
        # sm89 has the instructions for 8-bit floats.
        instructions = 89 if operand.is_float and draft.problem.operand_bytes == 1 else 80
        frame = KernelTemplate("2x", self.template, instructions, target.shared_memory)
        return draft.finish(frame, mainloop, self.epilogue(draft))


@dataclass(frozen=True, slots=True)
class Kernel3x:
    """A kernel of CUTLASS 3.x: TMA, warp-specialised. ``space`` is the shared memory of its thread blocks."""

    family: Family
    template: str
    instructions: int
    draft: Callable[[Selection], Draft]
    mainloop: Callable[[Draft], Mainloop]
    space: Callable[[Draft], Space]
    epilogue: Make
    may_be_source: MayBeSource
    scheduler: Callable[[Draft], None]

    def __call__(self, selection: Selection) -> Plan:
        draft = self.draft(selection)
        mainloop, space = self.mainloop(draft), self.space(draft)
        epilogue = collective(draft, space, self.epilogue, self.may_be_source)
        self.scheduler(draft)
        return draft.finish(
            KernelTemplate(self.family, self.template, self.instructions, space.limit), mainloop, epilogue
        )
