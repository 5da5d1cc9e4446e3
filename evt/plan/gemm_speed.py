"""The speed of the GEMM kernel of sm90: ``microseconds(tile, size)``.

The model has, for each tile, the time of a stage of 128 bytes of k and of an epilogue, to which the traffic of C and D
is added. L2 serves a number of lines in a time, more for 128 bytes that begin within a line. A pingpong consumer's
epilogue is hidden behind the other's multiplications, except for the last one. Cooperating consumers compute an
epilogue before they multiply again, but the tile is stored meanwhile. Work that overlaps counts by its L4 norm. The
library's time has the same form, with the best of all tiles and as if rows were whole lines. The times of tiles:
:mod:`evt.plan.gemm_times`.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from evt.plan.cards import FITS, traffic_of
from evt.plan.gemm import DEEP_ROW_BYTES, MAX_ROW_BYTES, RESIDENT_OF_FEW, Tile, in_clusters, rows_of_part
from evt.plan.gemm_times import OF_PACKED, OF_PAIRS, OF_PROMOTED, SPEEDS, Speed
from evt.plan.geometry.convolution import ceil_div
from evt.plan.geometry.halo import EIGHT, FILTERS, SHARED_BYTES, STEP_PIXELS


class Warps(NamedTuple):
    """Microseconds of a tile that warps multiply by themselves.

    ``stage`` is the time of a stage of 128 elements of k, and ``rest`` is all other time. Each doubling of the splits
    of k adds ``split`` to it.
    """

    stage: float
    rest: float
    split: float


#: The time of a stage whose sums have factors, relative to a stage without factors. A thread reads a factor from shared
#: memory for two sums, unless the tile is by rows.
FACTORS = 1.3
#: The microseconds of a consumer that converts a stage: of a B of 8 bits, and of a packed B by its number of factors.
#: If no other consumer multiplies meanwhile, a multiplication follows, in ``AFTER`` of a stage's time. Fitted to
#: kernels of Llama 3 8B's projections on an H100, 2026-11.
CONVERTED, UNPACKED, AFTER = 0.17, (0.145, 0.18, 0.21), 0.65
#: The time of a stage of a packed B relative to a B of 8 bits, if consumers take turns at stages. An H200, 2026-11-28.
PACKED_BY_STAGES = 0.87
#: The microseconds in which a row of a stage beside converted filters is loaded, if a tile has rows beyond the matrix.
BEYOND = 0.0029
#: The microseconds that other tiles of a converted B take longer than their parts, once: 1.5 to 4 for 16 rows, H200.
_BESIDES = 1.5
#: Tiles that warps multiply by themselves, of a B of 4 and of 8 bits, by schedule. Two thread blocks that share an SM
#: take longer for a stage. So do more than eight rows. Fitted on an H200, 2026-11-29, to 610 kernels of 1 to 16 rows.
#: Launches follow each other in CUDA graphs with other weights, as in a decoding loop. The chosen tile takes 1.05 of
#: the best one's time for 4 bits. It takes 1.04 for 8 bits. Constants of single launches chose tiles of 1.20 and 1.05.
_WARPS = {
    4: {"cooperative": Warps(0.313, 0.97, 0.79), "stages": Warps(0.326, 0.0, 1.11), "pingpong": Warps(0.2, 2.6, 0.0)},
    8: {"cooperative": Warps(0.444, 1.16, 1.93), "stages": Warps(0.457, 0.1, 1.9), "pingpong": Warps(0.255, 1.63, 0.0)},
}
_SHARED_STAGE, _SHARED_REST, _SECOND_EIGHT = 1.88, 0.79, 1.17
#: Microseconds that such a tile takes longer in a single launch. The constants of other tiles are of single launches.
_ALONE = 1.4
#: Microseconds of a launch, with the first bytes from memory.
LAUNCH = 6.1
#: Microseconds of each further CTA of an SM that splits k: it loads its first stages while no other one multiplies.
#: Fitted to 62 kernels of 6 products of 1 and 16 rows on an H200, 2026-11-30.
_REFILL = 1.5
#: Bytes that an SM loads in a microsecond. Fitted to 58 products of pairs of columns of 1 to 16 rows on an H200,
#: 2026-11-30. The stages of other tiles contain it.
_LOADED_BY_ONE = 108e3
#: Microseconds of a kernel that copies operands, besides their traffic.
COPY = 2.5
#: Microseconds that a thread takes to store an element, and to load one: with at most 128 accumulators, and with more,
#: which leave no registers to load ahead. Fitted with the copies to 26 products in 250 kernels on an H100, 2026-11.
STORED, _LOADED, _LOADED_LATE, _MOST_EARLY_SUMS = 0.035, 0.05, 0.17, 128
#: Microseconds of a thread for an instruction of an epilogue for an element, and for a bit that it stores.
INSTRUCTION, BIT = 0.86e-3, 0.015
#: Microseconds of a thread for a bit that it loads: of cooperating consumers, and of pingpong ones. Fitted to 11 1x1
#: data gradients on an H200, 2026-11-29.
LOADED_BIT, LOADED_BIT_PINGPONG = 5e-3, 1e-3
#: Microseconds of a thread for a row's value that lanes exchange, for a sum of the first block of columns. Norms of
#: three products in two tiles on an H200 take 2.7e-3 to 3.8e-3, 2026-11-29. A thread with more than these sums has no
#: registers to load the values ahead: 9 products with layer norm and GELU in 90 kernels on an H200, 2026-11-29.
_EXCHANGED, _EXCHANGED_LATE, _MOST_AHEAD_SUMS = 3e-3, 12e-3, 152
#: The instructions from which epilogues call functions, as for quotients. The relative time of an instruction in
#: a thread with more than ``_MOST_AHEAD_SUMS`` sums then: it spills registers. Fitted to Adam's update in 5 tiles of 4
#: products on an H200, 2026-11-29.
_CALLING, _SPILLED = 60, 2.5
#: Bytes that an H100 moves in a microsecond.
_RATE = FITS["H100"].moved
#: The library: its launch, and bytes in a microsecond; its stages and epilogues relative to the best tile.
_LIBRARY_LAUNCH, _LIBRARY_MOVED = 6.64, 3.02e6
_LIBRARY_STAGE, _LIBRARY_EPILOGUE = 1.01, 0.65
#: Lines of L2 in a microsecond, for all SMs of an H100.
_LINES, _PROCESSORS = 122e3, 132
#: The lines that 128 bytes from within a line take, and from within a sector of 32 bytes. Fitted to 17 products of long
#: rows in 600 kernels on an H200, 2026-11-29.
_BEGUN_WITHIN, _BEGUN_WITHIN_SECTOR, _SECTOR_BYTES = 1.5, 2.4, 32
#: The time of a byte of operands whose rows begin within lines, relative to rows of whole lines. Fitted to 44 1x1
#: convolutions on an H200, 2026-11.
_WITHIN_LINES = 1.5
#: The time in which C and D of a wave of tiles move, relative to the card's rate. The next tile waits for a part of it
#: and of the epilogue: of cooperating consumers, and of pingpong ones. A CTA that splits k has one tile.
_MOVED, _WAITED, _WAITED_PINGPONG = 1.03, 0.34, 0.05
#: The bytes of an element whose traffic is hidden by multiplications, and the part of further traffic that is not.
#: Fitted to 11 epilogues of 4 to 24 bytes, 3 products and 4 tiles on an H200, 2026-11-29.
_HIDDEN_BYTES, _UNHIDDEN = 4.0, 0.5
#: Microseconds and bytes of a TMA box of matrices beyond the hidden bytes, if a tile's rows end with half a step: boxes
#: then have half a step's rows. Fitted to four updates of 15 products on an H200, 2026-11-30.
_BOX, _BOX_BYTES = 0.008, STEP_PIXELS // 2 * MAX_ROW_BYTES
#: Microseconds of a cooperating consumer for a use of all its buffers. The constants of tiles have the uses for C.
#: Fitted to 5 epilogues and 3 products on an H200, 2026-11-29.
_ROUND = 0.75
#: The time in which a pingpong consumer evaluates an epilogue, relative to two consumers that do so at a time. Pingpong
#: consumers share the buffers of C and D, so their epilogues take turns. Fitted to 20 epilogues of 1 to 69 instructions
#: in 60 kernels on an H200, 2026-11-29.
_IN_TURN = 1.5


class Size(NamedTuple):
    """A product: rows, columns, and bytes of k of a row; bytes of C and D of an element, and the SMs.

    ``groups`` of rows have columns each. The estimate is the mean of groups with equal rows, and of groups whose rows
    vary: only the device knows them. ``column_bytes`` are the bytes of a column's k, relative to a row's. ``written``
    are the bytes of D of an element. ``batches`` have a product each. ``stage`` is the time of a stage relative to the
    measured one. A stage takes ``least`` microseconds at least, and ``added`` ones more. ``warps`` are the bits of B
    where warps multiply by themselves, else 0. ``packed``: B is packed. ``staged`` are the bytes of an element of
    staged matrices, if some are loaded. ``paired``: D has a column for each pair of columns. ``promoted``: the sums
    of 8-bit floats without factors are promoted.
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
    added: float = 0.0
    warps: int = 0
    packed: bool = False
    staged: int = 2
    paired: bool = False
    promoted: bool = False


def loaded(tile: Tile) -> float:
    """Return the microseconds of an element that a thread loads from a matrix."""
    return _LOADED if tile.sums <= _MOST_EARLY_SUMS else _LOADED_LATE


def visited(tile: Tile, instructions: float) -> float:
    """Return the microseconds of a thread for the instructions of an epilogue for a sum."""
    spills = instructions > _CALLING and tile.sums > _MOST_AHEAD_SUMS
    return instructions * INSTRUCTION * (_SPILLED if spills else 1.0)


def exchanged(tile: Tile) -> float:
    """Return the microseconds of a thread for a row's value that lanes exchange, for a sum of the tile."""
    return (_EXCHANGED if tile.sums <= _MOST_AHEAD_SUMS else _EXCHANGED_LATE) / tile.blocks


def microseconds(tile: Tile, size: Size, evaluated: float = 0.0) -> float:
    """Return the estimated time of a product on an H100 by a kernel with a tile: see :func:`work`."""
    memory = traffic(size) / _RATE / memory_rate(tile, size, _RATE)
    return LAUNCH + refills(tile, size) + _norm(work(tile, size, _RATE, evaluated), memory)


def library_microseconds(size: Size) -> float:
    """Return the estimated time of a product by the library, which writes it in 16 bits."""
    rows = ceil_div(size.row_bytes, MAX_ROW_BYTES) * MAX_ROW_BYTES
    size = size._replace(traffic=2.0, written=2.0, row_bytes=rows)
    least = min(work(tile, size, _RATE, stage=_LIBRARY_STAGE, epilogue=_LIBRARY_EPILOGUE) for tile in SPEEDS)
    return _LIBRARY_LAUNCH + _norm(least, traffic(size) / _LIBRARY_MOVED)


def traffic(size: Size) -> float:
    """Return the bytes of memory traffic of a product, or the bytes of whole lines that take the same time."""
    return traffic_of(*_moved(size))


def _moved(size: Size) -> tuple[float, float]:
    """Return the bytes that a product reads and writes."""
    columns = size.columns * min(size.groups, size.rows) * size.column_bytes
    elements = size.rows * size.columns
    relative = _WITHIN_LINES if size.row_bytes % MAX_ROW_BYTES else 1.0
    read = (size.rows + columns) * size.row_bytes * relative + elements * max(0.0, size.traffic - size.written)
    return read * size.batches, elements * size.written * size.batches


def refills(tile: Tile, size: Size) -> float:
    """Return the microseconds in which pipelines fill anew: CTAs that split k have one tile."""
    if tile.cluster[2] == 1 or _is_converted(size):
        return 0.0
    return _REFILL * (math.ceil(waves(tile, size)) - 1)


def memory_rate(tile: Tile, size: Size, rate: float) -> float:
    """Return the rate of memory traffic relative to a kernel on all SMs that reads B once.

    ``rate`` are the bytes that a card moves in a microsecond. Large clusters leave some SMs idle. Several tiles of
    eight rows, or of pairs for two CTAs that split k, read B at two times, or more. Few CTAs with pairs of columns,
    also of a last wave, load at the rate of their SMs.
    """
    if _is_converted(size):
        return 1.0
    at_a_time, tiles = _at_a_time(tile, size), max(_tiles(tile, size))
    used = at_a_time / size.multiprocessors
    again = tile.rows == EIGHT or (size.paired and tile.by_stages and tile.cluster[2] == 2)
    relative = used / (2 if again and tile.rows < size.rows else 1)
    if not size.paired:
        return relative
    last, fewest = tiles % at_a_time, rate * sum(_moved(size)) / traffic(size) / _LOADED_BY_ONE
    return min(relative, used * tiles / (tiles - last + max(last, fewest if last else 0.0)))


def _is_converted(size: Size) -> bool:
    return size.packed or size.least > 0 or size.added > 0 or size.warps > 0


def waves(tile: Tile, size: Size) -> float:
    """Return the tiles of a product over the tiles that run at a time."""
    return sum(_tiles(tile, size)) / 2 / _at_a_time(tile, size)


def _at_a_time(tile: Tile, size: Size) -> int:
    if size.warps:
        return size.multiprocessors * RESIDENT_OF_FEW
    return in_clusters(size.multiprocessors, math.prod(tile.cluster))


def _tiles(tile: Tile, size: Size) -> tuple[int, int]:
    """Return the numbers of tiles if groups have equal rows, and if they vary, with the idle CTAs of clusters.

    If they vary, the last tile of a group is half full on average. Without groups both numbers are equal.
    """
    down, across, splits = tile.cluster
    tall, groups = tile.rows * down, min(size.groups, size.rows)
    equal = groups * ceil_div(ceil_div(size.rows, max(groups, 1)), tall)
    varying = max(groups, ceil_div(size.rows, tall) + groups // 2)
    of_rows = ceil_div(size.columns, tile.columns * across) * size.batches * down * across * splits
    return equal * of_rows, varying * of_rows


def work(
    tile: Tile,
    size: Size,
    rate: float,
    evaluated: float = 0.0,
    clock: float = 1.0,
    stage: float = 1.0,
    epilogue: float = 1.0,
) -> float:
    """Return the time of a product's tiles without the launch and the memory traffic.

    ``rate`` are the bytes that a card moves in a microsecond. ``evaluated`` are the microseconds that a thread takes
    for a sum beyond a light epilogue. ``clock`` is the clock rate of a card relative to an H100. ``stage`` and
    ``epilogue`` are times relative to the measured ones.
    """
    numbers, at_a_time, (down, across, splits) = _tiles(tile, size), _at_a_time(tile, size), tile.cluster
    tiles, rounds = max(numbers), sum(ceil_div(number, at_a_time) for number in numbers) / 2
    if size.warps:
        return _ALONE + rounds * _work_of_warps(tile, size, tiles, evaluated) / clock
    own = OF_PACKED if size.packed else OF_PAIRS if size.paired else OF_PROMOTED if size.promoted else SPEEDS
    speed = own.get(tile) or SPEEDS.get(tile) or _unmeasured(tile)
    together = min(tiles, at_a_time)
    lines = tile.rows / across + tile.columns / down * size.column_bytes
    if size.row_bytes % MAX_ROW_BYTES:
        if down > 1 and across > 1 and rounds > 1:  # two multicasts of parts of lines, as an H200 shows
            lines = tile.rows + tile.columns * size.column_bytes
        lines *= _BEGUN_WITHIN_SECTOR if size.row_bytes % _SECTOR_BYTES else _BEGUN_WITHIN
    loaded = lines * together / _LINES * _PROCESSORS / size.multiprocessors
    stages = ceil_div(ceil_div(size.row_bytes, MAX_ROW_BYTES), splits * (2 if tile.by_stages else 1))
    multiplied = stages * _norm(max(speed.stage * size.stage, size.least) + size.added, loaded) * stage / clock
    wave = tile.rows * tile.columns / splits * together / rate
    multiplied += _UNHIDDEN * max(0.0, size.traffic - _HIDDEN_BYTES) * wave
    moved = size.traffic * wave
    stored = (speed.epilogue / clock + _MOVED * moved) * epilogue
    if tile.rows % STEP_PIXELS:
        stored += _BOX * max(0.0, size.traffic - _HIDDEN_BYTES) * tile.rows * tile.columns / _BOX_BYTES
    computed = evaluated * tile.sums / clock
    if tile.pingpong:  # a consumer multiplies while the other one completes its tile
        completed = speed.epilogue * epilogue / clock + _IN_TURN * computed
        each = max(multiplied, (multiplied + stored + computed) / 2, completed) + _WAITED_PINGPONG * stored
    else:
        computed += _ROUND * (rounds_of_ring(tile, size.staged) - rounds_of_ring(tile, 2))
        each = multiplied + computed + (_WAITED if splits == 1 else 1.0) * stored
    besides = _BESIDES / clock if size.least or size.added else 0.0
    return (rounds - 1) * each + multiplied + stored + computed + besides


@lru_cache(maxsize=512)
def rounds_of_ring(tile: Tile, staged: int) -> float:
    """Return the uses of each buffer of a cooperating consumer in a tile, beside four stages, or three."""
    if tile.by_rows:
        return 1.0
    rows, stage = rows_of_part(tile, staged), tile.row_bytes * (tile.rows + tile.columns)
    parts = ceil_div(tile.rows, rows) * tile.blocks
    many, few = (max((SHARED_BYTES - stages * stage) // (2 * rows * FILTERS * staged), 1) for stages in (3, 4))
    return parts / min(few if few > 1 else many, parts)


def _work_of_warps(tile: Tile, size: Size, tiles: int, evaluated: float) -> float:
    """Return the time of a tile that warps multiply by themselves."""
    schedule = "stages" if tile.by_stages else "pingpong" if tile.pingpong else "cooperative"
    speed, splits = _WARPS[size.warps][schedule], tile.cluster[2]
    shared = tiles > size.multiprocessors
    stages = ceil_div(ceil_div(size.row_bytes, DEEP_ROW_BYTES), splits * (2 if tile.by_stages else 1))
    multiplied = stages * speed.stage * (_SHARED_STAGE if shared else 1) * (_SECOND_EIGHT if size.rows > EIGHT else 1)
    rest = (speed.rest + speed.split * math.log2(splits)) * (_SHARED_REST if shared else 1)
    return multiplied + rest + evaluated * tile.sums


def _norm(first: float, second: float) -> float:
    return math.sqrt(math.hypot(first * first, second * second))


def _unmeasured(tile: Tile) -> Speed:
    """Return the speed of a tile that was not measured, from its area; CTAs that split k wait for each other."""
    area, splits = tile.rows * tile.columns / (256 * 128), tile.cluster[2]
    stage, epilogue = 0.06 + 0.56 * area, 1.9 * area
    return Speed(stage, epilogue) if splits == 1 else Speed(max(stage, 0.17 + 0.027 * splits), epilogue + 0.55 * splits)
