"""Grouped products by CUTLASS 3.x: the route ``evt-3x-grouped``."""

from __future__ import annotations

from dataclasses import replace

from evt.plan.configurations.config import Config
from evt.plan.kernels.grouped_3x import VISITORS_GROUPED
from evt.plan.problem import Problem
from evt.plan.routes.gemm_3x import RULES
from evt.plan.routes.route import Kernel, Route
from evt.plan.rules import grouped


def configs_grouped(problem: Problem) -> tuple[Config, ...]:
    """Return the configurations of a grouped kernel, the general one first.

    8-bit floats are summed in two sets of accumulators, for which the larger tiles have no registers.
    """
    operand = problem.dag.operands[0].dtype
    k = 1024 // operand.bits
    pingpong = Config((128, 128, k), "pingpong", (1, 2, 1), (64, 64), stages_c=2, stages_d=1, reuse_c=True)
    small = replace(pingpong, tile=(64, 128, k), cluster=(1, 1, 1))
    cooperative = Config((128, 128, k), "cooperative", (1, 1, 1), (128, 32), stages_c=4, stages_d=2, reuse_c=True)
    if operand.is_float and operand.bits == 8:
        return cooperative, small, replace(cooperative, cluster=(1, 2, 1)), replace(small, cluster=(1, 2, 1))
    return (
        pingpong,
        replace(pingpong, cluster=(1, 1, 1)),
        replace(pingpong, cluster=(2, 1, 1)),
        small,
        replace(cooperative, tile=(128, 256, k), cluster=(2, 1, 1)),
        replace(cooperative, tile=(256, 128, k), cluster=(1, 2, 1)),
        cooperative,
    )


#: The rules of one product hold for every group.
EVT = Route(
    name="evt-3x-grouped",
    kind="evt",
    generation="3x",
    summary="visitor tree in a grouped TMA warp-specialised persistent kernel (CUTLASS 3.x)",
    rules=(grouped.on_sm90, *RULES, grouped.operands, grouped.one_tensor),
    kernels={"3x": Kernel(VISITORS_GROUPED, configs_grouped)},
    shapes=("grouped",),
    otherwise='route="loop" launches a kernel for each group',
)
