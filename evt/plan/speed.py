"""The choice of a problem's fastest kernel, by the waves of its tiles: ``fastest(plans, ...)``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, prod
from typing import NamedTuple

from evt.plan import gemm
from evt.plan.cards import CARDS
from evt.plan.configurations.config import Config, ConfigDepthwise, ceil_div
from evt.plan.epilogue.registers import threads_of
from evt.plan.geometry.convolution import Axis
from evt.plan.halo import TOO_LARGE, beyond_windows, forward, tiles_of
from evt.plan.halo import time as halo_time
from evt.plan.halo_cost import INSTRUCTION, Plane, start_of
from evt.plan.plan import (
    Convolution2x,
    Convolution3x,
    DepthwiseConvolution,
    HaloConvolution,
    OwnProduct,
    Plan,
)
from evt.plan.sizes import BEYOND_OFFSETS, Sizes

#: Multiply-adds of 16 bits in a clock cycle of an SM of sm90, and the cycles of a launch.
A_CYCLE, _LAUNCH = 2048, 8500
#: The card that the speed of own products is fitted to.
_H100 = CARDS["H100"]
#: The instructions of the epilogues that the constants are fitted to.
_LIGHT = 4
#: Cycles of an element of a thread in CUTLASS's kernels: a light epilogue, and each further instruction. Fitted to
#: gelu and dropout at k = 768 and 1024 on an H200, 2026-11.
_VISITED, _VISITED_INSTRUCTION = 30.0, 6.0
#: Schedules with two consumers that alternate.
_ALTERNATING = ("pingpong", "implicit_pingpong")
#: The minimum advantage of a kernel of another route than the first: the error of the estimates.
_DOUBT = 1.05


class Duration(NamedTuple):
    """The duration of a kernel in clock cycles: of the ``start`` with its launch, and of the ``work`` of its tiles."""

    start: float
    work: float

    @property
    def total(self) -> float:
        return self.start + self.work


def fastest(plans: Sequence[Plan], sizes: Mapping[str, int], multiprocessors: int) -> int:
    """Return the index of the fastest kernel for a problem's sizes; of equally fast kernels, the first.

    The first kernel belongs to the preferred route. A kernel of another route must be faster than all of that route's
    by more than the error of the estimates.
    """
    preferred = plans[0].route
    doubts = [1.0 if plan.route == preferred else _DOUBT for plan in plans]
    times = [duration(plan, sizes, multiprocessors).total * doubt for plan, doubt in zip(plans, doubts, strict=True)]
    return times.index(min(times))


def refusal(plan: Plan, extents: Mapping[str, int], sizes: Sizes) -> str:
    """Return the reason that a kernel cannot run a call of these extents and sizes, or "".

    A rule of its route gives the reason when a kernel is planned; this function serves kernels that were planned for
    other sizes.
    """
    loop = plan.mainloop
    if isinstance(loop, Convolution2x) and sizes.exceeds_offsets(plan.operand_bits // 8):
        return BEYOND_OFFSETS
    if isinstance(loop, OwnProduct):
        stage, splits = plan.config.tile[2], plan.config.cluster[2]
        if splits > 1 and extents["k"] <= (splits - 1) * stage:
            return f"k = {extents['k']}: {plan.config.name} has {splits} thread blocks that take {stage} of k or more"
    if isinstance(loop, HaloConvolution):
        found = beyond_windows(extents) if loop.windows else ""
        return found or ("" if _halo_time(plan, extents) < inf else TOO_LARGE)
    return ""


def duration(plan: Plan, sizes: Mapping[str, int], multiprocessors: int) -> Duration:
    """Return the duration of a kernel in clock cycles of sm90, or in relative units for other targets."""
    heavy = max(0, plan.epilogue_instructions - _LIGHT)
    if isinstance(plan.mainloop, OwnProduct):
        work = product_microseconds(plan, sizes, multiprocessors) - gemm.LAUNCH
        return Duration(gemm.LAUNCH * _H100.ghz * 1e3, work * _H100.busy_ghz * 1e3)
    if isinstance(plan.mainloop, HaloConvolution):
        start = start_of(plan.config.tile[0], shared=plan.mainloop.shared)
        return Duration(start, _halo_time(plan, sizes, heavy) - start)
    if isinstance(plan.mainloop, DepthwiseConvolution):
        assert isinstance(plan.config, ConfigDepthwise)
        unit, forward_sizes = plan.config.unit, forward(plan.mainloop.operator, sizes)
        return Duration(_LAUNCH, plan.mainloop.filter.time(unit, forward_sizes, multiprocessors))
    rows, columns, traffic = sizes[plan.rows], sizes[plan.columns], plan.read_bytes + plan.written_bytes
    steps = max(1, depth(plan, sizes) * plan.operand_bits // 16)
    work = time(plan.config, rows, columns, steps, sizes["l"], multiprocessors, traffic, heavy)
    return Duration(_LAUNCH, work / A_CYCLE)


def evaluation(plan: Plan) -> float:
    """Return the clock cycles of an element of the epilogue in a thread."""
    of_own = isinstance(plan.mainloop, HaloConvolution | OwnProduct | DepthwiseConvolution)
    each = INSTRUCTION if of_own else _VISITED_INSTRUCTION
    return _VISITED + each * max(0, plan.epilogue_instructions - _LIGHT)


def waves(plan: Plan, sizes: Mapping[str, int], multiprocessors: int) -> float:
    """Return the tiles of a kernel over the tiles that run at a time; 0 for a depthwise kernel."""
    if isinstance(plan.mainloop, OwnProduct):
        return gemm.waves(*_product(plan, sizes, multiprocessors))
    if isinstance(plan.mainloop, HaloConvolution):
        pixels, shared = plan.config.tile[0], plan.mainloop.shared
        return tiles_of(*_halo_problem(plan, sizes, pixels), shared=shared) / multiprocessors
    if isinstance(plan.mainloop, DepthwiseConvolution):
        return 0.0
    tiles = _tiles(plan.config, sizes[plan.rows], sizes[plan.columns], sizes["l"])
    return tiles / (multiprocessors * plan.config.blocks)


def _tiles(config: Config, rows: int, columns: int, batches: int) -> int:
    """Return the number of tiles, including the idle thread blocks of clusters."""
    (m, n, _), (across, along, _) = config.tile, config.cluster
    return ceil_div(rows, across * m) * ceil_div(columns, along * n) * across * along * batches


def time(
    config: Config,
    rows: int,
    columns: int,
    steps: int,
    batches: int,
    multiprocessors: int,
    traffic: float,
    instructions: float = 0,
) -> float:
    """Return the time of a kernel in relative units: see :class:`evt.plan.configurations.config.Speed`.

    ``steps`` are elements of k, of 16 bits; ``traffic`` are the bytes that the epilogue moves per element.
    ``instructions`` are the additional instructions of a heavy epilogue. A consumer that alternates with another one
    evaluates its epilogue during the other's main loop.
    """
    speed, (m, n, _) = config.speed, config.tile
    passes = ceil_div(_tiles(config, rows, columns, batches), multiprocessors * config.blocks)
    multiplied: float = steps + speed.overhead
    evaluated = _VISITED_INSTRUCTION * instructions
    if config.schedule in _ALTERNATING:
        visited = (_VISITED + evaluated) * A_CYCLE / threads_of(config)
        multiplied = max(multiplied, (multiplied + visited) / 2)
    else:
        multiplied += evaluated * A_CYCLE / threads_of(config)
    tile = max(multiplied, speed.bound * traffic)
    return m * n * speed.cost * ((speed.alone if passes == 1 else passes) * config.blocks * tile + speed.tail)


def _halo_time(plan: Plan, sizes: Mapping[str, int], instructions: float = 0) -> float:
    """Return the time of a halo kernel in clock cycles; infinity if it cannot run."""
    assert isinstance(plan.mainloop, HaloConvolution)
    pixels, shared = plan.config.tile[0], plan.mainloop.shared
    plane, _, images, filters = _halo_problem(plan, sizes, pixels)
    return halo_time(plane, pixels, images, filters, shared=shared, instructions=instructions)


def _halo_problem(plan: Plan, sizes: Mapping[str, int], pixels: int) -> tuple[Plane, int, int, int]:
    """Return the convolution of a halo kernel: its plane, the pixels of the instruction, its images and filters."""
    loop, (_, _, channels), element_bytes = plan.mainloop, plan.config.tile, plan.operand_bits // 8
    assert isinstance(loop, HaloConvolution)
    sizes = forward(loop.operator, sizes)
    if loop.windows:
        plane = Plane.of_windows(Axis.of(sizes, "height"), sizes["output_width"], channels * element_bytes)
    else:
        plane = Plane.of(sizes, channels, element_bytes)
    return plane, pixels, sizes["images"], sizes["filters"]


def product_microseconds(plan: Plan, sizes: Mapping[str, int], multiprocessors: int) -> float:
    """Return the microseconds of an own product on an H100, memory traffic included."""
    heavy = max(0, plan.epilogue_instructions - _LIGHT)
    return gemm.microseconds(*_product(plan, sizes, multiprocessors), heavy * INSTRUCTION / (_H100.ghz * 1e3))


def _product(plan: Plan, sizes: Mapping[str, int], multiprocessors: int) -> tuple[gemm.Tile, gemm.Size]:
    """Return the tile of an own product and the size of a call."""
    operand_bytes, traffic = plan.operand_bits // 8, plan.read_bytes + plan.written_bytes
    assert isinstance(plan.mainloop, OwnProduct)
    groups = 1 if plan.mainloop.ends is None else sizes["l"]
    size = gemm.Size(sizes["m"], sizes["n"], sizes["k"] * operand_bytes, traffic, multiprocessors, groups)
    return gemm.tile_of(plan.config, operand_bytes), size


def depth(plan: Plan, sizes: Mapping[str, int]) -> int:
    """Return the contraction dimension; for a convolution, ``k`` alone counts only the channels.

    TMA's im2col mode loads whole tiles of each tap's channels.
    """
    channels = sizes["k"]
    if isinstance(plan.mainloop, Convolution3x) and plan.mainloop.operator != "wgrad":
        channels = ceil_div(channels, plan.config.tile[2]) * plan.config.tile[2]
    return channels * prod(size for name, size in sizes.items() if name.startswith("filter_"))
