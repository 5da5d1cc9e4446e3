"""The halo kernel of sm90: the route ``conv-halo-3x``, and the others of its main loops."""

from __future__ import annotations

from dataclasses import replace

from evt.plan.configurations.config import Config, Schedule, Use
from evt.plan.geometry.halo import FILTERS
from evt.plan.halo import Halo, pixels_of
from evt.plan.halo_few import QUARTERS
from evt.plan.halo_kernels import Variant
from evt.plan.kernels import halo as kernels
from evt.plan.problem import Problem
from evt.plan.routes.route import Kernel, Route
from evt.plan.rules import gemm, halo, mainloop, own
from evt.plan.verdict import Refusal


def configs_sm90(problem: Problem) -> tuple[Config, ...]:
    """Return the configurations: the fastest set, then all others that fit."""
    return _configs(problem, problem.halo)


def configs_of_windows(problem: Problem) -> tuple[Config, ...]:
    """Return the configurations for few channels."""
    return _configs(problem, problem.windows)


def configs_of_groups(problem: Problem) -> tuple[Config, ...]:
    """Return the configurations for groups: TMA loads B of a tile that lies in one group."""
    found = problem.grouped_halo
    if isinstance(gemm.moved("B", problem.signature.b, problem.operand_bytes), Refusal):
        offered, most = (
            tuple(each for each in kernels if each.groups == "multiple") for kernels in (found.offered, found.most)
        )
        found = replace(found, offered=offered or most, most=most)
    return _configs(problem, found)


def configs_of_words(problem: Problem) -> tuple[Config, ...]:
    """Return the configurations for inputs that threads copy."""
    return _configs(problem, problem.words)


def configs_of_taps(problem: Problem) -> tuple[Config, ...]:
    """Return the configurations for few filters."""
    return _configs(problem, problem.tap_rows, QUARTERS)


def _configs(problem: Problem, found: Halo, widths: range | None = None) -> tuple[Config, ...]:
    others = (
        each._replace(pixels=pixels)
        for each in found.most
        for pixels in widths or pixels_of(problem.dag.operands[0].dtype)
        if pixels <= each.pixels
    )

    def config(variant: Variant, use: Use) -> Config:
        tile = (variant.pixels, FILTERS, variant.block_bytes // problem.operand_bytes)
        schedule: Schedule = "halo_shared" if variant.shared else kernels.SCHEDULES[variant.groups]
        return Config(tile, schedule, epilogue_tile=(16, FILTERS), use=use)  # a thread has 8 elements of a step

    known = {*found.offered, *found.gaps}
    asked = (config(each, "asked") for each in others if each not in known)
    return (*(config(each, "always") for each in found.offered), *asked)


HALO = Route(
    name="conv-halo-3x",
    kind="own",
    generation="3x",
    summary="straight-line epilogue in a convolution of evt that loads each pixel once a tile (TMA, WGMMA, no CuTe)",
    rules=(
        own.on_sm90,
        mainloop.no_work,
        gemm.few_tensors,
        halo.operator,
        halo.operand_types,
        own.tma,
        halo.fits,
        gemm.row_major_columns,
        own.epilogue,
        halo.images_in_order,
        own.columns_of_warp,
    ),
    suits=halo.suits,
    kernels={"3x": Kernel(kernels.HALO, configs_sm90, max_batches=None)},
    shapes=("convolution",),
)

PADDED = Route(
    name="conv-halo-padded-3x",
    kind="own",
    generation="3x",
    summary="straight-line epilogue in a convolution of evt that widens few channels, a row of taps being one tap",
    rules=(
        own.on_sm90,
        mainloop.no_work,
        gemm.few_tensors,
        halo.windows,
        halo.operand_types,
        gemm.row_major_columns,
        own.epilogue,
        own.columns_of_warp,
    ),
    suits=halo.suits_windows,
    kernels={"3x": Kernel(kernels.WINDOWS, configs_of_windows, max_batches=None)},
    shapes=("convolution",),
)

GROUPED = Route(
    name="conv-halo-groups-3x",
    kind="own",
    generation="3x",
    summary="straight-line epilogue in a convolution of evt with groups, several narrow ones in a tile",
    rules=(
        own.on_sm90,
        mainloop.no_work,
        gemm.few_tensors,
        halo.has_groups,
        halo.groups,
        halo.operand_types,
        halo.tma_of_groups,
        gemm.row_major_columns,
        own.epilogue,
        own.columns_of_warp,
    ),
    kernels={"3x": Kernel(kernels.GROUPED, configs_of_groups, max_batches=None)},
    shapes=("convolution",),
)

WORDS = Route(
    name="conv-halo-words-3x",
    kind="own",
    generation="3x",
    summary="straight-line epilogue in a convolution of evt that copies unaligned pixels word by word",
    rules=(
        own.on_sm90,
        mainloop.no_work,
        gemm.few_tensors,
        halo.unaligned,
        halo.words,
        halo.operand_types,
        gemm.row_major_columns,
        own.epilogue,
        own.columns_of_warp,
    ),
    suits=halo.suits_words,
    kernels={"3x": Kernel(kernels.WORDS, configs_of_words, max_batches=None)},
    shapes=("convolution",),
)

TAPS = Route(
    name="conv-halo-taps-3x",
    kind="own",
    generation="3x",
    summary="straight-line epilogue in a convolution of evt with few filters, which multiplies each pixel by all taps",
    rules=(
        own.on_sm90,
        mainloop.no_work,
        gemm.few_tensors,
        halo.tap_rows,
        halo.operand_types,
        own.tma,
        gemm.row_major_columns,
        own.epilogue,
        own.columns_of_warp,
    ),
    suits=halo.suits_taps,
    kernels={"3x": Kernel(kernels.TAPS, configs_of_taps, max_batches=None)},
    shapes=("convolution",),
)

COPIED = Route(
    name="conv-halo-copied-3x",
    kind="own",
    generation="3x",
    summary="straight-line epilogue in a convolution of evt that loads each pixel once a tile, from aligned copies",
    rules=(
        own.on_sm90,
        mainloop.no_work,
        gemm.few_tensors,
        halo.copied,
        halo.operand_types,
        halo.fits,
        gemm.row_major_columns,
        own.epilogue,
        halo.images_in_order,
        own.columns_of_warp,
    ),
    suits=halo.suits_copies,
    beside=halo.suits_copies,
    kernels={"3x": Kernel(kernels.PADDED, configs_sm90, max_batches=None)},
    shapes=("convolution",),
)
