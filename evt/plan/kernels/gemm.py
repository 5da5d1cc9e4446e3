"""The kernels of matrix products."""

from __future__ import annotations

from dataclasses import replace

from evt.plan.epilogue.facts import has_fixed_columns
from evt.plan.kernels import epilogue_2x, epilogue_3x
from evt.plan.kernels.draft import Draft, Selection
from evt.plan.kernels.kernel import Kernel2x, Kernel3x
from evt.plan.kernels.matrices import matrix_product, worked_product
from evt.plan.kernels.memory import Space, least_stages
from evt.plan.kernels.schedulers import swizzle_and_raster
from evt.plan.rules.gemm import reads_columns

# CUTLASS 3.x.


def _draft_sm90(selection: Selection) -> Draft:
    return Draft(selection, transposed=selection.problem.swaps_operands)


def _draft_sm100(selection: Selection) -> Draft:
    """Compute D' = B' A' where our nodes would not get rows; tcgen05 takes any operands."""
    return Draft(selection, transposed=reads_columns(selection.problem))


def space(draft: Draft) -> Space:
    """Leave a few stages to the main loop."""
    return Space(draft.problem.target.shared_memory, least_stages(draft))


def _space_sm100(draft: Draft) -> Space:
    """Return the same, without the memory for reductions: every warp writes its own partial results."""
    return replace(space(draft), warps_meet=False)


#: WGMMA, persistent.
VISITORS_SM90 = Kernel3x(
    "3x",
    "gemm_3x",
    90,
    _draft_sm90,
    matrix_product,
    space,
    epilogue_3x.visitors,
    epilogue_3x.has_batches,
    swizzle_and_raster,
)
#: tcgen05, whose sums are in tensor memory.
VISITORS_SM100 = replace(
    VISITORS_SM90,
    family="sm100",
    template="gemm_sm100",
    instructions=100,
    draft=_draft_sm100,
    space=_space_sm100,
)
#: The mma instructions of 8-bit floats.
VISITORS_SM120 = replace(VISITORS_SM90, family="sm120", template="gemm_sm120", instructions=120, draft=Draft)

STOCK_SM90 = replace(VISITORS_SM90, epilogue=epilogue_3x.stock_fusion)
STOCK_SM100 = replace(VISITORS_SM100, epilogue=epilogue_3x.stock_fusion)
STOCK_SM120 = replace(VISITORS_SM120, epilogue=epilogue_3x.stock_fusion)

# CUTLASS 2.x.


def _draft_2x(selection: Selection) -> Draft:
    """Compute D' = B' A' where D is column-major, because visitors store along rows only."""
    draft = Draft(selection)
    column_major = draft.stores_tile and draft.signature[draft.primary].contiguous == "m"
    draft.transposed = column_major and not has_fixed_columns(draft.dag)
    return draft


VISITORS_2X = Kernel2x("gemm_2x", _draft_2x, matrix_product, epilogue_2x.visitors)
WORKED_2X = Kernel2x("gemm_2x_mainloop", _draft_2x, worked_product, epilogue_2x.visitors)
STOCK_2X = Kernel2x("gemm_2x_stock", _draft_2x, matrix_product, epilogue_2x.stock_of_matrices)
