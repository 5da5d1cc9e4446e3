"""The sizes of a call: they choose among kernels, and no kernel's text depends on them.

A :class:`evt.plan.signature.Signature` has the facts that a kernel's text depends on. The rules about fit and speed,
and the configurations of routes, query the sizes beside it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from evt.ir.convolution import ConvolutionProblem

#: Tile widths, and the time per element of a tile relative to the width 128, measured on an H200.
_WIDTHS = {192: 0.99, 128: 1.0, 160: 0.99, 96: 1.15, 64: 1.35}
#: Sums over at most this many bytes take less time than an epilogue that reads and writes a matrix.
_SHALLOW_BYTES = 512
#: The offsets of CUTLASS 2.x's iterators have 32 bits.
LARGEST_OPERAND = 2**31
BEYOND_OFFSETS = "an operand has 2 GiB or more, beyond the 32-bit offsets of CUTLASS 2.x's iterators: split the images"


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a call, empty where they are unknown.

    ``operand_bytes`` is the number of bytes from the first to the last element of a convolution's larger operand.
    ``has_batches``: whether a matrix product has several batches.
    """

    convolution: ConvolutionProblem | None = None
    operand_bytes: int = 0
    has_batches: bool = False

    @property
    def tile_columns(self) -> int:
        """The tile width that the columns fill best."""
        return 128 if self.convolution is None else tile_columns(self.convolution.columns)

    def tile_bytes(self, row_channels: int, element_bytes: int) -> int:
        """Return the tile depth, in bytes, that the channels fill best; ``row_channels`` as in ConvolutionClass."""
        if self.convolution is None:
            return tile_bytes(0)
        taps = self.convolution.filter_size[-1]
        return tile_bytes((row_channels * taps or self.convolution.depth) * element_bytes)

    def is_shallow(self, element_bytes: int) -> bool:
        """Return whether the sums take less time than the epilogue."""
        if self.convolution is None:
            return False
        return math.prod(self.convolution.filter_size) * self.convolution.depth * element_bytes <= _SHALLOW_BYTES

    def exceeds_offsets(self, element_bytes: int) -> bool:
        """Return whether an operand, or its copy with padded channels, has :data:`LARGEST_OPERAND` bytes or more."""
        padded = 0 if self.convolution is None else _padded_bytes(self.convolution, element_bytes)
        return max(self.operand_bytes, padded) >= LARGEST_OPERAND


#: The sizes of a call that is not known, and of a matrix product of one batch.
UNKNOWN = Sizes()


def tile_columns(columns: int) -> int:
    """Return the tile width that the columns fill best; the wider of two that they fill equally well."""
    width = min(_WIDTHS, key=lambda each: -(-columns // each) * each * _WIDTHS[each])
    return 256 if width == 128 and columns >= 256 else width


def tile_bytes(channels: int) -> int:
    """Return the tile depth that the channels of a tap, in bytes, fill best: 64 or 128.

    Steps of half the depth cost 8 % more, measured on an H200.
    """
    return min((128, 64), key=lambda each: -(-channels // each) * each * (1.08 if each == 64 else 1.0))


def _padded_bytes(problem: ConvolutionProblem, element_bytes: int) -> int:
    """Return the bytes of an activation whose channels are padded to 4 or 8, where they are few."""
    channels = max(problem.channels, 4 if problem.channels <= 4 else 8)
    return problem.images * math.prod(problem.pixels) * channels * element_bytes
