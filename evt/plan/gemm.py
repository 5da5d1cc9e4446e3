"""The tiles of the GEMM kernel of sm90, and its speed: ``tiles_of(product)``, ``microseconds(tile, size)``.

The model has, for each tile, the time of a stage of 128 bytes of k and of an epilogue. L2 serves a number of lines in a
time, two for each 128 bytes that begin within a line. A pingpong consumer's epilogue is hidden behind the other's
multiplications, except for the last one. Work that overlaps counts by its L4 norm. The constants are fitted to 152
products on an H100 in 1856 kernels, 2026-11: f16 and bf16, of 1 to 100352 rows, with and without a residual. The median
error near the best tile is 3.1 %; the chosen tile takes 1.008 of the best tile's time on average. Tiles of 96, 144 and
200 rows, of 192 columns, and the splits of k in four are fitted to 42 further products, and cooperating consumers of 96
and 144 rows to 120, where the chosen tile takes 1.01 of the best one's time. The library's time has the same form, with
the best of all tiles and as if rows were whole lines: its median error is 2.5 %.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from evt.ir.dtype import DType
from evt.plan.cards import FITS, traffic_of
from evt.plan.configurations.config import Config
from evt.plan.geometry.convolution import ceil_div
from evt.plan.geometry.halo import ALIGNMENT, EIGHT, FILTERS, SHARED_BYTES, STEP_PIXELS

#: The rows of a tile: N of WGMMA; for integers a multiple of 16 beyond 32.
_ROWS = range(8, 257, 8)
_MOST_OF_INTEGERS = 32
#: Accumulators of a consumer's thread, at most, and the CTAs of a cluster.
_MOST_SUMS, _MOST_CTAS = 192, 8
#: Clusters along rows and columns, and along k.
_CLUSTERS, _SPLITS = ((1, 1), (1, 2), (2, 1)), (1, 2, 4, 8)
#: Bytes of shared memory for the alignment of stages and for barriers, at most.
_BARRIERS = 2048
#: Bytes of a row of A or B in a stage.
_ROW_BYTES = (128, 64, 256)
#: Bytes of a row of A in a stage of 128 elements of k beside a B that is converted, and the most accumulators then.
_DEEP_ROW_BYTES, _MOST_DEEP_SUMS = 256, 64
#: The elements of k of a stage with a packed B.
PACKED_DEPTH = 128
#: The most groups of rows with a B each: kMaxGroups of kit/gemm.hpp.
MAX_GROUPS = 1024
#: The longest row that TMA swizzles.
MAX_ROW_BYTES = 128
#: The most rows of a part of C and D: of consumers that complete all columns, and of cooperating ones.
_PART_ROWS = {True: 64, False: 32}


class Tile(NamedTuple):
    """A tile: its rows, blocks of 64 columns of each consumer, whether consumers are pingpong, and the cluster.

    ``cluster`` is along rows, columns and k. ``row_bytes`` are the bytes of k of a stage. ``by_rows``: each consumer
    has 64 rows, M of WGMMA, and all columns. ``by_stages``: each has every other stage, and all columns.
    """

    rows: int
    blocks: int
    pingpong: bool
    cluster: tuple[int, int, int] = (1, 1, 1)
    row_bytes: int = 128
    by_rows: bool = False
    by_stages: bool = False

    @property
    def columns(self) -> int:
        """The columns of a tile."""
        return self.blocks * FILTERS * (1 if self.pingpong or self.by_rows or self.by_stages else 2)

    @property
    def sums(self) -> int:
        """The accumulators of a consumer's thread."""
        return self.rows * self.columns // (_THREADS * (1 if self.pingpong or self.by_stages else 2))


def tile_of(config: Config, operand_bytes: int) -> Tile:
    """Return the tile of a configuration."""
    rows, columns, depth = config.tile
    blocks = columns // (2 * FILTERS if config.schedule == "own_cooperative" else FILTERS)
    pingpong, by_rows, by_stages = (config.schedule == f"own_{name}" for name in ("pingpong", "rows", "stages"))
    return Tile(rows, blocks, pingpong, config.cluster, depth * operand_bytes, by_rows, by_stages)


class Speed(NamedTuple):
    """Microseconds of a tile: of a stage of 128 bytes of k, and of an epilogue."""

    stage: float
    epilogue: float


#: The measured tiles.
_SPEEDS = {
    Tile(256, 1, False, (1, 2, 1)): Speed(0.662, 3.221),
    Tile(192, 2, True, (1, 2, 1)): Speed(0.524, 2.752),
    Tile(192, 1, False, (1, 2, 1)): Speed(0.49, 2.674),
    Tile(160, 2, True, (1, 2, 1)): Speed(0.436, 4.01),
    Tile(160, 1, False, (1, 2, 1)): Speed(0.445, 1.483),
    Tile(128, 2, True): Speed(0.355, 1.464),
    Tile(128, 1, False): Speed(0.345, 1.9),
    Tile(128, 1, False, (1, 1, 4)): Speed(0.34, 6.47),
    Tile(128, 1, True): Speed(0.244, 0.001),
    Tile(200, 1, False): Speed(0.513, 2.6),
    Tile(144, 2, True, (1, 2, 1)): Speed(0.409, 2.5),
    Tile(128, 3, True): Speed(0.524, 4.0),
    Tile(96, 1, False): Speed(0.235, 2.7),
    Tile(144, 1, False): Speed(0.36, 3.0),
    Tile(256, 1, True): Speed(0.497, 1.008),
    Tile(64, 2, True): Speed(0.193, 1.198),
    Tile(64, 1, False): Speed(0.196, 0.708),
    Tile(64, 1, False, (1, 1, 2)): Speed(0.234, 2.53),
    Tile(64, 1, False, (1, 1, 4)): Speed(0.25, 2.8),
    Tile(64, 1, True): Speed(0.129, 1.028),
    Tile(32, 1, False): Speed(0.144, 0.213),
    Tile(32, 1, True): Speed(0.088, 0.875),
    Tile(16, 1, False): Speed(0.118, 0.0),
    Tile(16, 1, False, (1, 1, 2)): Speed(0.219, 0.8),
    Tile(16, 1, False, (1, 1, 4)): Speed(0.2, 1.6),
    Tile(16, 1, True): Speed(0.079, 0.787),
    Tile(128, 2, False, (2, 1, 1), by_rows=True): Speed(0.43, 1.1),
    Tile(128, 3, False, (1, 2, 1), by_rows=True): Speed(0.59, 1.3),
    Tile(64, 1, False, (1, 1, 2), _DEEP_ROW_BYTES, by_stages=True): Speed(0.3, 3.7),
    Tile(16, 1, False, (1, 1, 2), _DEEP_ROW_BYTES, by_stages=True): Speed(0.25, 2.6),
}
#: A tile for pairs of columns, fitted to 9 products on an H200, 2026-11: its cluster takes the same time.
_OF_PAIRS = {Tile(128, 2, False, (down, 1, 1)): Speed(0.64, 2.0) for down in (1, 2)}
#: The time of a stage whose sums have factors, relative to a stage without factors. A thread reads a factor from shared
#: memory for two sums, unless the tile is by rows.
FACTORS = 1.3
#: The microseconds of a consumer that converts a stage: of a B of 8 bits, and of a packed B by its number of factors.
#: Fitted to kernels of Llama 3 8B's projections on an H100, 2026-11.
CONVERTED, UNPACKED = 0.17, (0.145, 0.18, 0.21)
#: The tiles that are built, the general one first: together 1.003 of the best of all measured ones.
_OFFERED = (
    Tile(128, 2, True),
    Tile(256, 1, False, (1, 2, 1)),
    Tile(192, 2, True, (1, 2, 1)),
    Tile(160, 1, False, (1, 2, 1)),
    Tile(64, 2, True),
    Tile(64, 1, False, (1, 1, 4)),
    Tile(64, 1, True),
    Tile(32, 1, True),
    Tile(16, 1, True),
    Tile(16, 1, False, (1, 1, 4)),
    Tile(200, 1, False),
    Tile(128, 3, True),
    Tile(144, 2, True, (1, 2, 1)),
    *(Tile(rows, 1, False) for rows in (64, 96, 128, 144)),
)
#: With promoted accumulation a consumer has twice the accumulators, and multiplies while the other one adds.
_PROMOTED = (
    Tile(128, 1, False),
    Tile(192, 1, False, (1, 2, 1)),
    Tile(64, 1, False),
    Tile(32, 1, False),
    Tile(16, 1, False),
    Tile(64, 1, False, (1, 1, 4)),
    Tile(16, 1, False, (1, 1, 4)),
)
#: The tiles for factors of rows: tall ones are by rows.
_SCALED_BY_ROWS = (
    Tile(128, 2, False, (2, 1, 1), by_rows=True),
    Tile(128, 3, False, (1, 2, 1), by_rows=True),
    *(tile for tile in _PROMOTED if tile.rows < 2 * FILTERS),
)
#: Filters of 8 bits that are converted take registers.
_CONVERTED = (
    Tile(128, 1, False),
    Tile(192, 1, False, (1, 2, 1)),
    Tile(64, 1, False, row_bytes=_DEEP_ROW_BYTES),
    Tile(64, 1, True, row_bytes=_DEEP_ROW_BYTES),
    Tile(16, 1, False, row_bytes=_DEEP_ROW_BYTES),
    Tile(16, 1, True, row_bytes=_DEEP_ROW_BYTES),
    Tile(64, 1, False, (1, 1, 2), _DEEP_ROW_BYTES, by_stages=True),
    Tile(16, 1, False, (1, 1, 2), _DEEP_ROW_BYTES, by_stages=True),
)
#: The tiles for packed filters.
_PACKED = (
    Tile(128, 1, False, row_bytes=_DEEP_ROW_BYTES),
    Tile(64, 1, False, row_bytes=_DEEP_ROW_BYTES),
    Tile(32, 1, False, row_bytes=_DEEP_ROW_BYTES),
    Tile(16, 1, False, row_bytes=_DEEP_ROW_BYTES),
    Tile(64, 1, False, (1, 1, 2), _DEEP_ROW_BYTES),
    Tile(16, 1, False, (1, 1, 2), _DEEP_ROW_BYTES),
    Tile(64, 1, False, (1, 1, 2), _DEEP_ROW_BYTES, by_stages=True),
    Tile(16, 1, False, (1, 1, 2), _DEEP_ROW_BYTES, by_stages=True),
)
#: Tiles for pairs of columns: each of the two blocks of a consumer has a column of a pair.
_PAIRED = (
    Tile(128, 2, True),
    Tile(192, 2, True, (1, 2, 1)),
    Tile(160, 2, True, (1, 2, 1)),
    Tile(128, 2, False),
    Tile(64, 2, True),
    Tile(32, 2, True),
    Tile(16, 2, True),
    Tile(64, 2, False, (1, 1, 4)),
    Tile(16, 2, False, (1, 1, 4)),
)
_PAIRED_PROMOTED = (Tile(96, 2, False), Tile(64, 2, False), Tile(32, 2, False), Tile(16, 2, False))
#: Microseconds of a launch, with the first bytes from memory.
LAUNCH = 6.1
#: Microseconds of a kernel that copies operands, besides their traffic.
COPY = 2.5
#: Microseconds that a thread takes to store an element, and to load one: with at most 128 accumulators, and with more,
#: which leave no registers to load ahead. Fitted with the copies to 26 products in 250 kernels on an H100, 2026-11.
STORED, _LOADED, _LOADED_LATE, _MOST_EARLY_SUMS = 0.035, 0.05, 0.17, 128
#: The library: its launch, and bytes in a microsecond; its stages and epilogues relative to the best tile.
_LIBRARY_LAUNCH, _LIBRARY_MOVED = 6.64, 3.02e6
_LIBRARY_STAGE, _LIBRARY_EPILOGUE = 0.96, 0.54
#: Lines of L2 in a microsecond, for all SMs of an H100.
_LINES, _PROCESSORS = 122e3, 132
#: The CTAs of a cluster from which some SMs stay idle, and the part that is busy: 30 clusters of 4, 15 of 8.
_LARGE_CLUSTER, _BUSY = 4, 120 / 132
#: Threads of a consumer.
_THREADS = 128
#: Bytes of C and D of an element in the measured epilogues, and the part of their time that does not depend on it.
_TRAFFIC, _CONSTANT = 4.0, 0.67


@dataclass(frozen=True, slots=True)
class ProductClass:
    """The properties of a product that decide which tiles fit.

    ``operand`` is the type that is multiplied. ``scaled``: the sums of a stage have factors. ``by_rows``: also tiles
    by rows, for factors of rows, and of blocks of 64 columns. ``converted``: B is converted to ``operand``;
    ``packed``: from a packed type. ``deep``: the stages of a converted B may have 256 bytes of a row of A.
    ``paired``: D has a column for each pair of columns. ``fast_sums``: tensor cores add all products of 8-bit floats.
    """

    operand: DType
    scaled: bool = False
    by_rows: bool = False
    converted: bool = False
    packed: bool = False
    deep: bool = False
    paired: bool = False
    fast_sums: bool = False

    @property
    def promoted(self) -> bool:
        """Whether the sums of a stage are added in f32: if they have factors, or are sums of 8-bit floats.

        Tensor cores add products of 8-bit floats with few bits.
        """
        return self.scaled or (self.operand.is_float and self.operand.bits == 8 and not self.fast_sums)

    @property
    def row_bytes(self) -> tuple[int, ...]:
        """The bytes of a row of A in a stage of a kernel that promotes sums or converts B."""
        if self.packed:
            return (_DEEP_ROW_BYTES,)
        return (MAX_ROW_BYTES, _DEEP_ROW_BYTES) if self.deep else (MAX_ROW_BYTES,)


@lru_cache(maxsize=32)
def tiles_of(product: ProductClass) -> tuple[tuple[Tile, ...], tuple[Tile, ...]]:
    """Return the tiles that are built for a class of products, and the others that fit."""
    offered = tuple(tile for tile in _offered(product) if _multiplies(tile.rows, product.operand))
    if product.converted and not (product.deep or product.packed):
        offered = tuple(tile._replace(row_bytes=MAX_ROW_BYTES) for tile in offered)
    found = (
        Tile(rows, blocks, pingpong, (*cluster, splits), row_bytes, rows_first, by_stages)
        for rows_first in ((False, True) if product.by_rows else (False,))
        for by_stages in ((False, True) if product.converted else (False,))
        for pingpong in (True, False)
        for blocks in ((2,) if product.paired else (1, 2, 3)[: 3 if rows_first or pingpong else 2])
        for rows in _ROWS
        for cluster in _CLUSTERS
        for splits in _SPLITS
        for row_bytes in _ROW_BYTES
        if _multiplies(rows, product.operand)
    )
    return offered, tuple(tile for tile in found if fits(tile, product) and tile not in offered)


def _offered(product: ProductClass) -> tuple[Tile, ...]:
    if product.paired:
        return _PAIRED_PROMOTED if product.promoted else _PAIRED
    if product.by_rows:
        return _SCALED_BY_ROWS
    if product.packed:
        return _PACKED
    if product.promoted:
        return _PROMOTED
    return _CONVERTED if product.converted else _OFFERED


def _multiplies(rows: int, operand: DType) -> bool:
    """Return whether an instruction multiplies a number of rows."""
    return operand.is_float or rows <= _MOST_OF_INTEGERS or rows % STEP_PIXELS == 0


def fits(tile: Tile, product: ProductClass) -> bool:
    """Return whether registers hold a tile, shared memory two stages and C, and CTAs load and complete whole parts."""
    down, across, splits = tile.cluster
    sums = tile.sums
    if product.converted and tile.row_bytes == _DEEP_ROW_BYTES and sums > _MOST_DEEP_SUMS:
        return False
    if tile.by_stages and (splits == 1 or tile.pingpong):
        return False
    if tile.by_rows and (tile.rows != 2 * FILTERS or splits > 1 or product.operand.bits != 8):
        return False
    if product.promoted:
        sums *= 2
        if tile.pingpong or tile.row_bytes not in product.row_bytes:
            return False
    if product.converted and (tile.row_bytes not in product.row_bytes or tile.blocks > 1):
        return False
    if sums > _MOST_SUMS or down * across * splits > _MOST_CTAS:
        return False
    if tile.rows % (EIGHT * across) or tile.columns // FILTERS % down or tile.rows * tile.row_bytes % ALIGNMENT:
        return False
    factors = 4 * (tile.rows + STEP_PIXELS + tile.columns) if product.scaled else 0
    stage = tile.row_bytes * (tile.rows + tile.columns) + factors
    completed = completed_rows(tile.rows, splits)
    stages = (SHARED_BYTES - _BARRIERS - 2 * completed * tile.columns) // stage
    if stages < 2:
        return False
    if splits == 1:
        return True
    parts = splits * (2 if tile.by_stages else 1)
    exchanged = 4 * parts * completed * tile.columns  # bytes of partial sums, in the place of stages
    return not tile.pingpong and tile.rows % completed == 0 and exchanged <= stages * stage


def completed_rows(rows: int, splits: int) -> int:
    """Return the rows of a tile that one of the CTAs that split k completes."""
    return min(ceil_div(ceil_div(rows, STEP_PIXELS), splits) * STEP_PIXELS, rows)


def rows_of_part(tile: Tile, *, ragged: bool = False) -> int:
    """Return the rows of a part of C or D, which has a buffer: as kPartRows of kit/gemm.hpp.

    The last part may have fewer rows, but in ``ragged`` products all parts are alike.
    """
    completed, most = _completed(tile), _PART_ROWS[tile.pingpong or tile.by_rows]
    if completed % STEP_PIXELS:
        return completed if ragged else min(completed, most)
    return max(each for each in range(STEP_PIXELS, most + 1, STEP_PIXELS) if completed % each == 0)


def rows_of_box(tile: Tile, *, ragged: bool = False) -> int:
    """Return the rows of C or D that TMA moves at a time: as kBoxRows of kit/gemm.hpp."""
    part = rows_of_part(tile, ragged=ragged)
    return STEP_PIXELS // 2 if _completed(tile) % part else part


def _completed(tile: Tile) -> int:
    return FILTERS if tile.by_rows else completed_rows(tile.rows, tile.cluster[2])


# Speed


class Size(NamedTuple):
    """A product: rows, columns, and bytes of k of a row; bytes of C and D of an element, and the SMs.

    ``groups`` of rows have columns each. Their numbers of rows are assumed to vary. ``column_bytes`` are the bytes
    of a column's k, relative to a row's. ``written`` are the bytes of D of an element. ``batches`` have a product each.
    ``stage`` is the time of a stage relative to the measured one. A stage takes ``least`` microseconds at least.
    """

    rows: int
    columns: int
    row_bytes: int
    traffic: float
    multiprocessors: int
    groups: int = 1
    column_bytes: float = 1.0
    written: float = 2.0
    batches: int = 1
    stage: float = 1.0
    least: float = 0.0


def loaded(tile: Tile) -> float:
    """Return the microseconds of an element that a thread loads from a matrix."""
    return _LOADED if tile.sums <= _MOST_EARLY_SUMS else _LOADED_LATE


def microseconds(tile: Tile, size: Size, evaluated: float = 0.0) -> float:
    """Return the estimated time of a product on an H100 by a kernel with a tile: see :func:`work`."""
    return LAUNCH + _norm(work(tile, size, evaluated), traffic(size) / FITS["H100"].moved)


def library_microseconds(size: Size) -> float:
    """Return the estimated time of a product by the library, which writes it in 16 bits."""
    rows = ceil_div(size.row_bytes, MAX_ROW_BYTES) * MAX_ROW_BYTES
    size = size._replace(traffic=2.0, written=2.0, row_bytes=rows)
    least = min(work(tile, size, stage=_LIBRARY_STAGE, epilogue=_LIBRARY_EPILOGUE) for tile in _SPEEDS)
    return _LIBRARY_LAUNCH + _norm(least, traffic(size) / _LIBRARY_MOVED)


def traffic(size: Size) -> float:
    """Return the bytes of memory traffic of a product."""
    columns = size.columns * min(size.groups, size.rows) * size.column_bytes
    elements = size.rows * size.columns
    read = (size.rows + columns) * size.row_bytes + elements * max(0.0, size.traffic - size.written)
    return traffic_of(read * size.batches, elements * size.written * size.batches)


def waves(tile: Tile, size: Size) -> float:
    """Return the tiles of a product over the tiles that run at a time."""
    return _tiles(tile, size) / _at_a_time(tile, size)


def _at_a_time(tile: Tile, size: Size) -> int:
    return int(size.multiprocessors * (_BUSY if math.prod(tile.cluster) >= _LARGE_CLUSTER else 1))


def _tiles(tile: Tile, size: Size) -> int:
    """Return the number of tiles, including the idle CTAs of clusters."""
    down, across, splits = tile.cluster
    tall, groups = tile.rows * down, min(size.groups, size.rows)
    # The last tile of a group is half full on average.
    tiles = ceil_div(size.rows, tall) if groups == 1 else max(groups, ceil_div(size.rows, tall) + groups // 2)
    clusters = tiles * ceil_div(size.columns, tile.columns * across) * size.batches
    return clusters * down * across * splits


def work(
    tile: Tile, size: Size, evaluated: float = 0.0, clock: float = 1.0, stage: float = 1.0, epilogue: float = 1.0
) -> float:
    """Return the time of a product's tiles without the launch and the memory traffic.

    ``evaluated`` are the microseconds that a thread takes for an element of an epilogue beyond the measured one's.
    ``clock`` is the clock rate of a card relative to an H100, ``stage`` and ``epilogue`` are times relative to the
    measured ones.
    """
    speed = _SPEEDS.get(tile) or _OF_PAIRS.get(tile) or _unmeasured(tile)
    tiles, at_a_time, (down, across, splits) = _tiles(tile, size), _at_a_time(tile, size), tile.cluster
    lines = (tile.rows / across + tile.columns / down * size.column_bytes) * (
        2 if size.row_bytes % MAX_ROW_BYTES else 1
    )
    loaded = lines * min(tiles, at_a_time) / _LINES * _PROCESSORS / size.multiprocessors
    stages = ceil_div(ceil_div(size.row_bytes, MAX_ROW_BYTES), splits * (2 if tile.by_stages else 1))
    multiplied = stages * _norm(max(speed.stage * size.stage, size.least), loaded) * stage
    relative = _CONSTANT + (1 - _CONSTANT) * size.traffic / _TRAFFIC
    completed = speed.epilogue * epilogue * relative + evaluated * tile.sums
    # A consumer multiplies while the other one completes its tile.
    each = _norm(multiplied, (multiplied + completed) / 2) if tile.pingpong else multiplied + completed
    return ((ceil_div(tiles, at_a_time) - 1) * each + multiplied + completed) / clock


def _norm(first: float, second: float) -> float:
    return math.sqrt(math.hypot(first * first, second * second))


def _unmeasured(tile: Tile) -> Speed:
    """Return the speed of a tile that was not measured, from its area; CTAs that split k wait for each other."""
    area, splits = tile.rows * tile.columns / (256 * 128), tile.cluster[2]
    stage, epilogue = 0.06 + 0.58 * area, 4.5 * area
    return Speed(stage, epilogue) if splits == 1 else Speed(max(stage, 0.17 + 0.027 * splits), epilogue + 0.55 * splits)
