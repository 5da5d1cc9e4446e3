"""Kernels of matrix products, each put together from a main loop, an epilogue and a scheduler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from evt.plan.epilogue.visitors import has_fixed_columns
from evt.plan.kernels import epilogue_2x, epilogue_3x
from evt.plan.kernels.draft import Draft, Frame, Planner, Request
from evt.plan.kernels.matrices import matrix_product
from evt.plan.kernels.memory import Space, least_stages
from evt.plan.kernels.schedulers import swizzle_and_raster
from evt.plan.kernels.work import plan_work
from evt.plan.plan import Plan
from evt.plan.problem import Problem
from evt.plan.rules.gemm import reads_columns
from evt.plan.target import Family

# CUTLASS 3.x: TMA, a warp-specialised kernel.


@dataclass(frozen=True, slots=True)
class Architecture:
    """What a kernel of 3.x has of its architecture; ``is_transposed`` tells whether D' = B' A' is computed.

    ``warps_meet``: whether the warps' parts of reductions meet in shared memory; else each has a part of its own.
    """

    family: Family
    template: str
    instructions: int
    is_transposed: Callable[[Problem], bool]
    warps_meet: bool = True


#: WGMMA, persistent.
SM90 = Architecture("3x", "gemm_3x", 90, lambda problem: problem.swaps_operands)
#: tcgen05, whose sums are in tensor memory. It takes any operands, but our nodes need to be given rows.
SM100 = Architecture("sm100", "gemm_sm100", 100, reads_columns, warps_meet=False)
#: The mma instructions of 8-bit floats.
SM120 = Architecture("sm120", "gemm_sm120", 120, lambda problem: False)


def visitors_3x(architecture: Architecture) -> Planner:
    """The planner of kernels with visitors."""
    return lambda request: _gemm_3x(request, architecture, epilogue_3x.visitors)


def stock_3x(architecture: Architecture) -> Planner:
    """The planner of kernels with a fusion operation of CUTLASS's own."""
    return lambda request: _gemm_3x(request, architecture, epilogue_3x.stock_fusion)


def _gemm_3x(request: Request, architecture: Architecture, epilogue: epilogue_3x.Make) -> Plan:
    draft = Draft(request, transposed=architecture.is_transposed(request.problem))
    limit = request.problem.target.shared_memory
    frame = Frame(architecture.family, architecture.template, architecture.instructions, limit)
    space = Space(limit, least_stages(draft), architecture.warps_meet)
    mainloop = matrix_product(draft)
    collective = epilogue_3x.collective(draft, space, epilogue, epilogue_3x.has_batches(draft))
    swizzle_and_raster(draft)
    return draft.finish(frame, mainloop, collective)


# CUTLASS 2.x: a multistage tensor-op kernel.


def visitors_2x(request: Request) -> Plan:
    """Visitors."""
    draft = _draft_2x(request)
    mainloop = matrix_product(draft)
    return draft.finish(frame_2x(draft, "gemm_2x"), mainloop, epilogue_2x.visitors(draft))


def stock_2x(request: Request) -> Plan:
    """An output operator."""
    draft = _draft_2x(request)
    mainloop = matrix_product(draft)
    epilogue = epilogue_2x.stock(draft, epilogue_2x.matrix_tensors)
    return draft.finish(frame_2x(draft, "gemm_2x_stock"), mainloop, epilogue)


def worked_2x(request: Request) -> Plan:
    """Visitors, and work on the operands."""
    draft = _draft_2x(request)
    mainloop = matrix_product(draft, plan_work(draft))
    return draft.finish(frame_2x(draft, "gemm_2x_mainloop"), mainloop, epilogue_2x.visitors(draft))


def _draft_2x(request: Request) -> Draft:
    """A draft of D' = B' A' where D is column-major, because visitors store along rows only."""
    draft = Draft(request)
    column_major = draft.stores_tile and draft.signature["D"].contiguous == "m"
    draft.transposed = column_major and not has_fixed_columns(draft.dag)
    return draft


def frame_2x(draft: Draft, template: str) -> Frame:
    """A kernel of CUTLASS 2.x: of sm89 where that has the instructions for 8-bit floats, else of sm80."""
    operand = draft.dag.operands[0].dtype
    instructions = 89 if operand.is_float and draft.problem.operand_bytes == 1 else 80
    return Frame("2x", template, instructions, draft.problem.target.shared_memory)
