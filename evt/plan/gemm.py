"""The tiles of the GEMM kernel of sm90: ``tiles_of(product)``. Their speed: :mod:`evt.plan.gemm_speed`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from evt.ir.dtype import DType
from evt.plan.configurations.config import Config
from evt.plan.geometry.convolution import ceil_div
from evt.plan.geometry.halo import ALIGNMENT, EIGHT, FILTERS, SHARED_BYTES, STEP_PIXELS

#: The columns of a warp's strip.
STRIP = 16
#: The rows of a tile: N of WGMMA; for integers a multiple of 16 beyond 32.
_ROWS = range(8, 257, 8)
_MOST_OF_INTEGERS = 32
#: The blocks of 16 columns of a tile by rows.
_BLOCKS_BY_ROWS = range(4, 13)
#: Accumulators of a consumer's thread, at most, and the CTAs of a cluster.
_MOST_SUMS, _MOST_CTAS = 192, 8
#: Clusters along rows and columns, and along k.
_CLUSTERS, _SPLITS = ((1, 1), (1, 2), (2, 1), (2, 2), (1, 4)), (1, 2, 4, 8)
#: Bytes of shared memory for the alignment of stages, for barriers, and for packed bits, at most.
_BARRIERS = 2048
#: The alignment of partial sums: kAlignmentOfSums of kit/gemm_traits.hpp.
_SUMS_ALIGNMENT = 16
#: Bytes of a row of A or B in a stage.
_ROW_BYTES = (128, 64, 256)
#: Bytes of a row of A in a stage of 128 elements of k beside a B that is converted, and the most accumulators then.
DEEP_ROW_BYTES, _MOST_DEEP_SUMS = 256, 64
#: The most rows of a tile that warps multiply by themselves where B is converted. Two CTAs share an SM then, each with
#: half of its shared memory, less CUDA's part. kFewRows, kResident and kFewSharedBytes of kit/gemm_traits.hpp.
FEW_ROWS, RESIDENT_OF_FEW, FEW_SHARED_BYTES = 16, 2, 115712
#: The CTAs of a cluster from which some SMs stay idle.
_LARGE_CLUSTER = 4
#: The elements of k of a stage with a packed B.
PACKED_DEPTH = 128
#: The most groups of rows with a B each: kMaxGroups of kit/gemm_traits.hpp.
MAX_GROUPS = 1024
#: The longest row that TMA swizzles.
MAX_ROW_BYTES = 128
#: The most rows and bytes of a part of the epilogue's matrices. Cooperating consumers have half each.
_PART_ROWS, _MOST_PART_BYTES = 64, 8192


class Tile(NamedTuple):
    """A tile: its rows, blocks of 64 columns of each consumer, whether consumers are pingpong, and the cluster.

    ``cluster`` is along rows, columns and k. ``row_bytes`` are the bytes of k of a stage. ``by_rows``: each consumer
    has 64 rows, M of WGMMA, and all columns, in blocks of 16. ``by_stages``: each has every other stage, and all
    columns.
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
        if self.by_rows:
            return self.blocks * STRIP
        return self.blocks * FILTERS * (1 if self.pingpong or self.by_stages else 2)

    @property
    def block_columns(self) -> int:
        """The columns of a box of B, and of a part of C and D: as kBlockColumns of kit/gemm_traits.hpp."""
        if self.columns % FILTERS == 0:
            return FILTERS
        odd = self.blocks // (self.blocks & -self.blocks)
        return STRIP * (3 if odd % 3 == 0 else odd)

    @property
    def sums(self) -> int:
        """The accumulators of a consumer's thread."""
        return self.rows * self.columns // (_THREADS * (1 if self.pingpong or self.by_stages else 2))


def tile_of(config: Config, operand_bytes: int) -> Tile:
    """Return the tile of a configuration."""
    rows, columns, depth = config.tile
    pingpong, by_rows, by_stages = (config.schedule == f"own_{name}" for name in ("pingpong", "rows", "stages"))
    blocks = columns // (STRIP if by_rows else FILTERS if pingpong or by_stages else 2 * FILTERS)
    return Tile(rows, blocks, pingpong, config.cluster, depth * operand_bytes, by_rows, by_stages)


#: The tiles that are built, the general one first: together 1.003 of the best of all measured ones.
_OFFERED = (
    Tile(128, 2, True),
    Tile(256, 1, False, (1, 2, 1)),
    Tile(256, 1, False, (2, 1, 1)),
    Tile(192, 2, True, (1, 2, 1)),
    Tile(160, 1, False, (1, 2, 1)),
    Tile(64, 2, True),
    *(Tile(192, 1, False, cluster) for cluster in ((1, 2, 2), (1, 1, 2), (1, 1, 4))),
    *(Tile(128, 1, False, cluster) for cluster in ((2, 1, 2), (1, 2, 4), (1, 4, 2), (1, 1, 4))),
    Tile(256, 1, False, (1, 2, 2)),
    Tile(96, 1, False, (2, 1, 4)),
    Tile(80, 1, False, (2, 2, 1)),
    Tile(64, 1, False, (1, 1, 4)),
    *(Tile(rows, 1, False, (1, 1, 4), by_stages=True) for rows in (32, 8)),
    Tile(16, 1, False, (1, 1, 2), by_stages=True),
    Tile(16, 1, False, (1, 1, 8), by_stages=True),
    Tile(16, 2, True, row_bytes=DEEP_ROW_BYTES),
    *(Tile(rows, 1, True) for rows in (120, 88, 72, 64, 32, 16)),
    Tile(16, 1, False, (1, 1, 4)),
    Tile(200, 1, False),
    Tile(128, 3, True),
    Tile(144, 2, True, (1, 2, 1)),
    Tile(160, 2, False, (2, 1, 1)),
    *(Tile(rows, 2, True) for rows in (96, 152, 168)),
    *(Tile(rows, 1, False) for rows in (64, 80, 88, 96, 104, 112, 128, 144, 176)),
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
#: The tiles of promoted sums without factors.
_UNSCALED = (
    *_PROMOTED,
    *(Tile(rows, 1, False, (1, 2, 1)) for rows in (160, 176)),
    *(Tile(rows, 1, False) for rows in (56, 96, 104, 112, 120, 152, 168)),
)
#: The tiles for factors of rows: tall ones are by rows.
_SCALED_BY_ROWS = (
    *(Tile(128, blocks, False, by_rows=True) for blocks in (8, 12, 9, 10, 11)),
    *(tile for tile in _PROMOTED if tile.rows < 2 * FILTERS),
)
#: Filters of 8 bits that are converted take registers.
_CONVERTED = (
    Tile(128, 1, False, row_bytes=DEEP_ROW_BYTES),
    Tile(256, 1, False, (1, 2, 1)),
    Tile(192, 1, False, (1, 2, 1)),
    Tile(128, 1, False, (1, 2, 1), DEEP_ROW_BYTES),
    Tile(128, 1, True, row_bytes=DEEP_ROW_BYTES),
    Tile(64, 1, False, row_bytes=DEEP_ROW_BYTES),
    Tile(64, 1, True, row_bytes=DEEP_ROW_BYTES),
    Tile(16, 1, True, row_bytes=DEEP_ROW_BYTES),
    *(Tile(rows, 1, False, (1, 1, 2), DEEP_ROW_BYTES) for rows in (128, 64)),
    Tile(96, 1, False, (1, 1, 4), DEEP_ROW_BYTES),
    *(Tile(64, 1, False, (1, 1, splits), DEEP_ROW_BYTES, by_stages=True) for splits in (2, 4)),
    *(Tile(16, 1, False, (1, 1, splits), DEEP_ROW_BYTES, by_stages=True) for splits in (2, 4)),
)
#: The tiles for packed filters.
_PACKED = (
    Tile(128, 1, False, row_bytes=DEEP_ROW_BYTES),
    Tile(64, 1, False, row_bytes=DEEP_ROW_BYTES),
    Tile(32, 1, False, row_bytes=DEEP_ROW_BYTES),
    Tile(16, 1, False, row_bytes=DEEP_ROW_BYTES),
    *(Tile(rows, 1, False, row_bytes=DEEP_ROW_BYTES) for rows in (48, 72, 80, 88, 96, 104, 112)),
    *(Tile(rows, 1, False, (1, 1, 2), DEEP_ROW_BYTES) for rows in (128, 96, 64, 16)),
    *(Tile(64, 1, False, (1, 1, splits), DEEP_ROW_BYTES, by_stages=True) for splits in (2, 4)),
    *(Tile(rows, 1, False, (1, 1, 2), DEEP_ROW_BYTES, by_stages=True) for rows in (128, 96)),
    *(Tile(16, 1, False, (1, 1, splits), DEEP_ROW_BYTES, by_stages=True) for splits in (2, 4)),
)
#: Tiles for pairs of columns: each of the two blocks of a consumer has a column of a pair.
_PAIRED = (
    Tile(128, 2, True),
    Tile(192, 2, True, (1, 2, 1)),
    Tile(160, 2, True, (1, 2, 1)),
    Tile(168, 2, True),
    Tile(128, 2, False),
    *(Tile(rows, 2, True) for rows in (64, 48, 32, 16)),
    Tile(16, 2, True, row_bytes=DEEP_ROW_BYTES),
    *(Tile(rows, 2, False, (1, 1, 4)) for rows in (64, 32, 16)),
    *(Tile(rows, 2, False, (1, 1, 4), by_stages=True) for rows in (48, 32, 16, 8)),
    Tile(16, 2, False, (1, 1, 2), by_stages=True),
    Tile(8, 2, False, (1, 1, 2), DEEP_ROW_BYTES, by_stages=True),
)
_PAIRED_PROMOTED = (Tile(96, 2, False), Tile(64, 2, False), Tile(32, 2, False), Tile(16, 2, False))
#: Tall tiles of pairs for factors of rows are by rows: a thread reads two factors a stage, not one for each two sums.
_PAIRED_BY_ROWS = (Tile(128, 8, False, by_rows=True), *_PAIRED_PROMOTED[1:])
#: Threads of a consumer.
_THREADS = 128


@dataclass(frozen=True, slots=True)
class ProductClass:
    """The properties of a product that decide which tiles fit.

    ``operand`` is the type that is multiplied. ``scaled``: the sums of a stage have factors. ``by_rows``: also tiles
    by rows, for factors of rows, and of blocks of 64 columns. ``converted``: B is converted to ``operand``;
    ``packed``: from a packed type. ``deep``: the stages of a converted B may have 256 bytes of a row of A.
    ``paired``: D has a column for each pair of columns. ``fast_sums``: tensor cores add all products of 8-bit floats.
    ``staged`` are the bytes of an element of the epilogue's matrices in buffers.
    """

    operand: DType
    scaled: bool = False
    by_rows: bool = False
    converted: bool = False
    packed: bool = False
    deep: bool = False
    paired: bool = False
    fast_sums: bool = False
    staged: int = 2

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
            return (DEEP_ROW_BYTES,)
        return (MAX_ROW_BYTES, DEEP_ROW_BYTES) if self.deep else (MAX_ROW_BYTES,)


def multiplies_halves(tile: Tile, product: ProductClass) -> bool:
    """Return whether an instruction multiplies half of a tile's rows, so that the sums of the other half are promoted.

    Registers hold the converted filters of two stages beside the sums of one. With fewer rows, they hold the sums of
    two stages. A consumer holds two stages: too many if it has every other one, or if CTAs share loads. Filters of 4
    bits take few instructions to convert.
    """
    halved = FILTERS < tile.rows <= 2 * FILTERS and tile.rows % (2 * STEP_PIXELS) == 0
    shares = tile.by_stages or tile.cluster[:2] != (1, 1)
    return product.converted and not product.packed and product.promoted and halved and not shares


def in_clusters(multiprocessors: int, cluster: int) -> int:
    """Return the SMs that clusters of some CTAs use at a time: 30 clusters of 4, and 15 of 8, run on 132 SMs."""
    return multiprocessors if cluster < _LARGE_CLUSTER else multiprocessors * 10 // 11


def shares_multiprocessors(blocks: int, cluster: int, multiprocessors: int) -> bool:
    """Return whether CTAs of few rows share SMs, because they are more than the SMs that their clusters use.

    If they are not, each CTA asks for all shared memory of an SM. With half of it, some would share an SM while others
    are idle: CTAs of the kernel before still hold the other half. See kit/gemm.hpp.
    """
    return blocks > in_clusters(multiprocessors, cluster)


@lru_cache(maxsize=128)
def tiles_of(product: ProductClass) -> tuple[tuple[Tile, ...], tuple[Tile, ...]]:
    """Return the tiles that are built for a class of products, and the others that fit."""
    offered = tuple(tile for tile in _offered(product) if _multiplies(tile.rows, product.operand))
    if product.converted and not (product.deep or product.packed):
        offered = tuple(tile._replace(row_bytes=MAX_ROW_BYTES) for tile in offered)
    found: Iterator[Tile] = (
        Tile(rows, blocks, pingpong, (*cluster, splits), row_bytes, by_stages=by_stages)
        for by_stages in (False, True)
        for pingpong in (True, False)
        for blocks in ((2,) if product.paired else (1, 2, 3)[: 3 if pingpong else 2])
        for rows in _ROWS
        for cluster in _CLUSTERS
        for splits in _SPLITS
        for row_bytes in _ROW_BYTES
        if _multiplies(rows, product.operand)
    )
    if product.by_rows:
        found = chain(found, _tiles_by_rows(product))
    return offered, tuple(tile for tile in found if fits(tile, product) and tile not in offered)


def _tiles_by_rows(product: ProductClass) -> Iterator[Tile]:
    for blocks in (8,) if product.paired else _BLOCKS_BY_ROWS:
        for cluster in _CLUSTERS:
            yield Tile(2 * FILTERS, blocks, False, (*cluster, 1), by_rows=True)


def _offered(product: ProductClass) -> tuple[Tile, ...]:
    if product.paired:
        return _PAIRED_BY_ROWS if product.by_rows else _PAIRED_PROMOTED if product.promoted else _PAIRED
    if product.by_rows:
        return _SCALED_BY_ROWS
    if product.packed:
        return _PACKED
    if product.promoted:
        return _PROMOTED if product.scaled else _UNSCALED
    return _CONVERTED if product.converted else _OFFERED


def _multiplies(rows: int, operand: DType) -> bool:
    """Return whether an instruction multiplies a number of rows."""
    return operand.is_float or rows <= _MOST_OF_INTEGERS or rows % STEP_PIXELS == 0


def fits(tile: Tile, product: ProductClass) -> bool:
    """Return whether registers hold a tile, shared memory two stages and buffers, and CTAs complete whole parts."""
    down, across, splits = tile.cluster
    sums = tile.sums
    if product.converted and tile.row_bytes == DEEP_ROW_BYTES and sums > _MOST_DEEP_SUMS:
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
    if (
        tile.rows % (EIGHT * across)
        or tile.columns // tile.block_columns % down
        or tile.rows * tile.row_bytes % ALIGNMENT
    ):
        return False
    factors = 4 * (tile.rows + STEP_PIXELS + tile.columns) if product.scaled else 0
    stage = tile.row_bytes * (tile.rows + tile.columns) + factors
    completed = completed_rows(tile.rows, splits)
    parts = splits * (2 if tile.by_stages else 1)
    exchanged = 4 * parts * completed * tile.columns + _SUMS_ALIGNMENT if splits > 1 else 0  # bytes of partial sums
    few = product.converted and tile.rows <= FEW_ROWS
    shared = FEW_SHARED_BYTES - exchanged if few else SHARED_BYTES
    rings = 1 if tile.pingpong or tile.by_stages else 2
    buffers = 2 * rings * rows_of_part(tile, product.staged) * tile.block_columns * product.staged
    stages = (shared - _BARRIERS - max(2 * completed * tile.columns, buffers)) // stage
    stages -= stages % 2 if tile.by_stages else 0
    # A consumer of WGMMA releases a stage once it multiplies its next one. By stages, it has every other stage.
    if stages < (4 if tile.by_stages and not few else 2):
        return False
    if splits == 1:
        return True
    fit = few or exchanged <= stages * stage  # beside the stages, or in their place
    return not tile.pingpong and tile.rows % completed == 0 and fit


def completed_rows(rows: int, splits: int) -> int:
    """Return the rows of a tile that one of the CTAs that split k completes."""
    return min(ceil_div(ceil_div(rows, STEP_PIXELS), splits) * STEP_PIXELS, rows)


def rows_of_part(tile: Tile, staged: int = 2, *, ragged: bool = False) -> int:
    """Return the rows of a part of the epilogue's matrices, which has a buffer: as kPartRows of kit/gemm_traits.hpp.

    ``staged`` are the bytes of an element of all matrices. The last part may have fewer rows, but in ``ragged``
    products all parts are alike.
    """
    completed = _completed(tile)
    if tile.by_rows:
        return completed
    most = _most_rows_of_part(tile.pingpong, staged)
    if completed % STEP_PIXELS:
        return completed if ragged else min(completed, most)
    return max(each for each in range(STEP_PIXELS, most + 1, STEP_PIXELS) if completed % each == 0)


def _most_rows_of_part(pingpong: bool, staged: int) -> int:
    """Return the most rows of a part: as most_rows_of_part of kit/gemm_traits.hpp."""
    share = 1 if pingpong else 2
    fitting = _MOST_PART_BYTES // share // (FILTERS * max(staged, 1)) // STEP_PIXELS * STEP_PIXELS
    return min(_PART_ROWS // share, max(fitting, STEP_PIXELS))


def rows_of_box(tile: Tile, staged: int = 2, *, ragged: bool = False) -> int:
    """Return the rows of a matrix that TMA moves at a time: as kBoxRows of kit/gemm_traits.hpp."""
    part = rows_of_part(tile, staged, ragged=ragged)
    return STEP_PIXELS // 2 if _completed(tile) % part else part


def _completed(tile: Tile) -> int:
    return FILTERS if tile.by_rows else completed_rows(tile.rows, tile.cluster[2])
