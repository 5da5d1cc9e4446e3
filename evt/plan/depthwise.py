"""The depthwise kernels for a convolution: ``depthwise_of(problem, element_bytes) -> Depthwise``.

A thread computes a few rows and columns of pixels, its unit, of two channels. Larger units need fewer loads and
conversions per pixel, because pixels share their input. Larger units also need more registers, waste pixels beyond the
output, and leave fewer threads for few images. The kernel decides the units of a CTA: see
:mod:`evt.plan.geometry.depthwise`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from evt.ir.convolution import ConvolutionProblem
from evt.plan.geometry import depthwise as geometry
from evt.plan.geometry.depthwise import CHANNELS, PAIRS, ElementBytes, FilterShape
from evt.plan.halo import forward

#: The sizes of a unit. Many rows leave registers for a light epilogue only.
_ROWS, _COLUMNS = (1, 2, 4), range(1, 9)
_MANY_ROWS = 4
#: The largest number of taps: all are unrolled for each pixel of a unit.
_MOST_TAPS = 128
#: The largest number of registers for a unit's sums and a row of its input.
_MOST_REGISTERS = 96
#: The largest element of C, in bytes.
_SOURCE_BYTES = 2


class Unit(NamedTuple):
    """The pixels of a thread."""

    rows: int
    columns: int


ONE_PIXEL = Unit(1, 1)


class _Reach(NamedTuple):
    """A filter along one dimension: its taps, the stride of the output, and the distance of the taps."""

    taps: int
    stride: int
    dilation: int

    def met(self, outputs: int) -> int:
        """Return the number of inputs that these outputs read."""
        places = product(range(outputs), range(self.taps))
        return len({output * self.stride + tap * self.dilation for output, tap in places})


@dataclass(frozen=True, slots=True)
class Filter:
    """The filter of a channel, its stride and its dilation: each (rows, columns)."""

    taps: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]

    @property
    def reaches(self) -> tuple[_Reach, _Reach]:
        height, width = zip(self.taps, self.stride, self.dilation, strict=True)
        return _Reach(*height), _Reach(*width)

    def shape(self, unit: Unit) -> FilterShape:
        """Return the filter of a kernel whose threads have a unit."""
        return FilterShape(*self.taps, *self.stride, *self.dilation, *unit)

    def least_bytes(self, unit: Unit, element_bytes: int, source_bytes: int) -> int:
        """Return the shared memory of a CTA of one unit, in bytes."""
        shape = self.shape(unit)
        return geometry.memory_of(shape, geometry.one_unit(shape), ElementBytes(element_bytes, source_bytes)).size

    def fits(self, unit: Unit, element_bytes: int) -> bool:
        """Return whether registers, TMA boxes and shared memory have room for a unit."""
        shape, elements = self.shape(unit), ElementBytes(element_bytes, _SOURCE_BYTES)
        registers = 2 * unit.rows * unit.columns + 2 * self.reaches[1].met(unit.columns)
        return registers <= _MOST_REGISTERS and geometry.fits(shape, geometry.one_unit(shape), elements)

    def cost(self, unit: Unit) -> int:
        """Return the cost of a unit, which is proportional to the time of a thread.

        At an even distance in pixels between the units of a row, the two units of a warp read the same banks of shared
        memory.
        """
        height, width = self.reaches
        conflicts = 0 if unit.columns * width.stride % 2 else 2 * height.met(unit.rows) * width.met(unit.columns)
        return self.shape(unit).instructions + conflicts

    def time(self, unit: Unit, sizes: Mapping[str, int], multiprocessors: int, heavy: int = 0) -> float:
        """Return the compute time of a kernel in clock cycles of sm90; the memory traffic does not depend on the unit.

        ``heavy`` is the number of instructions of the epilogue for each element, beyond a light one.
        """
        units = sizes["images"] * -(-sizes["output_height"] // unit.rows) * -(-sizes["output_width"] // unit.columns)
        warps = units * -(-sizes["channels"] // CHANNELS) * PAIRS / 32
        cost = self.cost(unit) + heavy * unit.rows * unit.columns * CHANNELS // PAIRS
        return max(geometry.ALONE, geometry.ISSUE * warps / geometry.SCHEDULERS / multiprocessors) * cost


@dataclass(frozen=True, slots=True)
class Depthwise:
    """The filter that a kernel is made for, and the units that threads may have.

    ``offered`` are the best unit for many images, and the best one for few images if it differs. ``light`` is a better
    unit that leaves fewer registers to the epilogue, if any; ``others`` fit too. ``reason`` explains why there is no
    kernel, or is "".
    """

    filter: Filter = Filter((1, 1), (1, 1), (1, 1))
    offered: tuple[Unit, ...] = ()
    light: tuple[Unit, ...] = ()
    others: tuple[Unit, ...] = ()
    reason: str = ""


NO_DEPTHWISE = Depthwise(reason="its sizes are not known: give the shapes of A and B")


def filter_of(problem: ConvolutionProblem) -> Filter:
    """Return the filter of a channel for a convolution of images."""
    sizes = problem.sizes
    taps, stride, dilation = (
        (sizes[f"{part}_height"], sizes[f"{part}_width"]) for part in ("filter", "stride", "dilation")
    )
    return Filter(taps, stride, dilation)


def depthwise_of(problem: ConvolutionProblem, element_bytes: int) -> Depthwise:
    """Return the depthwise kernels for a convolution of elements of ``element_bytes`` bytes."""
    geometry = problem.geometry
    if not problem.is_depthwise:
        return Depthwise(reason="its groups are not one input channel and one output channel each")
    if geometry.operator == "wgrad" or (geometry.operator == "dgrad" and not geometry.is_unit_stride):
        return Depthwise(reason="it is no fprop, nor a dgrad of stride 1")
    if geometry.rank > 2:
        return Depthwise(reason="it is one of volumes")
    sizes = forward(geometry.operator, problem.sizes)
    if min(sizes["pad_height"], sizes["pad_width"]) < 0:
        return Depthwise(reason="the padding of the dgrad is larger than dilation * (filter size - 1)")
    return _depthwise(filter_of(problem), sizes["output_height"], sizes["output_width"], element_bytes)


@lru_cache(maxsize=1024)
def _depthwise(filter_: Filter, rows: int, columns: int, element_bytes: int) -> Depthwise:
    if filter_.taps[0] * filter_.taps[1] > _MOST_TAPS:
        return Depthwise(reason=f"the filters have more than {_MOST_TAPS} taps")
    units = (Unit(*each) for each in product(_ROWS, _COLUMNS))
    known = [each for each in units if filter_.fits(each, element_bytes)]
    if not known:
        return Depthwise(reason="a thread's pixels and their halo do not fit in registers and shared memory")

    def work(unit: Unit) -> int:
        return -(-rows // unit.rows) * -(-columns // unit.columns) * filter_.cost(unit)

    best = min((each for each in known if each.rows < _MANY_ROWS), key=work)
    quick = min((each for each in known if each.rows == 1), key=work)
    offered = tuple(dict.fromkeys((best, quick)))
    best_of_all = min(known, key=work)
    # With a stride, rows share little of their input: measured, units of two rows are faster.
    light = (best_of_all,) if filter_.stride[0] == 1 and work(best_of_all) < work(best) else ()
    return Depthwise(filter_, offered, light, tuple(each for each in known if each not in (*offered, *light)))
