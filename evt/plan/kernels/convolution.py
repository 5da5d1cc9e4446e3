"""Kernels of convolutions, each put together from an implicit GEMM and an epilogue, as those of matrix products are."""

from __future__ import annotations

from collections.abc import Callable

from evt.plan.configurations.config import ConfigConvolution
from evt.plan.epilogue.visitors import Graph
from evt.plan.kernels import epilogue_2x, epilogue_3x
from evt.plan.kernels.draft import Draft, Frame, Request
from evt.plan.kernels.gemm import frame_2x
from evt.plan.kernels.implicit_gemm import (
    convolution_2x,
    convolution_3x,
    is_strided_dgrad,
    padded_convolution_3x,
    stock_convolution_2x,
)
from evt.plan.kernels.memory import Budget, Space, least_stages
from evt.plan.kernels.nodes import Nodes3x
from evt.plan.kernels.schedulers import swizzle_and_raster
from evt.plan.kernels.work import plan_work
from evt.plan.plan import Convolution3x, Plan, Visitors

# CUTLASS 3.x: TMA im2col, WGMMA.

#: Shared memory of a multiprocessor of sm90, and what of it each thread block takes besides its own.
_MULTIPROCESSOR_BYTES, _RESERVED_BYTES = 228 * 1024, 1024


def conv_3x(request: Request) -> Plan:
    """Visitors on sm90."""
    return _conv_3x(request, convolution_3x)


def conv_padded_3x(request: Request) -> Plan:
    """The same over copies of the input and the filters whose channels are few, or no whole vectors."""
    return _conv_3x(request, padded_convolution_3x)


def _conv_3x(request: Request, implicit_gemm: Callable[[Draft], Convolution3x]) -> Plan:
    config = request.config
    assert isinstance(config, ConfigConvolution)
    draft = Draft(request, batched=False)  # it has one batch, known when it is compiled
    mainloop = implicit_gemm(draft)
    # The part of a multiprocessor's memory, as in convolution_3x.hpp, of which the main loop takes what is left.
    limit = _MULTIPROCESSOR_BYTES // config.min_blocks - _RESERVED_BYTES
    # The main loop of one consumer lies under the epilogue.
    space = Space(limit, least_stages(draft) if config.consumers == 2 else 0)
    epilogue = epilogue_3x.collective(
        draft, space, _visitors_3x, lambda value: draft.signature[value.name].contiguous == "n"
    )
    swizzle_and_raster(draft)
    return draft.finish(Frame("3x", "conv_3x", 90, limit, least_memory=limit), mainloop, epilogue)


def _visitors_3x(draft: Draft, graph: Graph, budget: Budget) -> Visitors:
    # TMA stores of other tiles than D do not compile with the nested shape of a convolution's problem.
    return Visitors(Nodes3x(draft, budget, tile_stores=False).make(graph), graph.tree)


# CUTLASS 2.x.


def conv_2x(request: Request) -> Plan:
    """Visitors, by a kernel of ours."""
    draft = Draft(request)
    mainloop = convolution_2x(draft)
    return draft.finish(frame_2x(draft, "conv_2x"), mainloop, epilogue_2x.visitors(draft))


def conv_worked_2x(request: Request) -> Plan:
    """Visitors, and work on the input."""
    draft = Draft(request)
    mainloop = convolution_2x(draft, plan_work(draft))
    return draft.finish(frame_2x(draft, "conv_2x_mainloop"), mainloop, epilogue_2x.visitors(draft))


def conv_stock_2x(request: Request) -> Plan:
    """An output operator."""
    draft = Draft(request)
    mainloop = stock_convolution_2x(draft)
    # Accesses of a weight's gradient divide the channels of one tap.
    most = draft.signature.b.alignment if mainloop.operator == "wgrad" else 16
    permuted = is_strided_dgrad(draft) and mainloop.rank == 2
    epilogue = epilogue_2x.stock(draft, epilogue_2x.image_tensors, most, permuted)
    return draft.finish(frame_2x(draft, "conv_2x_stock"), mainloop, epilogue)
