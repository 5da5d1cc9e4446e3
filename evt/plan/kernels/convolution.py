"""The kernels of convolutions: an implicit GEMM instead of a matrix product."""

from __future__ import annotations

from dataclasses import replace

from evt.ir import Input
from evt.plan.configurations.config import ConfigConvolution
from evt.plan.epilogue.loads import Auxiliary
from evt.plan.epilogue.program import EpilogueProgram
from evt.plan.epilogue.values import Access
from evt.plan.epilogue.writes import AuxStore
from evt.plan.kernels import epilogue_2x
from evt.plan.kernels.draft import Draft, Selection
from evt.plan.kernels.epilogue_3x import Placed
from evt.plan.kernels.implicit_gemm import (
    convolution_2x,
    convolution_3x,
    padded_convolution_3x,
    stock_convolution_2x,
    worked_convolution_2x,
)
from evt.plan.kernels.kernel import Kernel2x, Kernel3x
from evt.plan.kernels.memory import Space, least_stages
from evt.plan.kernels.schedulers import swizzle_and_raster

# CUTLASS 3.x: TMA im2col, WGMMA.

#: The shared memory of an SM of sm90, and the bytes that each thread block reserves besides its own.
_MULTIPROCESSOR_BYTES, _RESERVED_BYTES = 228 * 1024, 1024


def _draft_3x(selection: Selection) -> Draft:
    """Begin a kernel of one batch, which is known at compile time."""
    return Draft(selection, batched=False)


def _space(draft: Draft) -> Space:
    """Return a thread block's part of an SM's memory, as in convolution_3x.hpp; the main loop takes the rest.

    The main loop and the epilogue of one consumer share memory.
    """
    config = draft.config
    assert isinstance(config, ConfigConvolution)
    limit = _MULTIPROCESSOR_BYTES // config.min_blocks - _RESERVED_BYTES
    return Space(limit, least_stages(draft) if config.warp_groups == 2 else 0, takes_all=True)


def _visitors_3x(draft: Draft, placed: Placed) -> EpilogueProgram:
    shape = draft.signature.convolution
    assert shape is not None
    # The problem's shape is nested, so that CUTLASS's visitors have no TMA of some tiles beside C and D: of stores, nor
    # of loads in a dgrad, whose batches are two modes.
    no_tma = Auxiliary if shape.operator == "dgrad" else AuxStore

    def access(step: Auxiliary) -> Access:
        return Access.DIRECT if isinstance(step, no_tma) else placed.budget.access(step)

    draft.take(placed.draft)
    return placed.program.with_access(access)


def _has_rows(draft: Draft, value: Input) -> bool:
    """Return whether the channels of a tensor are contiguous, as C's are."""
    return draft.signature[value.name].contiguous == "n"


VISITORS_3X = Kernel3x(
    "3x",
    "conv_3x",
    90,
    _draft_3x,
    convolution_3x,
    _space,
    _visitors_3x,
    _has_rows,
    swizzle_and_raster,
)
#: The kernel over padded copies of the input and the weight, for few channels or no whole vectors of channels.
PADDED_3X = replace(VISITORS_3X, mainloop=padded_convolution_3x)

# CUTLASS 2.x: visitors in kernels of evt.

VISITORS_2X = Kernel2x("conv_2x", Draft, convolution_2x, epilogue_2x.visitors)
WORKED_2X = Kernel2x("conv_2x_mainloop", Draft, worked_convolution_2x, epilogue_2x.visitors)
STOCK_2X = Kernel2x("conv_2x_stock", Draft, stock_convolution_2x, epilogue_2x.stock_of_images)
