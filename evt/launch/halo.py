"""The values of the members of a halo kernel's parameters: ``shape(plan, sizes, multiprocessors) -> Shape | None``.

The C++ launcher of codegen/include/evt/kit/params.hpp makes the same values; a test compares all bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from itertools import accumulate, product
from operator import mul

from evt.launch.halo_groups import DIVISOR, OF_GROUPS, OF_PACKED_GROUPS, OF_WORDS, Blocks, copied, divisor, packed
from evt.launch.padded import place_of, strides_of
from evt.launch.shape import INT32_MAX, Shape, TensorMap, tensor_map
from evt.plan import Plan
from evt.plan.geometry.convolution import Axis, Problem, ceil_div
from evt.plan.geometry.halo import (
    FILTERS,
    MAX_CLASSES,
    MAX_TAPS,
    SHARED_BYTES,
    STEP_PIXELS,
    WARP_GROUP,
    WINDOW_BYTES,
    Geometry,
    KernelClass,
    flattened,
    has_columns,
    over_residues,
    over_windows,
    swizzled_row,
)
from evt.plan.geometry.halo_groups import over_groups
from evt.plan.geometry.halo_schedule import geometry_of, grid_of, scheduled
from evt.plan.halo import MOST_PADDING, STRIP, forward, reaches
from evt.plan.halo_cost import flags_of, remainder, residue_classes
from evt.plan.plan import HaloConvolution
from evt.plan.signature import bytes_of
from evt.plan.tma import LARGEST_STRIDE

_DIVISORS = ("by_filter_blocks", "by_tiles_wide", "by_tiles_high", "by_cluster_size")
_SINGLE = (
    *("images", "output_height", "output_width", "filter_count", "stride_height", "stride_width"),
    *("channel_blocks", "filter_blocks", "work_tiles", "steps_per_cta", "d", "d_stride", "grid", "source_bytes"),
    *("input_layout", "stores_rows", "encoded"),
)
_DEPTH = ("channel_blocks", "size", "taps", "output", "pad", "stride", "dilation")
MEMBERS = (
    *("input", "filters", "source", "destination"),
    *("taps.number", "taps.groups", "taps.starts[0]", "taps.tap[0].word"),
    *(f"geometry.{each.name}" for each in fields(Geometry)),
    *_SINGLE,
    *(f"{name}.{part}" for name in _DIVISORS for part in DIVISOR),
    *(f"depth.{name}" for name in _DEPTH),
)
OF_RESIDUES = (
    *(f"operands.residues.{name}" for name in ("number", "stride_height", "stride_width")),
    *(f"operands.residues.{name}[0]" for name in ("row", "column", "first_tap")),
    "operands.work_tiles",
    *(f"operands.{name}[{index}]" for name in ("source", "destination") for index in range(MAX_CLASSES - 1)),
)
_OPERANDS = ("a_image", "a_row", "b_filter", "b_row", "a_pixel", "b_pixel", "height", "width", "filter_width", "pad")
OF_WINDOWS = (
    *("operands.a", "operands.b"),
    *(f"operands.{name}" for name in _OPERANDS),
    *("operands.by_pitch.multiplier", "operands.by_box_rows.multiplier"),
)
#: A row of pixels of C and D in shared memory: 64 elements of 16 bits.
_EPILOGUE_ROW = 2 * FILTERS


def has_windows(plan: Plan) -> bool:
    """Return whether a row of taps is one tap over a window."""
    return isinstance(plan.mainloop, HaloConvolution) and plan.mainloop.windows is not None


def members(plan: Plan) -> tuple[str, ...]:
    """Return the members of the parameters of a plan's kernel."""
    loop = plan.mainloop
    assert isinstance(loop, HaloConvolution)
    if loop.windows:
        return (*MEMBERS, *OF_WINDOWS)
    if loop.residues:
        return (*MEMBERS, *OF_RESIDUES)
    return (*MEMBERS, *{"one": (), "single": OF_GROUPS, "multiple": OF_PACKED_GROUPS, "words": OF_WORDS}[loop.groups])


def problem_of(plan: Plan, sizes: Mapping[str, int]) -> Problem:
    """Return the convolution of a call."""
    loop = plan.mainloop
    assert isinstance(loop, HaloConvolution)
    found = forward(loop.operator, sizes)
    axes = {name: Axis.of(found, name) for name in loop.spatial}
    problem = Problem(found["images"], found["channels"], found["filters"], **axes)
    return flattened(problem) if _is_flattened(plan, sizes, problem) else problem


def _is_flat(sizes: Mapping[str, int], given: Problem) -> bool:
    """Return whether a convolution is a volume as an image."""
    return sizes.get("filter_depth", 1) > given.depth.taps


def _is_flattened(plan: Plan, sizes: Mapping[str, int], problem: Problem) -> bool:
    """Return whether a volume is computed as an image whose rows are the slices, each of one pitch."""
    loop = plan.mainloop
    assert isinstance(loop, HaloConvolution)
    if loop.rank < 3 or not has_columns(problem):
        return False
    *_, row, pixel = strides_of(loop.a, sizes)
    return row == problem.width.size * pixel


def shape(plan: Plan, sizes: Mapping[str, int], multiprocessors: int) -> Shape | None:
    """Return the launch for the sizes of a call; None if the kernel cannot run it."""
    loop, kernel = plan.mainloop, class_of(plan)
    assert isinstance(loop, HaloConvolution)
    given = problem_of(plan, sizes)
    problem = _multiplied(given, kernel, sizes)
    tile = sizes["tile_rows"], sizes["tile_columns"]
    made = geometry_of(problem, kernel, *tile)
    classes = given.height.remainders * given.width.remainders if kernel.residues else 1
    if made.input_stages == 0 or not _can_implement(plan, given, problem):
        return None
    tiles = made.tiles(problem) * classes * made.cluster_size, ceil_div(problem.filters, FILTERS) * (FILTERS // STRIP)
    made = scheduled(problem, kernel, made, multiprocessors)
    filter_blocks = ceil_div(problem.filters, FILTERS * (2 if made.cooperative else 1))
    of_class = made.tiles(problem) * filter_blocks
    work_tiles = of_class * classes
    grid = work_tiles * made.cluster_size
    if not kernel.shared:
        grid = grid_of(work_tiles, filter_blocks, multiprocessors, made.resident)
    stores_rows = made.accumulator_pitch > made.columns and made.tiles_wide > 1
    stored = Blocks.of(given, kernel, sizes["groups"]).step if kernel.grouped else FILTERS
    taps = _taps_of_residues(given, made) if kernel.residues else _taps(problem, made, loop.operator == "dgrad")
    values: dict[str, int | Sequence[int]] = {
        **taps,
        **{f"geometry.{each.name}": int(getattr(made, each.name)) for each in fields(Geometry)},
        "images": problem.images,
        "output_height": given.height.output,
        "output_width": (given if kernel.residues else problem).width.output,
        "filter_count": given.filters,
        "stride_height": problem.height.stride,
        "stride_width": problem.width.stride,
        "channel_blocks": problem.channel_blocks(kernel.channels),
        "filter_blocks": filter_blocks,
        "work_tiles": work_tiles,
        "steps_per_cta": ceil_div(ceil_div(kernel.pixels, STEP_PIXELS), made.cluster_size),
        "d": 0,
        "d_stride": _pitch(plan, sizes, "destination"),
        "grid": grid,
        "source_bytes": made.stored_pixels * 2 * stored,
        "input_layout": _layout(kernel.pixel_bytes, made.next_eight),
        "stores_rows": int(stores_rows),
        "encoded": 1,
        **_divisors(filter_blocks, made),
        **_depth(problem, kernel.channels),
    }
    if kernel.has_windows:
        operands = _windows(plan, sizes, given, made)
        if operands is None:
            return None
        values |= operands
        maps = []
    else:
        maps = [] if kernel.words else [_input(plan, sizes, given, made, kernel)]
        if kernel.grouped:
            values |= Blocks.of(given, kernel, sizes["groups"]).members()
        if kernel.packed:
            values |= packed(given, sizes["groups"], strides_of(loop.b, sizes), backwards=loop.operator == "dgrad")
        else:
            maps.append(_filters(plan, sizes, given, kernel))
        if kernel.words:
            words = copied(given, made, kernel, sizes["groups"], loop.a, strides_of(loop.a, sizes))
            if words is None:
                return None
            values |= words
    if kernel.residues:
        values["operands.work_tiles"] = of_class
    firsts = _firsts(given) if kernel.residues else ((0, 0),)
    maps += _tiles(plan, sizes, given, made, kernel, stores_rows=stores_rows, firsts=firsts)
    threads = (1 + kernel.consumers) * WARP_GROUP
    return Shape(values, tuple(maps), tiles, grid, threads, SHARED_BYTES, made.cluster_size)


def class_of(plan: Plan) -> KernelClass:
    """Return the compile-time facts of a plan's kernel."""
    loop = plan.mainloop
    assert isinstance(loop, HaloConvolution)
    pixels, _, channels = plan.config.tile
    block_bytes = channels * bytes_of(loop.a.dtype)
    volume = loop.rank == 3
    pixel_bytes = WINDOW_BYTES if has_windows(plan) else swizzled_row(block_bytes)
    staged = plan.source is not None or plan.destination is not None
    flags = loop.residues, *flags_of(loop.groups), loop.by_images, loop.taps
    return KernelClass(pixels, channels, block_bytes, pixel_bytes, staged, volume, loop.shared, *flags)


def _multiplied(given: Problem, kernel: KernelClass, sizes: Mapping[str, int]) -> Problem:
    """Return the convolution that the main loop multiplies."""
    if kernel.residues:
        return over_residues(given)
    if kernel.has_windows:
        return over_windows(given, kernel)
    return over_groups(given, kernel, sizes["groups"]) if kernel.grouped else given


def _can_implement(plan: Plan, given: Problem, problem: Problem) -> bool:
    loop = plan.mainloop
    assert isinstance(loop, HaloConvolution)
    stride = problem.depth.stride * problem.height.stride * problem.width.stride
    pads = (problem.height.pad, problem.width.pad)
    if loop.residues:
        classes = given.height.remainders * given.width.remainders
        if classes > MAX_CLASSES or given.tap_count > MAX_TAPS or not all(map(reaches, (given.height, given.width))):
            return False
    elif problem.tap_count > MAX_TAPS or (loop.operator == "dgrad" and stride != 1):
        return False
    if problem.filters == 0:
        return False
    if min(pads) < 0 or max(pads) > MOST_PADDING:
        return False
    if not loop.windows:
        return True
    channels, step = loop.windows
    width = given.width
    is_window = given.channels == channels and width.stride == step and width.dilation == 1
    block_bytes = plan.config.tile[2] * bytes_of(loop.a.dtype)
    return is_window and given.height.stride <= LARGEST_STRIDE and width.taps * (WINDOW_BYTES // step) <= block_bytes


def _firsts(given: Problem) -> list[tuple[int, int]]:
    """Return the first row and column of each residue class."""
    return [first for first, _ in residue_classes(given.height, given.width)]


def _taps_of_residues(given: Problem, made: Geometry) -> dict[str, int | Sequence[int]]:
    """Return the residue classes of a gradient with a stride, and their taps, as taps.hpp does."""
    height, width = given.height, given.width
    before = [axis.of_residue.pad for axis in (height, width)]
    words: list[int] = []
    first_tap, firsts = [], _firsts(given)
    for row, column in firsts:
        first_tap.append(len(words))
        for y, x in product(range(height.taps), range(width.taps)):
            if (remainder(height, y), remainder(width, x)) != (row, column):
                continue
            down = (height.pad - y * height.dilation + row) // height.stride + before[0]
            right = (width.pad - x * width.dilation + column) // width.stride + before[1]
            enters = len(words) == first_tap[-1]
            words.append((down * made.input_pitch + right | x << 16 | y << 22 | enters << 31) & 0xFFFFFFFF)
    residues = "operands.residues"
    return {
        **_words(words, [-before[1] & 0xFFFF | (-before[0] & 0xFFFF) << 16]),
        f"{residues}.number": len(firsts),
        f"{residues}.stride_height": height.stride,
        f"{residues}.stride_width": width.stride,
        f"{residues}.row[0]": [row for row, _ in firsts],
        f"{residues}.column[0]": [column for _, column in firsts],
        f"{residues}.first_tap[0]": [*first_tap, len(words)],
    }


def _words(words: Sequence[int], starts: Sequence[int]) -> dict[str, int | Sequence[int]]:
    """Return the members of the taps and of the places of their boxes."""
    return {"taps.number": len(words), "taps.groups": len(starts), "taps.starts[0]": starts, "taps.tap[0].word": words}


def _taps(problem: Problem, made: Geometry, backwards: bool) -> dict[str, int | Sequence[int]]:
    """Return the taps in the order of their groups, as the words of taps.hpp."""
    height, width = problem.height, problem.width
    starts, words = [], []
    for y0 in range(height.stride):
        for x0 in range(width.stride):
            enters = True
            for y in range(height.taps):
                for x in range(width.taps):
                    down, right = y * height.dilation, x * width.dilation
                    if down % height.stride != y0 or right % width.stride != x0:
                        continue
                    if enters:
                        starts.append((x0 - width.pad) & 0xFFFF | ((y0 - height.pad) & 0xFFFF) << 16)
                    shift = down // height.stride * made.input_pitch + right // width.stride
                    at = (width.taps - 1 - x, height.taps - 1 - y) if backwards else (x, y)
                    words.append((shift | at[0] << 16 | at[1] << 22 | enters << 31) & 0xFFFFFFFF)
                    enters = False
    return _words(words, starts)


def _divisors(filter_blocks: int, made: Geometry) -> dict[str, int]:
    """Return the numbers of divisor.hpp that stand for divisors."""
    found: dict[str, int] = {}
    numbers = (filter_blocks, made.tiles_wide, made.tiles_high, made.cluster_size)
    for name, number in zip(_DIVISORS, numbers, strict=True):
        found |= {f"{name}.{part}": value for part, value in divisor(number).items()}
    return found


def _depth(problem: Problem, channels: int) -> dict[str, int]:
    depth = problem.depth
    numbers = (depth.size, depth.taps, depth.output, depth.pad, depth.stride, depth.dilation)
    return {
        f"depth.{name}": value
        for name, value in zip(_DEPTH, (ceil_div(problem.channels, channels), *numbers), strict=True)
    }


def _layout(row_bytes: int, next_eight: int) -> int:
    """Return the upper word of the input's descriptors, as descriptor.hpp does."""
    swizzle = {128: 1, 64: 2, 32: 3}.get(row_bytes, 0)
    return next_eight * row_bytes >> 4 | swizzle << 30


def _windows(plan: Plan, sizes: Mapping[str, int], given: Problem, made: Geometry) -> dict[str, int] | None:
    """Return the operands that threads load; None if the elements of a box are too far apart."""
    loop = plan.mainloop
    assert isinstance(loop, HaloConvolution)
    assert loop.windows
    a, b = strides_of(loop.a, sizes), strides_of(loop.b, sizes)
    step = loop.windows[1]
    rows, pixels = made.box_rows * given.height.stride, made.input_pitch * step
    of_box = (made.images - 1) * abs(a[0]) + rows * abs(a[1]) + pixels * abs(a[2])
    block_bytes = plan.config.tile[2] * bytes_of(loop.a.dtype)
    if max(of_box, block_bytes * abs(b[2])) > INT32_MAX:
        return None
    numbers = (
        a[0],
        a[1],
        b[0],
        b[1],
        a[2],
        b[2],
        given.height.size,
        given.width.size,
        given.width.taps,
        given.width.pad,
    )
    found = {f"operands.{name}": value for name, value in zip(_OPERANDS, numbers, strict=True)}
    small = {"by_pitch": made.input_pitch, "by_box_rows": made.box_rows if made.images > 1 else 0}
    for name, by in small.items():
        found[f"operands.{name}.multiplier"] = ceil_div(1 << 31, by) if by else 0
    return found


# Descriptors.


def _input(plan: Plan, sizes: Mapping[str, int], given: Problem, made: Geometry, kernel: KernelClass) -> TensorMap:
    loop = plan.mainloop
    assert isinstance(loop, HaloConvolution)
    operand = loop.a
    pointer, before = place_of(plan, operand, sizes)
    height, width = given.height, given.width
    steps = (1, 1) if kernel.residues else (width.stride, height.stride)
    box = [kernel.channels, (made.input_pitch - 1) * steps[0] + 1, (made.box_rows - 1) * steps[1] + 1]
    extents = [given.channels, width.size, height.size]
    if kernel.volume:
        extents.append(given.depth.size)
        box.append(1)
    extents.append(given.images)
    box.append(made.images)
    strides = strides_of(operand, sizes, flat=_is_flat(sizes, given))[::-1]
    if kernel.grouped:
        channels = Blocks.of(given, kernel, sizes["groups"]).channels
        extents = [channels, *extents[1:], given.channels // channels]
        box, strides = [*box, 1], [*strides, channels]
    return tensor_map(
        "input", pointer, operand.dtype, extents, strides, box, kernel.pixel_bytes, steps=steps, before=before
    )


def _filters(plan: Plan, sizes: Mapping[str, int], given: Problem, kernel: KernelClass) -> TensorMap:
    loop = plan.mainloop
    assert isinstance(loop, HaloConvolution)
    operand = loop.b
    pointer, before = place_of(plan, operand, sizes)
    extents, box = [given.channels, given.filters], [kernel.channels, FILTERS]
    if loop.transposes_filters:
        extents, box = extents[::-1], box[::-1]
    if kernel.grouped:
        extents[0] //= sizes["groups"]
    taps = [given.width.taps, given.height.taps, *([given.depth.taps] if kernel.volume else [])]
    first, *others = strides_of(operand, sizes, flat=_is_flat(sizes, given))
    row_bytes = swizzled_row(box[0] * bytes_of(operand.dtype))
    strides, box = [first, *others[::-1]], [*box, *(1 for _ in taps)]
    return tensor_map("filters", pointer, operand.dtype, [*extents, *taps], strides, box, row_bytes, before=before)


def _pitch(plan: Plan, sizes: Mapping[str, int], role: str) -> int:
    """Return the stride of the pixels of C or D, or 0."""
    tensor = plan.source if role == "source" else plan.destination
    return sizes[str(tensor.strides[0])] if tensor else 0


def _tiles(
    plan: Plan,
    sizes: Mapping[str, int],
    given: Problem,
    made: Geometry,
    kernel: KernelClass,
    *,
    stores_rows: bool,
    firsts: Sequence[tuple[int, int]],
) -> list[TensorMap]:
    """Return the descriptors of C and D, of each residue class apart, given the first row and column of each."""
    rows = made.box_rows if made.images > 1 else made.rows
    loop, slice_box = plan.mainloop, (1,) if kernel.volume else ()
    assert isinstance(loop, HaloConvolution)
    by_threads = loop.shared or loop.stored > 0
    whole = (made.accumulator_pitch, rows, *slice_box, made.images)
    found = []
    tensors = {"source": plan.source, "destination": None if by_threads else plan.destination}
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        box = (made.columns, 1, *slice_box, 1) if name == "destination" and stores_rows else whole
        pitch = _pitch(plan, sizes, name)
        extents = [given.filters, given.width.output, given.height.output]
        extents += [given.depth.output, given.images] if kernel.volume else [given.images]
        strides = list(accumulate(extents[1:-1], mul, initial=pitch))
        whole_box = [FILTERS, *box]
        if kernel.grouped:
            blocks = Blocks.of(given, kernel, sizes["groups"])
            extents = [blocks.filters, *extents[1:], given.filters // blocks.filters]
            strides, whole_box = [*strides, blocks.filters], [blocks.step, *box, 1]
        whole_map = tensor_map(name, tensor.pointer, tensor.dtype, extents, strides, whole_box, _EPILOGUE_ROW)
        if kernel.residues:
            found += [_of_residue(whole_map, given, index, first) for index, first in enumerate(firsts)]
        else:
            found.append(whole_map)
    return found


def _of_residue(whole: TensorMap, given: Problem, index: int, first: tuple[int, int]) -> TensorMap:
    """Return the descriptor of the pixels of a residue class of C or D."""
    member = whole.member if index == 0 else f"operands.{whole.member}[{index - 1}]"
    columns, rows = (
        ceil_div(given.width.output - first[1], given.width.stride),
        ceil_div(given.height.output - first[0], given.height.stride),
    )
    pixel, row, image = whole.strides
    return replace(
        whole,
        member=member,
        extents=(whole.extents[0], columns, rows, whole.extents[3]),
        strides=(pixel * given.width.stride, row * given.height.stride, image),
        before=-(first[0] * row + first[1] * pixel),
    )
