"""The clusters and the tile of pixels of a filter gradient: the choice by the cycles of both kernels.

Part of :mod:`evt.plan.geometry`.
"""

from __future__ import annotations

from evt.plan.geometry.convolution import Problem, ceil_div, overlapped
from evt.plan.geometry.wgrad import (
    BLOCK_BYTES,
    CLUSTERS,
    LARGEST_BOX,
    LARGEST_CLUSTER,
    MOST_PIXELS,
    NEIGHBOURS,
    PIXELS,
    WgradClass,
    WgradCluster,
    WgradGeometry,
    are_neighbours,
    available,
    boxes,
    clusters_of,
    cut,
    fits,
    outputs,
    streamed,
    successive,
)

Int64 = int

#: Multiply-adds of an SM in a cycle, and how much longer instructions of 64 columns take, which windows with a stride
#: have. Bytes that an SM loads in a cycle, and cycles of a tile's barriers. Fitted on an H200, 2026-11.
MULTIPLIED = 2200.0
NARROW = 1.3
LOADED = 55.0
OF_TILE = 200.0
#: Cycles of a CTA for each sum that it adds and completes, and for partial sums that it writes from registers.
#: Cycles of the second kernel, and the bytes of partial sums that all SMs write and read in a cycle. Fitted to 1,631
#: times of tiles and clusters for ResNet-50's layers on an H200, 2026-11.
OF_SUM = 0.65
OF_PARTIAL = 22000.0
SECOND = 6500.0
SUMMED = 2800.0


def loaded_blocks(problem: Problem, kind: WgradClass, neighbours: int) -> float:
    """Return the blocks of 64 channels that a CTA loads for each pixel, without the halo."""
    count = kind.channel_blocks * boxes(problem.height, kind.tap_rows) * boxes(problem.width, kind.tap_columns)
    return float(kind.filter_blocks) + float(count) / float(neighbours)


def second_cycles(problem: Problem, partials: float) -> float:
    """Return the clock cycles of the second kernel, which adds partial sums of each element."""
    elements = float(problem.filters) * problem.tap_count * problem.channels
    return SECOND + partials * elements * 8.0 / SUMMED if partials > 1.0 else 0.0


def mainloop_cycles(problem: Problem, kind: WgradClass, cluster: WgradCluster, pixels: float) -> float:
    """Return the clock cycles of a CTA for some pixels, without the halos of windows."""
    bytes_loaded = pixels * loaded_blocks(problem, kind, cluster.neighbours) * BLOCK_BYTES
    work = overlapped(pixels * kind.sums / MULTIPLIED, bytes_loaded / LOADED, 0.0)
    return float(work) + pixels / PIXELS * OF_TILE


def writes_partial(kind: WgradClass, cluster: WgradCluster) -> bool:
    """Return whether consumers write partial sums from their registers: one CTA of each cluster has the tile."""
    return kind.streams and cluster.ranks == 1 and cluster.clusters > 1


def completion_cycles(kind: WgradClass, cluster: WgradCluster) -> float:
    """Return the clock cycles of a CTA after the last pixels of a tile of the gradient."""
    return OF_PARTIAL if writes_partial(kind, cluster) else OF_SUM * kind.parts * kind.sums


def shared_cycles(problem: Problem, kind: WgradClass, cluster: WgradCluster) -> float:
    """Return the clock cycles of both kernels, without the halos of windows."""
    pixels = float(problem.images) * problem.height.output * problem.width.output
    completion = completion_cycles(kind, cluster)
    if cluster.streamed > 0:
        clusters = float(cluster.streamed)
        tiles = float(outputs(problem, kind) // cluster.neighbours)
        pieces = tiles + clusters
        share = pixels * tiles / clusters
        of_cta = mainloop_cycles(problem, kind, cluster, share) + pieces / clusters * completion
        return of_cta + second_cycles(problem, pieces / tiles)
    waves = ceil_div(cluster.splits * outputs(problem, kind), available(cluster.ctas))
    of_cta = mainloop_cycles(problem, kind, cluster, pixels / cluster.splits) + completion
    return waves * of_cta + second_cycles(problem, float(cluster.clusters))


def cluster_of(problem: Problem, kind: WgradClass) -> WgradCluster:
    """Return the clusters for which both kernels are fastest."""
    best = WgradCluster(1, 1, clusters_of(problem, kind, 1, 1))
    least = shared_cycles(problem, kind, best)
    for neighbours in NEIGHBOURS:
        if are_neighbours(problem, kind, neighbours):
            for ranks in CLUSTERS:
                if neighbours * ranks <= LARGEST_CLUSTER:
                    even = WgradCluster(neighbours, ranks, clusters_of(problem, kind, neighbours, ranks))
                    if shared_cycles(problem, kind, even) < least:
                        best = even
                        least = shared_cycles(problem, kind, even)
            if kind.streams:
                uneven = streamed(problem, kind, neighbours)
                if shared_cycles(problem, kind, uneven) < least:
                    best = uneven
                    least = shared_cycles(problem, kind, uneven)
    return best


def cycles(kind: WgradClass, made: WgradGeometry, cluster: WgradCluster) -> float:
    """Return the clock cycles of a CTA's tiles of pixels."""
    of_input = kind.channel_blocks * made.boxes_high * made.boxes_wide * made.box_pixels
    of_gradient = kind.filter_blocks * made.gradient_pixels
    loaded = float(of_gradient) + float(of_input) / float(cluster.neighbours)
    multiplied = float(made.depth) * kind.sums / MULTIPLIED * (NARROW if made.boxes_wide > 1 else 1.0)
    few = 1.2 if made.stages < 3 else 1.0
    each = float(overlapped(multiplied, loaded * BLOCK_BYTES / LOADED, 0.0)) * few + OF_TILE
    return float(ceil_div(made.tiles, cluster.splits)) * each


def total_cycles(problem: Problem, kind: WgradClass, made: WgradGeometry, cluster: WgradCluster) -> float:
    """Return the clock cycles of both kernels."""
    if not kind.has_window:
        return shared_cycles(problem, kind, cluster)
    waves = ceil_div(cluster.splits * outputs(problem, kind), available(cluster.ctas))
    of_cta = cycles(kind, made, cluster) + completion_cycles(kind, cluster)
    return waves * of_cta + second_cycles(problem, float(cluster.clusters))


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
