"""The values of the members of a depthwise kernel's parameters: ``shape(plan, sizes) -> Shape | None``.

The C++ launcher of codegen/include/evt/kit/depthwise.hpp makes the same values; a test compares all bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields

from evt.launch.shape import INT32_MAX, Shape, tensor_map
from evt.plan import Plan
from evt.plan.configurations.config import ConfigDepthwise
from evt.plan.geometry.convolution import Axis, Problem
from evt.plan.geometry.depthwise import CHANNELS, ElementBytes, Geometry, Memory, choose, memory_of
from evt.plan.halo import forward
from evt.plan.plan import DepthwiseConvolution, Image
from evt.plan.signature import bytes_of

_AXES = ("height", "width", "depth")
_FILTERS = ("filters.stride", "filters.row_stride", "filters.tap_stride")
MEMBERS = (
    *("input", "source", "filters.pointer"),
    *_FILTERS,
    *("packed", "d", "d_stride"),
    *(f"problem.{name}" for name in ("images", "channels", "filters")),
    *(f"problem.{axis}.{each.name}" for axis in _AXES for each in fields(Axis)),
    *(f"geometry.{each.name}" for each in fields(Geometry)),
    *(f"memory.{each.name}" for each in fields(Memory)),
    "encoded",
)
_UNSWIZZLED = 0


def shape(plan: Plan, sizes: Mapping[str, int]) -> Shape | None:
    """Return the launch for the sizes of a call; None if the kernel cannot run it."""
    loop, config = plan.mainloop, plan.config
    assert isinstance(loop, DepthwiseConvolution)
    assert isinstance(config, ConfigDepthwise)
    assert isinstance(loop.a, Image)
    assert isinstance(loop.b, Image)
    filter_ = loop.filter.shape(config.unit)
    found = forward(loop.operator, sizes)
    problem = Problem(
        found["images"], found["channels"], found["filters"], **{name: Axis.of(found, name) for name in loop.spatial}
    )
    height, width = problem.height, problem.width
    asked = (height.taps, width.taps, height.stride, width.stride, height.dilation, width.dilation)
    compiled = (*loop.filter.taps, *loop.filter.stride, *loop.filter.dilation)
    elements = ElementBytes(bytes_of(loop.a.dtype), bytes_of(plan.source.dtype) if plan.source else 0)
    made = choose(filter_, problem, elements)
    if asked != compiled or problem.channels != problem.filters or not 0 < made.blocks <= INT32_MAX:
        return None
    memory = memory_of(filter_, made, elements)
    a, b = ([sizes[stride.name] for stride in operand.strides] for operand in (loop.a, loop.b))
    packed = b[0] == filter_.tap_count and (height.taps == 1 or b[1] == width.taps) and (width.taps == 1 or b[2] == 1)
    values: dict[str, int | Sequence[int]] = {
        **dict(zip(_FILTERS, b, strict=True)),
        "d": 0,
        "d_stride": sizes[str(plan.destination.strides[0])] if plan.destination else 0,
        **{f"problem.{name}": getattr(problem, name) for name in ("images", "channels", "filters")},
        **{
            f"problem.{axis}.{each.name}": getattr(getattr(problem, axis), each.name)
            for axis in _AXES
            for each in fields(Axis)
        },
        **{f"geometry.{each.name}": getattr(made, each.name) for each in fields(Geometry)},
        **{f"memory.{each.name}": getattr(memory, each.name) for each in fields(Memory)},
        "encoded": 1,
    }
    if not packed:
        values["packed"] = 0
    pixels = (problem.channels, width.size, height.size, problem.images)
    box = (CHANNELS, made.box_columns, made.box_rows, made.images)
    maps = [
        tensor_map("input", loop.a.pointer, loop.a.dtype, pixels, a[::-1], box, _UNSWIZZLED, rounds=False),
    ]
    if plan.source:
        pitch = sizes[str(plan.source.strides[0])]
        row = pitch * width.output
        pixels = (problem.channels, width.output, height.output, problem.images)
        box = (CHANNELS, made.columns * filter_.columns, made.rows * filter_.rows, made.images)
        strides = (pitch, row, row * height.output)
        maps.append(tensor_map("source", plan.source.pointer, plan.source.dtype, pixels, strides, box, _UNSWIZZLED))
    tiles = made.tiles * (made.threads // 32), made.channel_blocks
    return Shape(values, tuple(maps), tiles, made.blocks, made.threads, memory.size)
