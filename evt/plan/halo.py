"""The specialisations of the halo kernel, and its speed: ``halo_of(geometry, problem, operand) -> Halo``.

The built widths of its instruction suit the output's tiles: see :mod:`evt.plan.geometry.halo`. A dgrad of
stride 1 is the fprop of ``forward``: over the gradient of the output, by the filters read backwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import inf, prod
from typing import NamedTuple

from evt.ir.convolution import SPATIAL, Convolution, ConvolutionProblem, Operator
from evt.ir.dtype import DType
from evt.plan.geometry.convolution import Axis, Problem
from evt.plan.geometry.halo import EIGHT, FILTERS, MAX_CLASSES, MAX_TAPS, WINDOW_BYTES, Geometry
from evt.plan.geometry.halo_groups import groups_together
from evt.plan.halo_cost import Cycles, Groups, Plane, choose, kernel_of_groups
from evt.plan.tma import LARGEST_STRIDE

#: Pixels that the instruction multiplies by 64 filters; for integers a multiple of 16.
PIXELS, INTEGER_PIXELS = range(64, 257, 8), range(64, 257, 16)
#: The bytes of a pixel in a block of channels.
_PLANES = (128, 64, 32)
#: The bytes of a pixel in the block of channels of some groups. A row of 96 bytes has the place of 128.
_PLANES_OF_GROUPS = (128, 96, 64, 32)
#: The channels of a pixel, at most, if they are odd and threads copy them.
MOST_ODD = 63
#: The filters of a warp.
STRIP = 16
#: The number of kernels that are built, to choose from by the number of tiles.
_OFFERED = 5
#: Batch sizes scored jointly; 256 has double weight.
_IMAGES = (1, 2, 4, 12, 32, 64, 256, 256)
#: The saving that another kernel must bring: relative to the best time for a batch size, summed over the sizes.
_WORTH_A_KERNEL = 0.02

TOO_LARGE = "a tile and its halo do not fit in shared memory"
#: The largest padding: 16 bits hold the place in the input where a tile begins.
MOST_PADDING = 32767
#: Limits at which CUTLASS's kernels are as fast: images of fewer pixels, many channels of images that are not large,
#: and multiples of this number of filters, which fill the 160-column tiles of its implicit GEMM.
_SMALL_IMAGE, _LARGE_IMAGE, _FILLED = 100, 2048, 640
#: The most channels that threads widen to windows.
FEW_CHANNELS = 8
#: The elements of the rows of a tile of windows: 32 bits hold the distance between two of them.
_LARGEST_BOX = 1 << 31


class Variant(NamedTuple):
    """A kernel: the bytes of a block of channels, the pixels of its instruction, and whether CTAs share its tiles.

    ``groups``: how they relate to its blocks of filters.
    """

    plane_bytes: int
    pixels: int
    shared: bool = False
    groups: Groups = "one"


@dataclass(frozen=True, slots=True)
class Halo:
    """The halo kernels that are ``offered``, the best one first.

    ``most`` has the widest kernels whose tiles fit, by the bytes of a block of channels and by shared tiles; ``gaps``
    are narrower ones whose tiles do not fit. ``fast``: whether they are expected to be faster than an implicit GEMM by
    TMA's im2col mode; ``for_some``: whether some batch sizes may be faster. ``reason``: the reason against such a
    kernel, or "". ``channels`` are the channels of windows, with their steps in pixels, or 0.
    """

    offered: tuple[Variant, ...]
    most: tuple[Variant, ...] = tuple(Variant(each, PIXELS[-1]) for each in _PLANES)
    gaps: tuple[Variant, ...] = ()
    fast: bool = False
    for_some: bool = False
    reason: str = ""
    channels: int = 0
    step: int = 1


#: For unknown sizes: tiles of 4, 3 and 2 rows of 56 pixels.
UNKNOWN, UNKNOWN_INTEGERS = (
    Halo(tuple(Variant(max(_PLANES), each) for each in pixels)) for pixels in ((232, 176, 120), (240, 176, 128))
)
NO_GROUPS = NO_WINDOWS = Halo((), reason="its sizes are not known: give the shapes of A and B")


def forward(operator: Operator, sizes: Mapping[str, int]) -> Mapping[str, int]:
    """Return the sizes of the fprop that computes a convolution, or a dgrad of stride 1.

    A dgrad with a stride exchanges input and output, and keeps the padding: see ``Axis.of_residue``.
    """
    if operator == "fprop":
        return sizes
    spatial = [name for name in SPATIAL if name in sizes]
    swapped = [("channels", "filters"), *((name, f"output_{name}") for name in spatial)]
    found = {**sizes, **{one: sizes[other] for pair in swapped for one, other in (pair, pair[::-1])}}
    for name in spatial if all(sizes[f"stride_{name}"] == 1 for name in spatial) else ():
        reach = sizes[f"dilation_{name}"] * (sizes[f"filter_{name}"] - 1)
        found[f"pad_{name}"] = reach - sizes[f"pad_{name}"]
    return found


def pixels_of(operand: DType) -> range:
    """Return the widths of the instruction that multiplies operands of a type."""
    return PIXELS if operand.is_float else INTEGER_PIXELS


def halo_of(geometry: Convolution, problem: ConvolutionProblem | None, operand: DType) -> Halo:
    """Return how the halo kernel serves a convolution of operands of a type."""
    if geometry.operator == "wgrad" or geometry.groups > 1:
        return Halo((), reason="it is no fprop or dgrad without groups")
    residues = geometry.operator == "dgrad" and not geometry.is_unit_stride
    if residues and (geometry.rank == 3 or prod(geometry.stride) > MAX_CLASSES):
        return Halo((), reason=f"it is a dgrad of volumes with a stride, or of more than {MAX_CLASSES} residue classes")
    if max(geometry.stride) > LARGEST_STRIDE:
        return Halo((), reason=f"a stride is beyond {LARGEST_STRIDE}, the largest stride of TMA's boxes")
    if problem is None:
        return UNKNOWN if operand.is_float else UNKNOWN_INTEGERS
    sizes = forward(geometry.operator, problem.sizes)
    depth = Axis.of(sizes, "depth") if "depth" in sizes else None
    axes = depth, Axis.of(sizes, "height"), Axis.of(sizes, "width")
    return _halo(*axes, sizes["channels"], sizes["filters"], operand, residues)


def reaches(axis: Axis) -> bool:
    """Return whether the taps reach all of the padding, in the gradient of a convolution with a stride."""
    return axis.pad <= (axis.taps - 1) * axis.dilation


@lru_cache(maxsize=1024)
def _halo(
    depth: Axis | None, height: Axis, width: Axis, channels: int, filters: int, operand: DType, residues: bool
) -> Halo:
    axes = [axis for axis in (depth, height, width) if axis is not None]
    if residues and not all(map(reaches, axes)):
        return Halo((), reason="the padding of the dgrad is larger than dilation * (filter size - 1)")
    if reason := _unreachable(axes, (height, width)):
        return Halo((), reason=reason)
    channel_bytes, widths = channels * operand.bits // 8, pixels_of(operand)
    fast = residues or _is_fast(depth, height, width, channels, channel_bytes, filters)
    planes = (Plane.cut(height, width, depth, channel_bytes, each, residues=residues) for each in _PLANES)
    known = _kernels(tuple(planes), widths)
    if not known:
        return Halo((), reason=TOO_LARGE)
    for_some = channels > FEW_CHANNELS
    return Halo(fastest_kernels(known, filters), *_limits(known, widths), fast, for_some)


def groups_of(problem: ConvolutionProblem | None, operand: DType, *, by_strips: bool) -> Halo:
    """Return how the halo kernel serves a convolution with groups.

    ``by_strips``: blocks of filters must begin where strips of a warp begin.
    """
    if problem is None:
        return NO_GROUPS
    geometry = problem.geometry
    if geometry.groups == 1:
        return Halo((), reason="there are no groups")
    if geometry.operator == "wgrad" or geometry.rank > 2:
        return Halo((), reason="it is no fprop or dgrad of two dimensions")
    if geometry.operator == "dgrad" and not geometry.is_unit_stride:
        return Halo((), reason="it is a dgrad with a stride")
    if operand.bits != 16:
        return Halo((), reason=f"the operands are {operand}, and not of 16 bits")
    if max(geometry.stride) > LARGEST_STRIDE:
        return Halo((), reason=f"a stride is beyond {LARGEST_STRIDE}, the largest stride of TMA's boxes")
    sizes = forward(geometry.operator, problem.sizes)
    axes = Axis.of(sizes, "height"), Axis.of(sizes, "width")
    if reason := _unreachable(axes, axes):
        return Halo((), reason=reason)
    return _grouped(Problem(1, sizes["channels"], sizes["filters"], *axes), sizes["groups"], operand, by_strips)


@lru_cache(maxsize=1024)
def _grouped(given: Problem, groups: int, operand: DType, by_strips: bool) -> Halo:
    planes, widths = tuple(_planes_of_groups(given, groups, operand.bits // 8, by_strips)), pixels_of(operand)
    if not planes:
        multiple = f"multiples of {STRIP}, as packed bits and exchanges between columns need" if by_strips else ""
        return Halo(
            (), reason=f"neither a group nor several in 64 filters are {multiple or 'whole vectors of 16 bytes'}"
        )
    known = _kernels(planes, widths)
    if not known:
        return Halo((), reason=TOO_LARGE)
    return Halo(fastest_kernels(known, given.filters), *_limits(known, widths), fast=True)


def _planes_of_groups(given: Problem, number: int, element_bytes: int, by_strips: bool) -> Iterator[Plane]:
    """Yield the convolution in blocks: of several groups where they fit, else of one."""
    filters, channel_bytes = given.filters // number, given.channels // number * element_bytes
    for block_bytes in _PLANES_OF_GROUPS:
        channels = block_bytes // element_bytes
        together = groups_together(given, kernel_of_groups(channels, "multiple"), number)
        groups: Groups = "multiple" if together > 1 or channel_bytes % WINDOW_BYTES else "single"
        step = filters * (together if groups == "multiple" else 1)  # each block begins at a multiple of it, or of 64
        if step and not (by_strips and step % STRIP):
            yield Plane.of_groups(given, number, channels, element_bytes, groups)


def words_of(problem: ConvolutionProblem | None, operand: DType, *, by_strips: bool) -> Halo:
    """Return how the halo kernel serves a convolution whose input threads copy in words: see :func:`groups_of`."""
    if problem is None:
        return NO_GROUPS
    geometry, channels = problem.geometry, problem.channels // problem.geometry.groups
    if geometry.operator != "fprop" or geometry.rank > 2:
        return Halo((), reason="it is no fprop of one or two dimensions")
    if operand.bits != 16:
        return Halo((), reason=f"the operands are {operand}, and not of 16 bits")
    if channels % 2 and (geometry.groups > 1 or channels > MOST_ODD):
        reason = f"{channels} channels of a group are no whole words of 4 bytes"
        return Halo((), reason=f"{reason}, and are copied from one group of at most {MOST_ODD}")
    axes = Axis.of(problem.sizes, "height"), Axis.of(problem.sizes, "width")
    if reason := _unreachable(axes, axes):
        return Halo((), reason=reason)
    return _words(Problem(1, problem.channels, problem.filters, *axes), geometry.groups, operand, by_strips)


@lru_cache(maxsize=1024)
def _words(given: Problem, number: int, operand: DType, by_strips: bool) -> Halo:
    element_bytes, widths = operand.bits // 8, pixels_of(operand)
    if by_strips and number > 1:
        return Halo((), reason="blocks of groups begin within the strips of a warp")
    channel_bytes = min(given.channels // number * element_bytes, max(_PLANES_OF_GROUPS))
    sizes = [each // element_bytes for each in _PLANES_OF_GROUPS if each >= channel_bytes]
    planes = tuple(Plane.of_groups(given, number, each, element_bytes, "words") for each in sizes)
    known = _kernels(planes, widths)
    if not known:
        return Halo((), reason=TOO_LARGE)
    return Halo(fastest_kernels(known, given.filters), *_limits(known, widths), fast=True)


def _unreachable(axes: Collection[Axis], plane: tuple[Axis, Axis]) -> str:
    """Return why TMA's boxes do not reach all taps of a convolution, or ""."""
    if plane[0].taps * plane[1].taps > MAX_TAPS:
        return f"the filters have more than {MAX_TAPS} taps"
    if min(axis.pad for axis in axes) < 0:
        return "the padding of the dgrad is larger than dilation * (filter size - 1)"
    most = max(axis.pad for axis in plane)
    return f"the padding is beyond {MOST_PADDING}" if most > MOST_PADDING else ""


def widened_channels(channels: int, element_bytes: int, stride: int) -> int:
    """Return the channels with which steps along a row are multiples of 16 bytes: a power of two."""
    padded = 1 << (channels - 1).bit_length()
    while padded * element_bytes * stride % WINDOW_BYTES:
        padded *= 2
    return padded


def windows_of(problem: ConvolutionProblem | None, operand: DType) -> Halo:
    """Return how the halo kernel serves a convolution of few channels, which it widens."""
    if problem is None:
        return NO_WINDOWS
    geometry, element_bytes = problem.geometry, operand.bits // 8
    if geometry.operator != "fprop" or geometry.groups > 1 or geometry.rank != 2:
        return Halo((), reason="it is no fprop of two dimensions without groups")
    if problem.channels > FEW_CHANNELS:
        return Halo((), reason=f"there are more than {FEW_CHANNELS} channels")
    if geometry.dilation[-1] != 1:
        return Halo((), reason="the taps of a row are not next to each other")
    if geometry.stride[0] > LARGEST_STRIDE:
        return Halo((), reason=f"a stride is beyond {LARGEST_STRIDE}")
    channels = widened_channels(problem.channels, element_bytes, geometry.stride[-1])
    if channels * element_bytes * geometry.stride[-1] != WINDOW_BYTES:
        return Halo((), reason=f"a step of the stride is more than {WINDOW_BYTES} bytes of a row")
    row = problem.filter_size[-1] * channels * element_bytes
    window_bytes = next((each for each in sorted(_PLANES) if each >= row), 0)
    if not window_bytes:
        return Halo((), reason=f"a row of the filter is longer than {max(_PLANES)} bytes")
    height = Axis.of(problem.sizes, "height")
    if height.taps > MAX_TAPS or height.pad > MOST_PADDING:
        return Halo((), reason=f"there are more than {MAX_TAPS} rows of taps, or {MOST_PADDING} of padding")
    if reason := beyond_windows(problem.sizes):
        return Halo((), reason=reason)
    found = _windows(height, problem.results[-1], window_bytes, problem.filters, operand)
    return found if found.reason else replace(found, channels=problem.channels, step=geometry.stride[-1])


def beyond_windows(sizes: Mapping[str, int]) -> str:
    """Return why the images are too large for windows, or ""."""
    height = Axis.of(sizes, "height")
    rows = (min(height.output, PIXELS[-1] // EIGHT) + height.halo) * height.stride
    elements = rows * sizes["width"] * sizes["channels"]
    return f"the rows of a tile have {_LARGEST_BOX} elements or more" if elements >= _LARGEST_BOX else ""


@lru_cache(maxsize=1024)
def _windows(height: Axis, columns: int, window_bytes: int, filters: int, operand: DType) -> Halo:
    plane, widths = Plane.of_windows(height, columns, window_bytes), pixels_of(operand)
    known = _kernels((plane,), widths)
    if not known:
        return Halo((), reason=TOO_LARGE)
    return Halo(fastest_kernels(known, filters), *_limits(known, widths), fast=True)


class Tiled(NamedTuple):
    """A convolution of one image, the tile of a kernel, and the costs of its tiles.

    With groups, the convolution has the filters of whole blocks, otherwise none.
    """

    plane: Plane
    tile: Geometry
    cycles: Cycles
    shared: bool

    def tiles(self, images: int, filters: int) -> int:
        """Return the number of tiles, of all blocks of filters."""
        return (
            self._of_class(images)
            * max(len(self.plane.classes), 1)
            * -(-(self.plane.problem.filters or filters) // FILTERS)
        )

    def time(self, images: int, filters: int, instructions: float = 0) -> float:
        """Return the clock cycles of sm90 for numbers of images and filters."""
        if self.shared:
            return self.cycles.shared(self.tiles(images, filters))
        return self.cycles.alone(self._of_class(images), self.plane.problem.filters or filters, instructions)

    def _of_class(self, images: int) -> int:
        """Return the number of tiles of a residue class, of one block of filters."""
        return self.tile.tiles(replace(self.plane.problem, images=images))


@lru_cache(maxsize=256)
def _kernels(planes: tuple[Plane, ...], widths: range) -> Mapping[Variant, Tiled]:
    """Return the kernels whose tiles fit."""
    made = {
        Variant(plane.block_bytes, pixels, shared, plane.groups): _kernel(plane, pixels, shared)
        for plane, shared, pixels in product(planes, (False, True), widths)
        if not shared or (plane.groups == "one" and not plane.classes)
    }
    return {variant: each for variant, each in made.items() if each is not None}


def _limits(known: Collection[Variant], widths: range) -> tuple[tuple[Variant, ...], tuple[Variant, ...]]:
    """Return the widest kernels of each kind whose tiles fit, and the narrower ones whose tiles do not."""
    kinds = dict.fromkeys(each._replace(pixels=0) for each in known)
    most = tuple(max(each for each in known if each._replace(pixels=0) == kind) for kind in kinds)
    narrower = (each._replace(pixels=pixels) for each in most for pixels in widths if pixels < each.pixels)
    return most, tuple(each for each in narrower if each not in known)


@lru_cache(maxsize=4096)
def _kernel(plane: Plane, pixels: int, shared: bool) -> Tiled | None:
    """Return the tile of a kernel and its costs; None if no tile fits."""
    tile = choose(plane, pixels, shared=shared)
    if tile is None:
        return None
    cycles = Cycles.of(plane, tile, pixels, shared=shared)
    if shared and not cycles.sharing.cluster_sizes:
        return None
    return Tiled(plane, tile, cycles, shared)


def time(
    plane: Plane, pixels: int, images: int, filters: int, *, shared: bool = False, instructions: float = 0
) -> float:
    """Return the clock cycles of sm90 of a kernel for numbers of images and filters; infinity if it cannot run.

    ``instructions`` are the ones of the epilogue for each element; a light epilogue is part of the constants.
    """
    found = _kernel(plane, pixels, shared)
    return inf if found is None else found.time(images, filters, instructions)


def start_of(plane: Plane, pixels: int, *, shared: bool = False) -> float:
    """Return the clock cycles of sm90 of a kernel's launch and set-up, and of its end; 0 if it cannot run."""
    found = _kernel(plane, pixels, shared)
    return 0.0 if found is None else found.cycles.start


def tiles_of(plane: Plane, pixels: int, images: int, filters: int, *, shared: bool = False) -> int:
    """Return the number of tiles of a kernel; 0 if it cannot run."""
    found = _kernel(plane, pixels, shared)
    return 0 if found is None else found.tiles(images, filters)


def _is_fast(depth: Axis | None, height: Axis, width: Axis, channels: int, channel_bytes: int, filters: int) -> bool:
    """Return whether the kernel is expected to be faster than CUTLASS's, as measured on an H200 with f16.

    Other types are assumed to take equal time for equal bytes of channels.

    An implicit GEMM loads the input once for each tap, but it wins in some cases. Few channels: windows make fewer
    steps. A stride: each tap meets few of the loaded pixels, so an implicit GEMM with full tiles is as fast, and faster
    for many images. Small images: much of a tile is padding. Matrix products with many channels, or with filters that
    fill its largest tiles: CUTLASS's kernels stay busy. Volumes of several taps in a slice are as fast as cuDNN's or
    faster, measured with 30 layers on an H100.
    """
    taps, unit = height.taps * width.taps, height.stride == width.stride == 1
    pixels = height.output * width.output
    if channels <= FEW_CHANNELS:
        return False
    if depth is not None and depth.taps * taps > 1:
        return True
    if taps == 1:
        return channel_bytes <= 1024 and (unit or filters % _FILLED != 0)
    if filters % _FILLED == 0 or pixels < _SMALL_IMAGE:
        return False
    if not unit:
        return filters <= FILTERS and channel_bytes <= 256
    return channel_bytes <= 1280 or pixels >= _LARGE_IMAGE


def fastest_kernels(known: Mapping[Variant, Tiled], filters: int) -> tuple[Variant, ...]:
    """Return the kernels that are the fastest together, the best one first, for several batch sizes.

    The loss of a set is, for each batch size, the time of its best kernel minus the time of the best of all. The set
    grows one by one, as long as another kernel saves enough.
    """
    counts = Counter(_IMAGES)
    times = {variant: [found.time(images, filters) for images in counts] for variant, found in known.items()}
    least = [min(each) for each in zip(*times.values(), strict=True)]
    # Times relative to the best, each as often as its batch size counts.
    scores = {
        variant: [
            time / shortest
            for time, shortest, count in zip(each, least, counts.values(), strict=True)
            for _ in range(count)
        ]
        for variant, each in times.items()
    }

    def best_beside(taken: Sequence[Variant]) -> tuple[float, Variant]:
        """Return the variant that is the best beside others, and the loss of all together."""
        others = [min(each) for each in zip(*(scores[each] for each in taken), strict=True)]
        losses = {variant: sum(map(min, others, score)) if others else sum(score) for variant, score in scores.items()}
        found = min(losses, key=losses.__getitem__)
        return losses[found], found

    taken: list[Variant] = []
    least_loss = inf
    for _ in range(_OFFERED):
        loss, added = best_beside(taken)
        found = [*taken, added]
        for place in range(len(found)):  # the first best may not be the best beside the others
            loss, found[place] = best_beside([*found[:place], *found[place + 1 :]])
        if loss > least_loss - _WORTH_A_KERNEL:
            break
        taken, least_loss = found, loss
    return tuple(sorted(taken, key=lambda each: sum(scores[each])))
