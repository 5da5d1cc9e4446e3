"""Convolutions by CUTLASS 2.x: the routes ``conv-stock-2x``, ``conv-evt-2x`` and ``conv-mainloop-2x``."""

from __future__ import annotations

from dataclasses import replace

from evt.plan.configurations.config import Config
from evt.plan.kernels import convolution as kernels
from evt.plan.problem import Problem
from evt.plan.routes.gemm_2x import WORK, configs_mainloop, general_config
from evt.plan.routes.route import Kernel, Route
from evt.plan.rules import convolution, gemm, mainloop, stock


def configs_implicit(problem: Problem) -> tuple[Config, ...]:
    """Return the configurations of a convolution.

    Measured on an H200: longer k-blocks than a GEMM's are best, and a tall tile if the output channels fill tiles of 64
    columns. A tile's columns lie in one group, or hold several whole groups. The iterators for few channels need more
    registers, so their tiles are small if output channels fill small tiles.
    """
    operand, convolution = problem.dag.operands[0].dtype, problem.convolution
    alignment = problem.padded_vector or problem.operand_alignment
    known = general_config(operand, alignment)
    wide = alignment * operand.bits >= 32
    if problem.has_few_channels and wide:
        small = replace(known, tile=(64, 64, 32), warp=(32, 32, 32))
        large = replace(known, tile=(128, 128, 32), warp=(64, 64, 32), stages=3)
        return (small, large) if problem.sizes.tile_columns == 64 else (large, small)
    if convolution.group_filters % 128 and known.tile[1] == 128:
        return (replace(known, tile=(128, 64, known.tile[2]), warp=(64, 32, known.tile[2])),)
    if operand.bits != 16 or not wide or convolution.group_filters:
        return (known,)
    square = replace(known, tile=(128, 128, 64), warp=(64, 64, 64), stages=3)
    tall = replace(known, tile=(256, 64, 32), warp=(64, 64, 32), stages=4)
    return (tall, square) if problem.sizes.tile_columns in (64, 96) else (square, tall)


_MULTIPLIED = (convolution.mma, convolution.small_operands)
_WHOLE_TILES = (convolution.whole_groups, convolution.aligned_volumes)

STOCK = Route(
    name="conv-stock-2x",
    kind="stock",
    generation="2x",
    summary="CUTLASS output operator on the multistage implicit-GEMM main loop (CUTLASS 2.x)",
    rules=(
        stock.convolution_operator,
        gemm.runs_2x,
        mainloop.no_work,
        *_MULTIPLIED,
        convolution.undilated_dgrad,
        *_WHOLE_TILES,
    ),
    kernels={"2x": Kernel(kernels.STOCK_2X, configs_implicit)},
    shapes=("convolution",),
    suits=stock.suits,
)

EVT = Route(
    name="conv-evt-2x",
    kind="evt",
    generation="2x",
    summary="visitor tree on the multistage implicit-GEMM main loop (CUTLASS 2.x), joined by a kernel of evt",
    rules=(
        gemm.runs_2x,
        mainloop.no_work,
        gemm.few_tensors,
        gemm.of_all_images,
        gemm.row_major_columns,
        gemm.columns_in_row,
        *_MULTIPLIED,
        convolution.unit_dgrad,
        *_WHOLE_TILES,
    ),
    kernels={"2x": Kernel(kernels.VISITORS_2X, configs_implicit)},
    shapes=("convolution",),
)

MAINLOOP = Route(
    name="conv-mainloop-2x",
    kind="mainloop",
    generation="2x",
    summary="mainloop fusion of the activation in a multistage implicit-GEMM kernel, visitor tree (CUTLASS 2.x)",
    rules=(
        *WORK,
        mainloop.work_of_fprop,
        gemm.runs_2x,
        gemm.few_tensors,
        gemm.of_all_images,
        gemm.row_major_columns,
        gemm.columns_in_row,
        *_MULTIPLIED,
    ),
    kernels={"2x": Kernel(kernels.WORKED_2X, configs_mainloop)},
    shapes=("convolution",),
)
