"""Depthwise convolutions by a kernel of evt on sm90: the route ``conv-depthwise-3x``."""

from __future__ import annotations

from evt.plan.configurations.config import Config, ConfigDepthwise, Use
from evt.plan.depthwise import Unit
from evt.plan.geometry.depthwise import CHANNELS, UNITS
from evt.plan.kernels import depthwise as kernels
from evt.plan.problem import Problem
from evt.plan.routes.route import Kernel, Route
from evt.plan.rules import depthwise, gemm, mainloop, own

#: The pixels and channels of a step of the epilogue; a thread has 8 elements of a step.
_STEP = (4 * UNITS, CHANNELS)


def configs_sm90(problem: Problem) -> tuple[Config, ...]:
    """Return the configurations: the best for many and for few images, one for light epilogues, then all others."""
    found = problem.depthwise

    def config(unit: Unit, use: Use) -> Config:
        tile = (UNITS * unit.rows * unit.columns, CHANNELS, 1)
        return ConfigDepthwise(tile, "depthwise", epilogue_tile=_STEP, use=use, unit=unit)

    uses: tuple[tuple[Use, tuple[Unit, ...]], ...] = (
        ("always", found.offered),
        ("light", found.light),
        ("asked", found.others),
    )
    return tuple(config(each, use) for use, units in uses for each in units)


DEPTHWISE = Route(
    name="conv-depthwise-3x",
    kind="own",
    generation="3x",
    summary="straight-line epilogue in a depthwise convolution of evt (TMA, multiply-adds in f32, no CuTe)",
    rules=(
        depthwise.depthwise,
        depthwise.operand_types,
        depthwise.on_sm90,
        mainloop.no_work,
        gemm.few_tensors,
        gemm.of_all_images,
        depthwise.tma,
        gemm.row_major_columns,
        own.epilogue,
        own.columns_of_depthwise_warp,
    ),
    kernels={"3x": Kernel(kernels.DEPTHWISE, configs_sm90, max_batches=None)},
    shapes=("convolution",),
    alone=lambda problem: problem.convolution.is_depthwise and problem.operand_bytes < 4,
    special=True,
)
