"""The operands of a convolution, or their padded copies in the workspace, and the blocks of the job that makes one.

The C++ launcher of codegen/include/evt/pad.hpp makes the same values; a test compares all bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from math import prod
from operator import mul

from evt.launch.shape import aligned
from evt.plan import Field, Plan
from evt.plan.geometry.convolution import ceil_div
from evt.plan.plan import Image, PaddedCopy
from evt.plan.signature import bytes_of

#: Vectors that a warp stores at a time, the warps of a block, and the most blocks: pad.hpp.
_PIECE, _WARPS, _MOST_BLOCKS = 128, 8, 1 << 20


def part_of(copy: PaddedCopy) -> str:
    """Return the name of a copy in the workspace."""
    return f"padded_{copy.name}"


def channels_of(copy: PaddedCopy, sizes: Mapping[str, int]) -> int:
    """Return the channels of a copy's pixels."""
    return copy.padded_channels or ceil_div(sizes[copy.channels.name], copy.vector) * copy.vector


def strides_of(operand: Image | PaddedCopy, sizes: Mapping[str, int], *, flat: bool = False) -> list[int]:
    """Return the strides except the channels', outermost first; ``flat`` if the slices of a volume are its rows."""
    if isinstance(operand, PaddedCopy):
        inner = [sizes[extent.name] for extent in operand.extents[:0:-1]]
        found = list(accumulate(inner, mul, initial=channels_of(operand, sizes)))[::-1]
    else:
        found = [sizes[stride.name] for stride in operand.strides]
    return [found[0], found[0], found[1], found[3]] if flat else found


def copies_of(copies: tuple[PaddedCopy, ...], sizes: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """Return the offset of each copy in the workspace, and the end of the copies."""
    offsets, end = {}, 0
    for copy in copies:
        offsets[part_of(copy)] = end
        pixels = prod(sizes[extent.name] for extent in copy.extents)
        end += aligned(pixels * channels_of(copy, sizes) * bytes_of(copy.dtype))
    return offsets, end


def blocks_of(copy: PaddedCopy, sizes: Mapping[str, int]) -> int:
    """Return the blocks of the job that makes a copy."""
    *outer, pixels = (sizes[extent.name] for extent in copy.extents)
    pieces = ceil_div(pixels * channels_of(copy, sizes) // copy.vector, _PIECE)
    return min(ceil_div(prod(outer) * pieces, _WARPS), _MOST_BLOCKS)


def place_of(plan: Plan, operand: Image | PaddedCopy, sizes: Mapping[str, int]) -> tuple[Field, int]:
    """Return the pointer to an operand or to the workspace, and the elements before its copy as a negative number."""
    if isinstance(operand, Image):
        return operand.pointer, 0
    workspace = next(field for field in plan.fields if field.role == "workspace")
    return workspace, -copies_of(plan.copies, sizes)[0][part_of(operand)] // bytes_of(operand.dtype)
