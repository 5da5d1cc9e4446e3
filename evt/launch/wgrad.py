"""The values of the members of the parameters of a filter gradient's kernels: ``shape(plan, sizes) -> Shape | None``.

The C++ launcher of codegen/include/evt/kit/wgrad.hpp makes the same values; a test compares all bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields

from evt.launch.halo_groups import DIVISOR, divisor
from evt.launch.shape import MAP_TYPES, Map, PixelMap, Shape, TensorMap, tensor_map
from evt.plan import Field, Plan
from evt.plan.geometry.convolution import Axis, Problem, ceil_div
from evt.plan.geometry.wgrad import (
    BLOCK,
    BLOCK_BYTES,
    PIXELS,
    SHARED_BYTES,
    SHARING_WARPS,
    TILE_COLUMNS,
    TILE_ROWS,
    WgradCluster,
    WgradGeometry,
    column_tiles,
    filter_tiles,
    is_pointwise,
    last_edge,
    outputs,
    partial_sums,
    share_of,
    sharing_of,
    strips_of,
)
from evt.plan.geometry.wgrad_choice import cluster_of
from evt.plan.plan import FilterGradient, Image, PaddedCopy
from evt.plan.signature import bytes_of
from evt.plan.wgrad import WgradTile, geometry_of, problem_of

_WARP_GROUP, _WARP = 128, 32
_AXES = ("height", "width")
_COMBINED = (
    *("splits", "rows", "columns", "channels", "strips", "sharing"),
    *("streamed", "pixel_tiles", "share", "filter_tiles", "tile_rows", "tile_strips"),
)
_DIVISORS = (
    *("by_cluster_size", "by_outputs", "by_filter_tiles", "by_image_pixels", "by_output_width"),
    *("by_blocks_of_tap", "by_taps_wide", "by_tiles", "by_share"),
    *("combined.by_strips", "combined.by_strips_of_tap"),
)
_NUMBERS = (
    *("filters", "channels", "taps_high", "taps_wide"),
    *(f"{part}_{axis}" for part in ("stride", "dilation", "pad", "output") for axis in _AXES),
    *(
        "filter_tiles",
        "column_tiles",
        "windows_wide",
        "outputs",
        "neighbours",
        "ranks",
        "splits",
        "streamed",
        "share",
        "column_step",
        "blocks_of_tap",
        "gradient_is_packed",
        "input_is_packed",
    ),
)
MEMBERS = (
    *("gradient", "input"),
    *(f"geometry.{each.name}" for each in fields(WgradGeometry)),
    *_NUMBERS,
    *(f"{name}.{part}" for name in _DIVISORS for part in DIVISOR),
    *("sums", "combined.sums", *(f"combined.{name}" for name in _COMBINED)),
    *("combined.c", "combined.c_stride", "combined.d", "combined.d_stride", "encoded"),
)
#: The members that are the address of the partial sums.
SUMS = ("sums", "combined.sums")


def partial_bytes(plan: Plan, sizes: Mapping[str, int]) -> int:
    """Return the bytes of the partial sums."""
    loop = plan.mainloop
    assert isinstance(loop, FilterGradient)
    problem = problem_of(sizes)
    return 4 * cluster_of(problem, loop.part.kind).clusters * partial_sums(problem)


def pointers(plan: Plan) -> Mapping[str, Field]:
    """Return the members that are addresses of C and D."""
    tensors = (("combined.c", plan.source), ("combined.d", plan.destination))
    return {name: tensor.pointer for name, tensor in tensors if tensor is not None}


def shape(plan: Plan, sizes: Mapping[str, int]) -> Shape | None:
    """Return the launches for the sizes of a call; None if the kernel cannot run it."""
    loop = plan.mainloop
    assert isinstance(loop, FilterGradient)
    problem, part = problem_of(sizes), loop.part
    geometry, cluster = geometry_of(problem, part), cluster_of(problem, part.kind)
    if not geometry.stages or min(problem.height.pad, problem.width.pad) < 0:
        return None
    divided = geometry.pitch > geometry.columns and geometry.tiles_wide > 1
    column_step = geometry.columns if part.kind.has_window and not divided else 0
    packed = (False, False) if part.kind.has_window else _are_packed(loop, sizes, problem)
    numbers = _numbers(problem, part, cluster, geometry.tiles, column_step, packed)
    strips, sharing = strips_of(problem), sharing_of(cluster.clusters)
    columns = problem.tap_count * problem.channels
    combined = (
        *(cluster.clusters, problem.filters, columns, problem.channels, strips, sharing),
        *(cluster.streamed, geometry.tiles, numbers["share"], numbers["filter_tiles"]),
        *(cluster.neighbours * part.filters, part.channel_blocks * BLOCK // TILE_COLUMNS),
    )
    values: dict[str, int | Sequence[int]] = {
        **{f"geometry.{each.name}": getattr(geometry, each.name) for each in fields(WgradGeometry)},
        **numbers,
        **_divisors(problem, numbers, cluster.ctas, geometry.tiles, strips),
        **{f"combined.{name}": 0 for name in ("c", "c_stride", "d", "d_stride")},
        **dict(zip((f"combined.{name}" for name in _COMBINED), combined, strict=True)),
        "encoded": 1,
    }
    for name, tensor in (("c", plan.source), ("d", plan.destination)):
        if tensor is not None:
            values[f"combined.{name}_stride"] = sizes[str(tensor.strides[0])]
    if part.kind.has_window:
        maps: tuple[Map, ...] = (
            _gradient(loop, sizes, problem, geometry, divided=divided),
            _input(loop, sizes, problem, geometry),
        )
    else:
        maps = _pixels(loop, sizes, problem, packed, cluster.neighbours)
    tiles = ceil_div(problem.filters, TILE_ROWS), strips
    threads = (1 + part.consumers) * _WARP_GROUP
    ctas = (cluster.streamed or numbers["outputs"] * cluster.splits) * cluster.neighbours
    first = Shape({}, maps, tiles, ctas, threads, SHARED_BYTES, cluster.ctas)
    grid = ceil_div(tiles[0] * strips, SHARING_WARPS // sharing) if cluster.clusters > 1 else 0
    return Shape(values, maps, tiles, grid, SHARING_WARPS * _WARP, 0, first=first)


def _strides(operand: Image | PaddedCopy, sizes: Mapping[str, int]) -> list[int]:
    """Return the strides of an operand's images, rows and pixels."""
    assert isinstance(operand, Image)
    return [sizes[stride.name] for stride in operand.strides]


def _numbers(
    problem: Problem, part: WgradTile, cluster: WgradCluster, tiles: int, column_step: int, packed: tuple[bool, bool]
) -> dict[str, int]:
    """Return the members that are numbers of the convolution, of its tiles and of the clusters."""
    kind, height, width = part.kind, problem.height, problem.width
    axes = [getattr(axis, name) for name in ("stride", "dilation", "pad", "output") for axis in (height, width)]
    neighbours = cluster.neighbours
    of_cluster = outputs(problem, kind) // neighbours
    numbers = (
        *(problem.filters, problem.channels, height.taps, width.taps, *axes),
        *(filter_tiles(problem, kind) // neighbours, column_tiles(problem, kind)),
        *(ceil_div(width.taps, part.tap_columns), of_cluster),
        *(neighbours, cluster.ranks, cluster.splits, cluster.streamed, share_of(of_cluster, tiles, cluster)),
        *(column_step, ceil_div(problem.channels, BLOCK)),
        *map(int, packed),
    )
    return dict(zip(_NUMBERS, numbers, strict=True))


def _divisors(problem: Problem, numbers: Mapping[str, int], ctas: int, tiles: int, strips: int) -> dict[str, int]:
    """Return the numbers of divisor.hpp that stand for divisors."""
    height, width = problem.height, problem.width
    values = (
        *(ctas, numbers["outputs"], numbers["filter_tiles"], height.output * width.output, width.output),
        *(numbers["blocks_of_tap"], width.taps, tiles, numbers["share"], strips, strips // problem.tap_count),
    )
    return {
        f"{name}.{part}": value
        for name, number in zip(_DIVISORS, values, strict=True)
        for part, value in divisor(number).items()
    }


# Descriptors.


def _are_packed(loop: FilterGradient, sizes: Mapping[str, int], problem: Problem) -> tuple[bool, bool]:
    """Return whether the pixels of the output's gradient, and of the input, are a dimension of a descriptor."""
    high, wide = problem.height.output, problem.width.output

    def is_packed(operand: Image | PaddedCopy, columns: int) -> bool:
        image, row, pixel = _strides(operand, sizes)
        rows = high == 1 or row == pixel * wide
        return columns % BLOCK == 0 and rows and (problem.images == 1 or image == pixel * wide * high)

    return is_packed(loop.a, problem.filters), is_pointwise(problem) and is_packed(loop.b, problem.channels)


def _pixels(
    loop: FilterGradient, sizes: Mapping[str, int], problem: Problem, packed: tuple[bool, bool], neighbours: int
) -> tuple[Map, Map]:
    """Return the descriptors of successive pixels: of the output's gradient and of the input."""
    height, width = problem.height, problem.width

    def blocks_of(member: str, operand: Image | PaddedCopy, columns: int, blocks: int) -> TensorMap:
        assert isinstance(operand, Image)
        extents = BLOCK, problem.images * height.output * width.output, columns // BLOCK
        strides, box = (_strides(operand, sizes)[2], BLOCK), (BLOCK, PIXELS, blocks)
        return tensor_map(member, operand.pointer, operand.dtype, extents, strides, box, BLOCK_BYTES)

    def of(
        member: str,
        operand: Image | PaddedCopy,
        extents: tuple[int, int, int],
        first: tuple[int, int] = (0, 0),
        last: tuple[int, int] = (0, 0),
        steps: tuple[int, int] = (1, 1),
    ) -> PixelMap:
        assert isinstance(operand, Image)
        image, row, pixel = (stride * bytes_of(operand.dtype) for stride in _strides(operand, sizes))
        of_images = (*extents, problem.images), (pixel, row, image)
        type_ = MAP_TYPES[operand.dtype][1]
        return PixelMap(member, operand.pointer, type_, *of_images, first, last, steps, BLOCK, PIXELS)

    edges = (-width.pad, -height.pad), (last_edge(width), last_edge(height)), (width.stride, height.stride)
    pixels, read = (problem.filters, width.output, height.output), (problem.channels, width.size, height.size)
    filters, channels = loop.part.kind.filter_blocks, loop.part.channel_blocks // neighbours
    return (
        blocks_of("gradient", loop.a, problem.filters, filters) if packed[0] else of("gradient", loop.a, pixels),
        blocks_of("input", loop.b, problem.channels, channels) if packed[1] else of("input", loop.b, read, *edges),
    )


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
        (BLOCK, geometry.pitch, geometry.rows, 1, 1),
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
        (BLOCK, _reached(geometry.pitch, width), _reached(geometry.box_rows, height), 1),
        BLOCK_BYTES,
        steps=(width.stride, height.stride),
    )


def _reached(pixels: int, axis: Axis) -> int:
    return (pixels - 1) * axis.stride + 1
