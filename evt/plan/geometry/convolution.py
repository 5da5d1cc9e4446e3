"""A convolution as the geometry of the own kernels sees it.

Part of :mod:`evt.plan.geometry`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd, sqrt

Int64 = int


def ceil_div(number: int, divisor: int) -> int:
    """Return a quotient rounded up."""
    return (number + divisor - 1) // divisor


def fourth(number: float) -> float:
    """Return the fourth power of a number."""
    return (number * number) * (number * number)


def overlapped(first: float, second: float, third: float) -> int:
    """Combine the costs of overlapping work: their L4 norm."""
    return int(sqrt(sqrt(fourth(first) + fourth(second) + fourth(third))))


@dataclass(frozen=True, slots=True)
class Axis:
    """A spatial dimension of a convolution."""

    size: int
    output: int
    taps: int
    stride: int
    dilation: int
    pad: int
    #: Pixels that one tap multiplies.
    window: int = 1

    @staticmethod
    def of(sizes: Mapping[str, int], name: str) -> Axis:
        """Return a dimension from the sizes of a ConvolutionProblem."""
        parts = ("", "output_", "filter_", "stride_", "dilation_", "pad_")
        return Axis(*(sizes[f"{part}{name}"] for part in parts))

    @property
    def halo(self) -> int:
        """Pixels of a box that the taps reach beyond a tile."""
        return (self.taps - 1) * self.dilation // self.stride + self.window - 1

    @property
    def groups(self) -> int:
        """Groups of taps that read the same pixels of every ``stride``."""
        return min(self.taps, self.stride // gcd(self.dilation, self.stride))

    def taps_of_group(self, remainder: int) -> int:
        """Return the number of taps whose distance has a remainder modulo the stride."""
        found = 0
        for tap in range(self.taps):
            if tap * self.dilation % self.stride == remainder:
                found += 1
        return found

    @property
    def of_residue(self) -> Axis:
        """The dimension that a residue class of the output multiplies, in the gradient of a convolution with a stride.

        Pixels whose coordinates have one remainder meet some of the taps; the taps of all classes reach this far.
        """
        before = max(0, (self.taps - 1) * self.dilation - self.pad) // self.stride
        reach = before + ceil_div(self.pad, self.stride)
        return Axis(self.size, ceil_div(self.output, self.stride), reach + 1, 1, 1, before)

    @property
    def of_window(self) -> Axis:
        """The dimension with one tap that multiplies all pixels which the taps reach; the stride is 1."""
        return Axis(self.size, self.output, 1, 1, self.dilation, self.pad, (self.taps - 1) * self.dilation + 1)

    @property
    def window_taps(self) -> int:
        """The taps of a window."""
        return (self.window - 1) // self.dilation + 1

    @property
    def remainders(self) -> int:
        """Remainders that coordinates of the output have modulo the stride."""
        return min(self.stride, self.output)

    @property
    def taps_inside(self) -> Int64:
        """Taps that read the input, summed over the output; each output has one at least."""
        found = Int64(0)
        for tap in range(self.taps):
            first = max(0, ceil_div(max(0, self.pad - tap * self.dilation), self.stride))
            end = self.size - 1 + self.pad - tap * self.dilation
            found += max(0, min(self.output, max(end + self.stride, 0) // self.stride) - first)
        return max(found, Int64(self.output))

    @property
    def shared_pitch(self) -> int:
        """Smallest distance between two tiles of the whole dimension that share their padding.

        The last taps of a tile may reach the first pixels of the next tile, if both are zeros.
        """
        reach = self.output + self.halo
        zeros_after = ceil_div(self.size + self.pad, self.stride)
        zeros_before = reach - ceil_div(self.pad, self.stride)
        return min(reach, max(self.output, max(zeros_after, zeros_before)))


@dataclass(frozen=True, slots=True)
class Problem:
    """A convolution. A volume is a stack of slices; each slice is an image."""

    images: int
    channels: int
    filters: int
    height: Axis
    width: Axis
    depth: Axis = Axis(1, 1, 1, 1, 1, 0)

    @property
    def tap_count(self) -> int:
        """Taps of a slice of the filter."""
        return self.height.taps * self.width.taps

    @property
    def groups(self) -> int:
        """Groups of taps, each with its own box."""
        return self.height.groups * self.width.groups

    def channel_blocks(self, of_block: int) -> int:
        """Return the blocks of channels that are multiplied for each slice of the output."""
        return ceil_div(self.channels, of_block) * self.depth.taps

    def mean_blocks(self, of_block: int) -> int:
        """Return the blocks of channels that a slice of the output multiplies on average: none outside of a volume."""
        slices = max(self.depth.output, 1)
        return int((ceil_div(self.channels, of_block) * self.depth.taps_inside + slices - 1) // slices)
