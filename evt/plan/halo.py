"""What the halo kernel is specialised for, and where it is fast: ``halo_of(geometry, problem, operand) -> Halo``.

The widths of its instruction that are built suit the output's tiles: see :mod:`evt.plan.halo_tiles`. A dgrad of stride
1 is the fprop of ``forward``: over the gradient of the output, by the filters read backwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from typing import NamedTuple

from evt.ir.convolution import SPATIAL, Convolution, ConvolutionProblem, Operator
from evt.ir.dtype import DType
from evt.plan.halo_tiles import EIGHT, FILTERS, WINDOW_BYTES, Axis, Cycles, Plane, Tile, choose

#: What the instruction multiplies at a time by 64 filters: so many pixels, of integers a multiple of 16.
PIXELS, INTEGER_PIXELS = range(64, 257, 8), range(64, 257, 16)
#: The bytes of a pixel in a plane, and the time for a byte of its channels, relative to that of a wide one.
_PLANES = {128: 1.0, 64: 1.08, 32: 1.2}
#: How many kernels are built, to choose from by the number of tiles.
_OFFERED = 4
#: They are the best together for these numbers of images, of which many count twice; where only calls of few images
#: take the kernel, for few.
_IMAGES, _FEW_IMAGES = (1, 4, 32, 256, 256), (1, 2, 4, 8, 32)
#: How much another kernel has to save: as a part of the best time for a number of images, added up over the numbers.
_WORTH_A_KERNEL = 0.02

_TOO_LARGE = "a tile and its halo do not fit in shared memory"
_MOST_TAPS = 64
_MOST_PADDING = 32767  # where a tile begins in the input is kept in 16 bits
#: Where CUTLASS's kernels are as fast: images of fewer pixels, filters of more taps, and multiples of so many filters,
#: which fill the tiles of 160 columns of its implicit GEMM.
_SMALL_IMAGE, _FEW_TAPS, _FILLED = 100, 9, 640
_LARGEST_STEP = 8  # of TMA's boxes
_FEW_CHANNELS = 8  # which are widened
_LARGEST_BOX = 1 << 31  # of the elements that they are, whose distances have 32 bits


class Width(NamedTuple):
    """The pixels of a kernel's instruction, and whether thread blocks share its tiles."""

    pixels: int
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Halo:
    """What halo kernels are specialised for: their ``widths``, that of the best one first, and the bytes of a plane.

    ``most`` has the widest kernel whose tiles fit, by the bytes of a plane, and also of those that share tiles;
    ``gaps`` are the narrower ones whose tiles do not. ``fast``: whether they are expected to be faster than an implicit
    GEMM by TMA's im2col mode; ``for_few``: whether they may be for few images. ``reason``: why there is no such kernel,
    or "". ``channels`` are those of windows, with steps of so many pixels, or 0.
    """

    widths: tuple[Width, ...]
    plane_bytes: int = 128
    most: tuple[tuple[int, Width], ...] = tuple((each, Width(PIXELS[-1])) for each in _PLANES)
    gaps: tuple[tuple[int, Width], ...] = ()
    fast: bool = False
    for_few: bool = False
    reason: str = ""
    channels: int = 0
    step: int = 1


#: Of sizes that are not known: tiles of 4, 3 and 2 rows of 56 pixels.
UNKNOWN, UNKNOWN_INTEGERS = (Halo(tuple(map(Width, each))) for each in ((232, 176, 120), (240, 176, 128)))
NO_WINDOWS = Halo((), reason="its sizes are not known: give the shapes of A and B")


def forward(operator: Operator, sizes: Mapping[str, int]) -> Mapping[str, int]:
    """Return the sizes of the fprop that is computed for a convolution's, or for those of a dgrad of stride 1."""
    if operator == "fprop":
        return sizes
    spatial = [name for name in SPATIAL if name in sizes]
    swapped = [("channels", "filters"), *((name, f"output_{name}") for name in spatial)]
    found = {**sizes, **{one: sizes[other] for pair in swapped for one, other in (pair, pair[::-1])}}
    for name in spatial:
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
    if geometry.operator == "dgrad" and not geometry.is_unit_stride:
        return Halo((), reason="it is a dgrad with a stride")
    if max(geometry.stride) > _LARGEST_STEP:
        return Halo((), reason=f"a stride is beyond {_LARGEST_STEP}, the largest step of TMA's boxes")
    if problem is None:
        return UNKNOWN if operand.is_float else UNKNOWN_INTEGERS
    sizes = forward(geometry.operator, problem.sizes)
    depth = Axis.of(sizes, "depth") if "depth" in sizes else None
    return _halo(depth, Axis.of(sizes, "height"), Axis.of(sizes, "width"), sizes["channels"], sizes["filters"], operand)


@lru_cache(maxsize=1024)
def _halo(depth: Axis | None, height: Axis, width: Axis, channels: int, filters: int, operand: DType) -> Halo:
    axes = [axis for axis in (depth, height, width) if axis is not None]
    slices, taps = depth.taps if depth else 1, height.taps * width.taps
    if taps > _MOST_TAPS:
        return Halo((), reason=f"the filters have more than {_MOST_TAPS} taps")
    if min(axis.pad for axis in axes) < 0:
        return Halo((), reason="the padding of the dgrad is larger than dilation * (filter size - 1)")
    if max(height.pad, width.pad) > _MOST_PADDING:
        return Halo((), reason=f"the padding is beyond {_MOST_PADDING}")
    channel_bytes, widths = channels * operand.bits // 8, pixels_of(operand)
    fast = _is_fast(height, width, channels, channel_bytes, filters)
    planes = {
        each: Plane(height, width, each, -(-channel_bytes // each) * slices, depth is not None) for each in _PLANES
    }
    known = {each: _kernels(plane, widths) for each, plane in planes.items()}
    most, gaps = _limits(known, widths)
    if not most:
        return Halo((), reason=_TOO_LARGE)
    best = min((each for each, _ in most), key=lambda each: _time_of_planes(channel_bytes, each, taps))
    for_few = channels > _FEW_CHANNELS
    images = _FEW_IMAGES if for_few and not fast else _IMAGES
    return Halo(fastest_widths(known[best], filters, images), best, most, gaps, fast, for_few)


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
    if problem.channels > _FEW_CHANNELS:
        return Halo((), reason=f"there are more than {_FEW_CHANNELS} channels")
    if geometry.dilation[-1] != 1:
        return Halo((), reason="the taps of a row are not next to each other")
    if geometry.stride[0] > _LARGEST_STEP:
        return Halo((), reason=f"a stride is beyond {_LARGEST_STEP}")
    channels = widened_channels(problem.channels, element_bytes, geometry.stride[-1])
    if channels * element_bytes * geometry.stride[-1] != WINDOW_BYTES:
        return Halo((), reason=f"a step of the stride is more than {WINDOW_BYTES} bytes of a row")
    row = problem.filter_size[-1] * channels * element_bytes
    window_bytes = next((each for each in sorted(_PLANES) if each >= row), 0)
    if not window_bytes:
        return Halo((), reason=f"a row of the filter is longer than {max(_PLANES)} bytes")
    height = Axis.of(problem.sizes, "height")
    if height.taps > _MOST_TAPS or height.pad > _MOST_PADDING:
        return Halo((), reason=f"there are more than {_MOST_TAPS} rows of taps, or {_MOST_PADDING} of padding")
    rows = (min(height.output, PIXELS[-1] // EIGHT) + height.halo) * height.stride
    if rows * problem.pixels[-1] * problem.channels >= _LARGEST_BOX:
        return Halo((), reason=f"the rows of a tile have {_LARGEST_BOX} elements or more")
    found = _windows(height, problem.results[-1], window_bytes, problem.filters, operand)
    return found if found.reason else replace(found, channels=problem.channels, step=geometry.stride[-1])


@lru_cache(maxsize=1024)
def _windows(height: Axis, columns: int, window_bytes: int, filters: int, operand: DType) -> Halo:
    plane, widths = Plane.of_windows(height, columns, window_bytes), pixels_of(operand)
    known = _kernels(plane, widths)
    most, gaps = _limits({window_bytes: known}, widths)
    if not most:
        return Halo((), reason=_TOO_LARGE)
    return Halo(fastest_widths(known, filters, _IMAGES), window_bytes, most, gaps, fast=True)


def _kernels(plane: Plane, widths: range) -> Mapping[Width, tuple[Tile, Cycles]]:
    """Return the kernels whose tiles fit, each with its tile and what it takes."""
    made = {width: _kernel(plane, width) for width in _all(widths)}
    return {width: each for width, each in made.items() if each is not None}


def _all(widths: range) -> Iterator[Width]:
    return (Width(pixels, shared) for shared in (False, True) for pixels in widths)


def _limits(
    known: Mapping[int, Mapping[Width, object]], widths: range
) -> tuple[tuple[tuple[int, Width], ...], tuple[tuple[int, Width], ...]]:
    """Return the widest kernels whose tiles fit, by the bytes of a plane, and the narrower ones whose tiles do not."""
    most: list[tuple[int, Width]] = []
    gaps: list[tuple[int, Width]] = []
    for plane_bytes, fitting in known.items():
        for shared in (False, True):
            if (widest := max((each for each in fitting if each.shared == shared), default=None)) is not None:
                most.append((plane_bytes, widest))
                narrower = (Width(pixels, shared) for pixels in widths if pixels < widest.pixels)
                gaps += ((plane_bytes, each) for each in narrower if each not in fitting)
    return tuple(most), tuple(gaps)


def _kernel(plane: Plane, width: Width) -> tuple[Tile, Cycles] | None:
    """Return the tile of a kernel, and what it takes; None where there is none."""
    tile = choose(plane, width.pixels, shared=width.shared)
    if tile is None:
        return None
    cycles = Cycles.of(plane, tile, width.pixels)
    return None if width.shared and not cycles.sharers else (tile, cycles)


def time(plane: Plane, width: Width, images: int, filters: int) -> float:
    """Return how many clock cycles of sm90 a kernel takes for so many images and filters; infinity if it cannot."""
    found = _kernel(plane, width)
    return inf if found is None else _time(*found, width, images, filters)


def _time(tile: Tile, cycles: Cycles, width: Width, images: int, filters: int) -> float:
    tiles = -(-images // tile.images) * tile.tiles * -(-filters // FILTERS)
    return cycles.shared(tiles) if width.shared else cycles.alone(tiles)


def _is_fast(height: Axis, width: Axis, channels: int, channel_bytes: int, filters: int) -> bool:
    """Return whether the kernel is expected to be faster than those of CUTLASS, as measured on an H200 with f16.

    Of other types, as many bytes of channels are taken to take as long.

    An implicit GEMM loads the input once a tap. But of few channels, windows make fewer steps;
    with a stride, each tap meets few of the pixels that are loaded for it, so that an implicit GEMM whose tiles are
    filled is as fast, and faster for many images; of small images, much of a tile is padding; and products of matrices
    with many channels, or with filters that fill its largest tiles, keep CUTLASS's kernels busy.
    """
    taps, unit = height.taps * width.taps, height.stride == width.stride == 1
    if channels <= _FEW_CHANNELS:
        return False
    if taps == 1:
        return channel_bytes <= 1024 and (unit or filters % _FILLED != 0)
    if filters % _FILLED == 0:
        return False
    if not unit and filters > FILTERS:
        return False
    small = height.output * width.output < _SMALL_IMAGE
    return taps <= _FEW_TAPS and channel_bytes <= (1280 if unit else 256) and not small


def _time_of_planes(channel_bytes: int, plane_bytes: int, taps: int) -> tuple[float, int]:
    """Return what is least for the planes that are the fastest: of one tap, the fewest.

    A step over one takes longer than its multiplications. Of several taps, it is the padded channels' bytes, those of
    narrow planes longer.
    """
    planes = -(-channel_bytes // plane_bytes)
    return planes * (1 if taps == 1 else plane_bytes * _PLANES[plane_bytes]), plane_bytes


def fastest_widths(
    known: Mapping[Width, tuple[Tile, Cycles]], filters: int, counts: tuple[int, ...]
) -> tuple[Width, ...]:
    """Return the kernels that are the fastest together, the best one first, for these numbers of images.

    A set of kernels loses what the best of them takes longer, for each number of images, than the best of all; the set
    grows one by one, as long as another kernel saves enough.
    """
    times = {each: [_time(*found, each, images, filters) for images in counts] for each, found in known.items()}
    least = [min(each) for each in zip(*times.values(), strict=True)]

    def loss(taken: Sequence[Width]) -> float:
        best = [min(each) for each in zip(*(times[width] for width in taken), strict=True)]
        return float(sum(each / shortest for each, shortest in zip(best, least, strict=True)))

    taken: list[Width] = []
    for _ in range(_OFFERED):
        found = min(([*taken, each] for each in times), key=loss)
        for place in range(len(found)):  # what was the best before may not be beside the others
            found = min(([*found[:place], each, *found[place + 1 :]] for each in times), key=loss)
        if taken and loss(found) > loss(taken) - _WORTH_A_KERNEL:
            break
        taken = found
    return tuple(sorted(taken, key=lambda width: loss([width])))
