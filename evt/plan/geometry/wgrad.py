"""Tiles of the kernel of filter gradients, and their place in shared memory.

The gradient of a filter sums over pixels: k of WGMMA are the pixels of a tile, M are 64 filters, N are blocks of 64
channels. Both operands are transposed in shared memory: a row has the channels of a pixel.

A CTA without a window has blocks of channels, which may be of different taps. Its tiles are 64 successive output
pixels. TMA loads them in im2col mode: a block of the input has the pixels that its tap reads.

The taps of a CTA with a window share the loaded pixels. TMA loads the output's gradient of a tile, and the input with
the halo that the taps reach. Both have rows of ``pitch`` pixels, so that a tap is the same shared memory from a few
pixels on. The pixels of the output's gradient between ``columns`` and ``pitch`` are zeros. With a stride, taps that
read the same pixels of every ``stride`` share a box.

A CTA computes some filters and columns of the gradient, over a part of the tiles of pixels. The CTAs of a cluster
that compute the same filters and columns send each other their sums. If several clusters share a tile of the gradient,
another kernel adds the partial sums of the clusters. The order of addition is fixed. A cluster may have two tiles of
filters. Their CTAs need the same input: each loads a half of it for both (TMA multicast).

Part of :mod:`evt.plan.geometry`.
"""

from __future__ import annotations

from dataclasses import dataclass

from evt.plan.geometry.convolution import Axis, Problem, ceil_div

Int64 = int

#: Filters and channels of a block, and bytes of a row of a block.
BLOCK = 64
BLOCK_BYTES = 128
#: Pixels of one WGMMA, and of a tile without a window.
DEPTH = 16
PIXELS = 64
#: Pipeline stages, at most.
MAX_STAGES = 12
#: Shared memory of a CTA, the alignment of swizzled memory, the bytes of barriers, and of stages, at most.
SHARED_BYTES = 232448
ALIGNMENT = 1024
BARRIER_BYTES = 256
STAGES_BYTES = SHARED_BYTES - ALIGNMENT - BARRIER_BYTES
#: Elements of a TMA box in each dimension, and pixels of a tile, at most.
LARGEST_BOX = 256
MOST_PIXELS = 512
#: TMA's im2col mode: the lower and the upper bound of a rectangle's edges, and the largest offset of a tap.
LEAST_EDGE = -128
LARGEST_EDGE = 127
LARGEST_OFFSET = 255
#: The SMs of most GPUs. The workspace is measured before the GPU is known.
MULTIPROCESSORS = 132
#: CTAs of a tile in a cluster: kit/wgrad_completion.hpp adds the sums of these.
CLUSTERS = (1, 2)
#: CTAs of a cluster, at most, and the CTAs that run at a time in clusters of this size: some SMs are idle.
LARGEST_CLUSTER = 4
IN_CLUSTERS = 120
#: Tiles of filters of a cluster, and the clusters that share a tile of the gradient, at most, if there are two. More
#: clusters wait for memory: a stage begins when the CTAs of both tiles have released it. 1x1 layers of 256 images take
#: up to 1.35 times as long then (H200, 2026-11-29).
NEIGHBOURS = (1, 2)
MOST_OF_NEIGHBOURS = 3
#: Units of the clusters that share all tiles, at most: the kernels count them in 32 bits.
MOST_UNITS = 1 << 30
#: Elements of the gradient whose sums a warp adds.
TILE_ROWS = 8
TILE_COLUMNS = 32
TILE_SUMS = 256
#: Partial sums that a warp loads at a time, and warps that share a tile, at most. Eight partial sums take the
#: registers of a second CTA.
FEW = 4
SHARING_WARPS = 16


@dataclass(frozen=True, slots=True)
class WgradClass:
    """Compile-time facts of a kernel: the taps of a CTA, its blocks of filters and channels."""

    tap_rows: int
    tap_columns: int
    filter_blocks: int
    channel_blocks: int
    #: Consumers that multiply different tiles of pixels.
    parts: int
    #: Instructions of a block of filters, for a row of taps.
    instructions: int

    @property
    def has_window(self) -> bool:
        """Whether the CTA has several taps, which share the pixels of a box."""
        return self.tap_rows * self.tap_columns > 1

    @property
    def streams(self) -> bool:
        """Whether a CTA may have parts of several tiles: its consumers write partial sums without an exchange."""
        return not self.has_window and self.parts == 1

    @property
    def sum_columns(self) -> int:
        """Columns of the gradient that a CTA computes."""
        return self.tap_rows * self.tap_columns * self.channel_blocks * BLOCK

    @property
    def sums(self) -> int:
        """Accumulators of a CTA for one part."""
        return self.filter_blocks * BLOCK * self.sum_columns

    @property
    def blocks_read(self) -> int:
        """Blocks of 64 filters or channels that all instructions read from shared memory for a pixel."""
        return self.filter_blocks * self.tap_rows * (self.instructions + self.tap_columns * self.channel_blocks)

    @property
    def sum_tiles(self) -> int:
        """Tiles of 8 rows and 32 columns of a CTA, whose sums a warp adds."""
        return self.sums // TILE_SUMS

    @property
    def join_bytes(self) -> int:
        """Bytes of the stages through which the consumers of two parts exchange sums: a stage for each."""
        blocks = self.filter_blocks + self.channel_blocks
        return self.parts * blocks * PIXELS * BLOCK_BYTES if self.parts > 1 else 0


@dataclass(frozen=True, slots=True)
class WgradCluster:
    """The CTAs of a cluster, and the clusters that share the pixels."""

    #: Tiles of filters, whose CTAs load the input together.
    neighbours: int
    #: CTAs of a tile of the gradient.
    ranks: int
    #: Partial sums of an element of the gradient, at most. Each is of a cluster.
    clusters: int
    #: Clusters that share all tiles of the gradient: each has a part of the tiles of pixels of all, which may begin and
    #: end within a tile of the gradient. 0: a cluster has one tile of the gradient.
    streamed: int = 0

    @property
    def ctas(self) -> int:
        """The CTAs of a cluster."""
        return self.neighbours * self.ranks

    @property
    def splits(self) -> int:
        """The CTAs that share the pixels of a tile of the gradient."""
        return self.ranks * self.clusters


@dataclass(frozen=True, slots=True)
class WgradGeometry:
    """A tile of pixels. No stages if none fits."""

    rows: int = 0
    columns: int = 0
    pitch: int = 0
    #: Input rows of a box.
    box_rows: int = 0
    #: Boxes of the input along each dimension, for taps with other remainders modulo the stride.
    boxes_high: int = 0
    boxes_wide: int = 0
    #: Pixels that are multiplied, a multiple of 16.
    depth: int = 0
    #: Bytes of a block of the output's gradient, and of a box of the input, in a stage.
    gradient_bytes: int = 0
    box_bytes: int = 0
    stage_bytes: int = 0
    #: A multiple of the parts: each stage belongs to one part, whose consumers see all of its phases. Loads may end in
    #: another order than they began, and a consumer that skips a phase would take the phase before for its own.
    stages: int = 0
    tiles_high: int = 0
    tiles_wide: int = 0
    tiles: int = 0

    @property
    def gradient_pixels(self) -> int:
        """Pixels of the output's gradient that are loaded."""
        return self.rows * self.pitch

    @property
    def box_pixels(self) -> int:
        """Pixels of the input that a box loads."""
        return self.box_rows * self.pitch


def reach(axis: Axis, taps: int) -> int:
    """Return how far the taps of a window reach within a box."""
    return (taps - 1) * axis.dilation // axis.stride


def boxes(axis: Axis, taps: int) -> int:
    """Return the boxes of a window's taps along a dimension."""
    return axis.groups if taps > 1 else 1


def windows(problem: Problem, kind: WgradClass) -> int:
    """Return the windows of taps: one if a CTA may have blocks of any taps."""
    if not kind.has_window:
        return 1
    return ceil_div(problem.height.taps, kind.tap_rows) * ceil_div(problem.width.taps, kind.tap_columns)


def filter_tiles(problem: Problem, kind: WgradClass) -> int:
    """Return the tiles of filters."""
    return ceil_div(problem.filters, kind.filter_blocks * BLOCK)


def column_tiles(problem: Problem, kind: WgradClass) -> int:
    """Return the tiles of blocks of channels: of a window, or of all taps."""
    taps = 1 if kind.has_window else problem.tap_count
    return ceil_div(taps * ceil_div(problem.channels, BLOCK), kind.channel_blocks)


def outputs(problem: Problem, kind: WgradClass) -> int:
    """Return the tiles of the gradient."""
    return filter_tiles(problem, kind) * column_tiles(problem, kind) * windows(problem, kind)


def ceil_share(units: Int64, parts: Int64) -> Int64:
    """Return the units of each part but the last one, which has the rest."""
    return (units + parts - Int64(1)) // parts


def available(size: int) -> int:
    """Return the CTAs that run at a time, in clusters of a size."""
    return IN_CLUSTERS if size == LARGEST_CLUSTER else MULTIPROCESSORS


def clusters_of(problem: Problem, kind: WgradClass, neighbours: int, ranks: int) -> int:
    """Return the clusters that share the pixels of a tile of the gradient: all at a time, 64 pixels or more a CTA."""
    pixels = Int64(problem.images) * problem.height.output * problem.width.output
    size = neighbours * ranks
    least = Int64(BLOCK) * kind.parts * ranks
    most = Int64(max(available(size) // size // (outputs(problem, kind) // neighbours), 1))
    return int(ceil_share(pixels, least * ceil_share(pixels, least * most)))


def are_neighbours(problem: Problem, kind: WgradClass, neighbours: int) -> bool:
    """Return whether the tiles of filters may be neighbours: each loads equally many of an input's blocks."""
    return filter_tiles(problem, kind) % neighbours == 0 and kind.channel_blocks % neighbours == 0


def streamed_parts(blocks: Int64, share: Int64) -> int:
    """Return the most clusters that share a tile of ``blocks`` units; at least 2, so that the second kernel adds."""
    return max(int((blocks + share - Int64(2)) // share) + 1, 2)


def pixel_blocks(problem: Problem) -> Int64:
    """Return the tiles of successive pixels."""
    pixels = Int64(problem.images) * problem.height.output * problem.width.output
    return (pixels + Int64(PIXELS - 1)) // PIXELS


def units(problem: Problem, kind: WgradClass, neighbours: int) -> Int64:
    """Return the tiles of pixels of all tiles of the gradient."""
    return pixel_blocks(problem) * (outputs(problem, kind) // neighbours)


def streamed(problem: Problem, kind: WgradClass, neighbours: int) -> WgradCluster:
    """Return clusters that share all tiles of the gradient. All of them run at a time."""
    all_units = units(problem, kind, neighbours)
    number = ceil_share(all_units, ceil_share(all_units, available(neighbours) // neighbours))
    parts = streamed_parts(pixel_blocks(problem), ceil_share(all_units, number))
    return WgradCluster(neighbours, 1, parts, int(number))


def share_of(outputs: int, tiles: int, cluster: WgradCluster) -> int:
    """Return the tiles of pixels of a CTA, at most: of a tile of the gradient, or of all ``outputs`` of the cluster."""
    if cluster.streamed > 0:
        return int(ceil_share(Int64(outputs) * tiles, cluster.streamed))
    return ceil_div(tiles, cluster.splits)


def strips_of(problem: Problem) -> int:
    """Return the strips of columns of the epilogue: a tap has strips for whole blocks of channels."""
    return problem.tap_count * ceil_div(problem.channels, BLOCK) * (BLOCK // TILE_COLUMNS)


def partial_sums(problem: Problem) -> Int64:
    """Return the floats of one partial sum of each element: whole tiles, also of channels beyond the last one."""
    return Int64(ceil_div(problem.filters, TILE_ROWS)) * strips_of(problem) * TILE_SUMS


def sharing_of(splits: int) -> int:
    """Return the warps that share a tile of the sums: each adds a few partial sums."""
    sharing = 1
    while sharing < SHARING_WARPS and splits > sharing * FEW:
        sharing = sharing * 2
    return sharing


def pitch_of(problem: Problem, kind: WgradClass, columns: int) -> int:
    """Return the pixels of a row of a tile. Whole rows share the zeros between them."""
    width = problem.width
    whole = columns + reach(width, kind.tap_columns)
    if columns < width.output or width.taps > kind.tap_columns:
        return whole
    return width.shared_pitch


def cut(problem: Problem, kind: WgradClass, rows: int, columns: int) -> WgradGeometry:
    """Return the geometry of a tile of a window."""
    height = problem.height
    width = problem.width
    pitch = pitch_of(problem, kind, columns)
    down = reach(height, kind.tap_rows)
    box_rows = rows + down
    pixels = rows * pitch
    depth = ceil_div(pixels, DEPTH) * DEPTH
    furthest = down * pitch + reach(width, kind.tap_columns)
    in_box = max(box_rows * pitch, depth + furthest)
    gradient_bytes = ceil_div(depth * BLOCK_BYTES, ALIGNMENT) * ALIGNMENT
    box_bytes = ceil_div(in_box * BLOCK_BYTES, ALIGNMENT) * ALIGNMENT
    high = boxes(height, kind.tap_rows)
    wide = boxes(width, kind.tap_columns)
    stage_bytes = kind.filter_blocks * gradient_bytes + kind.channel_blocks * high * wide * box_bytes
    most = min(STAGES_BYTES // stage_bytes, MAX_STAGES)
    tiles_high = ceil_div(height.output, rows)
    tiles_wide = ceil_div(width.output, columns)
    return WgradGeometry(
        rows,
        columns,
        pitch,
        box_rows,
        high,
        wide,
        depth,
        gradient_bytes,
        box_bytes,
        stage_bytes,
        most - most % kind.parts,
        tiles_high,
        tiles_wide,
        problem.images * tiles_high * tiles_wide,
    )


def fits(problem: Problem, kind: WgradClass, made: WgradGeometry) -> bool:
    """Return whether a tile is within the limits of TMA boxes and of shared memory.

    A consumer releases a stage when it has multiplied the next one, so that each part has two.
    """
    across = (made.pitch - 1) * problem.width.stride + 1
    down = (made.box_rows - 1) * problem.height.stride + 1
    is_box = max(across, down) <= LARGEST_BOX
    return is_box and made.stages >= 2 * kind.parts and made.gradient_pixels <= MOST_PIXELS


def last_edge(axis: Axis) -> int:
    """Return where the pixels of the first tap end, from the end of the image."""
    return (axis.output - 1) * axis.stride - axis.pad - (axis.size - 1)


def is_reached(axis: Axis) -> bool:
    """Return whether TMA's im2col mode reaches the pixels of all taps."""
    end = last_edge(axis)
    is_rectangle = min(-axis.pad, end) >= LEAST_EDGE and end <= LARGEST_EDGE
    return is_rectangle and (axis.taps - 1) * axis.dilation <= LARGEST_OFFSET


def is_pointwise(problem: Problem) -> bool:
    """Return whether each output pixel reads the input pixel at its place."""
    steps = max(problem.height.stride, problem.width.stride)
    return problem.tap_count == 1 and steps == 1 and max(problem.height.pad, problem.width.pad) == 0


def successive(problem: Problem, kind: WgradClass) -> WgradGeometry:
    """Return tiles of successive pixels; without stages if TMA does not reach them."""
    if not (is_reached(problem.height) and is_reached(problem.width)):
        return WgradGeometry()
    of_block = PIXELS * BLOCK_BYTES
    stage_bytes = (kind.filter_blocks + kind.channel_blocks) * of_block
    most = min(STAGES_BYTES // stage_bytes, MAX_STAGES)
    stages = most - most % kind.parts
    tiles = int(pixel_blocks(problem))
    return WgradGeometry(1, PIXELS, PIXELS, 1, 1, 1, PIXELS, of_block, of_block, stage_bytes, stages, 1, 1, tiles)
