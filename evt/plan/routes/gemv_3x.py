"""Products whose operands need no alignment, by a kernel of evt for sm90: the routes ``gemv-own-3x``, for few rows, and
``gemv-rows-3x``, for few columns.
"""

from __future__ import annotations

from collections.abc import Iterable

from evt.plan.configurations.config import Config, Schedule
from evt.plan.gemv import TILES, TILES_BY_ROWS
from evt.plan.geometry.gemv import STAGE_BYTES, GemvTile
from evt.plan.geometry.halo import FILTERS, STEP_PIXELS
from evt.plan.kernels import gemv as kernels
from evt.plan.problem import Problem
from evt.plan.routes.route import Kernel, Route
from evt.plan.rules import gemm, gemv, mainloop, own


def configs_sm90(problem: Problem) -> tuple[Config, ...]:
    """Return the configurations of the tiles whose warps split k."""
    return _configs(problem, TILES, "gemv")


def configs_by_rows(problem: Problem) -> tuple[Config, ...]:
    """Return the configurations of the tiles whose warps share the rows."""
    return _configs(problem, TILES_BY_ROWS, "gemv_rows")


def _configs(problem: Problem, tiles: Iterable[GemvTile], schedule: Schedule) -> tuple[Config, ...]:
    depth = STAGE_BYTES // problem.operand_bytes
    return tuple(
        Config((tile.rows, tile.columns, depth), schedule, epilogue_tile=(STEP_PIXELS, FILTERS), use="always")
        for tile in tiles
    )


GEMV = Route(
    name="gemv-own-3x",
    kind="own",
    generation="3x",
    summary="straight-line epilogue in a product of few rows, whose operands need no alignment (mma.sync, no CuTe)",
    rules=(
        own.on_sm90,
        mainloop.no_work,
        gemm.matrices,
        gemm.few_tensors,
        gemm.of_all_images,
        gemv.operands,
        gemv.unaligned,
        own.one_batch,
        gemm.row_major_columns,
        own.epilogue,
        own.columns_of_warp,
    ),
    suits=gemv.suits,
    kernels={"3x": Kernel(kernels.GEMV, configs_sm90, max_batches=1)},
    shapes=("gemm",),
    printed=False,
)

BY_ROWS = Route(
    name="gemv-rows-3x",
    kind="own",
    generation="3x",
    summary="straight-line epilogue in a product of few columns, whose operands need no alignment (mma.sync, no CuTe)",
    rules=(
        own.on_sm90,
        mainloop.no_work,
        gemm.matrices,
        gemm.few_tensors,
        gemm.of_all_images,
        gemv.operands,
        gemv.unaligned_or_narrow,
        own.one_batch,
        gemm.row_major_columns,
        own.epilogue,
        own.columns_of_warp,
    ),
    suits=gemv.suits_columns,
    kernels={"3x": Kernel(kernels.GEMV, configs_by_rows, max_batches=1)},
    shapes=("gemm", "convolution"),
    printed=False,
)
