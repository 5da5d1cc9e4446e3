"""Inverses: layouts that map indices back to places, as CuTe's C++ derives them, if they are inverses."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from operator import mul
from typing import overload

from evt.layout.agree import difference
from evt.layout.carry import carried, moves_bits
from evt.layout.facts import is_injective
from evt.layout.flat import Pairs, coalesced, order_by_stride
from evt.layout.layout import Layout, flat_layout
from evt.layout.refused import refused
from evt.layout.swizzle import ComposedLayout, as_function, inner


@overload
def right_inverse(layout: int | Layout) -> Layout: ...
@overload
def right_inverse(layout: ComposedLayout) -> ComposedLayout: ...
def right_inverse(layout: int | Layout | ComposedLayout) -> Layout | ComposedLayout:
    """Return the layout R with ``layout(R(i)) == i`` for all i below its size.

    It inverts the modes that follow each other without gaps from stride 1 on. For a swizzled layout, it is the inverse
    of the inner layout with the swizzle moved through it. Raise LayoutError E0674 if the swizzle cannot be moved.
    """
    layout = as_function(layout)
    result = _right_inverse(inner(layout))
    if not isinstance(layout, ComposedLayout):
        return result
    given, composed = layout, _with_swizzle(layout, result)
    inside = ComposedLayout(layout.swizzle, 0, Layout(result.size)).bounds == (0, result.size - 1)
    if not (inside and moves_bits(result, layout.swizzle, result.size)):
        _require(lambda place: given(composed(place)), lambda place: place, composed.size, composed, layout)
    return composed


@overload
def left_inverse(layout: int | Layout) -> Layout: ...
@overload
def left_inverse(layout: ComposedLayout) -> ComposedLayout: ...
def left_inverse(layout: int | Layout | ComposedLayout) -> Layout | ComposedLayout:
    """Return a layout R with ``R(layout(i)) == i`` for all i, if the layout is injective.

    Otherwise it is a quasi-inverse, as in CuTe 4: ``layout(R(layout(i))) == layout(i)``. For a swizzled layout, it is
    the inverse of the inner layout with the swizzle moved through it. Raise LayoutError E0674 for strides that do not
    divide each other, and if CuTe's layout is not an inverse.
    """
    layout = as_function(layout)
    plain = inner(layout)
    pairs = coalesced(plain.leaves)
    result = _left_inverse(pairs, plain)
    suspect = _suspect(pairs, result, plain.leaves[-1][0] > 1)
    if suspect is not None:
        _require_left_inverse(result, plain, suspect)
    if not isinstance(layout, ComposedLayout):
        return result
    composed = _with_swizzle(layout, result)
    low, high = plain.bounds
    if low < 0 or not moves_bits(result, layout.swizzle, high + 1):
        _require_left_inverse(composed, layout)
    return composed


def _right_inverse(layout: Layout) -> Layout:
    pairs = coalesced(layout.leaves)
    places = _places(pairs)
    result: Pairs = [(1, 0)]
    reached = 1
    for mode in order_by_stride(pairs):
        extent, stride = pairs[mode]
        if stride == reached:
            result.append((extent, places[mode]))
            reached = extent * stride
    return flat_layout(coalesced(result))


def _left_inverse(pairs: Pairs, layout: Layout) -> Layout:
    """Return the layout that C++ derives; if its extents are negative, an equal function with positive extents."""
    places, order = _places(pairs), order_by_stride(pairs)
    result: Pairs = []
    reached, step, sign = 1, 0, 1
    for mode in order:
        stride = pairs[mode][1]
        if stride % reached:
            message = f"the stride {stride} is not a multiple of {reached}, the next smaller stride"
            raise refused("E0674", message, "a left inverse needs strides that divide each other", layout=layout)
        if stride:
            result.append((abs(stride // reached), sign * step))
            sign = sign if stride // reached > 0 else -sign
            reached, step = stride, places[mode]
    return flat_layout(coalesced([*result, (pairs[order[-1]][0], sign * step)]))


def _suspect(pairs: Pairs, result: Layout, runs_on: bool) -> int | None:
    """Return a place that the result may not map back; None if a rule proves that it maps every place back.

    It does if no digit of an index, with the ratios of the strides as radices, exceeds the extent of its mode. The
    digit of the last mode may exceed its extent if the mode ``runs_on``.
    """
    if min(stride for _, stride in pairs) < 0:
        mirrored = [(extent, -stride) for extent, stride in pairs]
        if min(stride for _, stride in mirrored) < 0 or _mirrored(_left_inverse(mirrored, result)) != result:
            return 0
        return _suspect(mirrored, result, runs_on)
    order = [mode for mode in order_by_stride(pairs) if pairs[mode][1]]
    reach = 0
    for digit, mode in enumerate(order):
        extent, stride = pairs[mode]
        reach += (extent - 1) * stride
        gap = digit == len(order) - 1 or pairs[order[digit + 1]][1] > extent * stride
        if gap and reach >= extent * stride and not (runs_on and mode == len(pairs) - 1):
            return _carry(pairs, order[: digit + 1])
    return None


def _carry(pairs: Pairs, order: list[int]) -> int:
    """Return a place at the end of the last mode of the order where the others add up to one more of its steps."""
    places = _places(pairs)
    extent, missing = pairs[order[-1]]
    place = (extent - 1) * places[order[-1]]
    for mode in order[-2::-1]:
        extent, stride = pairs[mode]
        count = min(extent - 1, missing // stride)
        place += count * places[mode]
        missing -= count * stride
    return place


def _mirrored(layout: Layout) -> Layout:
    return flat_layout([(extent, -stride) for extent, stride in layout.leaves])


def _require_left_inverse(result: Layout | ComposedLayout, layout: Layout | ComposedLayout, suspect: int = 0) -> None:
    """Raise LayoutError E0674 for a result that is not a left inverse, E0675 if that could not be decided."""
    _require(lambda place: layout(result(layout(place))), layout, layout.size, result, layout, suspect)
    if is_injective(layout):
        _require(lambda place: result(layout(place)), lambda place: place, layout.size, result, layout)


def _require(
    found: Callable[[int], int],
    wanted: Callable[[int], int],
    size: int,
    result: Layout | ComposedLayout,
    layout: Layout | ComposedLayout,
    suspect: int = 0,
) -> None:
    """Raise LayoutError E0674 for an inverse that does not map a place back, E0675 if that could not be decided."""
    place = difference(found, wanted, size, [suspect])
    if place is None:
        return
    if isinstance(layout, ComposedLayout):
        message = f"the inverse of {layout.layout} does not carry {layout.swizzle} through"
        help = "layouts that fill whole blocks of the swizzle, with extents of powers of two, would do"
    elif min(stride for _, stride in layout.leaves) < 0:
        message = "a left inverse of strides of both signs is not defined"
        help = "reverse the negative modes first"
    else:
        message, help = "the modes of the layout overlap", "use a multiple of the reach of the smaller strides"
    wrong = f"{result}, under which {wanted(place)} comes back as {found(place)}"
    raise refused("E0674", message, help, layout=layout, CuTe=wrong)


def _with_swizzle(layout: ComposedLayout, inverse: Layout) -> ComposedLayout:
    """Return the inverse of a swizzled layout that C++ derives from the inner layout's inverse."""
    if layout.offset:
        message = f"the offset {layout.offset} between swizzle and layout makes the inverse a layout over a swizzle"
        raise refused("E0674", message, f"invert {layout.swizzle} o 0 o {layout.layout}", layout=layout)
    return ComposedLayout(carried(inverse, layout.swizzle), 0, inverse)


def _places(pairs: Pairs) -> list[int]:
    """Return the place of each mode's second coordinate among the layout's coordinates."""
    return list(accumulate((extent for extent, _ in pairs), mul, initial=1))[:-1]
