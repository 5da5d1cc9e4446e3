"""Tiling: division cuts a layout into tiles, multiplication repeats a layout as a tile. Results are as CuTe's C++.

A tiler is a layout, or an extent for that many neighbours; or a tuple of tilers, one for each mode. All raise
LayoutError E0674 where the compositions and complements that they consist of do.
"""

from __future__ import annotations

from collections.abc import Callable

from evt.layout.algebra import Tiler, coalesce, complement, compose, concatenate, require_modes
from evt.layout.layout import Layout


def logical_divide(layout: Layout, tiler: Tiler) -> Layout:
    """``(tile, rest)``: the elements that the tiler picks, and how the tile moves; for a tuple within each mode."""
    return _by_mode(layout, tiler, _divide)


def zipped_divide(layout: Layout, tiler: Tiler) -> Layout:
    """``((tile, tile, ...), (rest, rest, ...))``: the parts of all modes gathered."""
    return concatenate(*_zipped(logical_divide(layout, tiler), tiler))


def tiled_divide(layout: Layout, tiler: Tiler) -> Layout:
    """``((tile, tile, ...), rest, rest, ...)``."""
    return _tiled(zipped_divide(layout, tiler))


def flat_divide(layout: Layout, tiler: Tiler) -> Layout:
    """``(tile, tile, ..., rest, rest, ...)``."""
    return _flat(zipped_divide(layout, tiler))


def logical_product(block: Layout, tiler: Tiler) -> Layout:
    """``(block, copies)``: the block, and where the copies lie, in the tiler's order; for a tuple within each mode."""
    return _by_mode(block, tiler, _multiply)


def zipped_product(block: Layout, tiler: Tiler) -> Layout:
    """``((block, block, ...), (copies, copies, ...))``: the parts of all modes gathered."""
    return concatenate(*_zipped(logical_product(block, tiler), tiler))


def tiled_product(block: Layout, tiler: Tiler) -> Layout:
    """``((block, block, ...), copies, copies, ...)``."""
    return _tiled(zipped_product(block, tiler))


def flat_product(block: Layout, tiler: Tiler) -> Layout:
    """``(block, block, ..., copies, copies, ...)``."""
    return _flat(zipped_product(block, tiler))


def blocked_product(block: Layout, tiler: Layout) -> Layout:
    """``((block0, copies0), (block1, copies1), ...)``: copies side by side, each a whole block."""
    inner, outer = _padded_product(block, tiler)
    return concatenate(*map(concatenate, inner.modes, outer.modes))


def raked_product(block: Layout, tiler: Layout) -> Layout:
    """``((copies0, block0), (copies1, block1), ...)``: copies interleaved, element by element."""
    inner, outer = _padded_product(block, tiler)
    return concatenate(*map(concatenate, outer.modes, inner.modes))


def _divide(layout: Layout, tiler: Layout) -> Layout:
    return compose(layout, concatenate(tiler, complement(tiler, coalesce(layout).shape)))


def _multiply(block: Layout, tiler: Layout) -> Layout:
    return concatenate(block, compose(complement(block, block.size * tiler.cosize), tiler))


def _by_mode(layout: Layout, tiler: Tiler, operation: Callable[[Layout, Layout], Layout]) -> Layout:
    if not isinstance(tiler, tuple):
        return operation(layout, tiler if isinstance(tiler, Layout) else Layout(tiler))
    require_modes(layout, tiler)
    modes = layout.modes
    parts = (_by_mode(mode, part, operation) for mode, part in zip(modes, tiler, strict=False))
    return concatenate(*parts, *modes[len(tiler) :])


def _zipped(layout: Layout, tiler: Tiler) -> tuple[Layout, Layout]:
    """The first and the second halves of the pairs that stand at the tiler's leaves; what has no tiler is a rest."""
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
    """The modes; as in CuTe's slices a tuple of one stays a tuple."""
    return layout.modes if layout.rank > 1 else (layout,)


def _padded_product(block: Layout, tiler: Layout) -> tuple[Layout, Layout]:
    rank = max(block.rank, tiler.rank)
    inner, outer = logical_product(_padded(block, rank), _padded(tiler, rank)).modes
    return inner, outer


def _padded(layout: Layout, rank: int) -> Layout:
    """The layout with as many modes, of one element where it has none."""
    if layout.rank == rank:
        return layout
    return concatenate(*layout.modes, *[Layout(1, 0)] * (rank - layout.rank))
