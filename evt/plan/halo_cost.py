"""Cost model of the halo kernels: the clock cycles of sm90 that the tiles of a convolution take.

Constants are fitted to times of an H200, 2026-11. The geometry is that of :mod:`evt.plan.geometry.halo`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import inf
from typing import Literal

from evt.plan.geometry import halo, halo_groups, halo_multiplied, halo_schedule
from evt.plan.geometry.convolution import Axis, Problem, ceil_div
from evt.plan.geometry.halo import FILTERS, WINDOW_BYTES, Geometry, swizzled_row
from evt.plan.geometry.halo_kernel import KernelClass
from evt.plan.geometry.halo_schedule import MULTIPROCESSORS, Sharing

#: A kernel with its launch, and each pixel of its tile.
_START, _START_PER_PIXEL = 13700, 1.5
#: The epilogue of a tile, and of each of its pixels.
_EPILOGUE, _EPILOGUE_PER_PIXEL = 465, 15
#: A kernel with its launch, if CTAs share tiles.
_START_SHARED = 10350
#: An instruction of the epilogue for each element of a thread. Only one warp of a scheduler evaluates an epilogue.
#: Fitted to gelu and silu after 3x3 layers on an H200, 2026-11.
INSTRUCTION = 2.2
#: Threads that share an epilogue: a consumer warpgroup.
THREADS = 128
#: Contention factor when every SM is busy.
_CONTENTION = 0.06
#: Slowdown of a block of channels that each consumer loads alone, if more than half of the SMs do.
_NOT_PAIRED = 1.3
#: Gradients with a stride: pixels that take as long as the loads of a block's filters, and the factor of the widest
#: tiles that the other constants include. Fitted to 170 kernels of 46 layers on an H200, 2026-11-30.
_NARROW, _WIDE = 30, 1.14
#: Part of an epilogue that cooperating consumers do not hide.
_NOT_HIDDEN = 0.25
#: Inputs that threads copy: a kernel with its launch; and of each lane, the pixels that a warp copies side by side, and
#: each of their rows. For bytes that divide a pixel: each byte of the filters, which threads write before the first
#: tile, and a factor of the copies. Fitted to 56 kernels on an H100 and 19 on an H200, 2026-11.
_START_WORDS, _COPIED, _COPIED_ROW = 17800, 360, 85
_WORDS = {8: (0.07, 1.0), 4: (0.07, 1.0), 2: (0.33, 2.3)}
#: The warps that copy, and their lanes.
_COPYING, _LANES = 3, 32
#: The epilogue of a pixel whose taps are rows of a tile: completed by a quarter of the threads; and each tap that they
#: sum. Fitted to 34 kernels on an H200, 2026-11-28.
_QUARTERED_PIXEL, _SUMMED_TAP = 7, 0.66
#: Windows that threads load: each pixel of a box, and each row of taps. Fitted to 46 kernels on an H200, 2026-11-29.
_WIDENED_PIXEL, _WIDENED_TAP = 2.5, 150


#: How a tile's columns relate to the groups: there is one group, the tile lies in one, or it has several whole ones,
#: whose filters threads write. With "words", threads also copy the input, which TMA cannot load. With "taps", there is
#: one group, and each row of a tile is a tap of a filter.
Groups = Literal["one", "single", "multiple", "words", "taps"]


@dataclass(frozen=True, slots=True)
class BlockedConvolution:
    """A convolution whose channels are cut into blocks of ``block_bytes``; its channels are counted in bytes.

    ``classes`` are the taps of each residue class of pixels, in the gradient of a convolution with a stride.
    """

    problem: Problem
    block_bytes: int
    volume: bool = False
    classes: tuple[int, ...] = ()
    groups: Groups = "one"

    @staticmethod
    def of(
        sizes: Mapping[str, int], channels: int, element_bytes: int, *, residues: bool = False
    ) -> BlockedConvolution:
        """Return a convolution of given sizes with blocks of some channels."""
        channel_bytes, block_bytes = sizes["channels"] * element_bytes, channels * element_bytes
        return BlockedConvolution.cut(*axes_of(sizes), channel_bytes, block_bytes, residues=residues)

    @staticmethod
    def cut(
        height: Axis,
        width: Axis,
        depth: Axis | None,
        channel_bytes: int,
        block_bytes: int,
        *,
        residues: bool = False,
    ) -> BlockedConvolution:
        """Return a convolution with blocks of some bytes of its pixels' channels; a volume has a depth.

        Pixels and filters are taken to be dense. If the bytes of a pixel are no multiple of a line of L2, many pixels
        begin within a line. TMA takes as long for each line that a pixel touches as for a whole line.
        """
        problem = Problem(1, channel_bytes, 0, height, width)
        if residues:
            classes = tuple(taps for _, taps in residue_classes(height, width))
            return BlockedConvolution(halo_multiplied.over_residues(problem), block_bytes, classes=classes)
        if depth is None:
            return BlockedConvolution(problem, block_bytes)
        problem = replace(problem, depth=depth)
        return BlockedConvolution(
            halo_multiplied.flattened(problem) if halo_multiplied.has_columns(problem) else problem,
            block_bytes,
            volume=True,
        )

    @staticmethod
    def of_groups(given: Problem, number: int, channels: int, element_bytes: int, groups: Groups) -> BlockedConvolution:
        """Return a convolution with groups whose blocks have some channels; its filters fill whole blocks."""
        problem = halo_groups.over_groups(given, kernel_of_groups(channels, groups), number)
        problem = replace(problem, channels=problem.channels * element_bytes)
        return BlockedConvolution(problem, channels * element_bytes, groups=groups)

    @staticmethod
    def of_taps(given: Problem, channels: int, element_bytes: int) -> BlockedConvolution:
        """Return a convolution with blocks of some channels in which a row of a tile is a tap of a filter."""
        problem = replace(halo_multiplied.over_tap_rows(given), channels=given.channels * element_bytes)
        return BlockedConvolution(problem, channels * element_bytes, groups="taps")

    @staticmethod
    def of_windows(height: Axis, width: Axis, depth: Axis | None, window_bytes: int, pixels: int) -> BlockedConvolution:
        """Return a convolution in which a tap multiplies the bytes of a window, with some pixels in a chunk."""
        problem = Problem(1, window_bytes, 0, height, width)
        if depth is not None:
            problem = replace(problem, depth=depth)
        kernel = KernelClass(0, window_bytes, window_bytes, WINDOW_BYTES, True)
        windows = halo_multiplied.over_windows(problem, kernel, pixels)
        return BlockedConvolution(windows, window_bytes, volume=depth is not None)

    @property
    def is_shareable(self) -> bool:
        """Whether CTAs may share tiles: TMA loads the operands, and the pixels have no classes."""
        return self.groups == "one" and not self.classes and not self.kernel(0).has_windows

    def kernel(self, pixels: int, *, shared: bool = False) -> KernelClass:
        """Return the kernel of an instruction's width, with a buffer for C and D."""
        taps = self.groups == "taps"
        windows = self.problem.width.window > 1 and not taps
        pixel_bytes = WINDOW_BYTES if windows else swizzled_row(self.block_bytes)
        flags = bool(self.classes), *flags_of(self.groups)
        return KernelClass(
            *(pixels, self.block_bytes, self.block_bytes, pixel_bytes, True, self.volume, shared, *flags), tap_rows=taps
        )


def axes_of(sizes: Mapping[str, int]) -> tuple[Axis, Axis, Axis | None]:
    """Return the height and the width of a ConvolutionProblem's sizes, and the depth of a volume."""
    depth = Axis.of(sizes, "depth") if "depth" in sizes else None
    return Axis.of(sizes, "height"), Axis.of(sizes, "width"), depth


def residue_classes(height: Axis, width: Axis) -> list[tuple[tuple[int, int], int]]:
    """Return the residue classes of pixels in the gradient of a convolution with a stride, those with most taps first.

    A class is the row and the column of its first pixel, and the number of its taps.
    """
    rows, columns = (Counter(remainder(axis, tap) for tap in range(axis.taps)) for axis in (height, width))
    firsts = product(range(height.remainders), range(width.remainders))
    classes = [((row, column), rows[row] * columns[column]) for row, column in firsts]
    return sorted(classes, key=lambda each: -each[1])


def remainder(axis: Axis, tap: int) -> int:
    """Return the remainder of the coordinates that a tap contributes to, modulo the stride."""
    return (tap * axis.dilation - axis.pad) % axis.stride


def flags_of(groups: Groups) -> tuple[bool, bool, bool]:
    """Return the members of a KernelClass: whether there are groups, several in a block, and an input to copy."""
    return groups not in ("one", "taps"), groups in ("multiple", "words"), groups == "words"


def kernel_of_groups(channels: int, groups: Groups) -> KernelClass:
    """Return the facts that cut the groups of a convolution into blocks."""
    return KernelClass(0, channels, 0, 0, True, False, False, False, *flags_of(groups))


def choose(blocked: BlockedConvolution, pixels: int, *, shared: bool = False) -> Geometry | None:
    """Return the tile of a kernel, before CTAs share it; None if none fits, or no group fits in a block."""
    if blocked.groups != "one" and blocked.problem.filters == 0:
        return None
    made = halo.choose(blocked.problem, blocked.kernel(pixels, shared=shared))
    return made if made.input_stages else None


@dataclass(frozen=True, slots=True)
class Cycles:
    """Costs of a kernel's tiles.

    ``block`` has the cycles of a block of channels. A tile multiplies ``blocks`` of them on average and ``most_blocks``
    at most: at the ends of a volume, some taps are outside. ``sharing`` has the sizes of clusters that fit, if CTAs
    share tiles. ``held_up`` is the slowdown of a block if fewer boxes fit in shared memory than it has groups of taps:
    64 -> 128 channels at 160x160 with a stride of 2 takes 49 us with 3 boxes, 42 us with 4. ``waits``: the tensor cores
    wait for L2, and consumers may cooperate.
    """

    block: int
    blocks: float
    most_blocks: int
    sharing: Sharing | None
    pixels: int
    held_up: float
    waits: bool
    #: The launch and set-up of the kernel, and its end.
    start: float
    #: The share of the taps that a tile of each residue class has.
    shares: tuple[float, ...] = (1.0,)
    #: The epilogue of a pixel, and its elements of a thread.
    of_pixel: float = _EPILOGUE_PER_PIXEL
    elements: float = FILTERS / THREADS

    @staticmethod
    def of(blocked: BlockedConvolution, tile: Geometry, pixels: int, *, shared: bool = False) -> Cycles:
        """Return the costs of the tiles of a convolution."""
        problem, kernel = blocked.problem, blocked.kernel(pixels, shared=shared)
        sharing = halo_schedule.sharing_of(problem, kernel, tile) if shared else None
        depth, of_tap = problem.depth, problem.channel_blocks(kernel.channels) // problem.depth.taps
        blocks = of_tap * depth.taps_inside / max(depth.output, 1), of_tap * _most_taps(depth)
        of_blocks = _cycles_of_block(problem, kernel, tile), *blocks, sharing
        filters = problem.tap_count // tile.taps_per_stage * problem.mean_blocks(kernel.channels)
        if not kernel.filters_stay:
            filters = min(halo.FEWEST_FILTER_STAGES, filters)
        left = halo.bytes_for_stages(kernel, tile) - filters * tile.filter_stage_bytes
        boxes = tile.input_stages if kernel.grouped and tile.resident else left // tile.input_stage_bytes
        held_up = max(1.0, problem.groups / max(boxes, 1))
        waits = problem.tap_count == 1 and blocked.groups == "one" and halo_schedule.has_many_channels(problem, kernel)
        start = _START_SHARED if shared else _START + pixels * _START_PER_PIXEL
        if kernel.words:
            written = problem.tap_count * of_tap * FILTERS * blocked.block_bytes
            start = _START_WORDS + written * _WORDS[_word_bytes(problem)][0]
        shares = tuple(taps / problem.tap_count for taps in blocked.classes) or (1.0,)
        if kernel.tap_rows:
            taps = problem.height.window_taps * problem.width.window_taps
            epilogue = _QUARTERED_PIXEL + _SUMMED_TAP * taps, FILTERS / THREADS / 4
            return Cycles(*of_blocks, pixels, held_up, waits, start, shares, *epilogue)
        return Cycles(*of_blocks, pixels, held_up, waits, start, shares)

    @property
    def has_several_taps(self) -> bool:
        """Whether each residue class has taps, the first one more than the last: filters of 3x3, with a stride."""
        return 0 < self.shares[-1] < self.shares[0]

    def alone(self, tiles: int, filters: int, instructions: float = 0) -> float:
        """Return the time of tiles of each residue class, for each block of filters, that CTAs do not share.

        ``instructions`` are the ones of the epilogue for each element.
        """
        epilogue = _EPILOGUE + self.pixels * (self.of_pixel + INSTRUCTION * instructions * self.elements)
        return self.start + sum(self._of_class(tiles, filters, place, epilogue) for place in range(len(self.shares)))

    def _of_class(self, tiles: int, filters: int, place: int, epilogue: float) -> float:
        items, pairs = tiles * -(-filters // FILTERS), tiles * -(-filters // (2 * FILTERS))
        waves = -(-items // MULTIPROCESSORS)
        if self.has_several_taps:
            # A class begins in the last wave of the one before. The first CTA has a tile of the most taps in each wave.
            waves = ceil_div((place + 1) * items, MULTIPROCESSORS) - ceil_div(place * items, MULTIPROCESSORS)
        if not waves:
            return 0.0
        # The slowest CTA has a tile with all blocks.
        blocks = self.blocks + (self.most_blocks - self.blocks) / waves
        multiplied = blocks * self.block * self.held_up * self.shares[place]
        if self.has_several_taps:
            multiplied *= (1 + _NARROW / self.pixels) / _WIDE
        if self.waits and filters > FILTERS:
            if halo_schedule.pairs_fill_waves(tiles, filters, MULTIPROCESSORS):
                return 2 * -(-pairs // MULTIPROCESSORS) * (multiplied + _NOT_HIDDEN * epilogue)
            multiplied *= _NOT_PAIRED if 2 * items > MULTIPROCESSORS else 1
        # One consumer completes its tile while the other multiplies.
        return waves * max(multiplied, (multiplied + epilogue) / 2)

    def shared(self, tiles: int) -> float:
        """Return the time of tiles that CTAs share; infinity if none of the clusters fits."""
        assert self.sharing is not None
        size = self.sharing.cluster_size(tiles)
        busy = min(1.0, tiles * size / MULTIPROCESSORS)
        return (self.start + self.sharing.cycles(tiles, size)) * (1 + _CONTENTION * busy) if size else inf


@lru_cache(maxsize=256)
def _most_taps(depth: Axis) -> int:
    """Return the most taps that read the input at one output, and 1 at least."""
    firsts = (output * depth.stride - depth.pad for output in range(depth.output))
    inside = (sum(0 <= first + tap * depth.dilation < depth.size for tap in range(depth.taps)) for first in firsts)
    return max([1, *inside])


def _word_bytes(problem: Problem) -> int:
    """Return the bytes that threads copy at a time; 2 if a pixel may begin within a word of 4 bytes."""
    return next(each for each in _WORDS if problem.channels % each == 0)


def _cycles_of_block(problem: Problem, kernel: KernelClass, tile: Geometry) -> int:
    if kernel.words:
        word_bytes = _word_bytes(problem)
        words = -(-min(problem.channels, kernel.block_bytes) // max(word_bytes, 4))
        steps = problem.groups * tile.images * -(-words * -(-tile.input_pitch // _COPYING) // _LANES)
        copied = steps * (_COPIED + _COPIED_ROW * tile.box_rows) * _WORDS[word_bytes][1]
        return max(halo_schedule.cycles_of_block(problem, kernel, tile), round(copied))
    if not kernel.has_windows:
        return halo_schedule.cycles_of_block(problem, kernel, tile)
    multiplied = problem.tap_count * (kernel.block_bytes // halo.DEPTH_BYTES) * kernel.pixels // 2
    loaded = problem.groups * tile.box_pixels * _WIDENED_PIXEL + problem.tap_count * _WIDENED_TAP
    return max(multiplied, round(loaded))
