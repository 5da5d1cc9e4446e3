"""The values of the members of a halo kernel's parameters: ``shape(plan, sizes, multiprocessors) -> Shape | None``.

The C++ launcher of codegen/include/evt/kit/params.hpp makes the same values; a test compares all bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from itertools import accumulate, product
from operator import mul

from evt.launch.halo_call import Call, loop_of
from evt.launch.halo_groups import (
    DIVISOR,
    OF_GROUPS,
    OF_PACKED_GROUPS,
    OF_WORDS,
    copied,
    divisor,
    packed,
    small_divisor,
)
from evt.launch.padded import place_of, strides_of
from evt.launch.shape import INT32_MAX, Shape, TensorMap, tensor_map
from evt.plan import Plan
from evt.plan.geometry.convolution import Problem, ceil_div
from evt.plan.geometry.halo import (
    FILTERS,
    MAX_CLASSES,
    SHARED_BYTES,
    STEP_PIXELS,
    WARP_GROUP,
    WINDOW_BYTES,
    Geometry,
    swizzled_row,
)
from evt.plan.geometry.halo_schedule import grid_of, scheduled
from evt.plan.halo import STRIP
from evt.plan.halo_cost import Groups, remainder, residue_classes
from evt.plan.signature import bytes_of

_DIVISORS = ("by_filter_blocks", "by_tiles_wide", "by_tiles_high", "by_cluster_size")
_SMALL_DIVISORS = ("by_pitch", "by_images")
_SINGLE = (
    *("images", "output_height", "output_width", "filter_count", "image_rows", "stride_height", "stride_width"),
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
    *(f"{name}.multiplier" for name in _SMALL_DIVISORS),
    *(f"depth.{name}" for name in _DEPTH),
)
OF_RESIDUES = (
    *(f"operands.residues.{name}" for name in ("number", "stride_height", "stride_width")),
    *(f"operands.residues.{name}[0]" for name in ("row", "column", "rows", "columns", "first_tap")),
    *("operands.work_tiles", "operands.tiles"),
    *(f"operands.by_work_tiles.{part}" for part in DIVISOR),
    *(f"operands.{name}[{index}]" for name in ("source", "destination") for index in range(MAX_CLASSES - 1)),
)
_OPERANDS = (
    *("a_image", "a_slice", "a_row", "b_filter", "b_slice", "b_row", "a_pixel", "b_pixel"),
    *("height", "width", "filter_width", "pad"),
)
OF_WINDOWS = (
    *("operands.a", "operands.b"),
    *(f"operands.{name}" for name in _OPERANDS),
    *("operands.by_pitch.multiplier", "operands.by_images.multiplier"),
)
OF_TAPS = tuple(f"operands.{name}" for name in ("height", "width", "row_pixels", "column_pixels", "filter_bytes"))
_OF_GROUPS: Mapping[Groups, tuple[str, ...]] = {
    "one": (),
    "single": OF_GROUPS,
    "multiple": OF_PACKED_GROUPS,
    "words": OF_WORDS,
    "taps": OF_TAPS,
}
#: A row of pixels of C and D in shared memory: 64 elements of 16 bits.
_EPILOGUE_ROW = 2 * FILTERS


def members(plan: Plan) -> tuple[str, ...]:
    """Return the members of the parameters of a plan's kernel."""
    loop = loop_of(plan)
    if loop.windows:
        return (*MEMBERS, *OF_WINDOWS)
    if loop.residues:
        return (*MEMBERS, *OF_RESIDUES)
    return (*MEMBERS, *_OF_GROUPS[loop.groups])


def shape(plan: Plan, sizes: Mapping[str, int], multiprocessors: int) -> Shape | None:
    """Return the launch for the sizes of a call; None if the kernel cannot run it."""
    call = Call.of(plan, sizes)
    if not call.can_run():
        return None
    kernel, problem, multiplied, geometry = call.kernel, call.problem, call.multiplied, call.geometry
    tiles = geometry.tiles(multiplied) * call.classes * geometry.cluster_size
    strips = ceil_div(multiplied.filters, FILTERS) * (FILTERS // STRIP)
    if kernel.tap_rows:  # each warp has the strip of other pixels
        tiles, strips = tiles * (FILTERS // STRIP), 1
    geometry = scheduled(multiplied, kernel, geometry, multiprocessors)
    call = replace(call, geometry=geometry)
    filter_blocks = ceil_div(multiplied.filters, FILTERS * (2 if geometry.cooperative else 1))
    of_class = geometry.tiles(multiplied) * filter_blocks
    work_tiles = of_class * call.multiplied_classes
    grid = work_tiles * geometry.cluster_size
    if not kernel.shared:
        grid = grid_of(work_tiles, filter_blocks, multiprocessors, geometry.resident)
    stored = call.blocks.step if kernel.grouped else FILTERS
    operands = _operands(call)
    if operands is None:
        return None
    operand_values, operand_maps = operands
    height, width = problem.height.output, (problem if kernel.residues else multiplied).width.output
    values: dict[str, int | Sequence[int]] = {
        **(_taps_of_residues(call) if kernel.residues else _taps(call)),
        **{f"geometry.{each.name}": int(getattr(geometry, each.name)) for each in fields(Geometry)},
        "images": multiplied.images,
        "output_height": height,
        "output_width": width,
        "filter_count": problem.filters,
        "image_rows": multiplied.depth.output * height * width * (problem.filters if call.loop.planar else 1),
        "stride_height": multiplied.height.stride,
        "stride_width": multiplied.width.stride,
        "channel_blocks": multiplied.channel_blocks(kernel.channels),
        "filter_blocks": filter_blocks,
        "work_tiles": work_tiles,
        "steps_per_cta": ceil_div(ceil_div(kernel.pixels, STEP_PIXELS), geometry.cluster_size),
        "d": 0,
        "d_stride": call.pitch("destination"),
        "grid": grid,
        "source_bytes": geometry.stored_pixels * 2 * stored,
        "input_layout": _layout(kernel.pixel_bytes, geometry.next_eight),
        "stores_rows": int(call.stores_rows),
        "encoded": 1,
        **_divisors(filter_blocks, geometry),
        **_depth(multiplied, kernel.channels),
        **operand_values,
    }
    if kernel.residues:
        values |= {"operands.work_tiles": of_class, "operands.tiles": geometry.tiles(multiplied)}
        values |= {f"operands.by_work_tiles.{part}": value for part, value in divisor(of_class).items()}
    threads = (1 + kernel.consumers) * WARP_GROUP
    maps = (*operand_maps, *_tiles(call))
    return Shape(values, maps, (tiles, strips), grid, threads, SHARED_BYTES, geometry.cluster_size)


def _operands(call: Call) -> tuple[dict[str, int], list[TensorMap]] | None:
    """Return the members of operands that threads load, and the descriptors of operands that TMA loads.

    Return None if the kernel cannot load the operands.
    """
    kernel, problem, loop = call.kernel, call.problem, call.loop
    if kernel.has_windows:
        windows = _windows(call)
        return None if windows is None else (windows, [])
    values, maps = dict[str, int](), list[TensorMap]()
    if kernel.grouped:
        values |= call.blocks.members()
    if kernel.words:
        words = copied(problem, call.geometry, kernel, call.sizes["groups"], loop.a, strides_of(loop.a, call.sizes))
        if words is None:
            return None
        values |= words
    else:
        maps.append(_input(call))
    if kernel.tap_rows:
        values |= _tap_rows(call)
    if kernel.packed:
        strides, backwards = strides_of(loop.b, call.sizes), loop.operator == "dgrad"
        written = packed(problem, call.sizes["groups"], strides, backwards=backwards)
        if written is None:
            return None
        values |= written
    else:
        maps.append(_filters(call))
    return values, maps


def _tap_rows(call: Call) -> dict[str, int]:
    """Return the taps, and the pixels from one to the next, as mainloop_taps.hpp does."""
    height, width = call.problem.height, call.problem.width
    rows = call.problem.filters * call.problem.tap_count
    steps = height.dilation * call.geometry.row_pitch, width.dilation
    return dict(zip(OF_TAPS, (height.taps, width.taps, *steps, rows * call.kernel.block_bytes), strict=True))


def _first_pixels(problem: Problem) -> list[tuple[int, int]]:
    """Return the first row and column of each residue class."""
    return [first for first, _ in residue_classes(problem.height, problem.width)]


def _taps_of_residues(call: Call) -> dict[str, int | Sequence[int]]:
    """Return the residue classes of a gradient with a stride, and their taps, as taps.hpp does."""
    height, width = call.problem.height, call.problem.width
    before = [axis.of_residue.pad for axis in (height, width)]
    words: list[int] = []
    first_tap, firsts = [], _first_pixels(call.problem)
    for row, column in firsts:
        first_tap.append(len(words))
        for y, x in product(range(height.taps), range(width.taps)):
            if (remainder(height, y), remainder(width, x)) != (row, column):
                continue
            down = (height.pad - y * height.dilation + row) // height.stride + before[0]
            right = (width.pad - x * width.dilation + column) // width.stride + before[1]
            enters = len(words) == first_tap[-1]
            words.append((down * call.geometry.row_pitch + right | x << 16 | y << 22 | enters << 31) & 0xFFFFFFFF)
    residues = "operands.residues"
    return {
        **_words(words, [-before[1] & 0xFFFF | (-before[0] & 0xFFFF) << 16]),
        f"{residues}.number": len(firsts),
        f"{residues}.stride_height": height.stride,
        f"{residues}.stride_width": width.stride,
        f"{residues}.row[0]": [row for row, _ in firsts],
        f"{residues}.column[0]": [column for _, column in firsts],
        f"{residues}.rows[0]": [ceil_div(height.output - row, height.stride) for row, _ in firsts],
        f"{residues}.columns[0]": [ceil_div(width.output - column, width.stride) for _, column in firsts],
        f"{residues}.first_tap[0]": [*first_tap, len(words)],
    }


def _words(words: Sequence[int], starts: Sequence[int]) -> dict[str, int | Sequence[int]]:
    """Return the members of the taps and of the places of their boxes."""
    return {"taps.number": len(words), "taps.groups": len(starts), "taps.starts[0]": starts, "taps.tap[0].word": words}


def _taps(call: Call) -> dict[str, int | Sequence[int]]:
    """Return the taps in the order of their groups, as the words of taps.hpp."""
    height, width = call.multiplied.height, call.multiplied.width
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
                    shift = down // height.stride * call.geometry.row_pitch + right // width.stride
                    at = (width.taps - 1 - x, height.taps - 1 - y) if call.loop.operator == "dgrad" else (x, y)
                    words.append((shift | at[0] << 16 | at[1] << 22 | enters << 31) & 0xFFFFFFFF)
                    enters = False
    return _words(words, starts)


def _divisors(filter_blocks: int, geometry: Geometry) -> dict[str, int]:
    """Return the numbers of divisor.hpp that stand for divisors."""
    found: dict[str, int] = {}
    numbers = (filter_blocks, geometry.tiles_wide, geometry.tiles_high, geometry.cluster_size)
    for name, number in zip(_DIVISORS, numbers, strict=True):
        found |= {f"{name}.{part}": value for part, value in divisor(number).items()}
    for name, number in zip(_SMALL_DIVISORS, (geometry.accumulator_pitch, geometry.images), strict=True):
        found[f"{name}.multiplier"] = small_divisor(number)
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


def _windows(call: Call) -> dict[str, int] | None:
    """Return the operands that threads load; None if the elements of a box are too far apart."""
    loop, problem, geometry = call.loop, call.problem, call.geometry
    a, b = strides_of(loop.a, call.sizes), strides_of(loop.b, call.sizes)
    rows, pixels = geometry.box_rows * problem.height.stride, geometry.input_pitch * problem.width.stride
    of_box = (geometry.images - 1) * abs(a[0]) + rows * abs(a[-2]) + pixels * abs(a[-1])
    if max(of_box, call.kernel.block_bytes // WINDOW_BYTES * problem.width.stride * abs(b[-1])) > INT32_MAX:
        return None
    slices = 1 if call.kernel.volume else 0
    strides = (a[0], a[slices], a[-2], b[0], b[slices], b[-2], a[-1], b[-1])
    sizes = (problem.height.size, problem.width.size, problem.width.taps, problem.width.pad)
    found = {f"operands.{name}": value for name, value in zip(_OPERANDS, (*strides, *sizes), strict=True)}
    for name, by in (("by_pitch", geometry.input_pitch), ("by_images", geometry.images)):
        found[f"operands.{name}.multiplier"] = small_divisor(by)
    return found


# Descriptors.


def _input(call: Call) -> TensorMap:
    kernel, problem, geometry, operand = call.kernel, call.problem, call.geometry, call.loop.a
    pointer, before = place_of(call.plan, operand, call.sizes)
    height, width = problem.height, problem.width
    steps = (1, 1, 1) if kernel.residues else (width.stride, 1, height.stride)
    columns, rows = (geometry.input_pitch - 1) * steps[0] + 1, (geometry.box_rows - 1) * steps[2] + 1
    box, extents = (
        [kernel.channels, columns, geometry.images, rows],
        [problem.channels, width.size, problem.images, height.size],
    )
    if kernel.volume:
        extents.append(problem.depth.size)
        box.append(1)
    image, *slices, row, pixel = call.strides(operand)
    strides = [pixel, image, row, *slices]
    if kernel.grouped:
        channels = call.blocks.channels
        extents = [channels, *extents[1:], problem.channels // channels]
        box, strides = [*box, 1], [*strides, channels]
    return tensor_map(
        "input", pointer, operand.dtype, extents, strides, box, kernel.pixel_bytes, steps=steps, before=before
    )


def _filters(call: Call) -> TensorMap:
    kernel, problem, operand = call.kernel, call.problem, call.loop.b
    pointer, before = place_of(call.plan, operand, call.sizes)
    extents, box = [problem.channels, problem.filters], [kernel.channels, FILTERS]
    if call.loop.transposes_filters:
        extents, box = extents[::-1], box[::-1]
    if kernel.grouped:
        extents[0] //= call.sizes["groups"]
    taps = [problem.width.taps, problem.height.taps, *([problem.depth.taps] if kernel.volume else [])]
    first, *others = call.strides(operand)
    row_bytes = swizzled_row(box[0] * bytes_of(operand.dtype))
    strides, box = [first, *others[::-1]], [*box, *(1 for _ in taps)]
    if kernel.tap_rows:
        box = [kernel.channels, problem.filters, *taps]
    return tensor_map("filters", pointer, operand.dtype, [*extents, *taps], strides, box, row_bytes, before=before)


def _tiles(call: Call) -> list[TensorMap]:
    """Return the descriptors of C and D: one for each residue class."""
    kernel, problem, geometry = call.kernel, call.problem, call.geometry
    slice_box = (1,) if kernel.volume else ()
    by_threads = call.loop.shared or call.loop.stored > 0
    whole = (geometry.accumulator_pitch, geometry.images, geometry.rows, *slice_box)
    found = []
    tensors = {"source": call.plan.source, "destination": None if by_threads else call.plan.destination}
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        box = (geometry.columns, 1, 1, *slice_box) if name == "destination" and call.stores_rows else whole
        spatial = [problem.width.output, problem.height.output, *([problem.depth.output] if kernel.volume else [])]
        pixel, row, *slices, image = accumulate(spatial, mul, initial=call.pitch(name))
        extents, strides = [problem.filters, spatial[0], problem.images, *spatial[1:]], [pixel, image, row, *slices]
        whole_box = [FILTERS, *box]
        if kernel.grouped:
            blocks = call.blocks
            extents = [blocks.filters, *extents[1:], problem.filters // blocks.filters]
            strides, whole_box = [*strides, blocks.filters], [blocks.step, *box, 1]
        whole_map = tensor_map(name, tensor.pointer, tensor.dtype, extents, strides, whole_box, _EPILOGUE_ROW)
        if kernel.residues:
            firsts = enumerate(_first_pixels(problem))
            found += [_of_residue(whole_map, problem, index, first) for index, first in firsts]
        else:
            found.append(whole_map)
    return found


def _of_residue(whole: TensorMap, problem: Problem, index: int, first: tuple[int, int]) -> TensorMap:
    """Return the descriptor of the pixels of a residue class of C or D, given its first row and column."""
    member = whole.member if index == 0 else f"operands.{whole.member}[{index - 1}]"
    height, width = problem.height, problem.width
    columns, rows = ceil_div(width.output - first[1], width.stride), ceil_div(height.output - first[0], height.stride)
    pixel, image, row = whole.strides
    return replace(
        whole,
        member=member,
        extents=(whole.extents[0], columns, whole.extents[2], rows),
        strides=(pixel * width.stride, image, row * height.stride),
        before=-(first[0] * row + first[1] * pixel),
    )
