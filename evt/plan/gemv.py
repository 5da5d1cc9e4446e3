"""Products of few rows on sm90 whose operands need no alignment: the main loop, its tiles, and their speed.

The constants are fitted to 42 products of 1 to 64 rows in 210 kernels on an H200, 2026-11-28.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from evt.plan.geometry.convolution import ceil_div
from evt.plan.geometry.gemv import STAGE_BYTES, WARPS, GemvTile
from evt.plan.plan import MatrixProduct

#: The tiles that are built, each with the microseconds of a stage while all CTAs of an SM multiply.
TILES: Mapping[GemvTile, float] = {
    GemvTile(8, 32): 1.1,
    GemvTile(16, 32): 1.29,
    GemvTile(16, 64): 1.26,
    GemvTile(32, 32): 0.98,
    GemvTile(64, 32): 1.34,
}
#: The time of a byte relative to the card's rate.
MOVED = 1.84
#: Microseconds of a launch, with the first bytes from memory, and of a row whose partial sums each CTA adds.
_LAUNCH, _ADDED = 9.5, 0.0176


@dataclass(frozen=True, slots=True)
class Gemv(MatrixProduct):
    """A product by the kernel of codegen/include/evt/kit/gemv.hpp."""


def start_and_work(
    tile: GemvTile, rows: int, columns: int, row_bytes: int, multiprocessors: int
) -> tuple[float, float]:
    """Return the microseconds of a launch with the exchange of sums, and of the stages of all tiles."""
    tiles, stages = tile.tiles(rows, columns), ceil_div(row_bytes, STAGE_BYTES)
    splits = tile.splits(tiles, stages, multiprocessors)
    waves = max(1.0, tiles * splits / (multiprocessors * tile.resident))
    return _LAUNCH + _ADDED * splits * tile.rows, waves * ceil_div(stages, splits * WARPS) * TILES[tile]
