"""Random layers of the own kernels: a problem, the class of a kernel, and the geometry that the planner decides."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from evt.plan.geometry import depthwise
from evt.plan.geometry.convolution import Axis, Problem
from evt.plan.geometry.halo import FILTERS, WINDOW_BYTES, Geometry
from evt.plan.geometry.halo_groups import over_groups
from evt.plan.geometry.halo_kernel import KernelClass
from evt.plan.geometry.halo_multiplied import (
    flattened,
    has_columns,
    over_residues,
    over_tap_rows,
    over_windows,
)
from evt.plan.geometry.halo_schedule import geometry_of, scheduled

_SIZES = (5, 7, 8, 13, 14, 17, 28, 56, 57, 112, 130, 224, 300)


def _axis(draw: random.Random, taps: int, stride: int, dilation: int) -> Axis:
    """Return a dimension whose padding is sometimes that of a layer, sometimes anything."""
    reach = dilation * (taps - 1)
    pads = (reach // 2, reach - reach // 2) if draw.random() < 0.6 else (draw.randrange(6), draw.randrange(6))
    size = max(draw.choice(_SIZES), reach + 1)
    return Axis(size, (size + sum(pads) - reach - 1) // stride + 1, taps, stride, dilation, pads[0])


def _problem(draw: random.Random, kind: str) -> Problem:
    images, filters = draw.choice((1, 1, 2, 7, 32, 256)), draw.choice((8, 24, 64, 96, 192, 256, 512, 1000))
    channels = draw.choice((8, 24, 40, 64, 96, 128, 256, 320, 512, 1024))
    if kind == "product":
        rows = draw.choice((draw.randrange(1, 600), draw.randrange(600, 200_000)))
        return Problem(1, channels * draw.choice((1, 4)), filters, Axis(1, 1, 1, 1, 1, 0), Axis(rows, rows, 1, 1, 1, 0))
    steps = [(draw.choice((1, 1, 1, 2, 3, 8)), draw.choice((1, 1, 1, 2, 3, 9, 16))) for _ in range(2)]
    height, width = (_axis(draw, draw.choice((1, 2, 3, 3, 5, 7)), *each) for each in steps)
    if kind != "volume":
        return Problem(images, channels, filters, height, width)
    depth = _axis(draw, draw.randrange(1, 6), draw.choice((1, 1, 2)), draw.choice((1, 1, 2)))
    return Problem(images, channels, filters, height, width, depth)


def random_layers(seed: int, count: int, multiprocessors: int = 132) -> Iterator[tuple[Problem, KernelClass, Geometry]]:
    """Yield layers of halo kernels of all kinds: convolutions, products, volumes, windows, gradients, shared tiles."""
    draw = random.Random(seed)
    for _ in range(count):
        kind = draw.choice(("image", "image", "image", "product", "volume", "windows", "residues", "groups", "taps"))
        problem, element_bytes = _problem(draw, kind), draw.choice((1, 2, 2, 4))
        pixels = draw.randrange(64, 257, 16 if element_bytes == 1 else 8)
        alone = kind in ("windows", "residues", "groups", "taps")
        block_bytes, shared = draw.choice((128, 128, 64, 32)), not alone and draw.random() < 0.4
        pixel_bytes = WINDOW_BYTES if kind == "windows" else block_bytes
        staged, volume = draw.random() < 0.7, kind == "volume"
        kernel = KernelClass(
            *(pixels, block_bytes // element_bytes, block_bytes, pixel_bytes, staged, volume, shared),
            residues=kind == "residues",
            by_images=kind == "image" and problem.images % 4 == 3,
            taps_per_stage=(0, 0, 1, 3, 5)[problem.channels % 5],
            tap_rows=kind == "taps",
            loads_bits=staged and not alone and pixels % 3 == 0,
        )
        if kind == "windows":
            problem = over_windows(
                problem, kernel, next(each for each in (4, 2, 1) if problem.width.stride % each == 0)
            )
        elif kind == "residues":
            problem = over_residues(problem)
        elif kind == "taps":
            problem = over_tap_rows(replace(problem, filters=max(1, FILTERS // problem.tap_count)))
        elif kind == "groups":
            kernel = replace(kernel, grouped=True, packed=draw.random() < 0.5)
            groups, channels, filters = draw.choice((2, 3, 8, 32, 63)), *(draw.randrange(1, 200) for _ in range(2))
            given = replace(problem, channels=groups * channels, filters=groups * filters)
            problem = over_groups(given, kernel, groups)
        elif volume and has_columns(problem):
            problem = flattened(problem)
        yield problem, kernel, scheduled(problem, kernel, geometry_of(problem, kernel), multiprocessors)


def random_depthwise(
    seed: int, count: int
) -> Iterator[tuple[Problem, depthwise.FilterShape, depthwise.ElementBytes, depthwise.Geometry]]:
    """Yield layers of depthwise kernels."""
    draw = random.Random(seed)
    for _ in range(count):
        taps, steps = draw.choice((1, 3, 3, 5, 7, 9)), (draw.choice((1, 1, 2, 3)), draw.choice((1, 1, 2, 4)))
        height, width = _axis(draw, taps, *steps), _axis(draw, draw.choice((taps, 3)), *steps)
        channels = 8 * draw.choice((1, 2, 4, 12, 48, 144))
        problem = Problem(draw.choice((1, 2, 7, 64)), channels, channels, height, width)
        unit = draw.choice((1, 2, 4)), draw.randrange(1, 9)
        shape = depthwise.FilterShape(
            height.taps, width.taps, height.stride, width.stride, height.dilation, width.dilation, *unit
        )
        elements = depthwise.ElementBytes(draw.choice((2, 4)), draw.choice((0, 2)))
        yield problem, shape, elements, depthwise.choose(shape, problem, elements)
