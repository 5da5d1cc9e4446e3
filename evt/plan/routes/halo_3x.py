"""Convolutions by a kernel of ours on sm90: the routes ``conv-halo-3x`` and ``conv-halo-padded-3x``."""

from __future__ import annotations

from evt.plan.configurations.config import Config, Schedule, Use
from evt.plan.halo import Halo, Width, pixels_of
from evt.plan.halo_tiles import FILTERS
from evt.plan.kernels import halo as kernels
from evt.plan.problem import Problem
from evt.plan.routes.route import Kernel, Route
from evt.plan.rules import gemm, halo, mainloop


def configs_sm90(problem: Problem) -> tuple[Config, ...]:
    """Return the configurations: those whose widths suit the output, then all others that fit."""
    return _configs(problem, problem.convolution.halo)


def configs_of_windows(problem: Problem) -> tuple[Config, ...]:
    """Return the same of few channels."""
    return _configs(problem, problem.convolution.windows)


def _configs(problem: Problem, found: Halo) -> tuple[Config, ...]:
    best = [(found.plane_bytes, width) for width in found.widths]
    known = pixels_of(problem.dag.operands[0].dtype)
    fitting = [
        (plane, width)
        for plane, most in found.most
        for width in (Width(pixels, most.shared) for pixels in known if pixels <= most.pixels)
        if (plane, width) not in found.gaps
    ]

    def config(plane_bytes: int, width: Width, use: Use) -> Config:
        tile = (width.pixels, FILTERS, plane_bytes // problem.operand_bytes)
        schedule: Schedule = "halo_shared" if width.shared else "halo"
        return Config(tile, schedule, epilogue_tile=(16, FILTERS), use=use)  # a thread has 8 elements of a step

    others = (each for each in fitting if each not in best)
    return (*(config(*each, "always") for each in best), *(config(*each, "asked") for each in others))


HALO = Route(
    name="conv-halo-3x",
    kind="own",
    generation="3x",
    summary="straight-line epilogue in a convolution of ours that loads each pixel once a tile (TMA, WGMMA, no CuTe)",
    rules=(
        halo.on_sm90,
        mainloop.no_work,
        gemm.few_tensors,
        halo.operator,
        halo.operand_types,
        halo.tma,
        halo.fits,
        halo.epilogue,
    ),
    suits=halo.suits,
    kernels={"3x": Kernel(kernels.HALO, configs_sm90, max_batches=None)},
    shapes=("convolution",),
)

PADDED = Route(
    name="conv-halo-padded-3x",
    kind="own",
    generation="3x",
    summary="straight-line epilogue in a convolution of ours that widens few channels, a row of taps being one tap",
    rules=(
        halo.on_sm90,
        mainloop.no_work,
        gemm.few_tensors,
        halo.windows,
        halo.operand_types,
        halo.epilogue,
    ),
    suits=halo.suits_windows,
    kernels={"3x": Kernel(kernels.WINDOWS, configs_of_windows, max_batches=None)},
    shapes=("convolution",),
)
