"""The shared memory of a thread block: the bytes of a kernel's tiles, and the reason why a plan exceeds the limit."""

from __future__ import annotations

from dataclasses import dataclass

from evt.plan.epilogue.loads import Auxiliary
from evt.plan.epilogue.program import EpilogueProgram
from evt.plan.epilogue.step import Buffers
from evt.plan.epilogue.values import Access
from evt.plan.epilogue.writes import AuxStore
from evt.plan.kernels.draft import Draft
from evt.plan.plan import Plan
from evt.plan.signature import LayoutClass

#: The fewest main-loop stages of a kernel with auxiliary tensors in shared memory.
_MIN_STAGES = 3
#: Shared memory for the pipelines' barriers and the tile scheduler, a generous estimate.
_BARRIERS = 2048
#: The most warps of a 3.x kernel whose partial results of a reduction meet.
_WARPS = 8


@dataclass(frozen=True, slots=True)
class Space:
    """The shared memory that a thread block of a 3.x kernel may have, and the least that the main loop keeps of it.

    ``warps_meet``: whether the partial results of reductions meet there if there is a result for each column.
    ``takes_all``: whether a thread block takes all that it may have.
    """

    limit: int
    mainloop: int
    warps_meet: bool = True
    takes_all: bool = False


class Budget:
    """The memory that the main loop and the collective leave to auxiliary tiles, which use TMA as long as it lasts."""

    def __init__(self, draft: Draft, space: Space, source: str | None, program: EpilogueProgram) -> None:
        self.draft = draft
        self.space = space
        config, problem = draft.config, draft.problem
        used = _BARRIERS + space.mainloop
        m, n = config.epilogue_tile
        stored = config.stages_d * (self.subtile_bytes(draft.primary) if draft.stores_tile else 2 * m * n)
        loaded = config.stages_c * self.subtile_bytes(source) if source else 0
        shares = config.reuse_c and source and problem.tensor_bytes(source) == problem.tensor_bytes(draft.primary)
        used += max(stored, loaded) if shares else stored + loaded
        used += program.shared_bytes(Buffers(config.tile[1], _WARPS if space.warps_meet else 0, stages_rows=True))
        self.left = space.limit - used

    @property
    def used(self) -> int:
        """The bytes used so far."""
        used = self.space.limit - self.left
        return max(used, self.space.limit) if self.space.takes_all else used

    def subtile_bytes(self, name: str) -> int:
        """Return the bytes of a tensor's part of the epilogue's tile."""
        m, n = self.draft.config.epilogue_tile
        return m * n * self.draft.problem.tensor_bytes(name)

    def access(self, step: Auxiliary) -> Access:
        """Reserve the memory of a tile. Return DIRECT without TMA or enough memory."""
        return Access.TILE if self.takes(step.tensor, stores=isinstance(step, AuxStore)) else Access.DIRECT

    def takes(self, name: str, *, stores: bool) -> bool:
        """Reserve the memory of a tile that is loaded or stored. Return False without TMA or enough memory."""
        stages = self.draft.config.stages_d if stores else self.draft.config.stages_c
        needed = stages * self.subtile_bytes(name)
        if not is_tma(self.draft, name, self.draft.signature[name]) or needed > self.left:
            return False
        self.left -= needed
        return True


def is_tma(draft: Draft, name: str, layout: LayoutClass) -> bool:
    """Return whether TMA can move a tensor."""
    return layout.contiguous is not None and layout.alignment * draft.problem.tensor_bytes(name) >= 16


def least_stages(draft: Draft) -> int:
    """Return the bytes of the stages that a main loop of 3.x must keep."""
    m, n, k = draft.config.tile
    return (m + n) * k * draft.problem.operand_bytes * _MIN_STAGES


def exceeded_memory(made: Plan) -> str:
    """Return why a plan's tiles do not fit in the shared memory of a thread block, or ""."""
    if made.shared_memory <= made.memory_limit:
        return ""
    return (
        f"{made.config.name} needs {made.shared_memory // 1024} KiB of shared memory for this program, and a thread "
        f"block of {made.target.name} has {made.memory_limit // 1024}"
    )
