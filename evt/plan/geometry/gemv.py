"""Tiles of the kernel of products of few rows or few columns, and its splits of k.

A CTA has a tile of rows and strips of columns. Rows of A and of B stream through rings in shared memory. If rows are
few, the warps multiply parts of k, and each streams all rows of its tile. If rows are many, the warps share them, and
each streams a part.

Part of :mod:`evt.plan.geometry`.
"""

from __future__ import annotations

from dataclasses import dataclass

from evt.plan.geometry.convolution import ceil_div

#: Columns of a strip, and warps of a CTA.
STRIP = 16
WARPS = 4
#: Bytes of k of a stage, bytes of a chunk that a lane copies, and stages of a ring.
STAGE_BYTES = 128
CHUNK_BYTES = 16
STAGES = 4
#: Bytes of a row's ring. The chunk after the last stage makes lanes of 8 rows read different banks.
PITCH = 528
#: Shared memory of an SM, and the system's share of it for each CTA; CTAs that share an SM, at most.
MULTIPROCESSOR_BYTES = 233472
RESERVED_BYTES = 1024
MOST_RESIDENT = 4
#: Bytes of a row that offsets of 32 bits reach.
MOST_ROW_BYTES = 1073741824
#: CTAs that split k, at most, and the fewest stages of a warp then.
MOST_SPLITS = 8
FEWEST_STAGES = 2


@dataclass(frozen=True, slots=True)
class GemvTile:
    """The rows and the columns of a CTA. ``by_rows``: the warps share the rows, and not k."""

    rows: int
    columns: int
    by_rows: bool

    @property
    def rows_of_warp(self) -> int:
        """The rows that a warp multiplies, and streams."""
        return self.rows // WARPS if self.by_rows else self.rows

    @property
    def columns_of_warp(self) -> int:
        """The columns that a warp streams; a warp multiplies all columns."""
        return self.columns // WARPS if self.by_rows else self.columns

    @property
    def shared_bytes(self) -> int:
        """The shared memory of a CTA."""
        return WARPS * (self.rows_of_warp + self.columns_of_warp) * PITCH

    @property
    def resident(self) -> int:
        """The CTAs that share an SM."""
        fit = MULTIPROCESSOR_BYTES // (self.shared_bytes + RESERVED_BYTES)
        return MOST_RESIDENT if fit > MOST_RESIDENT else fit  # device code cannot take a constant's address for min

    def tiles(self, m: int, n: int) -> int:
        """Return the tiles of a product."""
        return ceil_div(m, self.rows) * ceil_div(n, self.columns)

    def splits(self, tiles: int, stages: int, multiprocessors: int) -> int:
        """Return the CTAs that split the stages of k, so that tiles keep all SMs busy."""
        splits = 1
        if self.by_rows:
            return splits
        while (
            2 * splits <= MOST_SPLITS
            and 2 * splits * tiles <= multiprocessors * self.resident
            and 2 * splits * WARPS * FEWEST_STAGES <= stages
        ):
            splits = 2 * splits
        return splits
