"""What the depthwise kernel is specialised for: ``depthwise_of(problem, element_bytes) -> Depthwise``.

A thread computes a few rows and columns of pixels, its unit, of two channels. The more it has, the fewer loads and
conversions it needs for each, as they share their input; but registers are limited, pixels beyond the output are lost,
and of few images there are fewer threads than the GPU has room for. Which units a thread block has is for the kernel to
decide: see depthwise_geometry.hpp.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from evt.ir.convolution import ConvolutionProblem
from evt.plan.halo import forward
from evt.plan.halo_tiles import SHARED_BYTES

#: The channels of a thread block, the floats between taps in shared memory, and the threads of a warp's two units.
CHANNELS, _PITCH, _PAIRS = 32, 34, 16
#: The most units of a thread block.
UNITS = 16
#: What a unit may have; with so many rows, registers are left for a light epilogue only.
_ROWS, _COLUMNS = (1, 2, 4), tuple(range(1, 9))
_MANY_ROWS = 4
#: The most taps: all are unrolled for each pixel of a unit.
_MOST_TAPS = 128
#: The registers that a unit's sums and a row of its input may take.
_MOST_REGISTERS = 96
#: TMA's boxes, in each dimension.
_LARGEST_BOX = 256
_BARRIER_BYTES = 24
#: Cycles of an instruction on a multiprocessor of sm90, of many warps and of one alone, and those who issue them.
_ISSUE, _ALONE, _SCHEDULERS = 1.5, 5.0, 4


class Unit(NamedTuple):
    """The pixels of a thread."""

    rows: int
    columns: int


class _Reach(NamedTuple):
    """A filter along one dimension: its taps, how far they lie apart, and the stride of the output."""

    taps: int
    dilation: int
    stride: int

    def span(self, outputs: int) -> int:
        """Return the inputs from the first to the last one that so many outputs meet."""
        return (outputs - 1) * self.stride + (self.taps - 1) * self.dilation + 1

    def met(self, outputs: int) -> int:
        """Return how many inputs these outputs meet."""
        places = product(range(outputs), range(self.taps))
        return len({output * self.stride + tap * self.dilation for output, tap in places})


@dataclass(frozen=True, slots=True)
class Depthwise:
    """The filter that a kernel is made for, by (rows, columns), and the units that threads may have.

    ``offered`` are the best one for many images, and the best one for few where that is another; ``light`` is a better
    one that leaves fewer registers to the epilogue, if any; ``others`` fit too. ``reason``: why there is no such
    kernel, or "".
    """

    filter_size: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    offered: tuple[Unit, ...] = ()
    light: tuple[Unit, ...] = ()
    others: tuple[Unit, ...] = ()
    reason: str = ""


NO_DEPTHWISE = Depthwise(reason="its sizes are not known: give the shapes of A and B")


def depthwise_of(problem: ConvolutionProblem, element_bytes: int) -> Depthwise:
    """Return how the depthwise kernel serves a convolution."""
    geometry = problem.geometry
    if not problem.is_depthwise:
        return Depthwise(reason="its groups are not one input channel and one output channel each")
    if geometry.operator == "wgrad" or (geometry.operator == "dgrad" and not geometry.is_unit_stride):
        return Depthwise(reason="it is no fprop, nor a dgrad of stride 1")
    if geometry.rank > 2:
        return Depthwise(reason="it is one of volumes")
    sizes = forward(geometry.operator, problem.sizes)
    height, width = (
        _Reach(sizes[f"filter_{name}"], sizes[f"dilation_{name}"], sizes[f"stride_{name}"])
        for name in ("height", "width")
    )
    if min(sizes["pad_height"], sizes["pad_width"]) < 0:
        return Depthwise(reason="the padding of the dgrad is larger than dilation * (filter size - 1)")
    return _depthwise(height, width, sizes["output_height"], sizes["output_width"], element_bytes)


@lru_cache(maxsize=1024)
def _depthwise(height: _Reach, width: _Reach, rows: int, columns: int, element_bytes: int) -> Depthwise:
    if height.taps * width.taps > _MOST_TAPS:
        return Depthwise(reason=f"the filters have more than {_MOST_TAPS} taps")
    units = [Unit(*each) for each in product(_ROWS, _COLUMNS)]
    known = [each for each in units if _fits(each, height, width, element_bytes)]
    if not known:
        return Depthwise(reason="a thread's pixels and their halo do not fit in registers and shared memory")

    def work(unit: Unit) -> int:
        return -(-rows // unit.rows) * -(-columns // unit.columns) * _instructions(unit, height, width)

    best = min((each for each in known if each.rows < _MANY_ROWS), key=work)
    quick = min((each for each in known if each.rows == 1), key=work)
    best_of_all = min(known, key=work)
    offered = tuple(dict.fromkeys((best, quick)))
    # With a stride, rows share little of their input: measured, two of them are faster.
    light = (best_of_all,) if height.stride == 1 and work(best_of_all) < work(best) else ()
    others = tuple(each for each in known if each not in (*offered, *light))
    filter_size, dilation, stride = zip(height, width, strict=True)
    return Depthwise(filter_size, stride, dilation, offered, light, others)


def least_bytes(
    unit: Unit, filter_size: Sequence[int], stride: Sequence[int], dilation: Sequence[int], size: int
) -> int:
    """Return the shared memory of a thread block of one unit of elements of so many bytes."""
    height, width = map(_Reach, filter_size, dilation, stride)
    return _bytes(unit, height, width, size)


def _bytes(unit: Unit, height: _Reach, width: _Reach, element_bytes: int) -> int:
    taps = (4 * _PITCH + CHANNELS * element_bytes) * height.taps * width.taps
    return height.span(unit.rows) * width.span(unit.columns) * CHANNELS * element_bytes + taps + _BARRIER_BYTES


def _fits(unit: Unit, height: _Reach, width: _Reach, element_bytes: int) -> bool:
    registers = 2 * unit.rows * unit.columns + 2 * width.met(unit.columns)
    return (
        registers <= _MOST_REGISTERS
        and max(height.span(unit.rows), width.span(unit.columns)) <= _LARGEST_BOX
        and _bytes(unit, height, width, element_bytes) <= SHARED_BYTES
    )


def _instructions(unit: Unit, height: _Reach, width: _Reach) -> int:
    """Return about how many instructions a thread has: see Filter in depthwise_geometry.hpp.

    The two units of a warp read the same banks of shared memory where a unit's pixels are an even number of them.
    """
    pixels, taps = unit.rows * unit.columns, height.taps * width.taps
    loads = height.met(unit.rows) * width.met(unit.columns)
    conflicts = 0 if unit.columns * width.stride % 2 else 2 * loads
    return taps * (2 * pixels + unit.rows) + 3 * loads + conflicts + 14 * pixels + 110


def time(
    unit: Unit,
    filter_size: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    sizes: Mapping[str, int],
    multiprocessors: int,
) -> float:
    """Return about how many clock cycles of sm90 a kernel computes; what it moves is the same with all units."""
    instructions = _instructions(unit, *map(_Reach, filter_size, dilation, stride))
    units = sizes["images"] * -(-sizes["output_height"] // unit.rows) * -(-sizes["output_width"] // unit.columns)
    warps = units * -(-sizes["channels"] // CHANNELS) * _PAIRS / 32
    return max(_ALONE, _ISSUE * warps / _SCHEDULERS / multiprocessors) * instructions
