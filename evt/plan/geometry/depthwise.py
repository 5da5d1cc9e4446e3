"""Tiles of the depthwise kernel: the fastest that fits in shared memory.

A thread computes a unit, a few rows and columns of pixels of two channels. A CTA has the units of a tile, for 32
channels.

Part of :mod:`evt.plan.geometry`. Cycles are fitted to times of an H200, 2026-11: 400 kernels of 14 layers. The fit
chooses kernels within 3 % of the best.
"""

from __future__ import annotations

from dataclasses import dataclass

from evt.plan.geometry.convolution import Problem, ceil_div

Int64 = int

#: Channels of a CTA, in pairs: a thread has one pair.
CHANNELS = 32
PAIRS = 16
#: Threads of a CTA, at most, and the CTAs of an SM for which registers are left.
THREADS = 256
BLOCKS = 2
#: Units of a CTA, at most.
UNITS = 16
#: Shared memory of a CTA, that of an SM, and the part that CUDA reserves for each CTA.
SHARED_BYTES = 232448
RESERVED_BYTES = 1024
SM_SHARED_BYTES = 233472
#: Floats from one tap to the next in shared memory: neighbouring taps and pairs of a channel are in different banks.
WEIGHT_PITCH = 34
#: Elements of a TMA box in each dimension, at most, and its alignment in shared memory.
LARGEST_BOX = 256
BOX_ALIGNMENT = 128
#: Barriers of the input, of C, and of the filters.
BARRIER_BYTES = 24
#: An SM of most GPUs. The parts of reductions are counted before the GPU is known.
MULTIPROCESSORS = 132
SCHEDULERS = 4
REGISTERS_OF_THREAD = 128
REGISTERS_OF_SM = 65536
THREADS_OF_SM = 2048
#: Cycles of an instruction, of several warps and of a single one.
ISSUE = 1.5
ALONE = 5.0
#: Bytes that an SM loads and stores in a cycle.
LOADED = 36.0
STORED = 10.0
#: Cycles of a CTA's first load, and instructions of each weight that a thread converts.
LATENCY = 1500.0
WEIGHT = 8.0


@dataclass(frozen=True, slots=True)
class FilterShape:
    """Compile-time facts of a kernel: a filter, its steps, and the pixels of a unit."""

    height: int
    width: int
    stride_height: int
    stride_width: int
    dilation_height: int
    dilation_width: int
    #: Pixels of a unit.
    rows: int
    columns: int

    @property
    def tap_count(self) -> int:
        """Taps of the filter."""
        return self.height * self.width

    @property
    def unit_pixels(self) -> int:
        """Pixels of a unit."""
        return self.rows * self.columns

    @property
    def input_rows(self) -> int:
        """Rows of the input of a unit."""
        return (self.rows - 1) * self.stride_height + (self.height - 1) * self.dilation_height + 1

    @property
    def input_columns(self) -> int:
        """Columns of the input of a unit."""
        return (self.columns - 1) * self.stride_width + (self.width - 1) * self.dilation_width + 1

    @property
    def instructions(self) -> int:
        """Instructions of a thread: multiply-adds, loads of weights, loads and conversions of pixels, epilogue."""
        sums = self.tap_count * (2 * self.unit_pixels + self.rows)
        return sums + 3 * self.input_rows * self.input_columns + 14 * self.unit_pixels + 110


@dataclass(frozen=True, slots=True)
class ElementBytes:
    """Bytes of an element of A, and of C if the kernel loads it itself, otherwise 0."""

    a: int
    c: int


@dataclass(frozen=True, slots=True)
class Geometry:
    """The tile of a CTA: units of some images, rows and columns. No units if none fits."""

    images: int = 0
    rows: int = 0
    columns: int = 0
    #: Input of the tile.
    box_rows: int = 0
    box_columns: int = 0
    tiles_high: int = 0
    tiles_wide: int = 0
    tiles: Int64 = 0
    channel_blocks: int = 0

    @property
    def units(self) -> int:
        """Units of a tile."""
        return self.images * self.rows * self.columns

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return ceil_div(self.units * PAIRS, 32) * 32

    @property
    def box_pixels(self) -> int:
        """Input pixels of a tile."""
        return self.images * self.box_rows * self.box_columns

    @property
    def blocks(self) -> Int64:
        """CTAs."""
        return self.tiles * self.channel_blocks


@dataclass(frozen=True, slots=True)
class Memory:
    """Places in the shared memory of a CTA, in bytes. The input is first."""

    source: int
    filters: int
    weights: int
    barriers: int
    size: int


def memory_of(filter: FilterShape, made: Geometry, elements: ElementBytes) -> Memory:
    """Return where a CTA has its input, C, filters, weights and barriers."""
    source = ceil_div(made.box_pixels * CHANNELS * elements.a, BOX_ALIGNMENT) * BOX_ALIGNMENT
    filters = source + made.units * filter.unit_pixels * CHANNELS * elements.c
    weights = filters + filter.tap_count * CHANNELS * elements.a
    barriers = weights + filter.tap_count * WEIGHT_PITCH * 4
    return Memory(source, filters, weights, barriers, barriers + BARRIER_BYTES)


def one_unit(filter: FilterShape) -> Geometry:
    """Return the smallest tile."""
    return Geometry(1, 1, 1, filter.input_rows, filter.input_columns)


def cut(filter: FilterShape, problem: Problem, images: int, rows: int, columns: int) -> Geometry:
    """Return the tiles of some units."""
    high = ceil_div(problem.height.output, rows * filter.rows)
    wide = ceil_div(problem.width.output, columns * filter.columns)
    return Geometry(
        images,
        rows,
        columns,
        (rows - 1) * filter.rows * filter.stride_height + filter.input_rows,
        (columns - 1) * filter.columns * filter.stride_width + filter.input_columns,
        high,
        wide,
        Int64(ceil_div(problem.images, images)) * high * wide,
        ceil_div(problem.channels, CHANNELS),
    )


def fits(filter: FilterShape, made: Geometry, elements: ElementBytes) -> bool:
    """Return whether a tile is within the limits of threads, TMA boxes and shared memory."""
    is_box = max(made.box_rows, made.box_columns) <= LARGEST_BOX
    return made.threads <= THREADS and is_box and memory_of(filter, made, elements).size <= SHARED_BYTES


def cycles(filter: FilterShape, made: Geometry, elements: ElementBytes) -> float:
    """Return the clock cycles of a convolution.

    An SM issues the instructions of its CTAs or moves their pixels; the longer of both counts. Resident CTAs overlap,
    and each takes at least its latency.
    """
    threads = made.threads
    memory = memory_of(filter, made, elements)
    instructions = filter.instructions + WEIGHT * filter.tap_count * CHANNELS / threads
    issued = threads // 32 * instructions / SCHEDULERS * ISSUE
    loaded = memory.filters / LOADED
    stored = float(made.units) * filter.unit_pixels * CHANNELS * elements.a / STORED
    busiest = (made.blocks + MULTIPROCESSORS - 1) // MULTIPROCESSORS
    by_registers = REGISTERS_OF_SM // REGISTERS_OF_THREAD // threads
    by_memory = SM_SHARED_BYTES // (memory.size + RESERVED_BYTES)
    fitting = min(THREADS_OF_SM // threads, min(by_registers, by_memory))
    resident = max(min(busiest, Int64(fitting)), Int64(1))
    alone = LATENCY + loaded + ALONE * instructions
    return max(float(busiest) * max(issued, loaded + stored), float(busiest) / resident * alone)


def choose(filter: FilterShape, problem: Problem, elements: ElementBytes) -> Geometry:
    """Return the fastest geometry."""
    across = min(ceil_div(problem.width.output, filter.columns), UNITS)
    down = min(ceil_div(problem.height.output, filter.rows), UNITS)
    best = Geometry()
    least = 0.0
    for columns in range(1, across + 1):
        for rows in range(1, min(down, UNITS // columns) + 1):
            whole = columns * filter.columns >= problem.width.output and rows * filter.rows >= problem.height.output
            most = min(problem.images, UNITS // (rows * columns)) if whole else 1
            for images in range(1, most + 1):
                made = cut(filter, problem, images, rows, columns)
                if fits(filter, made, elements):
                    taken = cycles(filter, made, elements)
                    if best.units == 0 or taken < least:
                        best = made
                        least = taken
    return best
