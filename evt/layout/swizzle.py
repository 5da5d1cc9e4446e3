"""Swizzles, and layouts with a swizzle.

The functor is CuTe's ``Swizzle<B,M,S>``: it reads ``B`` bits of an index, from bit ``M + max(S, 0)`` on. It xors
them into the ``B`` bits that are ``S`` places below (above, for a negative ``S``). It is its own inverse.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, overload

from evt.layout import tree
from evt.layout.layout import Layout, as_layout
from evt.layout.refused import refused
from evt.layout.tree import IntTuple

_P = ParamSpec("_P")

#: CuTe's masks are C++ ints.
_MAX_BITS = 31
#: The longest block of indices, permuted by a swizzle, for which bounds are computed.
_MAX_PERIOD = 2**20


@dataclass(frozen=True, slots=True)
class Swizzle:
    """``Sw<bits,base,shift>``. Raise LayoutError E0672 for parameters that CuTe does not admit."""

    bits: int
    base: int
    shift: int

    def __post_init__(self) -> None:
        for name in ("bits", "base", "shift"):
            object.__setattr__(self, name, tree.integer(getattr(self, name), f"a swizzle's {name}"))
        if self.bits < 0 or self.base < 0:
            raise refused("E0672", f"{self} has a negative number of bits", "B and M are 0 or more")
        if abs(self.shift) < self.bits:
            message = f"{self} shifts {self.bits} bits by {abs(self.shift)}: source and target would overlap"
            raise refused("E0672", message, f"give a shift of {self.bits} or more, or of {-self.bits} or less")
        if self.bits + self.base + abs(self.shift) > _MAX_BITS:
            message = f"{self} uses bits beyond the {_MAX_BITS} of an index"
            raise refused("E0672", message, f"B + M + |S| is at most {_MAX_BITS}")

    @property
    def source(self) -> int:
        """The mask of the source bits."""
        return ((1 << self.bits) - 1) << (self.base + max(self.shift, 0))

    @property
    def target(self) -> int:
        """The mask of the target bits."""
        return ((1 << self.bits) - 1) << (self.base + max(-self.shift, 0))

    @property
    def period(self) -> int:
        """The length of the aligned blocks of indices that the swizzle permutes."""
        return 1 << (self.base + self.bits + max(-self.shift, 0)) if self.bits else 1

    def __call__(self, index: int) -> int:
        """Return the swizzled index. Raise LayoutError E0672 for a value that is not an integer."""
        if type(index) is not int:
            index = tree.integer(index, "an index", largest=tree.MAX_COORDINATE)
        read = index & self.source
        return index ^ (read >> self.shift if self.shift >= 0 else read << -self.shift)

    def __str__(self) -> str:
        return f"Sw<{self.bits},{self.base},{self.shift}>"


@dataclass(frozen=True, slots=True)
class ComposedLayout:
    """``swizzle o offset o layout``: a coordinate's index is ``swizzle(offset + layout(coordinate))``.

    An int n is the layout n:1. Raise LayoutError E0672 for other parts.
    """

    swizzle: Swizzle
    offset: int
    layout: Layout

    def __post_init__(self) -> None:
        swizzle: object = self.swizzle
        if not isinstance(swizzle, Swizzle):
            message = f"expected a Swizzle, not a value of type {type(swizzle).__name__}"
            raise refused("E0672", message, "pass a Swizzle")
        object.__setattr__(self, "offset", tree.integer(self.offset, "an offset"))
        object.__setattr__(self, "layout", as_layout(self.layout))

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

        The swizzle permutes within blocks, so the bounds lie in the layout's lowest and highest block. Raise
        LayoutError E0675 if a block is too long to examine every index.
        """
        period = self.swizzle.period
        if period > _MAX_PERIOD:
            message = f"{self.swizzle} permutes blocks of {period} indices: too many to examine"
            raise refused("E0675", message, f"the limit is {_MAX_PERIOD}", layout=self)
        low, high = (self.offset + bound for bound in self.layout.bounds)
        terms = [(abs(stride), extent - 1) for extent, stride in self.layout.leaves]
        first, last = low - low % period, high - high % period
        above = _sums(terms, period - 1 - low % period) << low % period
        below = _reversed(_sums(terms, high % period), high % period + 1)
        lowest, highest = (_swizzled(self.swizzle, start, places) for start, places in ((first, above), (last, below)))
        return first + (lowest & -lowest).bit_length() - 1, last + highest.bit_length() - 1

    @property
    def cosize(self) -> int:
        """The number of indices from the lowest to the highest, exactly.

        CuTe gives the inner layout's cosize, which differs if the swizzle moves the lowest or the highest index.
        """
        low, high = self.bounds
        return high - low + 1

    @property
    def naive_cosize(self) -> int:
        """``L(size - 1) + 1``; :func:`evt.layout.naive_cosize_fault` explains when it is not the cosize."""
        return self(self.size - 1) + 1

    def __call__(self, *coordinate: IntTuple) -> int:
        """Return the index of a coordinate, in a form that :class:`~evt.layout.Layout` accepts."""
        return self.swizzle(self.offset + self.layout(*coordinate))

    def coordinate(self, place: int) -> IntTuple:
        return self.layout.coordinate(place)

    def within(
        self, operation: Callable[Concatenate[Layout, _P], Layout], *arguments: _P.args, **options: _P.kwargs
    ) -> ComposedLayout:
        """Return the swizzle over the operation's result on the inner layout.

        CuTe coalesces, divides and multiplies composed layouts in this way, and so do the functions of evt.layout.
        """
        return ComposedLayout(self.swizzle, self.offset, operation(self.layout, *arguments, **options))

    def __str__(self) -> str:
        return f"{self.swizzle} o {self.offset} o {self.layout}"


class _Through(Protocol[_P]):
    """An operation on layouts, with or without a swizzle."""

    @overload
    def __call__(self, layout: int | Layout, /, *arguments: _P.args, **options: _P.kwargs) -> Layout: ...
    @overload
    def __call__(self, layout: ComposedLayout, /, *arguments: _P.args, **options: _P.kwargs) -> ComposedLayout: ...


def through_swizzles(operation: Callable[Concatenate[Layout, _P], Layout]) -> _Through[_P]:
    """Return the operation extended to swizzled layouts, whose swizzle it keeps, and to ints n as n:1."""

    @wraps(operation)
    def through(layout: object, /, *arguments: _P.args, **options: _P.kwargs) -> Layout | ComposedLayout:
        if isinstance(layout, ComposedLayout):
            return layout.within(operation, *arguments, **options)
        return operation(as_layout(layout), *arguments, **options)

    return through  # type: ignore[return-value]  # its type follows that of its first argument


def as_function(value: object) -> Layout | ComposedLayout:
    """Return a layout, with or without a swizzle, unchanged, and an int n as the layout n:1.

    Raise LayoutError E0672 for other values.
    """
    return value if isinstance(value, ComposedLayout) else as_layout(value)


def inner(layout: Layout | ComposedLayout) -> Layout:
    """Return the layout without its swizzle."""
    return layout.layout if isinstance(layout, ComposedLayout) else layout


# Sets of places within a block: bit i of an integer is set if place i is in the set.


def _sums(terms: list[tuple[int, int]], limit: int) -> int:
    """Return the values up to ``limit`` of the sum of ``step * x`` with ``0 <= x <= count``, over (step, count)."""
    seen, mask = 1, (1 << (limit + 1)) - 1
    for step, count in terms:
        count = min(count, limit // step) if step else 0
        done = 0
        while done < count:
            more = min(done + 1, count - done)
            seen |= (seen << (step * more)) & mask
            done += more
    return seen


def _reversed(places: int, length: int) -> int:
    return int(f"{places:0{length}b}"[::-1], 2)


def _swizzled(swizzle: Swizzle, start: int, places: int) -> int:
    """Return the swizzled places of the block that begins at ``start``."""
    period = swizzle.period
    low = swizzle.base + max(-swizzle.shift, 0)
    for target in range(low, low + swizzle.bits):
        read = target + swizzle.shift
        if 1 << read >= period:  # that bit is constant in the whole block
            moved, kept = (places, 0) if start >> read & 1 else (0, places)
        else:
            kept = places & _zeros(read, period)
            moved = places ^ kept
        zeros = _zeros(target, period)
        places = kept | (moved & zeros) << (1 << target) | moved >> (1 << target) & zeros
    return places


def _zeros(bit: int, period: int) -> int:
    """Return the places of a block with a 0 in that bit."""
    run = 1 << bit
    pattern = (1 << run) - 1
    while run < period:
        run *= 2
        pattern |= pattern << run
    return pattern & ((1 << period) - 1)
