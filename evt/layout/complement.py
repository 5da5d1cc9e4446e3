"""The complement of a layout, which repeats it, as CuTe's C++ derives it, if that keeps CuTe's promises."""

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
    """Return the ordered layout that repeats this one up to ``cotarget`` indices, by default the layout's cosize.

    It keeps the promises of CuTe's headers and tests, apart from modes of stride 0: its indices ascend; it shares only
    the index 0 with the layout; together the two reach ``cotarget`` indices; and it has at least as large a size as the
    number of whole copies of the layout that fit. The two cover every index if each stride, in ascending order, is a
    multiple of the reach of the modes before it. The complement of a swizzled layout is the complement of its inner
    layout.

    Raise LayoutError E0674 for negative strides, for modes that begin inside the span of another, and if CuTe's layout
    breaks a promise.
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
    """Return CuTe's complement of filtered pairs.

    Raise LayoutError E0674 if CuTe's C++ does not compile, and for negative strides, for which it has negative extents.
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
    """Return whether a layout has an index, if each of its modes steps beyond the reach of the modes before it."""
    for extent, stride in reversed(ordered.leaves):
        if stride:
            index -= min(index // stride, extent - 1) * stride
    return not index


def _reach(pairs: Pairs) -> int:
    """Return the cosize of the concatenated pairs."""
    return 1 + sum((extent - 1) * abs(stride) for extent, stride in pairs)


def _uneven(pairs: Pairs, target: IntTuple) -> tuple[str, str]:
    """Return the reason that a complement falls short of the target, and a remedy."""
    last = 1
    for extent, stride in sorted(pairs, key=lambda pair: pair[1]):
        if stride % last:
            message = f"the stride {stride} is not a multiple of {last}, which the nearer modes reach"
            return message, "a multiple covers every index"
        last = stride * extent
    return f"the parts of the cotarget {tree.text(target)} do not hold whole blocks of {last}", "give one integer"


def _blocks(target: IntTuple, length: int) -> int:
    """Return the number of blocks that cover the target; as in CuTe, a tuple is covered part by part."""
    blocks = 1
    for part in tree.leaves(target):
        blocks *= -(-part // length)
        length = -(-length // part)
    return blocks
