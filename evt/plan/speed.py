"""The choice of a problem's fastest kernel, by the waves of its tiles: ``fastest(plans, ...)``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, prod

from evt.plan.configurations.config import Config, ConfigDepthwise, ceil_div
from evt.plan.geometry.convolution import Axis
from evt.plan.halo import TOO_LARGE, beyond_windows, forward
from evt.plan.halo import time as halo_time
from evt.plan.halo_cost import Plane
from evt.plan.plan import Convolution2x, Convolution3x, DepthwiseConvolution, HaloConvolution, HaloProduct, Plan
from evt.plan.sizes import BEYOND_OFFSETS, Sizes

#: Multiply-adds of 16 bits in a clock cycle of an SM of sm90, and the cycles of a launch.
_A_CYCLE, _LAUNCH = 2048, 8500
#: The minimum advantage of a kernel of another route than the first: the error of the estimates.
_DOUBT = 1.05


def fastest(plans: Sequence[Plan], sizes: Mapping[str, int], multiprocessors: int) -> int:
    """Return the index of the fastest kernel for a problem's sizes; of equally fast kernels, the first.

    The first kernel belongs to the preferred route. A kernel of another route must be faster than all of that route's
    by more than the error of the estimates.
    """
    preferred = plans[0].route
    times = [_cycles(plan, sizes, multiprocessors) * (1.0 if plan.route == preferred else _DOUBT) for plan in plans]
    return times.index(min(times))


def refusal(plan: Plan, extents: Mapping[str, int], sizes: Sizes) -> str:
    """Return the reason that a kernel cannot run a call of these extents and sizes, or "".

    A rule of its route gives the reason when a kernel is planned; this function serves kernels that were planned for
    other sizes.
    """
    loop = plan.mainloop
    if isinstance(loop, Convolution2x) and sizes.exceeds_offsets(plan.operand_bits // 8):
        return BEYOND_OFFSETS
    if isinstance(loop, HaloProduct) and loop.shared and extents["k"] <= plan.config.tile[2]:
        shared = f"{plan.config.name} shares tiles among thread blocks that take {plan.config.tile[2]} of k each"
        return f"k = {extents['k']}: {shared}"
    if isinstance(loop, HaloConvolution):
        found = beyond_windows(extents) if loop.windows else ""
        return found or ("" if _halo_time(plan, forward(loop.operator, extents)) < inf else TOO_LARGE)
    return ""


def _cycles(plan: Plan, sizes: Mapping[str, int], multiprocessors: int) -> float:
    """Return the time of a kernel in clock cycles of sm90, or in relative units for other targets."""
    if isinstance(plan.mainloop, HaloConvolution):
        return _halo_time(plan, forward(plan.mainloop.operator, sizes))
    if isinstance(plan.mainloop, HaloProduct):
        return _product_time(plan, sizes)
    if isinstance(plan.mainloop, DepthwiseConvolution):
        assert isinstance(plan.config, ConfigDepthwise)
        return plan.mainloop.filter.time(plan.config.unit, forward(plan.mainloop.operator, sizes), multiprocessors)
    rows, columns, traffic = sizes[plan.rows], sizes[plan.columns], plan.read_bytes + plan.written_bytes
    steps = max(1, _depth(plan, sizes) * plan.operand_bits // 16)
    return time(plan.config, rows, columns, steps, sizes["l"], multiprocessors, traffic) / _A_CYCLE + _LAUNCH


def time(
    config: Config, rows: int, columns: int, steps: int, batches: int, multiprocessors: int, traffic: float
) -> float:
    """Return the time of a kernel in relative units: see :class:`evt.plan.configurations.config.Speed`.

    ``steps`` are elements of k, of 16 bits; ``traffic`` are the bytes that the epilogue moves per element.
    """
    speed, (m, n, _) = config.speed, config.tile
    tall, wide = config.cluster[0] * m, config.cluster[1] * n
    tiles = ceil_div(rows, tall) * ceil_div(columns, wide) * config.cluster[0] * config.cluster[1] * batches
    waves = ceil_div(tiles, multiprocessors * config.blocks)
    tile = max(steps + speed.overhead, speed.bound * traffic)
    return m * n * speed.cost * ((speed.alone if waves == 1 else waves) * config.blocks * tile + speed.tail)


def _halo_time(plan: Plan, sizes: Mapping[str, int]) -> float:
    """Return the time of a halo kernel in clock cycles."""
    assert isinstance(plan.mainloop, HaloConvolution)
    pixels, _, channels = plan.config.tile
    element_bytes = plan.operand_bits // 8
    if plan.mainloop.windows:
        plane = Plane.of_windows(Axis.of(sizes, "height"), sizes["output_width"], channels * element_bytes)
    else:
        plane = Plane.of(sizes, channels, element_bytes)
    images = sizes["images"] * sizes.get("output_depth", 1)
    return halo_time(plane, pixels, images, sizes["filters"], shared=plan.mainloop.shared)


def _product_time(plan: Plan, sizes: Mapping[str, int]) -> float:
    """Return the time of a matrix product by the halo kernel, in clock cycles."""
    assert isinstance(plan.mainloop, HaloProduct)
    pixels, _, depth = plan.config.tile
    element_bytes = plan.operand_bits // 8
    plane = Plane.of_product(sizes["m"], sizes["k"] * element_bytes, depth * element_bytes)
    return halo_time(plane, pixels, 1, sizes["n"], shared=plan.mainloop.shared)


def _depth(plan: Plan, sizes: Mapping[str, int]) -> int:
    """Return the contraction dimension; for a convolution, ``k`` alone counts only the channels.

    TMA's im2col mode loads whole tiles of each tap's channels.
    """
    channels = sizes["k"]
    if isinstance(plan.mainloop, Convolution3x) and plan.mainloop.operator != "wgrad":
        channels = ceil_div(channels, plan.config.tile[2]) * plan.config.tile[2]
    return channels * prod(size for name, size in sizes.items() if name.startswith("filter_"))
