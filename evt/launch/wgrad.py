"""The values of the members of the parameters of a filter gradient's kernels: ``shape(plan, sizes) -> Shape | None``.

The C++ launcher of codegen/include/evt/kit/wgrad.hpp makes the same values; a test compares all bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields

from evt.launch.shape import Shape, TensorMap, tensor_map
from evt.plan import Field, Plan
from evt.plan.geometry.convolution import Axis, Problem, ceil_div
from evt.plan.geometry.wgrad import (
    BLOCK,
    BLOCK_BYTES,
    SHARED_BYTES,
    SHARING_WARPS,
    TILE_ROWS,
    WgradCluster,
    WgradGeometry,
    channel_tiles,
    cluster_of,
    filter_tiles,
    flattened,
    outputs,
    sharing_of,
    strips_of,
)
from evt.plan.plan import FilterGradient, Image, PaddedCopy
from evt.plan.wgrad import WgradTile, geometry_of, is_row, problem_of

_WARP_GROUP, _WARP = 128, 32
_AXES = ("height", "width")
_COMBINED = ("splits", "rows", "columns", "channels", "strips", "sharing")
_NUMBERS = (
    *("filters", "channels", "taps_high", "taps_wide"),
    *(f"{part}_{axis}" for part in ("stride", "dilation", "pad") for axis in _AXES),
    *("filter_tiles", "channel_tiles", "windows_wide", "outputs", "neighbours", "ranks", "splits", "column_step"),
)
MEMBERS = (
    *("gradient", "input"),
    *(f"geometry.{each.name}" for each in fields(WgradGeometry)),
    *_NUMBERS,
    *("sums", "combined.sums", *(f"combined.{name}" for name in _COMBINED)),
    *("combined.c", "combined.c_stride", "combined.d", "combined.d_stride", "encoded"),
)
#: The members that are the address of the partial sums.
SUMS = ("sums", "combined.sums")


def partial_bytes(plan: Plan, sizes: Mapping[str, int]) -> int:
    """Return the bytes of the partial sums."""
    loop = plan.mainloop
    assert isinstance(loop, FilterGradient)
    return 4 * cluster_of(problem_of(sizes), loop.part.kind).clusters * sizes["m"] * sizes["n"]


def pointers(plan: Plan) -> Mapping[str, Field]:
    """Return the members that are addresses of C and D."""
    tensors = (("combined.c", plan.source), ("combined.d", plan.destination))
    return {name: tensor.pointer for name, tensor in tensors if tensor is not None}


def shape(plan: Plan, sizes: Mapping[str, int]) -> Shape | None:
    """Return the launches for the sizes of a call; None if the kernel cannot run it."""
    loop = plan.mainloop
    assert isinstance(loop, FilterGradient)
    given, part = problem_of(sizes), loop.part
    flat = _is_flat(loop, sizes, given)
    geometry, cluster = geometry_of(given, part, flat=flat), cluster_of(given, part.kind)
    if not geometry.stages or min(given.height.pad, given.width.pad) < 0:
        return None
    problem = flattened(given) if flat else given
    divided = geometry.pitch > geometry.columns and geometry.tiles_wide > 1
    numbers = _numbers(problem, part, cluster, 0 if divided else geometry.columns)
    strips, sharing = strips_of(problem), sharing_of(cluster.clusters)
    columns = given.tap_count * given.channels
    combined = (cluster.clusters, given.filters, columns, problem.channels, strips, sharing)
    values: dict[str, int | Sequence[int]] = {
        **{f"geometry.{each.name}": getattr(geometry, each.name) for each in fields(WgradGeometry)},
        **numbers,
        **{f"combined.{name}": 0 for name in ("c", "c_stride", "d", "d_stride")},
        **dict(zip((f"combined.{name}" for name in _COMBINED), combined, strict=True)),
        "encoded": 1,
    }
    for name, tensor in (("c", plan.source), ("d", plan.destination)):
        if tensor is not None:
            values[f"combined.{name}_stride"] = sizes[str(tensor.strides[0])]
    maps = _gradient(loop, sizes, problem, geometry, divided=divided), _input(loop, sizes, problem, geometry)
    tiles = ceil_div(given.filters, TILE_ROWS), strips
    threads = (1 + part.consumers) * _WARP_GROUP
    ctas = numbers["outputs"] * cluster.splits * cluster.neighbours
    first = Shape({}, maps, tiles, ctas, threads, SHARED_BYTES, cluster.ctas)
    grid = ceil_div(tiles[0] * strips, SHARING_WARPS // sharing) if cluster.clusters > 1 else 0
    return Shape(values, maps, tiles, grid, SHARING_WARPS * _WARP, 0, first=first)


def _is_flat(loop: FilterGradient, sizes: Mapping[str, int], problem: Problem) -> bool:
    """Return whether the convolution is a row of pixels: one tap, over images without gaps."""
    outer = (problem.height.output, problem.width.output), (problem.height.size, problem.width.size)
    strides = _strides(loop.a, sizes), _strides(loop.b, sizes)
    dense = (
        row == columns * pixel and image == rows * row
        for (image, row, pixel), (rows, columns) in zip(strides, outer, strict=True)
    )
    return is_row(problem) and all(dense)


def _strides(operand: Image | PaddedCopy, sizes: Mapping[str, int]) -> list[int]:
    """Return the strides of an operand's images, rows and pixels."""
    assert isinstance(operand, Image)
    return [sizes[stride.name] for stride in operand.strides]


def _numbers(problem: Problem, part: WgradTile, cluster: WgradCluster, column_step: int) -> dict[str, int]:
    """Return the members that are numbers of the convolution, of its tiles and of the clusters."""
    kind, height, width = part.kind, problem.height, problem.width
    axes = [getattr(axis, name) for name in ("stride", "dilation", "pad") for axis in (height, width)]
    neighbours = cluster.neighbours
    numbers = (
        *(problem.filters, problem.channels, height.taps, width.taps, *axes),
        *(filter_tiles(problem, kind) // neighbours, channel_tiles(problem, kind)),
        *(ceil_div(width.taps, part.tap_columns), outputs(problem, kind) // neighbours),
        *(neighbours, cluster.ranks, cluster.splits, column_step),
    )
    return dict(zip(_NUMBERS, numbers, strict=True))


# Descriptors.


def _gradient(
    loop: FilterGradient, sizes: Mapping[str, int], problem: Problem, geometry: WgradGeometry, *, divided: bool
) -> TensorMap:
    """Return the descriptor of the output's gradient; ``divided``: of each row's tiles, along a further dimension."""
    assert isinstance(loop.a, Image)
    image, row, pixel = _strides(loop.a, sizes)
    extents = (problem.filters, geometry.columns if divided else problem.width.output, problem.height.output)
    return tensor_map(
        "gradient",
        loop.a.pointer,
        loop.a.dtype,
        (*extents, geometry.tiles_wide if divided else 1, problem.images),
        (pixel, row, geometry.columns * pixel if divided else image, image),
        (BLOCK, geometry.pitch, geometry.rows, 1, geometry.images),
        BLOCK_BYTES,
    )


def _input(loop: FilterGradient, sizes: Mapping[str, int], problem: Problem, geometry: WgradGeometry) -> TensorMap:
    assert isinstance(loop.b, Image)
    height, width = problem.height, problem.width
    return tensor_map(
        "input",
        loop.b.pointer,
        loop.b.dtype,
        (problem.channels, width.size, height.size, problem.images),
        _strides(loop.b, sizes)[::-1],
        (BLOCK, _reached(geometry.pitch, width), _reached(geometry.box_rows, height), geometry.images),
        BLOCK_BYTES,
        steps=(width.stride, height.stride),
    )


def _reached(pixels: int, axis: Axis) -> int:
    return (pixels - 1) * axis.stride + 1
