"""Swizzles, and layouts seen through one.

The functor is CuTe's ``Swizzle<B,M,S>``: of an index, ``B`` bits from bit ``M + max(S, 0)`` are xored into the ``B``
bits ``S`` places below them (above, for a negative ``S``). It is its own inverse.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Concatenate, ParamSpec

from evt.layout.layout import Layout
from evt.layout.refused import refused
from evt.layout.tree import IntTuple

_P = ParamSpec("_P")

#: CuTe's masks are C++ ints.
_MAX_BITS = 31
#: The longest block of indices that a swizzle permutes, for which bounds are computed.
_MAX_PERIOD = 2**20


@dataclass(frozen=True, slots=True)
class Swizzle:
    """``Sw<bits,base,shift>``. Raises LayoutError E0672 for parameters that CuTe does not admit."""

    bits: int
    base: int
    shift: int

    def __post_init__(self) -> None:
        if self.bits < 0 or self.base < 0:
            raise refused("E0672", f"{self} has a negative number of bits", "B and M are 0 or more")
        if abs(self.shift) < self.bits:
            message = f"{self} shifts {self.bits} bits by {abs(self.shift)}: they would meet themselves"
            raise refused("E0672", message, f"give a shift of {self.bits} or more, or of {-self.bits} or less")
        if self.bits + self.base + abs(self.shift) > _MAX_BITS:
            message = f"{self} works on bits beyond the {_MAX_BITS} of an index"
            raise refused("E0672", message, f"B + M + |S| is at most {_MAX_BITS}")

    @property
    def source(self) -> int:
        """The mask of the bits that are read."""
        return ((1 << self.bits) - 1) << (self.base + max(self.shift, 0))

    @property
    def target(self) -> int:
        """The mask of the bits that are changed."""
        return ((1 << self.bits) - 1) << (self.base + max(-self.shift, 0))

    @property
    def period(self) -> int:
        """The swizzle permutes every aligned block of this many indices, and no index leaves its block."""
        return 1 << (self.base + self.bits + max(-self.shift, 0)) if self.bits else 1

    def __call__(self, index: int) -> int:
        read = index & self.source
        return index ^ (read >> self.shift if self.shift >= 0 else read << -self.shift)

    def __str__(self) -> str:
        return f"Sw<{self.bits},{self.base},{self.shift}>"


@dataclass(frozen=True, slots=True)
class ComposedLayout:
    """``swizzle o offset o layout``: a coordinate's index is ``swizzle(offset + layout(coordinate))``."""

    swizzle: Swizzle
    offset: int
    layout: Layout

    @property
    def shape(self) -> IntTuple:
        return self.layout.shape

    @property
    def size(self) -> int:
        return self.layout.size

    @property
    def rank(self) -> int:
        return self.layout.rank

    @property
    def depth(self) -> int:
        return self.layout.depth

    @property
    def bounds(self) -> tuple[int, int]:
        """The lowest and the highest index, exactly.

        The swizzle permutes within blocks, so they come from the layout's lowest and highest block. Raises
        LayoutError E0675 when a block is too long to look at every index of it.
        """
        period = self.swizzle.period
        if period > _MAX_PERIOD:
            message = f"{self.swizzle} permutes blocks of {period} indices: too many to look at each"
            raise refused("E0675", message, f"blocks of {_MAX_PERIOD} are looked at", layout=self)
        low, high = (self.offset + bound for bound in self.layout.bounds)
        terms = [(abs(stride), extent - 1) for extent, stride in self.layout.leaves]
        above = _sums(terms, period - 1 - low % period)
        below = _sums(terms, high % period)
        return min(self.swizzle(low + up) for up in above), max(self.swizzle(high - down) for down in below)

    @property
    def cosize(self) -> int:
        """How many indices there are from the lowest to the highest, exactly.

        CuTe gives the inner layout's, which is less where the swizzle carries an index out of the layout's interval.
        """
        low, high = self.bounds
        return high - low + 1

    @property
    def naive_cosize(self) -> int:
        """``L(size - 1) + 1``; :func:`evt.layout.naive_cosize_fault` says when and why it is not the cosize."""
        return self(self.size - 1) + 1

    def __call__(self, *coordinate: IntTuple) -> int:
        """The index of a coordinate, given as to a :class:`~evt.layout.Layout`."""
        return self.swizzle(self.offset + self.layout(*coordinate))

    def coordinate(self, place: int) -> IntTuple:
        return self.layout.coordinate(place)

    def within(
        self, operation: Callable[Concatenate[Layout, _P], Layout], *arguments: _P.args, **options: _P.kwargs
    ) -> ComposedLayout:
        """The swizzle over the operation's result on the inner layout: ``swizzled.within(zipped_divide, (8, 8))``.

        So CuTe coalesces, divides and multiplies composed layouts.
        """
        return ComposedLayout(self.swizzle, self.offset, operation(self.layout, *arguments, **options))

    def __str__(self) -> str:
        return f"{self.swizzle} o {self.offset} o {self.layout}"


def merged(a: Swizzle, b: Swizzle) -> Swizzle:
    """The swizzle ``i -> a(b(i))``. Raises LayoutError E0674 where that is none."""
    if not a.bits or not b.bits:
        return a if a.bits else b
    if a == b:
        return Swizzle(0, a.base, a.shift)
    if a.shift != b.shift or b.target & a.source:
        message = f"{a} o {b} is no swizzle: the shifts differ, or the left one reads what the right one changes"
        raise refused("E0674", message, f"use the shift {a.shift} for both, and bits apart")
    return _of_masks(a.source ^ b.source, a.target ^ b.target, a, b)


def carried(layout: Layout, swizzle: Swizzle) -> ComposedLayout:
    """``i -> layout(swizzle(i))`` as a swizzle over the layout: the one that works on the bits' images.

    Raises LayoutError E0674 unless the layout moves every bit of a coordinate to a bit of the index of its own, and
    those that the swizzle xors to bits at one distance.
    """
    width = max((layout.size - 1).bit_length(), (swizzle.source | swizzle.target).bit_length())
    images = [layout(1 << bit) for bit in range(width)]
    digits = [extent for extent, _ in layout.leaves[:-1]]
    if any(extent & (extent - 1) for extent in digits) or len({i for i in images if _is_bit(i)}) < width:
        message = f"{layout} o {swizzle}: the layout does not move bits to bits"
        raise refused("E0674", message, "its extents and strides would be powers of two, and no index twice")
    low = swizzle.base + max(-swizzle.shift, 0)
    distances = {images[bit + swizzle.shift] / images[bit] for bit in range(low, low + swizzle.bits)}
    if len(distances) > 1:
        message = f"{layout} o {swizzle}: the layout moves bits that are xored to different distances"
        raise refused("E0674", message, "keep the swizzled bits of a mode together")
    source, target = (layout(mask) for mask in (swizzle.source, swizzle.target))
    return ComposedLayout(_of_masks(source, target, layout, swizzle) if swizzle.bits else swizzle, 0, layout)


def _of_masks(source: int, target: int, left: object, right: object) -> Swizzle:
    """The swizzle that xors one run of bits into another. Raises LayoutError E0674 when they are no runs."""
    bits = source.bit_count()
    first, other = ((mask & -mask).bit_length() - 1 for mask in (source, target))
    if source != ((1 << bits) - 1) << first or target != ((1 << bits) - 1) << other or abs(first - other) < bits:
        message = f"the bits {source:#b} and {target:#b} are no two runs of one length, apart"
        raise refused(
            "E0674", message, "a swizzle xors neighbouring bits into neighbouring bits", left=left, right=right
        )
    return Swizzle(bits, min(first, other), first - other)


def _is_bit(index: int) -> bool:
    return index > 0 and not index & (index - 1)


def _sums(terms: list[tuple[int, int]], limit: int) -> list[int]:
    """The values up to ``limit`` of the sum of ``step * x`` with ``0 <= x <= count``, over (step, count)."""
    seen, mask = 1, (1 << (limit + 1)) - 1  # bit i: i is a value
    for step, count in terms:
        count = min(count, limit // step) if step else 0
        done = 0
        while done < count:
            more = min(done + 1, count - done)
            seen |= (seen << (step * more)) & mask
            done += more
    return [value for value, bit in enumerate(reversed(f"{seen:b}")) if bit == "1"]
