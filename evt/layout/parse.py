"""Texts of layouts, swizzles and tilers: ``parse(str(x)) == x``. :mod:`notation` has the grammar."""

from __future__ import annotations

from evt.layout.compose import Tiler
from evt.layout.layout import Layout
from evt.layout.notation import Strided, Swizzled, Tiling, read_any, read_tiler
from evt.layout.swizzle import ComposedLayout, Swizzle
from evt.layout.tree import IntTuple


def parse(text: str) -> Layout | Swizzle | ComposedLayout:
    """Return the layout, swizzle or swizzled layout of a text.

    Raise LayoutError: E0671, with the place, for syntax, and E0672 for an invalid layout.
    """
    found = read_any(text)
    if not isinstance(found, Swizzled):
        return _layout(found)
    swizzle = Swizzle(found.bits, found.base, found.shift)
    return swizzle if found.layout is None else ComposedLayout(swizzle, found.offset, _layout(found.layout))


def parse_tiler(text: str) -> Tiler:
    """Return the tiler of a text: a layout, or for each mode an integer, a tuple or a tiler, as in ``<4:2,8>``.

    Raise LayoutError as :func:`parse` does.
    """
    return _tiler(read_tiler(text))


def _layout(found: IntTuple | Strided) -> Layout:
    return Layout(found.shape, found.stride) if isinstance(found, Strided) else Layout(found)


def _tiler(found: Tiling) -> Tiler:
    if isinstance(found, tuple):
        return tuple(map(_tiler, found))
    return _layout(found) if isinstance(found, Strided) else found
