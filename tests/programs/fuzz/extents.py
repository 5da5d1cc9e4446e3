"""Sizes of a kernel's problems: across several tiles, odd, and multiples of a kernel's accesses."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ..draw import Draw
from ..dtypes import PACKED
from ..sizes import Scale, geometry
from ..tree import Block, Geometry, Interleave, Pair, Program, Sizes, walk
from .kinds import Kind

#: The most multiply-adds of a problem: the evaluator computes them on the CPU.
MOST_WORK = 20_000_000
_ROWS = (1, 2, 5, 17, 33, 64, 65, 100, 127, 129, 200, 257, 300)
_COLUMNS = (1, 3, 8, 24, 40, 64, 72, 120, 128, 136, 200, 264)
_DEPTHS = (1, 5, 8, 16, 24, 33, 64, 72, 100, 136, 264)
_CHANNELS = (8, 16, 40, 64, 136)
#: The channels of routes for pixels that are not aligned.
_UNALIGNED = {
    "conv-halo-padded-3x": (1, 3, 5, 8),
    "conv-padded-3x": (1, 3, 5, 8),
    "conv-halo-words-3x": (2, 6, 10, 18, 29, 33, 50, 100),
    "conv-halo-copied-3x": (2, 9, 18, 33, 50, 100, 129),
}
_FILTERS = (8, 24, 64, 72, 136)
#: The filters of a route whose taps are rows of a tile.
_FEW_FILTERS = {"conv-halo-taps-3x": (1, 2, 3, 4, 7)}
#: The k of a tile of a weight of 4 bits.
TILE_OF_PACKED = 128
_BITS = {"f64": 64, "f32": 32, "tf32": 32, "f16": 16, "bf16": 16}


@dataclass(frozen=True)
class Units:
    """The divisors of the extents m, n and k; an extent other than 1 is an odd multiple."""

    m: int
    n: int
    k: int


def units_of(draw: Draw, kind: Kind, program: Program) -> Units:
    """Return the units of all problems of a kernel, which keep the alignment of its accesses."""
    bits = min(_BITS.get(each, 8) for each in (program.a, program.b))
    columns, depth = kind.vector
    free = (1, 1, 2, 4, 8, 16)
    n = 16 if columns or not draw.chance(1.6) else draw.pick(free)
    k = 8 * depth // bits if depth else draw.pick((*free, 128 // bits, 128 // bits))
    if program.b in PACKED:
        n, k = 16, TILE_OF_PACKED
    contiguous_m = program.operand_modes[0] == ("k", "m") or program.transposed[0]
    m = draw.pick((16, 16, 1)) if contiguous_m or any(each.modes[-1:] == ("m",) for each in program.outputs) else 1
    return Units(m, n, k)


def step_of(program: Program) -> int:
    """Return the divisor of the number of columns, by blocks and by pairs at a distance."""
    step = 2 if any("n/2" in each.modes for values in (program.inputs, program.outputs) for each in values) else 1
    for node in program.expressions():
        if isinstance(node, Pair | Interleave):
            step = max(step, 2 * node.distance)
        if isinstance(node, Block):
            halves = any(isinstance(part, Pair) for part in walk(node.x))
            halves = halves or any("n/2" in each.modes for each in program.inputs)
            step = max(step, node.width * (2 if halves else 1))
    return step


def resized(draw: Draw, kind: Kind, program: Program, units: Units, first: bool) -> Program:
    """Return the program with the sizes of another problem; its geometry stays, unless it is the ``first``."""
    if program.geometry is not None:
        return replace(program, geometry=_geometry(draw, kind, program, units, first))
    step = step_of(program)
    if kind.grouped:
        count = draw.whole(1, 5)
        if kind.by_offsets:
            return replace(program, groups=_rows_of_groups(draw, _sizes(draw, program, units, step), units, count))
        groups = tuple(_sizes(draw, program, units, step) for _ in range(count))
        empty = Sizes((), (0,), groups[0].n, groups[0].k)
        return replace(program, groups=(*groups, empty) if draw.chance(4) else groups)
    return replace(program, sizes=_sizes(draw, program, units, step))


def _rows_of_groups(draw: Draw, first: Sizes, units: Units, count: int) -> tuple[Sizes, ...]:
    """Return groups of equal columns and k, some of them without rows."""
    most = max(MOST_WORK // (count * first.n * first.k), 1)
    drawn = [0 if draw.chance(4) else min(multiple(draw, _ROWS, units.m), most) for _ in range(count - 1)]
    return tuple(replace(first, rows=(rows,)) for rows in draw.shuffled((first.rows[0], *drawn)))


def _sizes(draw: Draw, program: Program, units: Units, step: int) -> Sizes:
    n, k = multiple(draw, _COLUMNS, math.lcm(units.n, step), units.n < step), multiple(draw, _DEPTHS, units.k)
    m = multiple(draw, _ROWS, units.m)
    batch: tuple[int, ...] = ()
    if program.operation == "gemm" and draw.chance(2.5):
        batch = draw.pick(((1,), (2,), (3,), (5,), (2, 2), (11,)))
    while math.prod(batch) * m * n * k > MOST_WORK:
        batch, m = (batch[:-1], m) if batch else (batch, -(-m // (2 * units.m)) * units.m)
    rows: tuple[int, ...] = (m,)
    if program.operation == "linear" and draw.chance(3):
        rows = draw.pick(((2, m), (1, 3, m))) if m < 150 else (1, m)
    return Sizes(batch, rows, n, k)


def multiple(draw: Draw, sizes: tuple[int, ...], unit: int, even: bool = False) -> int:
    """Return an extent near one of the sizes: an odd multiple of the unit, unless any will do or ``even`` ones do."""
    count = -(-draw.pick(sizes) // unit)
    return unit * (count if unit in (1, 16) or even else count | 1)


def _geometry(draw: Draw, kind: Kind, program: Program, units: Units, first: bool) -> Geometry:
    rank = int(program.operation[4])
    most = {1: 90, 2: 14, 3: 5}[rank]
    wanted = _UNALIGNED.get(kind.route, _CHANNELS)
    inner = units.k if wanted is _CHANNELS else 1
    channels = tuple(dict.fromkeys(max(1, each // inner) for each in wanted))
    few = _FEW_FILTERS.get(kind.route)
    units = replace(units, n=1) if few else units
    filters = tuple(dict.fromkeys(max(1, each // units.n) for each in few or _FILTERS))
    images = (1, 1, 2, 3, 5, 9)
    scale = Scale(channels, filters, inner, units.n, (2, most), images, kind.depthwise, kind.groups)
    while True:
        found = geometry(draw, program.operation, step_of(program), scale)
        if not first:  # the sizes alone differ
            now = program.geometry
            assert now is not None
            taken = replace(now, pixels=found.pixels, images=found.images, channels=found.channels)
            taken = replace(taken, filters=found.filters, words=now.words)
            fits = taken.channels % now.groups == taken.filters % now.groups == 0 and not kind.depthwise
            if kind.depthwise:
                taken = replace(taken, groups=taken.channels, words=_grouped(now, taken.channels))
                fits = True
            if "output_padding" in dict(now.words) or not fits or min(taken.results) < 1:
                taken = replace(now, images=found.images)
            found = taken
        taps = math.prod(found.filter) * found.channels // found.groups
        if found.images * math.prod(found.pixels) * taps * found.filters <= MOST_WORK:
            return found


def _grouped(geometry: Geometry, groups: int) -> tuple[tuple[str, object], ...]:
    return tuple({**dict(geometry.words), "groups": groups}.items())
