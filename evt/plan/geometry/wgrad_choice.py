"""The clusters and the tile of pixels of a filter gradient: the choice by the cycles of both kernels.

Part of :mod:`evt.plan.geometry`.
"""

from __future__ import annotations

from evt.plan.geometry.convolution import Problem, ceil_div, overlapped
from evt.plan.geometry.wgrad import (
    BLOCK,
    BLOCK_BYTES,
    CLUSTERS,
    LARGEST_BOX,
    MOST_OF_NEIGHBOURS,
    MOST_PIXELS,
    MOST_UNITS,
    NEIGHBOURS,
    PIXELS,
    WgradClass,
    WgradCluster,
    WgradGeometry,
    are_neighbours,
    available,
    clusters_of,
    cut,
    fits,
    is_pointwise,
    outputs,
    streamed,
    successive,
    units,
)

Int64 = int

#: Multiply-adds of an SM in a cycle. The relative times of instructions of 64 columns, of windows with a stride,
#: and of consumers that multiply different tiles. Bytes of shared memory that an SM reads and writes in a cycle.
#: Cycles in which a thread begins a load. Cycles of the barriers of a tile of a window. Bytes that memory moves for
#: all SMs in a cycle.
MULTIPLIED = 2320.0
NARROW = 1.3
OF_PARTS = 1.55
SHARED = 170.0
ISSUED = 135.0
OF_TILE = 140.0
MOVED = 2150.0
#: Cycles of a CTA for each sum that it completes, and for each sum that it sends to another CTA. Cycles for each
#: partial sum that it writes from registers, and for a tile of the gradient of a cluster that has parts of several.
#: Cycles of the second kernel, and the bytes of partial sums that all SMs write and read in a cycle. The constants
#: are fitted to times of tiles and clusters for ResNet-50's layers with 32 and 256 images, and for 20 other layers,
#: on an H200, 2026-11-29.
OF_SUM = 0.41
SENT = 1.4
OF_PARTIAL = 0.17
OF_PART = 15000.0
SECOND = 8100.0
SUMMED = 3300.0
#: CTAs, and pixels of a CTA, beyond which CTAs that send each other sums multiply more slowly, and by how much: CTAs
#: on neighbouring SMs load different pixels. Their consumers share pixels. Five layers, H200, 2026-11-30.
FEW_CTAS = 112
FEW_PIXELS = 4096.0
CROWDED = 1.15


def loads(problem: Problem, kind: WgradClass, neighbours: int) -> int:
    """Return the loads of a stage that a CTA begins: one for all blocks of a packed operand, or one for each block.

    Tensors are taken to be packed.
    """
    gradient = 1 if problem.filters % BLOCK == 0 else kind.filter_blocks
    packed = is_pointwise(problem) and problem.channels % BLOCK == 0
    return gradient + (1 if packed else ceil_div(kind.channel_blocks, neighbours))


def second_cycles(problem: Problem, partials: float) -> float:
    """Return the clock cycles of the second kernel, which adds partial sums of each element."""
    elements = float(problem.filters) * problem.tap_count * problem.channels
    return SECOND + partials * elements * 8.0 / SUMMED if partials > 1.0 else 0.0


def mainloop_cycles(problem: Problem, kind: WgradClass, cluster: WgradCluster, pixels: float) -> float:
    """Return the clock cycles of a CTA for some pixels, without the halos of windows."""
    slower = OF_PARTS if kind.parts > 1 else 1.0
    moved = pixels * (kind.blocks_read + kind.filter_blocks + kind.channel_blocks) * BLOCK_BYTES
    begun = pixels / PIXELS * ISSUED * loads(problem, kind, cluster.neighbours)
    work = overlapped(pixels * kind.sums / MULTIPLIED * slower, begun, moved / SHARED)
    return float(work)


def writes_partial(cluster: WgradCluster) -> bool:
    """Return whether consumers write partial sums from their registers: one CTA of each cluster has the tile."""
    return cluster.ranks == 1 and cluster.clusters > 1


def completion_cycles(kind: WgradClass, cluster: WgradCluster) -> float:
    """Return the clock cycles of a CTA after the last pixels of a tile of the gradient."""
    if writes_partial(cluster):
        return OF_PARTIAL * kind.sums
    completed = float(kind.parts * kind.sums) / cluster.ranks
    return completed * (OF_SUM + SENT * (cluster.ranks - 1))


def memory_cycles(problem: Problem) -> float:
    """Return the clock cycles in which memory moves both operands once."""
    height = problem.height
    width = problem.width
    outputs_of_image = height.output * width.output
    read = outputs_of_image if problem.tap_count == 1 else height.size * width.size
    return float(problem.images) * (read * problem.channels + outputs_of_image * problem.filters) * 2.0 / MOVED


def shared_cycles(problem: Problem, kind: WgradClass, cluster: WgradCluster) -> float:
    """Return the clock cycles of both kernels, without the halos of windows."""
    pixels = float(problem.images) * problem.height.output * problem.width.output
    completion = completion_cycles(kind, cluster)
    if cluster.streamed > 0:
        clusters = float(cluster.streamed)
        tiles = float(outputs(problem, kind) // cluster.neighbours)
        pieces = tiles + clusters
        multiplied = mainloop_cycles(problem, kind, cluster, pixels * tiles / clusters)
        parts = pieces / clusters * (completion + OF_PART)
        return overlapped(multiplied, memory_cycles(problem), 0.0) + parts + second_cycles(problem, pieces / tiles)
    ctas = cluster.splits * outputs(problem, kind)
    waves = ceil_div(ctas, available(cluster.ctas))
    multiplied = waves * mainloop_cycles(problem, kind, cluster, pixels / cluster.splits)
    if cluster.ranks > 1 and kind.parts == 1 and ctas > FEW_CTAS and pixels > FEW_PIXELS * cluster.splits:
        multiplied = multiplied * CROWDED
    completed = waves * completion + second_cycles(problem, float(cluster.clusters))
    return overlapped(multiplied, memory_cycles(problem), 0.0) + completed


def is_fast(kind: WgradClass, cluster: WgradCluster) -> bool:
    """Return whether a cluster fits, and may be the fastest: a CTA writes partial sums faster than it sends sums."""
    sends = cluster.ranks > 1
    writes = kind.streams and cluster.clusters > 1
    if sends and writes:
        return False
    return cluster.neighbours == 1 or (not sends and cluster.clusters <= MOST_OF_NEIGHBOURS)


def cluster_of(problem: Problem, kind: WgradClass) -> WgradCluster:
    """Return the clusters for which both kernels are fastest."""
    best = WgradCluster(1, 1, clusters_of(problem, kind, 1, 1))
    least = shared_cycles(problem, kind, best)
    for neighbours in NEIGHBOURS:
        if are_neighbours(problem, kind, neighbours):
            for ranks in CLUSTERS:
                even = WgradCluster(neighbours, ranks, clusters_of(problem, kind, neighbours, ranks))
                if is_fast(kind, even) and shared_cycles(problem, kind, even) < least:
                    best = even
                    least = shared_cycles(problem, kind, even)
            if kind.streams and units(problem, kind, neighbours) < MOST_UNITS:
                uneven = streamed(problem, kind, neighbours)
                if shared_cycles(problem, kind, uneven) < least:
                    best = uneven
                    least = shared_cycles(problem, kind, uneven)
    return best


def cycles(kind: WgradClass, made: WgradGeometry, cluster: WgradCluster) -> float:
    """Return the clock cycles of a CTA's tiles of pixels."""
    of_input = kind.channel_blocks * made.boxes_high * made.boxes_wide * made.box_pixels
    of_gradient = kind.filter_blocks * made.gradient_pixels
    multiplied = float(made.depth) * kind.sums / MULTIPLIED * (NARROW if made.boxes_wide > 1 else 1.0)
    moved = float(made.depth * kind.blocks_read + of_gradient + of_input) * BLOCK_BYTES
    few = 1.2 if made.stages < 3 else 1.0
    each = float(overlapped(multiplied, moved / SHARED, 0.0)) * few + OF_TILE
    return float(ceil_div(made.tiles, cluster.splits)) * each


def total_cycles(problem: Problem, kind: WgradClass, made: WgradGeometry, cluster: WgradCluster) -> float:
    """Return the clock cycles of both kernels."""
    if not kind.has_window:
        return shared_cycles(problem, kind, cluster)
    waves = ceil_div(cluster.splits * outputs(problem, kind), available(cluster.ctas))
    multiplied = overlapped(waves * cycles(kind, made, cluster), memory_cycles(problem), 0.0)
    return multiplied + waves * completion_cycles(kind, cluster) + second_cycles(problem, float(cluster.clusters))


def better(kind: WgradClass, one: WgradGeometry, other: WgradGeometry, cluster: WgradCluster) -> bool:
    """Return whether a geometry is faster than another, which may have no stages."""
    return other.stages == 0 or cycles(kind, one, cluster) < cycles(kind, other, cluster)


def choose_wgrad(problem: Problem, kind: WgradClass) -> WgradGeometry:
    """Return the fastest tile of pixels; without stages if none fits."""
    if not kind.has_window:
        return successive(problem, kind)
    height = problem.height
    width = problem.width
    best = WgradGeometry()
    cluster = cluster_of(problem, kind)
    for columns in range(1, min(width.output, LARGEST_BOX) + 1):
        if width.output % columns == 0:
            for rows in range(1, min(height.output, MOST_PIXELS // columns) + 1):
                made = cut(problem, kind, rows, columns)
                if fits(problem, kind, made) and better(kind, made, best, cluster):
                    best = made
    return best
