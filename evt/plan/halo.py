"""Convolutions that the halo kernel computes: ``halo_of(geometry, problem, operand) -> Halo``.

The built widths of its instruction suit the output's tiles: see :mod:`evt.plan.geometry.halo`. A dgrad of
stride 1 is the fprop of ``forward``: over the gradient of the output, by the filters read backwards.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from evt.ir.convolution import SPATIAL, Convolution, ConvolutionProblem, Operator
from evt.ir.dtype import DType
from evt.plan.geometry.convolution import Axis, Problem
from evt.plan.geometry.halo import DEPTH_BYTES, FILTERS, MAX_CLASSES, MAX_TAPS, VECTOR, WINDOW_BYTES
from evt.plan.geometry.halo_groups import groups_together
from evt.plan.halo_cost import BlockedConvolution, Groups, axes_of, kernel_of_groups
from evt.plan.halo_kernels import BATCHES, Variant, fastest_kernels, fitting_kernels, widest_kernels
from evt.plan.tma import LARGEST_STRIDE

#: Pixels that the instruction multiplies by 64 filters; for integers a multiple of 16.
PIXELS, INTEGER_PIXELS = range(64, 257, 8), range(64, 257, 16)
#: The bytes of a pixel in a block of channels.
BLOCK_BYTES = (128, 64, 32)
#: The bytes of a pixel in the block of channels of some groups. A row of 96 bytes has the place of 128.
_BLOCK_BYTES_OF_GROUPS = (128, 96, 64, 32)
#: The channels of a pixel, at most, if they are odd and threads copy them.
MOST_ODD = 63
#: The filters of a warp.
STRIP = 16
#: Batch sizes for which kernels of one group in a block are built beside the others.
_FEW_IMAGES = (1, 4)
TOO_LARGE = "a tile and its halo do not fit in shared memory"
#: The largest padding: 16 bits hold the place in the input where a tile begins.
MOST_PADDING = 32767
#: Limits at which CUTLASS's kernels are as fast: images of fewer pixels, many channels of images that are not large,
#: and multiples of this number of filters, which fill the 160-column tiles of its implicit GEMM.
_SMALL_IMAGE, _LARGE_IMAGE, _FILLED = 100, 2048, 640
#: The most channels that threads widen to windows.
FEW_CHANNELS = 8


@dataclass(frozen=True, slots=True)
class Halo:
    """The halo kernels that are ``offered``, the best one first.

    ``most`` has the widest kernels whose tiles fit, by the bytes of a block of channels and by shared tiles; ``gaps``
    are narrower ones whose tiles do not fit. ``fast``: whether they are expected to be faster than an implicit GEMM by
    TMA's im2col mode; ``for_some``: whether some batch sizes may be faster. ``reason``: the reason against such a
    kernel, or "".
    """

    offered: tuple[Variant, ...]
    most: tuple[Variant, ...] = tuple(Variant(each, PIXELS[-1]) for each in BLOCK_BYTES)
    gaps: tuple[Variant, ...] = ()
    fast: bool = False
    for_some: bool = False
    reason: str = ""


#: For unknown sizes: tiles of 4, 3 and 2 rows of 56 pixels.
UNKNOWN, UNKNOWN_INTEGERS = (
    Halo(tuple(Variant(max(BLOCK_BYTES), each) for each in pixels)) for pixels in ((232, 176, 120), (240, 176, 128))
)
NO_GROUPS = Halo((), reason="its sizes are not known: give the shapes of A and B")


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
    return _halo(*axes_of(sizes), sizes["channels"], sizes["filters"], operand, residues)


def reaches(axis: Axis) -> bool:
    """Return whether the taps reach all of the padding, in the gradient of a convolution with a stride."""
    return axis.pad <= (axis.taps - 1) * axis.dilation


@lru_cache(maxsize=1024)
def _halo(
    height: Axis, width: Axis, depth: Axis | None, channels: int, filters: int, operand: DType, residues: bool
) -> Halo:
    axes = [axis for axis in (depth, height, width) if axis is not None]
    if residues and not all(map(reaches, axes)):
        return Halo((), reason="the padding of the dgrad is larger than dilation * (filter size - 1)")
    if reason := unreachable(axes, (height, width)):
        return Halo((), reason=reason)
    channel_bytes, widths = channels * operand.bits // 8, pixels_of(operand)
    fast = residues or _is_fast(depth, height, width, channels, channel_bytes, filters)
    blocked = (
        BlockedConvolution.cut(height, width, depth, channel_bytes, each, residues=residues) for each in BLOCK_BYTES
    )
    known = fitting_kernels(tuple(blocked), widths)
    if not known:
        return Halo((), reason=TOO_LARGE)
    for_some = channels > FEW_CHANNELS
    return Halo(fastest_kernels(known, filters), *widest_kernels(known, widths), fast, for_some)


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
    if reason := unreachable(axes, axes):
        return Halo((), reason=reason)
    return _grouped(Problem(1, sizes["channels"], sizes["filters"], *axes), sizes["groups"], operand, by_strips)


@lru_cache(maxsize=1024)
def _grouped(given: Problem, groups: int, operand: DType, by_strips: bool) -> Halo:
    blocked, widths = tuple(_blocked_by_groups(given, groups, operand.bits // 8, by_strips)), pixels_of(operand)
    if not blocked:
        multiple = f"multiples of {STRIP}, as packed bits and exchanges between columns need" if by_strips else ""
        return Halo(
            (), reason=f"neither a group nor several in 64 filters are {multiple or 'whole vectors of 16 bytes'}"
        )
    found = fastest_of(blocked, widths, given.filters)
    if any(each.groups == "single" for each in found.offered):
        return found
    beside = fastest_of(
        tuple(_blocked_by_group(given, groups, operand.bits // 8, by_strips)), widths, given.filters, _FEW_IMAGES
    )
    if found.reason or beside.reason:
        return found
    offered, most, gaps = (*found.offered, *beside.offered), (*found.most, *beside.most), (*found.gaps, *beside.gaps)
    return replace(found, offered=offered, most=most, gaps=gaps)


def _blocked_by_groups(
    given: Problem, number: int, element_bytes: int, by_strips: bool
) -> Iterator[BlockedConvolution]:
    """Yield the convolution in blocks: of several groups where they fit, else of one."""
    filters, channel_bytes = given.filters // number, given.channels // number * element_bytes
    for block_bytes in _BLOCK_BYTES_OF_GROUPS:
        channels = block_bytes // element_bytes
        together = groups_together(given, kernel_of_groups(channels, "multiple"), number)
        groups: Groups = "multiple" if together > 1 or channel_bytes % WINDOW_BYTES else "single"
        step = filters * (together if groups == "multiple" else 1)  # each block begins at a multiple of it, or of 64
        if step and not (by_strips and step % STRIP):
            yield BlockedConvolution.of_groups(given, number, channels, element_bytes, groups)


def _blocked_by_group(given: Problem, number: int, element_bytes: int, by_strips: bool) -> Iterator[BlockedConvolution]:
    """Yield the convolution in blocks of one group whose channels fill the k of an instruction.

    TMA loads their filters, so that they start sooner than blocks of several groups.
    """
    filters, channel_bytes = given.filters // number, given.channels // number * element_bytes
    if channel_bytes % WINDOW_BYTES or channel_bytes < DEPTH_BYTES or (by_strips and filters % STRIP):
        return
    for block_bytes in _BLOCK_BYTES_OF_GROUPS:
        yield BlockedConvolution.of_groups(given, number, block_bytes // element_bytes, element_bytes, "single")


def words_of(problem: ConvolutionProblem | None, operand: DType, *, by_strips: bool) -> Halo:
    """Return how the halo kernel serves a convolution whose input threads copy in words: see :func:`groups_of`."""
    if problem is None:
        return NO_GROUPS
    geometry, channels = problem.geometry, problem.channels // problem.geometry.groups
    if geometry.operator != "fprop" or geometry.rank > 2:
        return Halo((), reason="it is no fprop of one or two dimensions")
    if operand.bits != 16:
        return Halo((), reason=f"the operands are {operand}, and not of 16 bits")
    if channels % 2 and channels > MOST_ODD:
        reason = f"{channels} channels of a group are no whole words of 4 bytes"
        return Halo((), reason=f"{reason}, and odd numbers are at most {MOST_ODD}")
    axes = Axis.of(problem.sizes, "height"), Axis.of(problem.sizes, "width")
    if reason := unreachable(axes, axes):
        return Halo((), reason=reason)
    return _words(Problem(1, problem.channels, problem.filters, *axes), geometry.groups, operand, by_strips)


@lru_cache(maxsize=1024)
def _words(given: Problem, number: int, operand: DType, by_strips: bool) -> Halo:
    element_bytes, widths = operand.bits // 8, pixels_of(operand)
    if by_strips and number > 1:
        return Halo((), reason="blocks of groups begin within the strips of a warp")
    channel_bytes = min(given.channels // number * element_bytes, max(_BLOCK_BYTES_OF_GROUPS))
    sizes = [each // element_bytes for each in _BLOCK_BYTES_OF_GROUPS if each >= channel_bytes]
    if given.channels // number % 2:  # the channels of a tile may begin within a word if their number is odd
        together = {each: groups_together(given, kernel_of_groups(each, "words"), number) for each in sizes}
        sizes = [each for each, groups in together.items() if max(groups, 1) % 2]
        if not sizes:
            return Halo((), reason="a tile has an even number of groups with an odd number of channels")
    blocked = tuple(BlockedConvolution.of_groups(given, number, each, element_bytes, "words") for each in sizes)
    return fastest_of(blocked, widths, given.filters)


def fastest_of(
    convolutions: tuple[BlockedConvolution, ...], widths: range, filters: int, images: Sequence[int] = BATCHES
) -> Halo:
    """Return the fastest kernels of a convolution, cut into blocks in some ways, for numbers of filters and images."""
    known = fitting_kernels(convolutions, widths)
    if not known:
        return Halo((), reason=TOO_LARGE)
    return Halo(fastest_kernels(known, filters, images), *widest_kernels(known, widths), fast=True)


def unreachable(axes: Collection[Axis], slice_axes: tuple[Axis, Axis]) -> str:
    """Return why TMA's boxes do not reach all taps of a convolution, or ""."""
    if slice_axes[0].taps * slice_axes[1].taps > MAX_TAPS:
        return f"the filters have more than {MAX_TAPS} taps"
    if min(axis.pad for axis in axes) < 0:
        return "the padding of the dgrad is larger than dilation * (filter size - 1)"
    most = max(axis.pad for axis in slice_axes)
    return f"the padding is beyond {MOST_PADDING}" if most > MOST_PADDING else ""


def widened_channels(channels: int, element_bytes: int, stride: int) -> int:
    """Return the channels with which steps along a row are multiples of 16 bytes: a power of two."""
    padded = 1 << (channels - 1).bit_length()
    while padded * element_bytes * stride % WINDOW_BYTES:
        padded *= 2
    return padded


def _is_fast(depth: Axis | None, height: Axis, width: Axis, channels: int, channel_bytes: int, filters: int) -> bool:
    """Return whether the kernel is expected to be faster than CUTLASS's, as measured on an H200 with f16.

    Other types are assumed to take equal time for equal bytes of channels.

    An implicit GEMM loads the input once for each tap, but it wins in some cases. Few channels: windows make fewer
    steps, but not for one tap. CUTLASS then stores single elements if the number of filters is odd, and TMA does not
    store the pixels of few filters. A stride: each tap meets few of the loaded pixels, so an implicit GEMM with full
    tiles is as fast, and faster for many images. Small images: much of a tile is padding. Matrix products with many
    channels, or with filters that fill its largest tiles: CUTLASS's kernels stay busy. Volumes of several taps in a
    slice are as fast as cuDNN's or faster, measured with 30 layers on an H100.
    """
    taps, unit = height.taps * width.taps, height.stride == width.stride == 1
    pixels = height.output * width.output
    if channels <= FEW_CHANNELS:
        return taps == 1 and unit and (filters % 2 != 0 or (filters % VECTOR != 0 and filters <= FILTERS))
    if depth is not None and depth.taps * taps > 1:
        return True
    if taps == 1:
        return channel_bytes <= 1024 and (unit or filters % _FILLED != 0)
    if filters % _FILLED == 0 or pixels < _SMALL_IMAGE:
        return False
    if not unit:
        return filters <= FILTERS and channel_bytes <= 256
    return channel_bytes <= 1280 or pixels >= _LARGE_IMAGE
