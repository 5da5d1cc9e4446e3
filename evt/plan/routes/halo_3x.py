"""Convolutions by a kernel of ours on sm90: the route ``conv-halo-3x``."""

from __future__ import annotations

from evt.plan.configurations.config import Config
from evt.plan.halo import FILTERS
from evt.plan.kernels.halo import HALO as KERNEL
from evt.plan.problem import Problem
from evt.plan.routes.route import Kernel, Route
from evt.plan.rules import gemm, halo, mainloop


def configs_sm90(problem: Problem) -> tuple[Config, ...]:
    """Return the configurations whose widths suit the output. A thread has 8 elements of a step of the epilogue."""
    found = problem.convolution.halo
    channels = found.plane_bytes // problem.operand_bytes
    return tuple(
        Config((pixels, FILTERS, channels), "halo", epilogue_tile=(16, FILTERS), use="always")
        for pixels in found.pixels
    )


HALO = Route(
    name="conv-halo-3x",
    kind="own",
    generation="3x",
    summary="straight-line epilogue in a convolution of ours that loads each pixel once a tile (TMA, WGMMA, no CuTe)",
    rules=(
        halo.on_sm90,
        mainloop.no_work,
        gemm.few_tensors,
        halo.fprop,
        halo.operand_types,
        halo.tma,
        halo.fits,
        halo.epilogue,
    ),
    suits=halo.suits,
    kernels={"3x": Kernel(KERNEL, configs_sm90, max_batches=None)},
    shapes=("convolution",),
)
