"""The times of the GEMM kernel's tiles, fitted for the model of :mod:`evt.plan.gemm_speed`.

The constants are fitted to 477 products on an H100 and an H200 in 5,740 kernels, 2026-11. They have 1 to 802,816 rows,
residuals, gates, functions and bits. The median error of 187 other products is 5.4 %, and the chosen tile takes 1.02 of
the best one's time on average.

The constants of 128 and 192 rows that split k are fitted to 38 products of 64 to 4,096 rows on an H200, 2026-11-29. The
stages of tiles that also share operands are fitted to 13 others. Their epilogues include the exchange of sums.
The constants of pingpong tiles of 72, 88 and 120 rows, of (1, 4, 2), (2, 2, 1) and (2, 1, 4) clusters, of consumers by
stages without conversion, of 16 and 64 rows and pairs that split k, and of 56, 120 and 152 rows are fitted on an H200,
2026-11-29: to 33 products of few tiles, 48 of few columns, 20 of pairs, and 20 of 8-bit floats. Another tile than
before is chosen for 48 of 111 other products: it takes 0.90 of the time, at most 1.17. Two were corrected then.
The constants of 88, 112, 168 and 176 rows, and of pairs of 32 and 48 rows, are fitted on an H200, 2026-11-29, to 90
products. Another tile than before is chosen for 17 of 300 others: it takes 0.93 of the time, at most 1.03. A constant
of pairs by stages was corrected then.
The constants of 64, 80, 88 and 120 rows without splits, of (1, 2, 1) clusters of 160 rows, and of (1, 2, 2) and
(2, 1, 2) clusters are corrected on an H200, 2026-11-29, by 68 products of few tiles. Another tile than before
is chosen for 176 of 3,704 others: it takes 0.976 of the time in 54 products, at most 1.144. The constants of (2, 1, 2)
were corrected then.
The constants of 160 rows and 256 columns in clusters, of 168 rows, of pingpong clusters of 192 rows, and of bits are
fitted on an H200, 2026-11-30, to 38 products of 1,024 rows or more. The constants of 8 rows and of deep stages without
conversion are fitted to 6 products of 1 and 16 rows.
The stage of 80 rows is corrected on an H200, 2026-11-30, by a product. Another tile than before is chosen for 17
others, which take 0.969 of the time, at most 1.007.
The constants of promoted sums, and of 16 rows with pairs of columns for two CTAs that split k, are fitted on an H200,
2026-11-30, to 24 and 58 products, and corrected by 67 and 95 others.
The constants of tiles by rows, by stages, and of 16 rows without splits are fitted to products on an H100, 2026-11. The
constants of a packed B and 64 rows that split k are fitted on an H200, 2026-11-28. Other deep stages of 64 to 128 rows
that split k are fitted to 72 products in loops of launches on an H200, 2026-11-29. A tile by rows of 128 columns is
measured beside one of 192 columns on an H200, 2026-11-29.
"""

from __future__ import annotations

from typing import NamedTuple

from evt.plan.gemm import DEEP_ROW_BYTES, Tile


class Speed(NamedTuple):
    """Microseconds of a tile: of a stage of 128 bytes of k, and of an epilogue without C and D."""

    stage: float
    epilogue: float


#: The measured tiles.
SPEEDS = {
    Tile(256, 1, False, (1, 2, 1)): Speed(0.614, 1.98),
    Tile(192, 2, True, (1, 2, 1)): Speed(0.479, 1.34),
    Tile(192, 1, False, (1, 2, 1)): Speed(0.489, 1.11),
    Tile(176, 1, False): Speed(0.421, 1.87),
    Tile(168, 2, True): Speed(0.411, 1.3),
    Tile(160, 2, True, (1, 2, 1)): Speed(0.43, 0.28),
    Tile(160, 1, False, (1, 2, 1)): Speed(0.409, 1.6),
    Tile(128, 2, True): Speed(0.313, 1.18),
    Tile(128, 1, False): Speed(0.299, 1.29),
    Tile(128, 1, False, (1, 1, 4)): Speed(0.48, 1.5),
    Tile(128, 1, False, (2, 1, 2)): Speed(0.31, 2.7),
    Tile(128, 1, False, (1, 2, 4)): Speed(0.37, 2.5),
    Tile(128, 1, False, (1, 4, 2)): Speed(0.338, 2.66),
    Tile(192, 1, False, (1, 1, 2)): Speed(0.45, 3.4),
    Tile(192, 1, False, (1, 1, 4)): Speed(0.55, 2.6),
    Tile(192, 1, False, (1, 2, 2)): Speed(0.468, 3.6),
    Tile(256, 1, False, (1, 2, 2)): Speed(0.65, 5.1),
    Tile(128, 1, True): Speed(0.215, 0.0),
    Tile(200, 1, False): Speed(0.482, 1.81),
    Tile(144, 2, True, (1, 2, 1)): Speed(0.367, 1.62),
    Tile(128, 3, True): Speed(0.451, 1.53),
    Tile(152, 2, True): Speed(0.354, 1.44),
    Tile(152, 2, False): Speed(0.748, 2.36),
    Tile(160, 2, False): Speed(0.789, 2.28),
    Tile(160, 2, False, (2, 1, 1)): Speed(0.78, 3.2),
    Tile(56, 1, False): Speed(0.152, 0.97),
    Tile(80, 1, False): Speed(0.185, 1.35),
    Tile(80, 1, False, (2, 2, 1)): Speed(0.24, 1.6),
    Tile(88, 1, False): Speed(0.196, 1.4),
    Tile(96, 1, False): Speed(0.215, 1.3),
    Tile(96, 1, False, (2, 1, 4)): Speed(0.292, 3.19),
    Tile(104, 1, False): Speed(0.239, 1.41),
    Tile(112, 1, False): Speed(0.257, 1.68),
    Tile(120, 1, False): Speed(0.296, 1.3),
    Tile(96, 2, True): Speed(0.234, 1.16),
    Tile(96, 3, True): Speed(0.372, 1.06),
    Tile(144, 1, False): Speed(0.329, 1.87),
    Tile(152, 1, False): Speed(0.38, 1.37),
    Tile(256, 1, True): Speed(0.42, 0.07),
    Tile(64, 2, True): Speed(0.164, 1.05),
    Tile(64, 1, False): Speed(0.16, 0.96),
    Tile(64, 1, False, (1, 1, 2)): Speed(0.267, 2.04),
    Tile(64, 1, False, (1, 1, 4)): Speed(0.211, 1.69),
    Tile(120, 1, True): Speed(0.142, 1.3),
    Tile(88, 1, True): Speed(0.12, 1.0),
    Tile(72, 1, True): Speed(0.128, 0.79),
    Tile(64, 1, True): Speed(0.103, 0.87),
    Tile(32, 1, False): Speed(0.144, 0.0),
    Tile(32, 1, True): Speed(0.098, 0.67),
    Tile(32, 1, False, (1, 1, 4), by_stages=True): Speed(0.28, 0.83),
    Tile(16, 1, False): Speed(0.118, 0.0),
    Tile(16, 1, False, (1, 1, 2)): Speed(0.219, 0.6),
    Tile(16, 1, False, (1, 1, 4)): Speed(0.178, 1.46),
    Tile(16, 1, False, (1, 1, 8), by_stages=True): Speed(0.243, 2.25),
    Tile(16, 1, True): Speed(0.085, 0.65),
    Tile(16, 2, True, row_bytes=DEEP_ROW_BYTES): Speed(0.098, 0.95),
    Tile(8, 1, False, (1, 1, 4), by_stages=True): Speed(0.27, 0.6),
    Tile(128, 8, False, by_rows=True): Speed(0.338, 1.2),
    Tile(128, 9, False, by_rows=True): Speed(0.423, 1.65),
    Tile(128, 10, False, by_rows=True): Speed(0.456, 1.5),
    Tile(128, 11, False, by_rows=True): Speed(0.522, 1.95),
    Tile(128, 12, False, by_rows=True): Speed(0.547, 1.65),
    Tile(64, 1, False, (1, 1, 2), DEEP_ROW_BYTES): Speed(0.25, 2.5),
    Tile(64, 1, False, (1, 1, 2), DEEP_ROW_BYTES, by_stages=True): Speed(0.3, 3.5),
    Tile(64, 1, False, (1, 1, 4), DEEP_ROW_BYTES, by_stages=True): Speed(0.288, 2.95),
    Tile(96, 1, False, (1, 1, 4), DEEP_ROW_BYTES): Speed(0.145, 4.57),
    Tile(128, 1, False, (1, 1, 2), DEEP_ROW_BYTES): Speed(0.368, 1.73),
    Tile(128, 1, False, (1, 1, 2), DEEP_ROW_BYTES, by_stages=True): Speed(0.448, 4.32),
}
#: Tiles for pairs of columns, fitted to 4 to 34 products on an H200 and an H100, 2026-11: a cluster takes the same
#: time.
OF_PAIRS = {
    **{Tile(128, 2, False, (down, 1, 1)): Speed(0.62, 1.64) for down in (1, 2)},
    Tile(48, 2, True): Speed(0.132, 0.31),
    Tile(64, 2, False, (1, 1, 4)): Speed(0.299, 4.04),
    Tile(32, 2, False, (1, 1, 4)): Speed(0.3, 2.95),
    Tile(16, 2, False, (1, 1, 4)): Speed(0.223, 3.29),
    Tile(48, 2, False, (1, 1, 4), by_stages=True): Speed(0.7, 1.6),
    Tile(32, 2, False, (1, 1, 4), by_stages=True): Speed(0.403, 2.17),
    Tile(16, 2, False, (1, 1, 4), by_stages=True): Speed(0.149, 3.66),
    Tile(8, 2, False, (1, 1, 4), by_stages=True): Speed(0.145, 3.1),
    Tile(8, 2, False, (1, 1, 2), DEEP_ROW_BYTES, by_stages=True): Speed(0.2, 2.6),
    Tile(16, 2, False, (1, 1, 2), by_stages=True): Speed(0.4, 1.6),
    Tile(16, 2, True): Speed(0.113, 0.12),
    Tile(16, 2, True, row_bytes=DEEP_ROW_BYTES): Speed(0.098, 0.58),
}
#: Tiles whose sums of 8-bit floats are promoted, without factors.
OF_PROMOTED = {
    Tile(192, 1, False, (1, 2, 1)): Speed(0.489, 2.1),
    Tile(176, 1, False, (1, 2, 1)): Speed(0.46, 3.0),
    Tile(168, 1, False): Speed(0.407, 2.1),
    Tile(160, 1, False, (1, 2, 1)): Speed(0.417, 1.8),
    Tile(152, 1, False): Speed(0.368, 1.5),
    Tile(96, 1, False): Speed(0.209, 1.3),
}
#: Tiles of a packed B, fitted to 78 products of 17 to 512 rows on an H200, 2026-11-29.
OF_PACKED = {
    Tile(128, 1, False, row_bytes=DEEP_ROW_BYTES): Speed(0.377, 0.0),
    Tile(112, 1, False, row_bytes=DEEP_ROW_BYTES): Speed(0.339, 0.4),
    Tile(104, 1, False, row_bytes=DEEP_ROW_BYTES): Speed(0.336, 0.0),
    Tile(96, 1, False, row_bytes=DEEP_ROW_BYTES): Speed(0.316, 0.4),
    Tile(88, 1, False, row_bytes=DEEP_ROW_BYTES): Speed(0.303, 0.0),
    Tile(80, 1, False, row_bytes=DEEP_ROW_BYTES): Speed(0.275, 0.4),
    Tile(72, 1, False, row_bytes=DEEP_ROW_BYTES): Speed(0.261, 0.0),
    Tile(64, 1, False, row_bytes=DEEP_ROW_BYTES): Speed(0.24, 0.0),
    Tile(48, 1, False, row_bytes=DEEP_ROW_BYTES): Speed(0.218, 0.4),
    Tile(128, 1, False, (1, 1, 2), DEEP_ROW_BYTES): Speed(0.408, 2.0),
    Tile(96, 1, False, (1, 1, 2), DEEP_ROW_BYTES): Speed(0.324, 2.8),
    Tile(64, 1, False, (1, 1, 2), DEEP_ROW_BYTES): Speed(0.247, 2.0),
    Tile(128, 1, False, (1, 1, 2), DEEP_ROW_BYTES, by_stages=True): Speed(0.497, 2.8),
    Tile(96, 1, False, (1, 1, 2), DEEP_ROW_BYTES, by_stages=True): Speed(0.37, 3.6),
    Tile(64, 1, False, (1, 1, 2), DEEP_ROW_BYTES, by_stages=True): Speed(0.288, 2.8),
}
