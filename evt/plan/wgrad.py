"""The tiles of the kernel of filter gradients on sm90, and its speed: ``tiles_of(geometry)``, ``time(tile, sizes)``.

See :mod:`evt.plan.geometry.wgrad`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from evt.ir.convolution import Convolution
from evt.plan.geometry.convolution import Axis, Problem, ceil_div
from evt.plan.geometry.wgrad import (
    BLOCK,
    WgradClass,
    WgradGeometry,
)
from evt.plan.geometry.wgrad_choice import choose_wgrad, cluster_of, total_cycles

#: Taps of a CTA along each dimension, at most: consumers share the rows, an instruction may have a row.
_MOST_TAPS = 3
#: Cycles of the launch.
START = 2000.0
#: The library on an H100, 2026-11: microseconds of a launch, multiply-adds of one tap and of several in a microsecond,
#: and bytes in a microsecond.
_LIBRARY_START, _LIBRARY_RATES, _LIBRARY_MOVED = 7.0, (3.2e8, 2.6e8), 2.2e6


class WgradTile(NamedTuple):
    """The part of the gradient that a CTA computes: WgradTile of kit/wgrad.hpp.

    Consumers share the rows of taps, the filters and the tiles of pixels. A consumer has ``blocks`` blocks of 64
    filters. An instruction multiplies ``group`` blocks of 64 channels: of neighbouring taps of a window, or any blocks.
    """

    tap_rows: int
    tap_columns: int
    filter_consumers: int
    blocks: int
    channel_blocks: int
    parts: int
    group: int

    @property
    def filters(self) -> int:
        """The filters of a CTA."""
        return self.filter_consumers * self.blocks * BLOCK

    @property
    def channels(self) -> int:
        """The channels of a CTA."""
        return self.channel_blocks * BLOCK

    @property
    def consumers(self) -> int:
        """The warpgroups that multiply."""
        return self.tap_rows * self.filter_consumers * self.parts

    @property
    def kind(self) -> WgradClass:
        """The tile as the geometry sees it."""
        blocks = self.filter_consumers * self.blocks
        instructions = self.tap_columns * self.channel_blocks // self.group
        return WgradClass(self.tap_rows, self.tap_columns, blocks, self.channel_blocks, self.parts, instructions)


#: The tiles without a window, the general one first.
_COLUMNS = (
    WgradTile(1, 1, 2, 1, 2, 1, 2),
    WgradTile(1, 1, 2, 1, 4, 1, 4),
    WgradTile(1, 1, 2, 2, 2, 1, 2),
    WgradTile(1, 1, 2, 1, 3, 1, 3),
    WgradTile(1, 1, 2, 1, 6, 1, 3),
    WgradTile(1, 1, 1, 1, 4, 2, 4),
    WgradTile(1, 1, 1, 1, 2, 2, 2),
    WgradTile(1, 1, 2, 2, 1, 1, 1),
    WgradTile(1, 1, 1, 1, 1, 2, 1),
)
ONE_TAP = _COLUMNS[0]


def tiles_of(geometry: Convolution) -> tuple[WgradTile, ...]:
    """Return the tiles that are built for the gradient of a filter."""
    height, width = (1, 1, *geometry.kernel_size)[-2:]
    if height * width == 1:
        return _COLUMNS
    rows, columns = (ceil_div(taps, ceil_div(taps, _MOST_TAPS)) for taps in (height, width))
    group = columns if geometry.stride[-1] == 1 else 1
    return (WgradTile(rows, columns, 2 if rows == 1 else 1, 1, 1, 1, group), *_COLUMNS)


def problem_of(sizes: Mapping[str, int]) -> Problem:
    """Return a convolution from the sizes of a ConvolutionProblem."""
    height, width = (Axis.of(sizes, name) for name in ("height", "width"))
    return Problem(sizes["images"], sizes["channels"], sizes["filters"], height, width)


@lru_cache(maxsize=1024)
def geometry_of(problem: Problem, tile: WgradTile) -> WgradGeometry:
    """Return the tiles of pixels."""
    return choose_wgrad(problem, tile.kind)


def fits(problem: Problem, tile: WgradTile) -> bool:
    """Return whether a tile of pixels fits in shared memory."""
    return min(problem.height.pad, problem.width.pad) >= 0 and geometry_of(problem, tile).stages > 0


def library_microseconds(sizes: Mapping[str, int]) -> float:
    """Return the estimated time of the library's kernel of 16 bits on an H100."""
    problem = problem_of(sizes)
    pixels = problem.images * problem.height.output * problem.width.output
    multiplied = pixels * problem.filters * problem.channels * problem.tap_count
    rate = _LIBRARY_RATES[min(problem.tap_count, 2) - 1]
    read = problem.images * problem.height.size * problem.width.size * problem.channels
    if problem.tap_count == 1:
        read //= problem.height.stride * problem.width.stride
    moved = 2 * (read + pixels * problem.filters)
    return _LIBRARY_START + math.sqrt(math.hypot((multiplied / rate) ** 2, (moved / _LIBRARY_MOVED) ** 2))


def time(tile: WgradTile, sizes: Mapping[str, int]) -> float:
    """Return the cycles of both kernels after their launches."""
    problem = problem_of(sizes)
    made = geometry_of(problem, tile)
    if not made.stages:
        return float("inf")
    return total_cycles(problem, tile.kind, made, cluster_of(problem, tile.kind))
