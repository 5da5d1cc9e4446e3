"""Gradients of filters by a kernel of evt on sm90: the route ``conv-wgrad-3x``."""

from __future__ import annotations

from evt.plan.configurations.config import Config, ConfigWgrad
from evt.plan.geometry.wgrad import DEPTH, TILE_COLUMNS, TILE_ROWS
from evt.plan.kernels import wgrad as kernels
from evt.plan.problem import Problem
from evt.plan.routes.route import Kernel, Route
from evt.plan.rules import gemm, mainloop, own, wgrad
from evt.plan.wgrad import fits, problem_of, tiles_of


def configs_sm90(problem: Problem) -> tuple[Config, ...]:
    """Return the configurations of the tiles that fit."""
    tiles, sizes = tiles_of(problem.convolution.geometry), problem.sizes.convolution
    if sizes is not None:
        found = problem_of(sizes.sizes)
        tiles = tuple(tile for tile in tiles if fits(found, tile))
    return tuple(
        ConfigWgrad(
            (tile.filters, tile.channels, DEPTH),
            "wgrad",
            epilogue_tile=(TILE_ROWS, TILE_COLUMNS),
            use="always",
            part=tile,
        )
        for tile in tiles
    )


WGRAD = Route(
    name="conv-wgrad-3x",
    kind="own",
    generation="3x",
    summary="straight-line epilogue after partial sums of a filter gradient by evt (TMA, WGMMA, no CuTe)",
    rules=(
        wgrad.filter_gradient,
        own.on_sm90,
        mainloop.no_work,
        gemm.few_tensors,
        wgrad.operand_types,
        own.tma,
        wgrad.fits,
        gemm.row_major_columns,
        own.epilogue,
        own.columns_of_depthwise_warp,
    ),
    suits=wgrad.suits,
    kernels={"3x": Kernel(kernels.WGRAD, configs_sm90, max_batches=None)},
    shapes=("convolution",),
)
