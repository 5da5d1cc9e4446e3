"""Tiling: division cuts a layout into tiles, multiplication repeats a layout as a tile. Results equal CuTe's."""

from __future__ import annotations

from collections.abc import Callable

from evt.layout.coalesce import coalesce
from evt.layout.complement import complement, complementary
from evt.layout.compose import Tiler, as_tiler, compose, concatenate, require_modes
from evt.layout.flat import filtered_pairs
from evt.layout.layout import Layout, as_layout, flat_layout
from evt.layout.refused import refused
from evt.layout.sums import differ_and_meet
from evt.layout.swizzle import through_swizzles


@through_swizzles
def logical_divide(layout: Layout, tiler: Tiler) -> Layout:
    """Return ``(tile, rest)``: the elements that the tiler selects, and how the tile moves; with a tuple, by mode."""
    return _by_mode(layout, as_tiler(tiler), _divide)


@through_swizzles
def zipped_divide(layout: Layout, tiler: Tiler) -> Layout:
    """Return ``((tile, tile, ...), (rest, rest, ...))``: the parts of all modes gathered."""
    return concatenate(*_zipped(logical_divide(layout, tiler), as_tiler(tiler)))


@through_swizzles
def tiled_divide(layout: Layout, tiler: Tiler) -> Layout:
    """Return ``((tile, tile, ...), rest, rest, ...)``."""
    return _tiled(zipped_divide(layout, tiler))


@through_swizzles
def flat_divide(layout: Layout, tiler: Tiler) -> Layout:
    """Return ``(tile, tile, ..., rest, rest, ...)``."""
    return _flat(zipped_divide(layout, tiler))


@through_swizzles
def logical_product(block: Layout, tiler: Tiler) -> Layout:
    """Return ``(block, copies)``: the block, and where its copies lie, in the tiler's order; with a tuple, by mode."""
    return _by_mode(block, as_tiler(tiler), _multiply)


@through_swizzles
def zipped_product(block: Layout, tiler: Tiler) -> Layout:
    """Return ``((block, block, ...), (copies, copies, ...))``: the parts of all modes gathered."""
    return concatenate(*_zipped(logical_product(block, tiler), as_tiler(tiler)))


@through_swizzles
def tiled_product(block: Layout, tiler: Tiler) -> Layout:
    """Return ``((block, block, ...), copies, copies, ...)``."""
    return _tiled(zipped_product(block, tiler))


@through_swizzles
def flat_product(block: Layout, tiler: Tiler) -> Layout:
    """Return ``(block, block, ..., copies, copies, ...)``."""
    return _flat(zipped_product(block, tiler))


@through_swizzles
def blocked_product(block: Layout, tiler: int | Layout) -> Layout:
    """Return ``((block0, copies0), (block1, copies1), ...)``: copies side by side, each a whole block."""
    return _paired(*_padded_product(block, as_layout(tiler)))


@through_swizzles
def raked_product(block: Layout, tiler: int | Layout) -> Layout:
    """Return ``((copies0, block0), (copies1, block1), ...)``: copies interleaved, element by element."""
    inner, outer = _padded_product(block, as_layout(tiler))
    return _paired(outer, inner)


def _divide(layout: Layout, tiler: Layout) -> Layout:
    return compose(layout, concatenate(tiler, complement(tiler, coalesce(layout).shape)))


def _multiply(block: Layout, tiler: Layout) -> Layout:
    own = filtered_pairs(block.leaves)
    gaps = flat_layout(complementary(own, block.size * tiler.cosize))
    copies = compose(gaps, tiler)
    low, high = tiler.bounds
    if tiler.cosize > gaps.size or low < 0 < high:  # beyond the places that the complement has, or to both sides
        coincide = gaps.size == 1 < tiler.cosize
        if coincide or differ_and_meet(own, copies.leaves):
            message = f"the copies share indices: the block leaves room for {gaps.size}, {gaps}, and not for {tiler}"
            help = f"a tiler of cosize {gaps.size} or less, with strides of one sign, would do"
            raise refused("E0674", message, help, block=block, tiler=tiler)
    return concatenate(block, copies)


def _by_mode(layout: Layout, tiler: Tiler, operation: Callable[[Layout, Layout], Layout]) -> Layout:
    if not isinstance(tiler, tuple):
        return operation(layout, as_layout(tiler))
    require_modes(layout, tiler)
    modes = layout.modes
    parts = (_by_mode(mode, part, operation) for mode, part in zip(modes, tiler, strict=False))
    return concatenate(*parts, *modes[len(tiler) :])


def _zipped(layout: Layout, tiler: Tiler) -> tuple[Layout, Layout]:
    """Return the first and the second halves of the pairs at the tiler's leaves; modes without a tiler are second
    halves.
    """
    if not isinstance(tiler, tuple):
        first, second = layout.modes
        return first, second
    modes = layout.modes
    pairs = [_zipped(mode, part) for mode, part in zip(modes, tiler, strict=False)]
    firsts, seconds = zip(*pairs, strict=True)
    return concatenate(*firsts), concatenate(*seconds, *modes[len(tiler) :])


def _tiled(zipped: Layout) -> Layout:
    tile, rest = zipped.modes
    return concatenate(tile, *_unpacked(rest))


def _flat(zipped: Layout) -> Layout:
    tile, rest = zipped.modes
    return concatenate(*_unpacked(tile), *_unpacked(rest))


def _unpacked(layout: Layout) -> tuple[Layout, ...]:
    """Return the modes; as in CuTe's slices, a tuple of one remains a tuple."""
    return layout.modes if layout.rank > 1 else (layout,)


def _padded_product(block: Layout, tiler: Layout) -> tuple[Layout, Layout]:
    rank = max(block.rank, tiler.rank)
    inner, outer = _multiply(_padded(block, rank), _padded(tiler, rank)).modes
    return inner, outer


def _paired(first: Layout, second: Layout) -> Layout:
    """Return the modes of two layouts of equal rank in pairs; as in CuTe, an integral layout is paired as a whole."""
    if not isinstance(first.shape, tuple):
        return concatenate(concatenate(first, second))
    if not isinstance(second.shape, tuple) or second.rank != first.rank:
        message = f"the product has the parts {first} and {second}, whose modes do not pair off"
        raise refused("E0674", message, "give block and tiler two modes or more, or both integral shapes")
    return concatenate(*map(concatenate, first.modes, second.modes))


def _padded(layout: Layout, rank: int) -> Layout:
    """Return the layout with modes of one element added up to the rank."""
    if layout.rank == rank:
        return layout
    return concatenate(*layout.modes, *[Layout(1, 0)] * (rank - layout.rank))
