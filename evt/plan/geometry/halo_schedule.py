"""Schedule of the halo kernels: clusters that share tiles, cooperating consumers, and filters that stay.

Part of :mod:`evt.plan.geometry`. Cycles are fitted to times of an H200, 2026-11.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from evt.plan.geometry.convolution import Problem, ceil_div, overlapped
from evt.plan.geometry.halo import DEPTH_BYTES, EIGHT, FILTERS, MAX_CLASSES, STEP_PIXELS, Geometry, choose, fit
from evt.plan.geometry.halo_kernel import KernelClass

Int64 = int

#: CTAs of a cluster. The sizes are bits of Sharing::cluster_sizes.
CLUSTER_SIZES = (2, 4, 8)
MAX_CLUSTER_SIZE = 8
#: SMs of most GPUs: the parts of reductions are counted before the GPU is known.
MULTIPROCESSORS = 132
#: Blocks of channels from which consumers cooperate.
MANY_BLOCKS = 4
#: The taps of a residue class with which they cooperate, at most.
MOST_PAIRED_TAPS = 4
#: A line of L2. TMA loads 5/8 of a line in a cycle.
LINE_BYTES = 128
EIGHTHS_A_CYCLE = 5
#: Bytes of shared memory in a cycle: reads by the tensor cores, and writes.
READ_BYTES = 128
WRITTEN_BYTES = 320
#: Cycles of the taps of a filter stage, at least.
STEP_CYCLES = 240
#: Cycles of a tile that CTAs share: between two tiles, and for the exchange of partial sums with the epilogue.
BETWEEN_SHARED = 2950
EXCHANGE_PER_BLOCK = 180
EXCHANGE_PER_STEP = 790
#: One SM in 28 is left over for each further CTA of a cluster.
LEFT_OVER = 28


def pairs_fill_waves(tiles: int, filters: int, multiprocessors: int) -> bool:
    """Return whether pairs of filter blocks need hardly more waves than single ones."""
    waves = ceil_div(tiles * ceil_div(filters, FILTERS), multiprocessors)
    waves_of_pairs = 2 * ceil_div(tiles * ceil_div(filters, 2 * FILTERS), multiprocessors)
    return waves_of_pairs - waves <= waves // 8


def has_many_channels(problem: Problem, kernel: KernelClass) -> bool:
    """Return whether the channels are many enough for cooperating consumers."""
    return problem.channels >= MANY_BLOCKS * kernel.channels


def rows_of_eight_wait(problem: Problem, kernel: KernelClass, made: Geometry, multiprocessors: int) -> bool:
    """Return whether tensor cores wait in a gradient with a stride, and pairs of filter blocks take no more waves."""
    if not kernel.loads_bits or made.accumulator_pitch != EIGHT or problem.tap_count > MOST_PAIRED_TAPS:
        return False
    tiles = MAX_CLASSES * made.tiles(problem)
    waves = ceil_div(tiles * ceil_div(problem.filters, FILTERS), multiprocessors)
    waves_of_pairs = 2 * ceil_div(tiles * ceil_div(problem.filters, 2 * FILTERS), multiprocessors)
    return waves > MAX_CLASSES and waves_of_pairs - waves <= waves // 16


def cooperate(problem: Problem, kernel: KernelClass, made: Geometry, multiprocessors: int) -> Geometry:
    """Let both consumers multiply the same pixels if the tensor cores otherwise wait for them: few taps of a box.

    In gradients with a stride and a mask of bits, they wait if a row of the tile has eight pixels. This was measured
    with 68 layers on an H200, 2026-11-30, and not with other epilogues.
    """
    waits = (problem.tap_count == 1 or problem.groups > 1) and not kernel.grouped
    if not has_many_channels(problem, kernel) or problem.filters <= FILTERS:
        return made
    if kernel.residues and problem.tap_count > 1:
        if not rows_of_eight_wait(problem, kernel, made, multiprocessors):
            return made
    elif not waits or not pairs_fill_waves(made.tiles(problem), problem.filters, multiprocessors):
        return made
    fitted = fit(problem, kernel, replace(made, cooperative=True), made.taps_per_stage, True)
    return fitted if fitted.input_stages > 0 else made


def grid_of(work_tiles: int, filter_blocks: int, multiprocessors: int, resident: bool) -> int:
    """Return the CTAs: a multiple of the filter blocks if filters are resident, so that each CTA keeps to one block."""
    most = max(multiprocessors // filter_blocks, 1) * filter_blocks
    return min(work_tiles, most if resident else multiprocessors)


def stream_filters(problem: Problem, kernel: KernelClass, made: Geometry, multiprocessors: int) -> Geometry:
    """Load the filters of a product for each tile if resident filters leave fewer CTAs and thereby more waves."""
    if not made.resident or problem.tap_count > 1 or kernel.filters_stay:
        return made
    blocks = ceil_div(problem.filters, 2 * FILTERS if made.cooperative else FILTERS)
    work_tiles = made.tiles(problem) * blocks
    grid = grid_of(work_tiles, blocks, multiprocessors, True)
    waves = ceil_div(work_tiles, multiprocessors)
    waves_of_resident = ceil_div(work_tiles, grid) * ceil_div(grid, multiprocessors)
    if waves_of_resident - waves <= waves // 16:
        return made
    fitted = fit(problem, kernel, made, made.taps_per_stage, False)
    return fitted if fitted.input_stages > 0 else made


def lines_of_eight(problem: Problem, kernel: KernelClass) -> int:
    """Return the lines of L2 that eight pixels touch, or eight filters of a tap, if they are dense."""
    stride = problem.channels * (kernel.block_bytes // kernel.channels)
    loaded = min(stride, kernel.block_bytes)
    lines = 0
    for pixel in range(EIGHT):
        lines += ceil_div(stride % LINE_BYTES * pixel % LINE_BYTES + loaded, LINE_BYTES)
    return lines


def cycles_of_block(problem: Problem, kernel: KernelClass, made: Geometry) -> int:
    """Return the cycles of a block of channels of a tile: multiplication, loads and shared memory overlap."""
    instructions = problem.tap_count * (kernel.block_bytes // DEPTH_BYTES)
    multiplied = instructions * kernel.pixels // 2
    rows = problem.groups * made.box_pixels + problem.tap_count * FILTERS
    loaded = rows * lines_of_eight(problem, kernel) // EIGHTHS_A_CYCLE
    read = instructions * (FILTERS + kernel.pixels) * DEPTH_BYTES
    memory = read // READ_BYTES + rows * kernel.block_bytes // WRITTEN_BYTES
    return overlapped(max(multiplied, problem.tap_count // made.taps_per_stage * STEP_CYCLES), loaded, memory)


@dataclass(frozen=True, slots=True)
class Sharing:
    """Costs of tiles that the CTAs of a cluster share, and the sizes of clusters that fit."""

    channel_blocks: int
    #: Cycles of one block of channels.
    block: int
    #: Steps of the epilogue.
    steps: int
    #: The sum of the sizes whose partial sums fit in shared memory.
    cluster_sizes: int

    def cycles(self, tiles: int, size: int) -> Int64:
        """Return the cycles of tiles shared by clusters of a size."""
        # The SMs of a cluster are neighbours: some groups of SMs leave a few over.
        clustered = MULTIPROCESSORS - MULTIPROCESSORS * (size - 1) // LEFT_OVER
        exchange = size * EXCHANGE_PER_BLOCK + ceil_div(self.steps, size) * EXCHANGE_PER_STEP
        tile = BETWEEN_SHARED + exchange + ceil_div(self.channel_blocks, size) * self.block
        return Int64(ceil_div(tiles * size, clustered)) * tile

    def cluster_size(self, tiles: int) -> int:
        """Return the fastest size of clusters for a number of tiles, or 0."""
        best = 0
        for size in CLUSTER_SIZES:
            if self.cluster_sizes & size and (best == 0 or self.cycles(tiles, size) < self.cycles(tiles, best)):
                best = size
        return best


def clustered(problem: Problem, kernel: KernelClass, made: Geometry, size: int) -> Geometry:
    """Return a tile that the CTAs of a cluster share: the CTA that completes a step gets its partial sums from all."""
    steps = ceil_div(ceil_div(kernel.pixels, STEP_PIXELS), size)
    shared = replace(made, cluster_size=size, exchange_bytes=size * steps * STEP_PIXELS * FILTERS * 4)
    return fit(problem, kernel, shared, made.taps_per_stage, True)


def sharing_of(problem: Problem, kernel: KernelClass, made: Geometry) -> Sharing:
    """Return the costs of a tile that CTAs share; each CTA multiplies a block of channels or more."""
    blocks = problem.channel_blocks(kernel.channels)
    sizes = 0
    for size in CLUSTER_SIZES:
        if size <= blocks and clustered(problem, kernel, made, size).input_stages > 0:
            sizes += size
    return Sharing(
        problem.mean_blocks(kernel.channels),
        cycles_of_block(problem, kernel, made),
        ceil_div(kernel.pixels, STEP_PIXELS),
        sizes,
    )


def geometry_of(problem: Problem, kernel: KernelClass, rows: int = 0, columns: int = 0) -> Geometry:
    """Return the geometry of a kernel for any number of SMs."""
    made = choose(problem, kernel, rows, columns)
    if not kernel.shared or made.input_stages == 0:
        return made
    tiles = made.tiles(problem) * ceil_div(problem.filters, FILTERS)
    size = sharing_of(problem, kernel, made).cluster_size(tiles)
    return clustered(problem, kernel, made, size) if size > 0 else Geometry()


def scheduled(problem: Problem, kernel: KernelClass, made: Geometry, multiprocessors: int) -> Geometry:
    """Return the geometry with the consumers' schedule and the placement of filters for a number of SMs."""
    if kernel.shared or made.input_stages == 0:
        return made
    return stream_filters(problem, kernel, cooperate(problem, kernel, made, multiprocessors), multiprocessors)
