"""Sizes of problems: small and odd, now and then 0 or 1, with columns that divide where a program needs that."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .draw import Draw
from .tree import Geometry, Sizes


@dataclass(frozen=True)
class Scale:
    """The extents of convolutions.

    ``channels`` and ``filters`` are drawn, as multiples of ``inner`` and ``outer``; ``channels`` are contracted.
    ``pixels`` is the range that the image exceeds the filter by. ``depthwise``: each channel has one filter.
    ``groups`` are drawn, if given.
    """

    channels: tuple[int, ...] = (1, 2, 3)
    filters: tuple[int, ...] = (1, 2, 4)
    inner: int = 1
    outer: int = 1
    pixels: tuple[int, int] = (2, 4)
    images: tuple[int, ...] = (1, 2, 3)
    depthwise: bool = False
    groups: tuple[int, ...] = ()


SMALL = Scale()


def extent(draw: Draw) -> int:
    return 0 if draw.chance(25) else draw.pick((1, 2, 3, 5, 7, 8))


def columns(draw: Draw, step: int) -> int:
    """Return a number of columns that blocks and pairs divide, which need a multiple of ``step``."""
    if draw.chance(25):
        return 0
    return step * draw.pick((1, 2, 3)) if step > 1 else draw.pick((1, 3, 5, 8, 9, 16))


def matrices(draw: Draw, operation: str, step: int) -> Sizes:
    """Return the sizes of a product: several rows' dimensions of ``linear``, batches of ``gemm``."""
    rows: tuple[int, ...] = (extent(draw),)
    batch: tuple[int, ...] = ()
    if operation == "linear":
        rows = draw.pick(((3,), rows, (2, 3), (1, 2, 2)))
    elif operation == "gemm":
        batch = draw.pick(((), (), (), (1,), (3,), (2, 2)))
    k = 0 if draw.chance(25) else draw.pick((1, 3, 4, 8, 16, 17))
    return Sizes(batch, rows, columns(draw, step), k)


def geometry(draw: Draw, operation: str, step: int, scale: Scale = SMALL) -> Geometry:
    """Return a convolution and its sizes; most have strides, dilation and groups that some kernel takes."""
    rank, operator = int(operation[4]), operation.partition("_")[2] or "fprop"
    taps = tuple(draw.pick((1, 2, 3, 3)) for _ in range(rank))
    strided = operator != "dgrad" or draw.chance(4)
    stride = tuple(draw.pick((1, 1, 2, 3)) if strided else 1 for _ in range(rank))
    dilation = tuple(draw.pick((1, 1, 2)) for _ in range(rank))
    grouped = (operator == "fprop" and rank < 3) or draw.chance(8)
    groups = draw.pick(scale.groups or (1, 1, 1, 2)) if grouped or scale.groups else 1
    others = groups * scale.inner * draw.pick(scale.channels)
    last = math.lcm(step if step > 1 else groups, scale.outer) * draw.pick(scale.filters)
    last = math.lcm(last, groups) if scale.groups else last
    if scale.depthwise:
        groups = others = last
    channels, filters = (last, others) if operator == "dgrad" else (others, last)
    words: dict[str, object] = {}
    match draw.pick(("numbers", "pairs", "same", "valid", "none")):
        case "same":
            stride, words["padding"] = (1,) * rank, "same"
            totals = [each * (count - 1) for each, count in zip(dilation, taps, strict=True)]
            padding = tuple((total // 2, total - total // 2) for total in totals)
        case "pairs":
            padding = tuple((draw.whole(0, 2), draw.whole(0, 2)) for _ in range(rank))
            words["padding"] = padding
        case "numbers":
            each_side = tuple(draw.whole(0, 2) for _ in range(rank))
            padding = tuple((size, size) for size in each_side)
            words["padding"] = each_side
        case style:
            padding = ((0, 0),) * rank
            words |= {"padding": "valid"} if style == "valid" else {}
    spans = [each * (count - 1) + 1 for each, count in zip(dilation, taps, strict=True)]
    least, most = scale.pixels
    least = 1 if rank == 3 else least
    pixels = tuple(max(span - sum(pad), 1) + draw.whole(least, most) for span, pad in zip(spans, padding, strict=True))
    if set(stride) != {1} or draw.chance(3):
        words["stride"] = stride if rank > 1 or draw.chance(2) else stride[0]
    if set(dilation) != {1} or draw.chance(3):
        words["dilation"] = dilation
    if groups > 1:
        words["groups"] = groups
    if operator == "wgrad":
        words["kernel_size"] = taps
    images = draw.pick(scale.images)
    found = Geometry(operator, stride, padding, dilation, groups, taps, pixels, images, channels, filters)
    if operator == "dgrad":  # the pixels that the stride leaves open
        sizes = zip(pixels, found.results, stride, padding, spans, strict=True)
        extra = tuple(size - ((count - 1) * by - sum(pad) + span) for size, count, by, pad, span in sizes)
        words |= {"output_padding": extra} if any(extra) else {}
    return Geometry(
        operator, stride, padding, dilation, groups, taps, pixels, images, channels, filters, tuple(words.items())
    )
