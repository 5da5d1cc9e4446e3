"""The parameters of a product of few rows or few columns: ``shape(plan, sizes, multiprocessors)``.

The C++ launcher of codegen/include/evt/kit/gemv.hpp makes the same parameters; a test compares all bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

from evt.launch.shape import Shape
from evt.plan import Plan
from evt.plan.gemv import Gemv
from evt.plan.geometry.convolution import ceil_div
from evt.plan.geometry.gemv import STAGE_BYTES, STRIP, WARPS
from evt.plan.signature import bytes_of

MEMBERS = ("a", "b", "a_stride", "b_stride", "rows", "columns", "row_bytes", "stages", "row_tiles", "grid", "splits")


def shape(plan: Plan, sizes: Mapping[str, int], multiprocessors: int) -> Shape:
    """Return the launch for the sizes of a call."""
    loop = plan.mainloop
    assert isinstance(loop, Gemv)
    tile, size = loop.tile, bytes_of(loop.a.dtype)
    row_bytes, tiles = sizes["k"] * size, tile.tiles(sizes["m"], sizes["n"])
    stages = ceil_div(row_bytes, STAGE_BYTES)
    splits = tile.splits(tiles, stages, multiprocessors)
    values = {
        "a_stride": sizes[loop.a.leading.name] * size,
        "b_stride": sizes[loop.b.leading.name] * size,
        "rows": sizes["m"],
        "columns": sizes["n"],
        "row_bytes": row_bytes,
        "stages": stages,
        "row_tiles": ceil_div(sizes["m"], tile.rows),
        "grid": tiles * splits,
        "splits": splits,
    }
    parts = ceil_div(sizes["m"], tile.rows_of_warp), ceil_div(sizes["n"], STRIP)
    return Shape(values, (), parts, tiles * splits, 32 * WARPS, tile.shared_bytes, splits)
