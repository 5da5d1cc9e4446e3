"""The values of the members of the parameters of a filter gradient's kernels: ``shape(plan, sizes) -> Shape | None``.

The C++ launcher of codegen/include/evt/kit/wgrad.hpp makes the same values; a test compares all bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields

from evt.launch.shape import Shape, tensor_map
from evt.plan import Field, Plan
from evt.plan.geometry.convolution import Axis, ceil_div
from evt.plan.geometry.wgrad import (
    BLOCK,
    BLOCK_BYTES,
    SHARED_BYTES,
    SHARING_WARPS,
    TILE_ROWS,
    WgradGeometry,
    channel_tiles,
    cluster_of,
    filter_tiles,
    flattened,
    outputs,
    sharing_of,
    strips_of,
)
from evt.plan.plan import FilterGradient, Image
from evt.plan.wgrad import geometry_of, is_row, problem_of

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
    assert isinstance(loop.a, Image)
    assert isinstance(loop.b, Image)
    given, part = problem_of(sizes), loop.part
    a, b = ([sizes[stride.name] for stride in operand.strides] for operand in (loop.a, loop.b))
    flat = is_row(given) and all(
        strides[1] == columns * strides[2] and strides[0] == rows * strides[1]
        for strides, (rows, columns) in (
            (a, (given.height.output, given.width.output)),
            (b, (given.height.size, given.width.size)),
        )
    )
    made = geometry_of(given, part, flat=flat)
    if not made.stages or min(given.height.pad, given.width.pad) < 0:
        return None
    problem = flattened(given) if flat else given
    kind, cluster = part.kind, cluster_of(given, part.kind)
    height, width = problem.height, problem.width
    rows, columns = given.filters, given.tap_count * given.channels
    divided = made.pitch > made.columns and made.tiles_wide > 1
    clusters, number = cluster.clusters, outputs(problem, kind) // cluster.neighbours
    strips, sharing = strips_of(problem), sharing_of(clusters)
    combined = clusters, rows, columns, problem.channels, strips, sharing
    axes = [getattr(axis, name) for name in ("stride", "dilation", "pad") for axis in (height, width)]
    numbers = (
        *(problem.filters, problem.channels, height.taps, width.taps, *axes),
        *(filter_tiles(problem, kind) // cluster.neighbours, channel_tiles(problem, kind)),
        *(ceil_div(width.taps, part.tap_columns), number),
        *(cluster.neighbours, cluster.ranks, cluster.splits, 0 if divided else made.columns),
    )
    values: dict[str, int | Sequence[int]] = {
        **{f"geometry.{each.name}": getattr(made, each.name) for each in fields(WgradGeometry)},
        **dict(zip(_NUMBERS, numbers, strict=True)),
        **{f"combined.{name}": 0 for name in ("c", "c_stride", "d", "d_stride")},
        **dict(zip((f"combined.{name}" for name in _COMBINED), combined, strict=True)),
        "encoded": 1,
    }
    for name, tensor in (("c", plan.source), ("d", plan.destination)):
        if tensor is not None:
            values[f"combined.{name}_stride"] = sizes[str(tensor.strides[0])]
    extents = (problem.filters, made.columns if divided else width.output, height.output)
    strides = (a[2], a[1], made.columns * a[2] if divided else a[0], a[0])
    maps = (
        tensor_map(
            "gradient",
            loop.a.pointer,
            loop.a.dtype,
            (*extents, made.tiles_wide if divided else 1, problem.images),
            strides,
            (BLOCK, made.pitch, made.rows, 1, made.images),
            BLOCK_BYTES,
        ),
        tensor_map(
            "input",
            loop.b.pointer,
            loop.b.dtype,
            (problem.channels, width.size, height.size, problem.images),
            b[::-1],
            (BLOCK, _reached(made.pitch, width), _reached(made.box_rows, height), made.images),
            BLOCK_BYTES,
            steps=(width.stride, height.stride),
        ),
    )
    tiles = ceil_div(rows, TILE_ROWS), strips
    threads, ctas = (1 + part.consumers) * _WARP_GROUP, number * cluster.splits * cluster.neighbours
    first = Shape({}, maps, tiles, ctas, threads, SHARED_BYTES, cluster.ctas)
    grid = ceil_div(tiles[0] * strips, SHARING_WARPS // sharing) if clusters > 1 else 0
    return Shape(values, maps, tiles, grid, SHARING_WARPS * _WARP, 0, first=first)


def _reached(pixels: int, axis: Axis) -> int:
    return (pixels - 1) * axis.stride + 1
