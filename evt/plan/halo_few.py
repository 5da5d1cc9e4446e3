"""The halo kernels for few channels, and for few filters.

With few channels, a row of taps is a window. With few filters, each tap of a filter is a row of a tile.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import prod

from evt.ir.convolution import ConvolutionProblem
from evt.ir.dtype import DType
from evt.plan.geometry.convolution import Axis, Problem, ceil_div
from evt.plan.geometry.halo import EIGHT, FILTERS, MAX_TAPS, WINDOW_BYTES
from evt.plan.halo import (
    BLOCK_BYTES,
    FEW_CHANNELS,
    MOST_PADDING,
    NO_GROUPS,
    PIXELS,
    Halo,
    fastest_of,
    pixels_of,
    unreachable,
)
from evt.plan.halo_cost import BlockedConvolution, axes_of
from evt.plan.tma import LARGEST_STRIDE

#: The pixels of a tile whose warps have a quarter each, in steps of eight.
QUARTERS = range(64, 257, 32)
#: The elements of the rows of a tile of windows: 32 bits hold the distance between two of them.
_LARGEST_BOX = 1 << 31


def pixels_of_chunk(channels: int, element_bytes: int, stride: int) -> int:
    """Return the most pixels that fill a chunk of 16 bytes, widened to a power of two of channels, and divide a stride.

    Return 0 if a pixel has more bytes.
    """
    most = WINDOW_BYTES // (element_bytes << (channels - 1).bit_length())
    return next((pixels for pixels in (16, 8, 4, 2, 1) if pixels <= most and stride % pixels == 0), 0)


def windows_of(problem: ConvolutionProblem | None, operand: DType) -> Halo:
    """Return how the halo kernel serves a convolution of few channels, which it widens."""
    if problem is None:
        return NO_GROUPS
    geometry, element_bytes = problem.geometry, operand.bits // 8
    if geometry.operator != "fprop" or geometry.groups > 1 or geometry.rank < 2:
        return Halo((), reason="it is no fprop of two or three dimensions without groups")
    if problem.channels > FEW_CHANNELS:
        return Halo((), reason=f"there are more than {FEW_CHANNELS} channels")
    if geometry.dilation[-1] != 1:
        return Halo((), reason="the taps of a row are not next to each other")
    if geometry.rank == 3 and prod(problem.filter_size[1:]) == 1:
        return Halo((), reason="the filters are columns in time")
    if geometry.stride[-2] > LARGEST_STRIDE:
        return Halo((), reason=f"a stride is beyond {LARGEST_STRIDE}")
    chunk = pixels_of_chunk(problem.channels, element_bytes, geometry.stride[-1])
    if not chunk:
        return Halo((), reason=f"the channels of a pixel have more than {WINDOW_BYTES} bytes")
    height, width, depth = axes_of(problem.sizes)
    row = ceil_div(width.taps, width.stride) * WINDOW_BYTES
    window_bytes = next((each for each in sorted(BLOCK_BYTES) if each >= row), 0)
    if not window_bytes:
        return Halo(
            (), reason=f"a row of the filter is longer than {max(BLOCK_BYTES) // WINDOW_BYTES} steps of the stride"
        )
    if height.taps * min(width.stride // chunk, ceil_div(width.taps, chunk)) > MAX_TAPS or height.pad > MOST_PADDING:
        return Halo((), reason=f"there are more than {MAX_TAPS} rows of taps, or {MOST_PADDING} of padding")
    if reason := beyond_windows(problem.sizes):
        return Halo((), reason=reason)
    return _windows(height, width, depth, window_bytes, chunk, problem.filters, operand)


def beyond_windows(sizes: Mapping[str, int]) -> str:
    """Return why the images are too large for windows, or ""."""
    height = Axis.of(sizes, "height")
    rows = (min(height.output, PIXELS[-1] // EIGHT) + height.halo) * height.stride
    elements = rows * sizes["width"] * sizes["channels"]
    return f"the rows of a tile have {_LARGEST_BOX} elements or more" if elements >= _LARGEST_BOX else ""


@lru_cache(maxsize=1024)
def _windows(
    height: Axis, width: Axis, depth: Axis | None, window_bytes: int, chunk: int, filters: int, operand: DType
) -> Halo:
    blocked = BlockedConvolution.of_windows(height, width, depth, window_bytes, chunk)
    return fastest_of((blocked,), pixels_of(operand), filters)


def taps_of(problem: ConvolutionProblem | None, operand: DType) -> Halo:
    """Return how the halo kernel serves a convolution of few filters, whose taps are the rows of a tile."""
    if problem is None:
        return NO_GROUPS
    geometry, taps = problem.geometry, prod(problem.filter_size)
    if geometry.operator != "fprop" or geometry.rank > 2 or geometry.groups > 1:
        return Halo((), reason="it is no fprop of one or two dimensions without groups")
    if operand.bits != 16:
        return Halo((), reason=f"the operands are {operand}, and not of 16 bits")
    if not geometry.is_unit_stride:
        return Halo((), reason="the convolution has a stride")
    if problem.filters > EIGHT or problem.filters * taps > FILTERS:
        return Halo((), reason=f"there are more than {EIGHT} filters, or more than {FILTERS} taps together")
    axes = Axis.of(problem.sizes, "height"), Axis.of(problem.sizes, "width")
    if reason := unreachable(axes, axes):
        return Halo((), reason=reason)
    return _tap_rows(Problem(1, problem.channels, problem.filters, *axes), operand)


@lru_cache(maxsize=1024)
def _tap_rows(given: Problem, operand: DType) -> Halo:
    element_bytes = operand.bits // 8
    blocked = (BlockedConvolution.of_taps(given, each // element_bytes, element_bytes) for each in BLOCK_BYTES)
    return fastest_of(tuple(blocked), QUARTERS, given.filters)
