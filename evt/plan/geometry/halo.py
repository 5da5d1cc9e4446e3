"""Tiles of the halo kernels, and their place in shared memory.

A tile is 64 filters by at most ``pixels`` output pixels: ``rows`` rows of ``columns`` pixels. TMA loads its input, with
the halo that the taps reach, as a box of rows of ``input_pitch`` pixels; a pixel holds one block of channels. The
operand of a tap is the same shared memory, from ``dy * row_pitch + dx`` pixels on, so that WGMMA also multiplies the
pixels between ``columns`` and ``input_pitch``, which are not stored. A tile of eight columns has no pixels between its
rows: the descriptor gives the distance from eight pixels to the next eight. A tile may hold several small images: the
first rows of all of them, then the second ones, so that no row between two images is multiplied. With a stride, the
taps form groups that read the same pixels of every ``stride``; each group has its own box. A volume is a stack of
slices; its taps along the depth are further blocks of channels. Taps outside of the volume are left out. A tile may
hold a slice of several volumes, which leave out the same taps. If filters are columns along the depth, the slices are
the rows of an image.

The gradient of a convolution with a stride has residue classes of pixels, each with some of the taps. The taps of a
class are next to each other: a tile has the pixels of one class, and every ``stride``-th pixel of the output.

With few channels, a row of taps is one tap over a window. A pixel then has 16 bytes: a chunk of pixels. A step of the
stride has one chunk or several. Successive windows of a row begin at successive pixels, and their rows overlap in
shared memory.

With few filters, each row of a tile may be a tap of a filter, and the box of a tile is multiplied once. The products of
a filter's taps are then summed, each at its pixel.

Part of :mod:`evt.plan.geometry`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from evt.plan.geometry.convolution import Axis, Problem, ceil_div
from evt.plan.geometry.halo_kernel import KernelClass

Int64 = int

#: Filters of a tile: M of WGMMA.
FILTERS = 64
#: Bytes of k of one WGMMA.
DEPTH_BYTES = 32
#: Taps of a filter, at most.
MAX_TAPS = 64
#: Stages of the input pipeline, at most.
MAX_INPUT_STAGES = 8
#: Input stages that a product needs beside resident filters.
ENOUGH_INPUT_STAGES = 5
#: Stages of the filter pipeline, at most.
MAX_FILTER_STAGES = 64
#: Taps whose filters share a pipeline stage, the best number first.
TAPS_PER_STAGE = (3, 5, 1)
#: Filter stages in flight, at least.
FEWEST_FILTER_STAGES = 3
#: Filters of this many taps in flight hide the latency of a load.
MANY_TAPS = 9
#: Warps that load windows of the input, each into separate stages; or words, each a part of every stage.
WIDENERS = 3
#: Shared memory of a CTA, and the alignment of swizzled memory.
SHARED_BYTES = 232448
ALIGNMENT = 1024
#: Barriers: full and empty of each stage, and eight for the consumers.
BARRIER_BYTES = 8 * (2 * MAX_INPUT_STAGES + 2 * MAX_FILTER_STAGES + 8)
#: Bytes of a pixel of windows, and of its place in the table of a box.
WINDOW_BYTES = 16
PLACE_BYTES = 16
#: Bytes of the packed bits of a pixel in a block of filters.
BITS_BYTES = 8
#: Elements of 16 bits that TMA moves at least.
VECTOR = 8
#: Elements of a TMA box in each dimension, at most.
LARGEST_BOX = 256
#: Pixels of an operand that follow one another; the descriptor gives the distance to the next eight.
EIGHT = 8
#: Residue classes of the pixels of a gradient with a stride, at most.
MAX_CLASSES = 4
#: Threads of a warpgroup.
WARP_GROUP = 128
#: Accumulator pixels of one step of the epilogue.
STEP_PIXELS = 16


def aligned_bytes(size: int) -> int:
    """Return a size rounded up to the alignment of swizzled memory."""
    return ceil_div(size, ALIGNMENT) * ALIGNMENT


def swizzled_row(size: int) -> int:
    """Return the distance in shared memory between the rows of a box, which TMA swizzles."""
    return 32 if size <= 32 else 64 if size <= 64 else 128


@dataclass(frozen=True, slots=True)
class Geometry:
    """A tile, its place in shared memory, and the schedule of its CTAs; no input stages if there is none."""

    #: Images of a tile, or volumes: several only if they are whole.
    images: int = 1
    #: Output pixels of each image.
    rows: int = 0
    columns: int = 0
    #: Pixels from one row to the next: of the box, and of the accumulator, C and D.
    input_pitch: int = 0
    accumulator_pitch: int = 0
    #: Rows of each image in the box, and pixels of zeros after the last row.
    box_rows: int = 0
    guard: int = 0
    tiles_high: int = 0
    tiles_wide: int = 0
    input_stages: int = 0
    input_stage_bytes: int = 0
    #: Taps whose filters share a stage.
    taps_per_stage: int = 1
    filter_stages: int = 0
    filter_stage_bytes: int = 0
    #: CTAs that share a tile: each multiplies some blocks of channels and completes some pixels.
    cluster_size: int = 1
    #: Partial sums that the CTAs of a cluster exchange; with windows, the table of the places of a box's pixels.
    exchange_bytes: int = 0
    #: Both consumers multiply the same pixels, each by its own block of filters; otherwise pingpong.
    cooperative: bool = False
    #: The filters of a CTA stay in shared memory.
    resident: bool = False
    #: The filter stage of a tile after which a consumer arrives at the other one's ordered barrier.
    handover: int = 0
    #: Buffer of C and D of one consumer.
    epilogue_bytes: int = 0

    def tiles(self, problem: Problem) -> int:
        """Return the tiles of all images or slices, for one block of filters."""
        return ceil_div(problem.images, self.images) * problem.depth.output * self.tiles_high * self.tiles_wide

    @property
    def box_pixels(self) -> int:
        """Pixels of a box, without the guard."""
        return self.images * self.box_rows * self.input_pitch

    @property
    def stored_pixels(self) -> int:
        """Pixels of C and D in their buffer."""
        return self.rows * self.images * self.accumulator_pitch

    @property
    def accumulated_pixels(self) -> int:
        """Accumulator pixels from the first to the last one of the tile."""
        return (self.rows * self.images - 1) * self.accumulator_pitch + self.columns

    @property
    def row_pitch(self) -> int:
        """Pixels of the box from a row of an image to its next row: rows of the other images are between them."""
        return self.images * self.input_pitch

    @property
    def next_eight(self) -> int:
        """Pixels from eight pixels of a tap's operand to the next eight."""
        return EIGHT if self.accumulator_pitch == self.input_pitch else self.input_pitch

    @property
    def score(self) -> Int64:
        """Rank of a tile, the least is the best: tiles of an image, then loaded pixels."""
        tiles = (Int64(self.tiles_high) * self.tiles_wide << 20) // self.images
        return tiles + self.box_pixels // self.images


@lru_cache(maxsize=4096)
def groups_begun(height: Axis, width: Axis, taps: int) -> int:
    """Return the groups that begin within a number of taps, in the order of the groups and over several k-blocks."""
    all_taps = height.taps * width.taps
    found = taps // all_taps * height.groups * width.groups
    first = 0
    for y in range(height.stride):
        for x in range(width.stride):
            size = height.taps_of_group(y) * width.taps_of_group(x)
            if size > 0 and first < taps % all_taps:
                found += 1
            first += size
    return found


@lru_cache(maxsize=4096)
def boxes_of_two_stages(height: Axis, width: Axis, length: int) -> int:
    """Return the boxes of two successive filter stages: the second is loaded before the first is released."""
    most = 2
    begin = 0
    while begin < height.taps * width.taps:
        found = groups_begun(height, width, begin + 2 * length) - groups_begun(height, width, begin + 1)
        most = max(most, 1 + found)
        begin += length
    return most


def fewest_input_stages(problem: Problem, kernel: KernelClass, length: int) -> int:
    """Return the fewest input stages: a multiple of the warps that load them."""
    warps = WIDENERS if kernel.has_windows else 1
    return ceil_div(boxes_of_two_stages(problem.height, problem.width, length), warps) * warps


def bytes_for_stages(kernel: KernelClass, made: Geometry) -> int:
    """Return the shared memory that is left for pipeline stages."""
    others = 2 * ALIGNMENT + aligned_bytes(BARRIER_BYTES) + made.exchange_bytes
    return SHARED_BYTES - others - kernel.consumers * made.epilogue_bytes


def read_beyond(kernel: KernelClass, made: Geometry) -> int:
    """Return the bytes after a box that WGMMA reads for pixels that are not stored."""
    pixels = kernel.pixels - made.accumulated_pixels
    between = made.accumulator_pitch == made.input_pitch
    return (pixels if between else pixels // EIGHT * made.input_pitch) * kernel.pixel_bytes


def filter_stages_beside(left: int, made: Geometry, stages: int) -> int:
    """Return the filter stages that fit beside input stages: an even number for cooperating consumers."""
    blocks = 2 if made.cooperative else 1
    return max(left - stages * made.input_stage_bytes, 0) // made.filter_stage_bytes // blocks * blocks


def handover_of(problem: Problem, kernel: KernelClass, made: Geometry) -> int:
    """Return the filter stage after which a consumer arrives at the other one's ordered barrier.

    It is the last one, or the one before if a stage is a single tap, too short to hide the handover: no multiplication
    is then missing between two tiles. A barrier distinguishes two successive phases only. So the other consumer may
    begin once the earlier contents of its first stages are known to have been loaded.
    """
    runs = problem.tap_count // made.taps_per_stage
    blocks = problem.channel_blocks(kernel.channels)
    steps = runs * blocks
    handover = max(0, steps - (2 if made.taps_per_stage == 1 else 1))
    while handover + 1 < steps:
        taps = (handover % runs + 1) * made.taps_per_stage
        loaded = handover // runs * problem.groups + groups_begun(problem.height, problem.width, taps)
        has_filters = made.resident or steps - handover <= made.filter_stages
        if has_filters and blocks * problem.groups - loaded < made.input_stages:
            break
        handover += 1
    return handover


def fit(problem: Problem, kernel: KernelClass, arranged: Geometry, length: int, may_stay: bool) -> Geometry:
    """Return a tile with the pipeline stages that fit in shared memory, ``length`` taps in a filter stage."""
    made = replace(arranged, taps_per_stage=length, filter_stage_bytes=length * FILTERS * kernel.filter_bytes)
    left = bytes_for_stages(kernel, made)
    fewest = fewest_input_stages(problem, kernel, length)
    # Boxes are the first in shared memory, and WGMMA must not read beyond its end.
    readable = SHARED_BYTES - ALIGNMENT - read_beyond(kernel, made)
    most = min(MAX_INPUT_STAGES, max(readable, 0) // made.input_stage_bytes)
    if most < fewest or left < fewest * made.input_stage_bytes:
        return Geometry()
    warps = WIDENERS if kernel.has_windows else 1
    consumers = 2 if made.cooperative else 1
    blocks = ceil_div(problem.channel_blocks(kernel.channels), made.cluster_size)
    needed = consumers * problem.tap_count // length * blocks
    beside = min(most, max(left - needed * made.filter_stage_bytes, 0) // made.input_stage_bytes) // warps * warps
    # The filters of a product take the room of boxes. A tile needs a box for each block of channels.
    waits = problem.tap_count == 1 and not kernel.shared and not kernel.tap_rows
    enough = min(blocks, ENOUGH_INPUT_STAGES) if waits else fewest
    if may_stay and not kernel.residues and needed <= MAX_FILTER_STAGES and beside >= max(fewest, enough):
        stays = replace(made, resident=True, input_stages=beside, filter_stages=needed)
        return replace(stays, handover=handover_of(problem, kernel, stays))
    fewest_filters = min(FEWEST_FILTER_STAGES * consumers, needed)
    if kernel.filters_stay or filter_stages_beside(left, made, fewest) < fewest_filters:
        return Geometry()
    # A product takes one stage of each pipeline at a time. A box with many taps lasts while the next one is loaded.
    stages = fewest
    useful = min(most, 1 + ceil_div(MANY_TAPS, problem.tap_count) if problem.groups == 1 else MAX_INPUT_STAGES)
    first = problem.groups if problem.tap_count <= MANY_TAPS else 0  # a box of each group of few taps comes first
    while stages < useful and left >= (stages + 1) * made.input_stage_bytes:
        wanted = consumers * (stages + 1) if problem.tap_count == 1 else max(fewest_filters, MANY_TAPS // length)
        if filter_stages_beside(left, made, stages + 1) < (fewest_filters if stages < first else wanted):
            break
        stages += 1
    filter_stages = min(MAX_FILTER_STAGES, filter_stages_beside(left, made, stages))
    streams = replace(made, resident=False, input_stages=stages, filter_stages=filter_stages)
    return replace(streams, handover=handover_of(problem, kernel, streams))


def pitch_of(problem: Problem, columns: int) -> int:
    """Return the pitch of rows of output pixels. Each group of taps has its boxes and shares no padding."""
    whole = columns == problem.width.output and problem.groups == 1
    return problem.width.shared_pitch if whole else columns + problem.width.halo


def products_pitch(pixels: int) -> int:
    """Return the elements between two rows of a tile's products: eight rows meet all banks of shared memory."""
    return pixels + EIGHT


def products_bytes(problem: Problem, kernel: KernelClass) -> int:
    """Return the bytes of the products of all taps of a tile."""
    rows = problem.filters * problem.height.window_taps * problem.width.window_taps
    return rows * products_pitch(kernel.pixels) * 4


def arrange(problem: Problem, kernel: KernelClass, images: int, rows: int, columns: int, eights: bool) -> Geometry:
    """Return the geometry of tiles of a size; with ``eights``, each eight pixels are a row."""
    height = problem.height
    width = problem.width
    pitch = EIGHT + width.halo if eights else pitch_of(problem, columns)
    accumulator_pitch = EIGHT if eights else pitch
    box_rows = rows + height.halo
    guard = columns + width.halo - pitch
    pixels = (rows * images - 1) * accumulator_pitch + columns
    if kernel.tap_rows:  # taps are at pixels of the box
        pixels = images * box_rows * pitch + guard
    largest = max((pitch - 1) * width.stride, (box_rows - 1) * height.stride)
    # TMA moves C and D of all kernels, and the input of kernels without windows.
    if (
        pixels > kernel.pixels
        or (kernel.tap_rows and eights)
        or accumulator_pitch > LARGEST_BOX
        or (not kernel.loads_by_threads and largest >= LARGEST_BOX)
    ):
        return Geometry()
    stored = rows * images * accumulator_pitch
    # A kernel with clusters has the buffer for any epilogue: the planner does not know the epilogue.
    buffer = max(kernel.pixels, stored) * 2 * FILTERS if kernel.staged or kernel.shared else 0
    if kernel.tap_rows:
        buffer = max(buffer, products_bytes(problem, kernel))
    if kernel.loads_bits:
        buffer += kernel.pixels * BITS_BYTES
    made = Geometry(
        images=images,
        rows=rows,
        columns=columns,
        input_pitch=pitch,
        accumulator_pitch=accumulator_pitch,
        box_rows=box_rows,
        guard=guard,
        tiles_high=ceil_div(height.output, rows),
        tiles_wide=ceil_div(width.output, columns),
        input_stage_bytes=aligned_bytes((images * box_rows * pitch + guard) * kernel.pixel_bytes),
        exchange_bytes=aligned_bytes(images * box_rows * pitch * PLACE_BYTES) if kernel.has_windows else 0,
        epilogue_bytes=aligned_bytes(buffer),
    )
    for length in TAPS_PER_STAGE:
        if problem.tap_count % length == 0 and kernel.shares(length):
            fitted = fit(problem, kernel, made, length, True)
            if fitted.input_stages > 0:
                return fitted
    return Geometry()


def tallest(problem: Problem, kernel: KernelClass, rows: int, columns: int, eights: bool) -> Geometry:
    """Return the tile of some columns with the most rows that fits; with ``rows`` only if they are not 0."""
    output = problem.height.output
    fitting = kernel.pixels // EIGHT if eights else (kernel.pixels - columns) // pitch_of(problem, columns) + 1
    high = ceil_div(output, min(output, max(fitting, 1)))
    while high <= output:
        tall = rows if rows > 0 else ceil_div(output, high)
        made = arrange(problem, kernel, 1, tall, columns, eights)
        if made.input_stages > 0 or rows > 0:
            return made
        high = ceil_div(output, tall - 1) if tall > 1 else output + 1
    return Geometry()


def most_images(problem: Problem, kernel: KernelClass, eights: bool) -> Geometry:
    """Return the tile with the most whole images that fits."""
    columns = EIGHT if eights else problem.width.output
    pitch = EIGHT if eights else pitch_of(problem, columns)
    images = kernel.pixels // (problem.height.output * pitch) + 1
    while images > 1:
        made = arrange(problem, kernel, images, problem.height.output, columns, eights)
        if made.input_stages > 0:
            return made
        images -= 1
    return Geometry()


def better(best: Geometry, made: Geometry) -> Geometry:
    """Return the better of two geometries, the first if they are equally good."""
    if made.input_stages > 0 and (best.input_stages == 0 or made.score < best.score):
        return made
    return best


def choose(problem: Problem, kernel: KernelClass, rows: int = 0, columns: int = 0) -> Geometry:
    """Return the geometry with the fewest tiles, then with the least loaded; of given rows or columns if not 0."""
    output = problem.width.output
    best = Geometry()
    across = ceil_div(output, min(output, kernel.pixels))
    while across <= output:
        wide = columns if columns > 0 else ceil_div(output, across)
        made = tallest(problem, kernel, rows, wide, False)
        best = better(best, made)
        is_tall = wide * 8 < kernel.pixels and not kernel.tap_rows  # square boxes reach the fewest pixels for all taps
        if columns > 0 or is_tall or wide <= EIGHT:
            break
        if made.input_stages > 0 and problem.height.output == 1:
            break  # narrower tiles of a single row are more tiles
        across = ceil_div(output, wide - 1)
    if columns == 0 or columns == EIGHT:
        best = better(best, tallest(problem, kernel, rows, EIGHT, True))
    if rows == 0 and columns == 0 and not kernel.by_images:
        best = better(best, most_images(problem, kernel, False))
        if output <= EIGHT:
            best = better(best, most_images(problem, kernel, True))
    return best
