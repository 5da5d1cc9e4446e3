"""The laws of the operations of ``evt.layout``, by enumeration: one law for each.

A law takes an operation's arguments and a result, CuTe's or evt's, and returns its fault, or an empty string.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import evt.layout as room
from evt.layout import ComposedLayout, IntTuple, Layout, LayoutError, Swizzle, Tiler, coalesce, concatenate, filtered
from evt.layout.complement import complementary
from evt.layout.flat import filtered_pairs
from evt.layout.layout import flat_layout
from evt.layout.tree import leaves


@dataclass(frozen=True)
class Nested:
    """A composed layout of CuTe's that is not one swizzle over one layout: two swizzles, or a layout over a swizzle."""

    left: Layout | Swizzle
    offset: int
    right: Layout | Swizzle | ComposedLayout | Nested

    @property
    def size(self) -> int:
        return self._sized.size

    @property
    def shape(self) -> IntTuple:
        return self._sized.shape

    def __call__(self, place: int) -> int:
        return self.left(self.offset + self.right(place))

    def __str__(self) -> str:
        return f"{self.left} o {self.offset} o {self.right}"

    @property
    def _sized(self) -> Layout | ComposedLayout | Nested:
        """The part with a shape; CuTe has none for a layout over a swizzle, where it is that of the layout."""
        part = self.left if isinstance(self.right, Swizzle) else self.right
        assert not isinstance(part, Swizzle)
        return part


Function = Layout | ComposedLayout | Nested


def values(layout: Function) -> list[int]:
    return [layout(place) for place in range(layout.size)]


def bare(layout: Layout | ComposedLayout) -> Layout:
    return layout.layout if isinstance(layout, ComposedLayout) else layout


def as_layout(tiler: Tiler) -> Layout:
    assert not isinstance(tiler, tuple)
    return tiler if isinstance(tiler, Layout) else Layout(tiler)


def compatible(shape: IntTuple, other: IntTuple) -> bool:
    """Return whether each coordinate of the shape is one of the other, whose leaves may be split further."""
    if isinstance(shape, tuple):
        return isinstance(other, tuple) and len(shape) == len(other) and all(map(compatible, shape, other))
    return shape == prod(leaves(other))


def law_of_coalesce(layout: Layout, profile: IntTuple, result: Layout) -> str:
    if isinstance(profile, tuple):
        return by_mode(law_of_coalesce, layout, profile, result, rest=True)
    if values(result) != values(layout):
        return "another function"
    pairs = result.leaves
    few = all(extent * stride != after for (extent, stride), (_, after) in itertools.pairwise(pairs))
    whole = all(extent > 1 for extent, _ in pairs) or len(pairs) == 1
    return "" if few and whole and result.depth <= 1 else "more modes than needed"


def law_of_filtered(layout: Layout, profile: IntTuple, result: Layout) -> str:
    if isinstance(profile, tuple):
        return by_mode(law_of_filtered, layout, profile, result, rest=True)
    if set(values(result)) != set(values(layout)):
        return "other indices"
    return "" if result == Layout(1, 0) or all(e > 1 and d for e, d in result.leaves) else "modes that repeat"


def law_of_compose(a: Function, b: Tiler | Function | Swizzle, result: Function) -> str:
    if isinstance(b, tuple):
        assert isinstance(a, (Layout, ComposedLayout))
        return by_mode(law_of_compose, bare(a), b, bare(result), rest=False)
    if isinstance(b, int):
        b = Layout(b)
    if isinstance(b, Swizzle):
        wrong = [place for place in range(a.size) if result(place) != a(b(place))]
        return f"other indices, at {wrong[0]}" if wrong or result.size != a.size else ""
    if not compatible(b.shape, result.shape):
        return "another shape"
    wrong = [place for place in range(b.size) if result(place) != a(b(place))]
    return f"other indices, at {wrong[0]}" if wrong else ""


def law_of_complement(layout: Layout | ComposedLayout, cotarget: IntTuple | None, result: Layout) -> str:
    if min(leaves(result.shape)) < 1:
        return "a negative extent"
    indices, own = values(result), set(values(layout))
    core = filtered(bare(layout))
    wanted = core.cosize if cotarget is None else prod(leaves(cotarget))
    if any(after <= before for before, after in itertools.pairwise(indices)):
        return "not ordered"
    if own & set(indices[1:]):
        return "not disjoint"
    if min(values(concatenate(core, result))) < 0 or concatenate(core, result).cosize < wanted:
        return "out of reach"
    if result.size < wanted // core.size:
        return "too few"
    steps = [(1, 1), *sorted(core.leaves, key=lambda leaf: leaf[1])]
    whole = all(after % (extent * stride) == 0 for (extent, stride), (_, after) in itertools.pairwise(steps))
    return "a hole" if whole and not set(range(wanted)) <= set(values(concatenate(core, result))) else ""


def law_of_right_inverse(layout: Function, result: Function) -> str:
    wrong = [place for place in range(result.size) if layout(result(place)) != place]
    if wrong:
        return f"no inverse, at {wrong[0]}"
    whole = isinstance(layout, Layout) and sorted(values(layout)) == list(range(layout.size))
    return "too short" if whole and result.size < layout.size else ""


def law_of_left_inverse(layout: Function, result: Function) -> str:
    indices = values(layout)
    if len(set(indices)) == len(indices):
        wrong = [place for place, index in enumerate(indices) if result(index) != place]
    else:
        wrong = [place for place, index in enumerate(indices) if layout(result(index)) != index]
    return f"no inverse, at {wrong[0]}" if wrong else ""


def law_of_divide(layout: Layout, tiler: Tiler, result: Layout) -> str:
    """Return how a division breaks its law: the tile composes with the tiler, the rest with its complement."""
    if isinstance(tiler, tuple):
        return by_mode(law_of_divide, layout, tiler, result, rest=True)
    tile, shape = as_layout(tiler), coalesce(layout).shape
    try:
        rest = flat_layout(complementary(filtered_pairs(tile.leaves), shape))
    except LayoutError:
        return "no complement"
    if fault := law_of_complement(tile, shape, rest):
        return f"a complement {fault}"
    if result.rank != 2:
        return "not two modes"
    return law_of_compose(layout, concatenate(tile, rest), result)


def law_of_product(block: Layout, tiler: Tiler, result: Layout) -> str:
    """Return how a product breaks its law: the block, then places of its complement; copies do not meet."""
    if isinstance(tiler, tuple):
        return by_mode(law_of_product, block, tiler, result, rest=True)
    tile = as_layout(tiler)
    try:
        gaps = flat_layout(complementary(filtered_pairs(block.leaves), block.size * tile.cosize))
    except LayoutError:
        return "no complement"
    if result.rank != 2 or result.modes[0] != block:
        return "another block"
    if fault := law_of_compose(gaps, tile, result.modes[1]):
        return f"copies at {fault}"
    taken: dict[int, int] = {}
    own = set(values(block))
    for place in range(tile.size):
        for index in own:
            if taken.setdefault(result.modes[1](place) + index, tile(place)) != tile(place):
                return "copies that meet"
    return ""


def law_of_blocked(block: Layout, tiler: Layout, result: Layout, raked: bool = False) -> str:
    """Return how a result differs from the product, whose modes it has in pairs; an integral part is one mode."""
    rank = max(block.rank, tiler.rank)
    if result.rank != rank or any(mode.rank != 2 for mode in result.modes):
        return "other modes"
    if rank == 1 and not isinstance((tiler if raked else block).shape, tuple):
        pair = result.modes[0].modes
        return law_of_product(block, tiler, concatenate(*(pair[::-1] if raked else pair)))
    one = Layout(1, 0)
    padded = [
        each if each.rank == rank else concatenate(*each.modes, *[one] * (rank - each.rank)) for each in (block, tiler)
    ]
    first, second = (concatenate(*(mode.modes[half] for mode in result.modes)) for half in (raked, not raked))
    return law_of_product(padded[0], padded[1], concatenate(first, second))


def by_mode(law: Callable[..., str], layout: Layout, parts: tuple[object, ...], result: Layout, rest: bool) -> str:
    """Return how a result breaks a law mode by mode; modes without a part are the result's own, or dropped."""
    others = layout.modes[len(parts) :] if rest else ()
    if not isinstance(result.shape, tuple) or result.rank != len(parts) + len(others):
        return "other modes"
    if result.modes[len(parts) :] != others:
        return "other modes behind"
    faults = (law(mode, part, found) for mode, part, found in zip(layout.modes, parts, result.modes, strict=False))
    return next(filter(None, faults), "")


def law_of_regrouped(kind: str, operation: str, layout: Layout, tiler: Tiler, result: Layout) -> str:
    """Return how a result differs from the logical division or product, whose parts it has in another order."""
    try:
        logical = getattr(room, f"logical_{operation}")(layout, tiler)
    except LayoutError:
        return "no logical result"
    first, second = unzipped(logical, tiler)
    if kind != "zipped":
        second_modes = second.modes if second.rank > 1 else (second,)
        first_modes = (first.modes if first.rank > 1 else (first,)) if kind == "flat" else (first,)
        return "" if result == concatenate(*first_modes, *second_modes) else "other groups"
    return "" if result == concatenate(first, second) else "other groups"


def unzipped(logical: Layout, tiler: Tiler) -> tuple[Layout, Layout]:
    """Return the first and the second parts at the tiler's leaves; a mode without tiler is a second part."""
    if not isinstance(tiler, tuple):
        return logical.modes[0], logical.modes[1]
    pairs = [unzipped(mode, part) for mode, part in zip(logical.modes, tiler, strict=False)]
    rest = logical.modes[len(tiler) :]
    return concatenate(*(first for first, _ in pairs)), concatenate(*(second for _, second in pairs), *rest)


def through_swizzle(law: Callable[..., str]) -> Callable[..., str]:
    """Return the law for layouts under a swizzle, which stays; CuTe drops an identity."""

    def through(layout: ComposedLayout, *rest: Any) -> str:
        *arguments, result = rest
        if isinstance(result, ComposedLayout):
            if (result.swizzle, result.offset) != (layout.swizzle, layout.offset):
                return "another swizzle"
            result = result.layout
        elif layout.swizzle.bits or layout.offset:
            return "not a swizzle"
        return law(layout.layout, *arguments, result)

    return through


def law_of_index(layout: Function, coordinate: IntTuple, result: int) -> str:
    """Return how an index differs from the coordinate's inner product with the strides; an integer is a place."""
    if isinstance(layout, ComposedLayout):
        return "" if result == layout.swizzle(layout.offset + layout.layout(coordinate)) else "another index"
    assert isinstance(layout, Layout)
    return "" if result == index(coordinate, layout.shape, layout.stride) else "another index"


def index(coordinate: IntTuple, shape: IntTuple, stride: IntTuple) -> int:
    if isinstance(coordinate, tuple):
        assert isinstance(shape, tuple)
        assert isinstance(stride, tuple)
        return sum(map(index, coordinate, shape, stride))
    if coordinate < 0:
        return -index(-coordinate, shape, stride)
    if not isinstance(shape, tuple):
        assert isinstance(stride, int)
        return coordinate * stride
    assert isinstance(stride, tuple)
    total = 0
    for part, step in zip(shape[:-1], stride, strict=False):
        total += index(coordinate % prod(leaves(part)), part, step)
        coordinate //= prod(leaves(part))
    return total + index(coordinate, shape[-1], stride[-1])


def law_of_coordinate(layout: Layout, place: int, result: IntTuple) -> str:
    return "" if layout(result) == layout(place) and compatible_forms(result, layout.shape) else "another coordinate"


def compatible_forms(tree: IntTuple, other: IntTuple) -> bool:
    if isinstance(tree, tuple) and isinstance(other, tuple):
        return len(tree) == len(other) and all(map(compatible_forms, tree, other))
    return not isinstance(tree, tuple) and not isinstance(other, tuple)


def law_of_concatenate(*arguments: Layout) -> str:
    """Return how a concatenation breaks its law: a coordinate for each layout, the sum of their indices."""
    *layouts, result = arguments
    if result.shape != tuple(layout.shape for layout in layouts):
        return "another shape"
    places = itertools.product(*(range(layout.size) for layout in layouts))
    wrong = [each for each in places if result(each) != sum(map(Layout.__call__, layouts, each))]
    return f"other indices, at {wrong[0]}" if wrong else ""


def law_of_compact(shape: IntTuple, result: Layout) -> str:
    """Every place is its own index."""
    if result.shape != shape:
        return "another shape"
    return "" if values(result) == list(range(prod(leaves(shape)))) else "other indices"


def law_of_swizzle(swizzle: Swizzle, index: int, result: int) -> str:
    """Bit by bit."""
    lowest = swizzle.base + max(-swizzle.shift, 0)
    for bit in range(32):
        read = index >> (bit + swizzle.shift) & 1 if lowest <= bit < lowest + swizzle.bits else 0
        if result >> bit & 1 != (index >> bit & 1) ^ read:
            return f"another bit {bit}"
    return ""


def law_of_size(layout: Layout, result: int) -> str:
    return "" if result == prod(leaves(layout.shape)) else "another size"


def law_of_depth(layout: Layout, result: int) -> str:
    """Return the most brackets around an extent."""
    brackets = itertools.accumulate({"(": 1, ")": -1}.get(character, 0) for character in str(layout.shape))
    return "" if result == max(brackets) else "another depth"


def law_of_cosize(layout: Layout, result: int) -> str:
    return "" if result == max(values(layout)) - min(values(layout)) + 1 else "another interval"


def law_of_merged(a: Swizzle, b: Swizzle, result: Swizzle) -> str:
    wrong = [index for index in range(1 << 10) if result(index) != a(b(index))]
    return f"other indices, at {wrong[0]}" if wrong else ""


def law_of_default(law: Callable[..., str]) -> Callable[..., str]:
    """Return a law without its second argument."""
    return lambda layout, result: law(layout, None, result)
