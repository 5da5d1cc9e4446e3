"""CuTe's layouts: shape:stride trees that map coordinates to indices, their algebra, and their properties.

    >>> from evt.layout import Layout, complement, naive_cosize_fault
    >>> tile = Layout.parse("(4,8):(8,1)")
    >>> tile(1, 2), tile @ Layout(8, 4), complement(Layout(4, 2), 24)
    (10, Layout.parse('8:1'), Layout.parse('(2,3):(1,8)'))

Every function accepts an int n as the layout n:1. A tuple is not a layout but a tiler, applied mode by mode. The
functions return a result or raise LayoutError, for any arguments. A *place* is CuTe's 1-D coordinate: the position of a
coordinate in the colexicographic order.

The modules, each after the ones that it uses: :mod:`tree` (integers in trees); :mod:`flat` (lists of pairs) and
:mod:`notation` (texts); :mod:`derivation` (CuTe's composition); :mod:`layout`; :mod:`swizzle`; :mod:`sums` and
:mod:`facts`; :mod:`compose`, with :mod:`carry` (moving a swizzle through a layout); :mod:`coalesce`, :mod:`complement`,
:mod:`inverse`; :mod:`tile` (division and product); :mod:`parse`; :mod:`access` (vector width, overlap, bank conflicts);
:mod:`draw`. They depend on evt's diagnostics only.
"""

from evt.errors import LayoutError
from evt.layout.access import (
    Wavefronts,
    bank,
    bank_conflicts,
    contiguous_mode,
    interleaves,
    overlaps,
    single_stride,
    span,
    vector_width,
    widest_vector,
)
from evt.layout.coalesce import coalesce, filtered
from evt.layout.complement import complement
from evt.layout.compose import Tiler, compose, concatenate
from evt.layout.draw import draw_svg, draw_text, grid
from evt.layout.facts import is_contiguous, is_injective, naive_cosize_fault
from evt.layout.inverse import left_inverse, right_inverse
from evt.layout.layout import Layout
from evt.layout.parse import parse, parse_tiler
from evt.layout.swizzle import ComposedLayout, Swizzle
from evt.layout.tile import (
    blocked_product,
    flat_divide,
    flat_product,
    logical_divide,
    logical_product,
    raked_product,
    tiled_divide,
    tiled_product,
    zipped_divide,
    zipped_product,
)
from evt.layout.tree import IntTuple

__all__ = [
    "ComposedLayout",
    "IntTuple",
    "Layout",
    "LayoutError",
    "Swizzle",
    "Tiler",
    "Wavefronts",
    "bank",
    "bank_conflicts",
    "blocked_product",
    "coalesce",
    "complement",
    "compose",
    "concatenate",
    "contiguous_mode",
    "draw_svg",
    "draw_text",
    "filtered",
    "flat_divide",
    "flat_product",
    "grid",
    "interleaves",
    "is_contiguous",
    "is_injective",
    "left_inverse",
    "logical_divide",
    "logical_product",
    "naive_cosize_fault",
    "overlaps",
    "parse",
    "parse_tiler",
    "raked_product",
    "right_inverse",
    "single_stride",
    "span",
    "tiled_divide",
    "tiled_product",
    "vector_width",
    "widest_vector",
    "zipped_divide",
    "zipped_product",
]
