"""Products of few rows or few columns on sm90 whose operands need no alignment: the main loop, its tiles, their speed.

The constants of few rows are fitted to 42 products of 1 to 64 rows in 210 kernels on an H200, 2026-11-28.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from evt.plan.geometry.convolution import ceil_div
from evt.plan.geometry.gemv import STAGE_BYTES, WARPS, GemvTile
from evt.plan.plan import MatrixProduct

#: The tiles that are built, each with the microseconds of a stage while all CTAs of an SM multiply.
TILES: Mapping[GemvTile, float] = {
    GemvTile(8, 32, by_rows=False): 1.1,
    GemvTile(16, 32, by_rows=False): 1.29,
    GemvTile(16, 64, by_rows=False): 1.26,
    GemvTile(32, 32, by_rows=False): 0.98,
    GemvTile(64, 32, by_rows=False): 1.34,
}
#: The tiles whose warps share the rows, each with the microseconds of a CTA and of its stages, while all CTAs of an SM
#: run. Fitted to 22 convolutions of 1 to 180 filters in 60 kernels on an H200, 2026-11-29.
TILES_BY_ROWS: Mapping[GemvTile, tuple[float, float]] = {
    GemvTile(32, 16, by_rows=True): (2.2, 0.36),
    GemvTile(128, 16, by_rows=True): (2.2, 0.13),
    GemvTile(128, 64, by_rows=True): (1.55, 0.54),
}
#: Microseconds of a launch of these tiles, with the first bytes from memory, and of a result of an SM.
_LAUNCH_BY_ROWS, _RESULT = 5.2, 0.46e-3
#: The time of a byte relative to the card's rate.
MOVED = 1.84
#: Microseconds of a launch, with the first bytes from memory, and of a row whose partial sums each CTA adds.
_LAUNCH, _ADDED = 9.5, 0.0176


@dataclass(frozen=True, slots=True)
class Gemv(MatrixProduct):
    """A product by the kernel of codegen/include/evt/kit/gemv.hpp."""

    tile: GemvTile = field(kw_only=True)


def start_and_work(
    tile: GemvTile, rows: int, columns: int, row_bytes: int, multiprocessors: int
) -> tuple[float, float]:
    """Return the microseconds of a launch with the exchange of sums, and of all tiles."""
    tiles, stages = tile.tiles(rows, columns), ceil_div(row_bytes, STAGE_BYTES)
    if tile.by_rows:
        of_tile, of_stage = TILES_BY_ROWS[tile]
        waves = max(1.0, tiles / (multiprocessors * tile.resident))
        return _LAUNCH_BY_ROWS, waves * (of_tile + stages * of_stage) + _RESULT * rows * columns / multiprocessors
    splits = tile.splits(tiles, stages, multiprocessors)
    waves = max(1.0, tiles * splits / (multiprocessors * tile.resident))
    return _LAUNCH + _ADDED * splits * tile.rows, waves * ceil_div(stages, splits * WARPS) * TILES[tile]
