"""The operands of halo kernels with groups, or whose input threads copy: their members, and the blocks of filters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from evt.launch.shape import INT32_MAX
from evt.plan.geometry.convolution import Problem, ceil_div
from evt.plan.geometry.halo import FILTERS, Geometry
from evt.plan.geometry.halo_groups import groups_together
from evt.plan.geometry.halo_kernel import KernelClass
from evt.plan.plan import Image

DIVISOR = ("multiplier", "shift")
_OF_BLOCKS = ("filters", "channels", "step", "channel_step", "blocks")
OF_GROUPS = (
    *(f"operands.groups.{name}" for name in _OF_BLOCKS),
    *(f"operands.groups.by_blocks.{part}" for part in DIVISOR),
)
_PACKED = ("b_group", "b_filter", "b_channel", "b_row", "b_column", "filters", "channels")
OF_PACKED_GROUPS = (
    *(*OF_GROUPS, "operands.b", *(f"operands.{name}" for name in _PACKED)),
    *(f"operands.by_filters.{part}" for part in DIVISOR),
)
_WORDS = ("a_image", "a_row", "a_pixel", "height", "width", "words")
OF_WORDS = (
    *(*OF_PACKED_GROUPS, "operands.a", *(f"operands.{name}" for name in _WORDS)),
    "operands.by_words.multiplier",
)


class Blocks(NamedTuple):
    """The blocks of filters of a convolution with groups: see GroupBlocks of kit/group_blocks.hpp."""

    filters: int
    channels: int
    step: int
    channel_step: int
    blocks: int

    @staticmethod
    def of(given: Problem, kernel: KernelClass, groups: int) -> Blocks:
        """Return the blocks of a kernel."""
        channels, filters = given.channels // groups, given.filters // groups
        together = groups_together(given, kernel, groups) if kernel.packed else 0
        if not together:
            return Blocks(filters, channels, FILTERS, 0, ceil_div(filters, FILTERS))
        blocks = ceil_div(groups, together)
        return Blocks(given.filters, given.channels, together * filters, together * channels, blocks)

    def members(self) -> dict[str, int]:
        """Return the members of the operands."""
        found = {f"operands.groups.{name}": value for name, value in zip(_OF_BLOCKS, self, strict=True)}
        return found | {f"operands.groups.by_blocks.{part}": value for part, value in divisor(self.blocks).items()}


def packed(given: Problem, groups: int, strides: Sequence[int], *, backwards: bool) -> dict[str, int] | None:
    """Return the members of filters that threads write, given the strides of B; None if a group is beyond 32 bits."""
    filters, channels = given.filters // groups, given.channels // groups
    outer, row, column = strides
    of_filter, of_channel, rows = (1, outer, channels) if backwards else (outer, 1, filters)
    if rows * abs(outer) + given.height.taps * abs(row) + given.width.taps * abs(column) > INT32_MAX:
        return None
    numbers = (rows * outer, of_filter, of_channel, row, column, filters, channels)
    found = {f"operands.{name}": value for name, value in zip(_PACKED, numbers, strict=True)}
    return found | {f"operands.by_filters.{part}": value for part, value in divisor(filters).items()}


def copied(
    given: Problem, made: Geometry, kernel: KernelClass, groups: int, a: object, strides: Sequence[int]
) -> dict[str, int] | None:
    """Return the members of an input that threads copy, given A and its strides.

    Return None if its pixels are not aligned as A is, or too far apart.
    """
    assert isinstance(a, Image)
    image, row, pixel = strides
    blocks, channels, alignment = Blocks.of(given, kernel, groups), kernel.channels, a.alignment
    columns = (made.input_pitch - 1) * given.width.stride + given.width.pad
    of_pixel = blocks.channel_step or blocks.channels
    odd = of_pixel % 2 == 1 and of_pixel <= channels
    fits = odd if alignment == 1 else all(each % alignment == 0 for each in (*strides, of_pixel))
    if columns * abs(pixel) > INT32_MAX or not fits:
        return None
    words = ceil_div(min(of_pixel, channels), max(alignment, 2))
    numbers = (image, row, pixel, given.height.size, given.width.size, words)
    found = {f"operands.{name}": value for name, value in zip(_WORDS, numbers, strict=True)}
    return {**found, "operands.by_words.multiplier": small_divisor(words)}


def divisor(number: int) -> dict[str, int]:
    """Return the members of a FastDivisor."""
    shift = 31 + (number - 1).bit_length()
    return {"multiplier": ceil_div(1 << shift, number), "shift": shift}


def small_divisor(number: int) -> int:
    """Return the multiplier of a SmallDivisor."""
    return ceil_div(1 << 31, number)
