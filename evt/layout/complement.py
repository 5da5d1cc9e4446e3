"""The complement: what repeats a layout, as CuTe's C++ derives it, where it is what CuTe promises."""

from __future__ import annotations

from math import prod

from evt.layout import tree
from evt.layout.agree import MOST_PLACES
from evt.layout.flat import Pairs, coalesced, filtered_pairs
from evt.layout.layout import Layout, flat_layout
from evt.layout.refused import refused
from evt.layout.swizzle import ComposedLayout, as_function, inner
from evt.layout.tree import IntTuple


def complement(layout: int | Layout | ComposedLayout, cotarget: IntTuple | None = None) -> Layout:
    """Return the ordered layout that repeats this one up to ``cotarget`` indices (by default its own cosize).

    It keeps what CuTe's headers and tests ask of a complement, modes of stride 0 left aside: its indices ascend; none
    but 0 is one of the layout's; together the two reach ``cotarget`` indices; and it has at least as many elements as
    whole copies of the layout fit there. They cover every index when each stride, in ascending order, is a multiple of
    what the modes before it reach. The complement of a swizzled layout is that of its layout.

    Raise LayoutError E0674 for negative strides, for modes that begin inside the span of another, and where C++ gives
    a layout that is less than that.
    """
    layout = as_function(layout)
    own = filtered_pairs(inner(layout).leaves)
    target = _reach(own) if cotarget is None else tree.tree(cotarget, "a cotarget")
    if min(tree.leaves(target)) < 1:
        raise refused("E0674", f"a complement up to {tree.text(target)} indices", "ask for 1 or more", layout=layout)
    gaps = complementary(own, target)
    result = flat_layout(gaps)
    wanted, tile, reach = tree.size(target), prod(extent for extent, _ in own), _reach([*own, *gaps])
    if reach < wanted or result.size < wanted // tile:
        falls_short = f"{result}: with it the layout has {tile * result.size} elements below {reach}, not {wanted}"
        raise refused("E0674", *_uneven(own, target), layout=layout, CuTe=falls_short)
    if isinstance(layout, ComposedLayout):
        _require_disjoint(layout, result)
    return result


def complementary(pairs: Pairs, target: IntTuple) -> Pairs:
    """Return what C++ derives for the complement of filtered pairs.

    Raise LayoutError E0674 where C++ does not compile, and for negative strides, for which it has negative extents.
    """
    result: Pairs = []
    last = 1
    for extent, stride in sorted((pair for pair in pairs if pair[1]), key=lambda pair: pair[1]):
        if stride < 0:
            message = f"the complement of the negative stride {stride} is not defined"
            raise refused("E0674", message, "reverse the mode first", layout=flat_layout(pairs))
        if stride < last:
            message = f"the mode {extent}:{stride} begins inside the span of the nearer modes, which is {last}"
            raise refused("E0674", message, f"a stride of {last} or more would do", layout=flat_layout(pairs))
        result.append((stride // last, last))
        last = stride * extent
    return coalesced([*result, (_blocks(target, last), last)])


def _require_disjoint(layout: ComposedLayout, result: Layout) -> None:
    """Raise LayoutError E0674 for a complement that shares an index other than 0 with the layout."""
    step = min((stride for extent, stride in result.leaves if extent > 1), default=0)
    if not step or layout.bounds[1] < step:
        return
    if layout.size > MOST_PLACES:
        message = f"whether the complement meets one of {layout.size} elements was not decided"
        raise refused("E0675", message, f"use a layout of {MOST_PLACES} elements", layout=layout)
    met = next((index for index in map(layout, range(layout.size)) if index > 0 and _has(result, index)), None)
    if met is not None:
        message = f"the swizzle moves an element to {met}, which is an index of the complement {result} of its layout"
        raise refused("E0674", message, "fill whole blocks of the swizzle", layout=layout)


def _has(ordered: Layout, index: int) -> bool:
    """Return whether a layout has an index, when each of its modes steps beyond the reach of those before it."""
    for extent, stride in reversed(ordered.leaves):
        if stride:
            index -= min(index // stride, extent - 1) * stride
    return not index


def _reach(pairs: Pairs) -> int:
    """Return the cosize of the pairs side by side."""
    return 1 + sum((extent - 1) * abs(stride) for extent, stride in pairs)


def _uneven(pairs: Pairs, target: IntTuple) -> tuple[str, str]:
    """Return why a complement falls short of the target, and what would help."""
    last = 1
    for extent, stride in sorted(pairs, key=lambda pair: pair[1]):
        if stride % last:
            message = f"the stride {stride} is no multiple of {last}, which the nearer modes reach"
            return message, "a multiple leaves no index out"
        last = stride * extent
    return f"the parts of the cotarget {tree.text(target)} do not hold whole blocks of {last}", "give one integer"


def _blocks(target: IntTuple, length: int) -> int:
    """Return how many blocks cover the target; as in CuTe, a tuple is covered part by part."""
    blocks = 1
    for part in tree.leaves(target):
        blocks *= -(-part // length)
        length = -(-length // part)
    return blocks
