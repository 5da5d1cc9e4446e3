"""Products of few rows whose operands need no alignment, by a kernel of evt for sm90: the route ``gemv-own-3x``."""

from __future__ import annotations

from evt.plan.configurations.config import Config
from evt.plan.gemv import TILES
from evt.plan.geometry.gemv import STAGE_BYTES
from evt.plan.geometry.halo import FILTERS, STEP_PIXELS
from evt.plan.kernels import gemv as kernels
from evt.plan.problem import Problem
from evt.plan.routes.route import Kernel, Route
from evt.plan.rules import gemm, gemv, mainloop, own


def configs_sm90(problem: Problem) -> tuple[Config, ...]:
    """Return the configurations of the tiles."""
    depth = STAGE_BYTES // problem.operand_bytes
    return tuple(
        Config((tile.rows, tile.columns, depth), "gemv", epilogue_tile=(STEP_PIXELS, FILTERS), use="always")
        for tile in TILES
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
