"""A call of a halo kernel: the convolution of its sizes, the compile-time facts of the kernel, and the tile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from evt.launch.halo_groups import Blocks
from evt.launch.padded import strides_of
from evt.plan import Plan
from evt.plan.geometry.convolution import Axis, Problem, ceil_div
from evt.plan.geometry.halo import EIGHT, FILTERS, MAX_CLASSES, MAX_TAPS, WINDOW_BYTES, Geometry, swizzled_row
from evt.plan.geometry.halo_groups import over_groups
from evt.plan.geometry.halo_kernel import KernelClass
from evt.plan.geometry.halo_multiplied import (
    flattened,
    has_columns,
    over_residues,
    over_tap_rows,
    over_windows,
)
from evt.plan.geometry.halo_schedule import geometry_of
from evt.plan.halo import MOST_PADDING, forward, reaches
from evt.plan.halo_cost import flags_of, residue_classes
from evt.plan.joined import loads_bits
from evt.plan.plan import HaloConvolution, Image, PaddedCopy
from evt.plan.signature import bytes_of
from evt.plan.tma import LARGEST_STRIDE


def loop_of(plan: Plan) -> HaloConvolution:
    """Return the main loop of a halo kernel."""
    assert isinstance(plan.mainloop, HaloConvolution)
    return plan.mainloop


def problem_of(plan: Plan, sizes: Mapping[str, int]) -> Problem:
    """Return the convolution of a call."""
    loop = loop_of(plan)
    found = forward(loop.operator, sizes)
    axes = {name: Axis.of(found, name) for name in loop.spatial}
    problem = Problem(found["images"], found["channels"], found["filters"], **axes)
    return flattened(problem) if _is_flattened(loop, sizes, problem) else problem


def _is_flattened(loop: HaloConvolution, sizes: Mapping[str, int], problem: Problem) -> bool:
    """Return whether a volume is computed as an image whose rows are the slices, each of one pitch."""
    if loop.rank < 3 or not has_columns(problem):
        return False
    *_, row, pixel = strides_of(loop.a, sizes)
    return row == problem.width.size * pixel


def class_of(plan: Plan) -> KernelClass:
    """Return the compile-time facts of a plan's kernel."""
    loop = loop_of(plan)
    pixels, _, channels = plan.config.tile
    block_bytes = channels * bytes_of(loop.a.dtype)
    volume = loop.rank == 3
    pixel_bytes = WINDOW_BYTES if loop.windows is not None else swizzled_row(block_bytes)
    staged = plan.source is not None or plan.destination is not None
    flags = loop.residues, *flags_of(loop.groups), loop.by_images, loop.taps, loop.groups == "taps", loads_bits(plan)
    return KernelClass(pixels, channels, block_bytes, pixel_bytes, staged, volume, loop.shared, *flags)


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a kernel: its sizes, its convolution ``problem``, and the tile that is chosen for it.

    ``multiplied`` is the convolution that the main loop multiplies: of a residue class, of windows, or of groups.
    """

    plan: Plan
    loop: HaloConvolution
    kernel: KernelClass
    sizes: Mapping[str, int]
    problem: Problem
    multiplied: Problem
    geometry: Geometry

    @staticmethod
    def of(plan: Plan, sizes: Mapping[str, int]) -> Call:
        """Return the call of some sizes, with the tile before it is scheduled."""
        kernel, problem = class_of(plan), problem_of(plan, sizes)
        multiplied = _multiplied(loop_of(plan), problem, kernel, sizes)
        geometry = geometry_of(multiplied, kernel, sizes["tile_rows"], sizes["tile_columns"])
        return Call(plan, loop_of(plan), kernel, sizes, problem, multiplied, geometry)

    @property
    def classes(self) -> int:
        """The residue classes of the output's pixels."""
        return self.problem.height.remainders * self.problem.width.remainders if self.kernel.residues else 1

    @property
    def multiplied_classes(self) -> int:
        """The residue classes that have tiles: all of them, or those with taps if D is 0 in the others."""
        plan = self.plan
        if not self.loop.keeps_zeros or plan.destination is None or plan.source is not None:
            return self.classes
        return sum(taps > 0 for _, taps in residue_classes(self.problem.height, self.problem.width))

    @property
    def stores_rows(self) -> bool:
        """Whether TMA stores each row of D apart: rows have pixels between them that belong to other tiles."""
        return self.geometry.accumulator_pitch > self.geometry.columns and self.geometry.tiles_wide > 1

    @property
    def is_flat(self) -> bool:
        """Whether the convolution is a volume as an image."""
        return self.sizes.get("filter_depth", 1) > self.problem.depth.taps

    @property
    def blocks(self) -> Blocks:
        """The blocks of filters of a convolution with groups."""
        return Blocks.of(self.problem, self.kernel, self.sizes["groups"])

    def strides(self, operand: Image | PaddedCopy) -> list[int]:
        """Return the strides of an operand, outermost dimension first."""
        return strides_of(operand, self.sizes, flat=self.is_flat)

    def pitch(self, role: str) -> int:
        """Return the stride of the pixels of C or D, or 0."""
        tensor = self.plan.source if role == "source" else self.plan.destination
        return self.sizes[str(tensor.strides[0])] if tensor else 0

    def can_run(self) -> bool:
        """Return whether the kernel supports the convolution, and a tile fits in shared memory."""
        problem, multiplied = self.problem, self.multiplied
        pads = (multiplied.height.pad, multiplied.width.pad)
        if self.geometry.input_stages == 0 or multiplied.filters == 0:
            return False
        if min(pads) < 0 or max(pads) > MOST_PADDING:
            return False
        if self.loop.residues:
            fits = self.classes <= MAX_CLASSES and problem.tap_count <= MAX_TAPS
            return fits and all(map(reaches, (problem.height, problem.width)))
        stride = multiplied.depth.stride * multiplied.height.stride * multiplied.width.stride
        if multiplied.tap_count > MAX_TAPS or (self.loop.operator == "dgrad" and stride != 1):
            return False
        if self.kernel.tap_rows:
            is_unit = problem.height.stride * problem.width.stride == 1
            return is_unit and problem.filters <= EIGHT and problem.filters * problem.tap_count <= FILTERS
        if not self.loop.windows:
            return True
        channels, chunk = self.loop.windows
        width = problem.width
        is_window = problem.channels == channels and width.stride % chunk == 0 and width.dilation == 1
        reach = ceil_div(width.taps, width.stride) * WINDOW_BYTES
        return is_window and problem.height.stride <= LARGEST_STRIDE and reach <= self.kernel.block_bytes


def _multiplied(loop: HaloConvolution, problem: Problem, kernel: KernelClass, sizes: Mapping[str, int]) -> Problem:
    """Return the convolution that the main loop multiplies."""
    if kernel.residues:
        return over_residues(problem)
    if kernel.tap_rows:
        return over_tap_rows(problem)
    if loop.windows:
        return over_windows(problem, kernel, loop.windows[1])
    return over_groups(problem, kernel, sizes["groups"]) if kernel.grouped else problem
