"""Copies of a convolution's operands with padded channels, which kernels read where they cannot read the operands.

Channels that are no whole vectors are read element by element, if at all; those of a first layer fill a fraction of a
tile's depth. A copy, made on the way, costs a pass over the input, whose pixels are read once for every tap.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PaddedCopy:
    """A packed copy of an operand in the workspace, zeros behind the channels of its pixels, and around its rows.

    ``extents`` are those of the copy but the channels, outermost first, ``channels`` those of a pixel: C++ expressions.
    ``vector`` elements are moved at a time and divide the channels; ``before`` are the zero pixels before a row's own.
    """

    extents: tuple[str, ...]
    channels: str
    vector: int
    before: str = "0"

    @property
    def strides(self) -> list[str]:
        """Those of all extents but the channels, outermost first."""
        steps = [self.channels]
        for extent in reversed(self.extents[1:]):
            steps.append(f"{steps[-1]} * {extent}")
        return steps[::-1]
