"""Planning for CUTLASS 3.x on sm120: TMA, a warp-specialised kernel with the mma instructions of 8-bit floats."""

from __future__ import annotations

from typing import ClassVar

from evt.plan.kernels.gemm_3x import Planner3x
from evt.plan.plan import Node
from evt.plan.target import Family


class PlannerSm120(Planner3x):
    """What of the 3.x family is another on sm120: its collective is sm90's, its auxiliary tiles lie as ours say."""

    family: ClassVar[Family] = "sm120"
    template = "gemm_sm120"

    def is_transposed(self) -> bool:
        return False

    def arch_tag(self) -> str:
        return "cutlass::arch::Sm120"

    def headers(self, nodes: tuple[Node, ...]) -> list[str]:
        return ["auxiliary_sm120.hpp", *super().headers(nodes)]
