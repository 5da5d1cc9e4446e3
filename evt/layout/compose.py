"""Concatenation, CuTe's ``make_layout`` of layouts, and composition, which feeds one layout's indices to another.

``((5,1):(16,4),(2,2):(80,4))`` is a concatenation of two layouts, with a coordinate for each, and not a composition.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from operator import mul
from typing import TypeAlias, overload

from evt.layout import tree
from evt.layout.agree import difference
from evt.layout.carry import carried, merged, moves_bits
from evt.layout.derivation import Derivation
from evt.layout.layout import Layout, as_layout
from evt.layout.refused import refused
from evt.layout.swizzle import ComposedLayout, Swizzle

#: The right operand of a layout: a layout, an int n for n:1, or a tuple of these, one for each mode.
Tiler: TypeAlias = "int | Layout | tuple[Tiler, ...]"


def concatenate(*layouts: int | Layout) -> Layout:
    """Return the layout with these modes: ``concatenate(a, b)(i, j) == a(i) + b(j)``."""
    parts = tuple(map(as_layout, layouts))
    return Layout(tuple(each.shape for each in parts), tuple(each.stride for each in parts))


@overload
def compose(a: int | Layout, b: Tiler) -> Layout: ...
@overload
def compose(a: Swizzle, b: Swizzle) -> Swizzle: ...
@overload
def compose(a: Swizzle, b: int | Layout | ComposedLayout) -> ComposedLayout: ...
@overload
def compose(a: int | Layout, b: Swizzle | ComposedLayout) -> ComposedLayout: ...
@overload
def compose(a: ComposedLayout, b: Tiler | Swizzle | ComposedLayout) -> ComposedLayout: ...
def compose(
    a: int | Layout | Swizzle | ComposedLayout, b: Tiler | Swizzle | ComposedLayout
) -> Layout | Swizzle | ComposedLayout:
    """Return ``i -> a(b(i))``, in the shape of ``b``. A tuple composes mode by mode and drops the modes beyond it.

    Raise LayoutError E0674 if ``b`` does not step evenly through the modes of ``a``. Two conditions come from CuTe: a
    stride is a multiple of the extent that it steps over, or less; an extent splits evenly where it enters the next
    mode. evt adds a third: CuTe's layout must be the composition at every place. For ``(6,4):(1,12) o 4:4`` it is
    ``(2,2):(4,12)``, which maps 2 to 12 instead of 14. Raise LayoutError E0675 if that was not decided.

    Two swizzles compose if the result is one swizzle. A layout and a swizzle compose if the layout carries the swizzle
    through. Results that CuTe writes with two swizzles are refused.
    """
    if isinstance(a, Swizzle):
        if isinstance(b, Swizzle):
            return merged(a, b)
        if isinstance(b, ComposedLayout):
            return _within(ComposedLayout(a, 0, b.layout), b)
        return ComposedLayout(a, 0, as_layout(b))
    if isinstance(a, ComposedLayout):
        return _within(a, compose(a.layout, b))
    a = as_layout(a)
    if isinstance(b, Swizzle):
        return _carried(a, b, None)
    if isinstance(b, ComposedLayout):
        if b.offset:
            message = f"the offset {b.offset} stands between the layout and {b.swizzle}, which it would have to carry"
            raise refused("E0674", message, "compose with a swizzled layout without offset", left=a, right=b)
        return _carried(a, b.swizzle, b.layout)
    return _by_mode(a, as_tiler(b))


def as_tiler(value: object) -> Tiler:
    """Return the value as a tiler; lists are read as tuples. Raise LayoutError E0672 for other values."""
    tiler: Tiler = tree.nested(value, lambda leaf: leaf if isinstance(leaf, Layout) else as_layout(leaf).size)
    return tiler


def require_modes(layout: Layout, profile: tuple[object, ...]) -> None:
    """Raise LayoutError E0674 for a tuple that has more parts than the layout has modes."""
    if len(profile) > layout.rank:
        message = f"{len(profile)} modes were given for a layout of {layout.rank}"
        raise refused("E0674", message, f"give {layout.rank} or fewer", layout=layout)


def _by_mode(a: Layout, tiler: Tiler) -> Layout:
    if isinstance(tiler, tuple):
        require_modes(a, tiler)
        return concatenate(*map(_by_mode, a.modes, tiler))
    return a @ as_layout(tiler)


def _within(a: ComposedLayout, right: Layout | ComposedLayout) -> ComposedLayout:
    """Return ``i -> swizzle(offset + right(i))``, with the swizzle and the offset of ``a``."""
    if isinstance(right, Layout):
        return ComposedLayout(a.swizzle, a.offset, right)
    if not right.swizzle.bits:
        return ComposedLayout(a.swizzle, a.offset + right.offset, right.layout)
    if a.offset:
        message = f"the offset {a.offset} stands between {a.swizzle} and {right.swizzle}, which would have to merge"
        raise refused("E0674", message, "compose with a layout, or without the offset", left=a, right=right)
    swizzle = merged(a.swizzle, right.swizzle) if a.swizzle.bits else right.swizzle
    return ComposedLayout(swizzle, right.offset, right.layout)


def _carried(a: Layout, swizzle: Swizzle, b: Layout | None) -> ComposedLayout:
    """Return ``i -> a(swizzle(b(i)))``, or ``i -> a(swizzle(i))``, with the swizzle to the left."""
    derivation = None if b is None else Derivation(a, b, Layout)
    result = ComposedLayout(carried(a, swizzle), 0, a if derivation is None else derivation.result)
    right = Layout(a.size) if b is None else b
    low, high = right.bounds
    exact = low >= 0 and moves_bits(a, swizzle, high + 1)
    if exact and (derivation is None or derivation.difference() is None):
        return result
    place = difference(result, lambda place: a(swizzle(right(place))), right.size, _suspects(swizzle, right))
    if place is not None:
        wrong = f"{result}, which is {result(place)} at {place}, not {a(swizzle(right(place)))}"
        help = "a layout does if it maps each bit of a place to a separate bit, and the swizzled bits by one distance"
        raise refused("E0674", f"{a} does not carry {swizzle} through", help, right=right, CuTe=wrong)
    return result


def _suspects(swizzle: Swizzle, layout: Layout) -> Iterator[int]:
    """Yield places that reveal a swizzle whose bits lie across modes: in the first blocks that each mode repeats."""
    reads = [swizzle.source, *(1 << bit for bit in range(swizzle.source.bit_length()) if swizzle.source >> bit & 1)]
    for extent in accumulate((extent for extent, _ in layout.leaves), mul):
        for place in (extent, 2 * extent, extent - 1):
            for read in (0, *reads):
                if 0 <= place + read < layout.size:
                    yield place + read
