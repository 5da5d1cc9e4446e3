"""What a kernel is specialised for: types, majorness, alignment class and batching of every tensor.

Sizes and strides are not here: they are run-time arguments of every kernel.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from evt.ir import Input, Output, TypedDag
from evt.ir.convolution import Convolution, ConvolutionProblem, Operator
from evt.ir.dtype import F16, DType
from evt.ir.node import base, direct
from evt.layout import widest_vector
from evt.plan.depthwise import NO_DEPTHWISE, Depthwise, depthwise_of
from evt.plan.halo import NO_WINDOWS, UNKNOWN, Halo, halo_of, widened_channels, windows_of

#: How a tensor relates to the batch mode: ``strided`` (one per batch, at a run-time stride; also a problem of one
#: batch) or ``shared`` (a batched problem, the same tensor for every batch).
Batch = Literal["strided", "shared"]


@dataclass(frozen=True, slots=True)
class LayoutClass:
    """One tensor's layout class.

    ``contiguous`` is the mode with stride 1, or None for a tensor with general strides. ``alignment`` is the
    largest power of two, in elements and at most 16 bytes, that divides the address, every other stride and
    the extent of the contiguous mode: how wide one access may be.
    """

    contiguous: str | None
    alignment: int
    batch: Batch = "strided"


#: Widths of tiles, and the time for an element of them relative to the general one's, as measured on an H200.
_WIDTHS = {192: 0.99, 128: 1.0, 160: 0.99, 96: 1.15, 64: 1.35}
#: Sums over this many bytes take less time than an epilogue that reads and writes a matrix.
_SHALLOW_BYTES = 512
#: The largest stride of TMA's im2col mode.
_LARGEST_STEP = 8
#: A larger filter, along any dimension, is beyond CUTLASS's optimised iterators: they keep a bit for each tap.
LARGEST_FILTER = 32


@dataclass(frozen=True, slots=True)
class ConvolutionClass:
    """What a convolution's kernel is specialised for, besides types and alignments.

    ``rank`` is 2 or 3. ``unit_filter``, ``unit_stride``, ``padded`` and ``packed`` (the pixels of A have one pitch,
    and those of an activation B) decide whether it is a product of matrices. ``large_filter`` is one of more than
    :data:`LARGEST_FILTER` taps along a dimension, ``few_channels`` how many an activation of at most 8 has, else 0.
    Of several groups, ``group_filters`` are the filters of one, of multiples of 64 the largest power of two, at
    most 256, that divides them; ``group_channels`` is such a power for the channels of one; 0 where there is one
    group. ``im2col``: whether TMA's mode of that name reaches all taps; ``dilated``: of a dgrad with a stride,
    whether the taps of its filters lie apart; ``large_operand``: whether A or B has 2 GiB or more.
    ``tile_columns`` is the width of tiles that its columns fill best, ``tile_bytes`` the depth of tiles that its
    channels do; ``shallow``: whether the sums are shorter than the work of an epilogue. ``row_channels`` are the
    channels of a copy in which the rows of filters, which then are one tap, can be moved by TMA's im2col mode, or 0.
    ``is_depthwise``: whether each channel has a filter of its own, and gives one channel.
    ``halo`` is how the halo kernel serves it, ``windows`` how it does where it widens the channels, ``depthwise`` how
    the depthwise kernel does.
    """

    operator: Operator
    rank: int
    unit_filter: bool
    unit_stride: bool
    padded: bool
    packed: bool = True
    large_filter: bool = False
    few_channels: int = 0
    group_filters: int = 0
    group_channels: int = 0
    im2col: bool = True
    dilated: bool = False
    large_operand: bool = False
    tile_columns: int = 128
    tile_bytes: int = 128
    shallow: bool = False
    row_channels: int = 0
    halo: Halo = UNKNOWN
    windows: Halo = NO_WINDOWS
    is_depthwise: bool = False
    depthwise: Depthwise = NO_DEPTHWISE

    @property
    def not_matrices(self) -> str:
        """Why it is not a matrix product, or ""."""
        reasons = {
            "the filters have more than one tap": not self.unit_filter,
            "the stride is not 1": not self.unit_stride,
            "the input is padded": self.padded,
            "it has groups": bool(self.group_filters),
            "the pixels of an operand have no single pitch": not self.packed,
        }
        return next((reason for reason, holds in reasons.items() if holds), "")


@dataclass(frozen=True)
class Signature:
    """The layouts of A, B and of every input and output that has ``m`` or ``n``, by name; a convolution's class."""

    a: LayoutClass
    b: LayoutClass
    tensors: tuple[tuple[str, LayoutClass], ...]
    convolution: ConvolutionClass | None = None

    def __getitem__(self, name: str) -> LayoutClass:
        return self._layouts[name]

    @cached_property
    def _layouts(self) -> Mapping[str, LayoutClass]:
        return dict(self.tensors)

    def only(self, names: Container[str]) -> Signature:
        """Return the same without the tensors of other names, such as inputs that the optimiser removed."""
        return replace(self, tensors=tuple(each for each in self.tensors if each[0] in names))


def alignment_of(dtype: DType, contiguous: str | None, address: int, strides: dict[str, int], extent: int) -> int:
    """Return the elements of ``dtype`` that one access may cover; ``strides`` exclude the contiguous mode's."""
    if contiguous is None:
        return 1
    return widest_vector(bytes_of(dtype), address, extent, strides.values())


def bytes_of(dtype: DType) -> int:
    """Return the bytes of an element in memory; packed bits are counted in whole bytes."""
    return max(1, dtype.bits // 8)


def aligned_to(layout: LayoutClass, extent: int) -> LayoutClass:
    """Return the layout for an extent of the contiguous mode; 0 if it is not known."""
    return replace(layout, alignment=min(layout.alignment, extent & -extent)) if extent else layout


def natural_operand_layout(dtype: DType, modes: tuple[str, ...]) -> LayoutClass:
    """Return the layout of a packed operand: the last mode is contiguous, or k where tensor cores need that."""
    return LayoutClass("k" if dtype.bits == 8 else modes[-1], 16 // bytes_of(dtype))


def natural_layout(dtype: DType, modes: tuple[str, ...], batch: Batch = "strided") -> LayoutClass:
    """Return the layout of a packed, 16-byte-aligned tensor: the last mode of its shape is contiguous."""
    inner = [direct(mode) for mode in modes if mode != "l"]
    return LayoutClass(inner[-1], 16 // bytes_of(dtype), batch)


def natural_signature(
    dag: TypedDag, convolution: ConvolutionClass | None = None, extents: Mapping[str, int] | None = None
) -> Signature:
    """Return the signature of packed tensors in the order of their subscripts, as ``evt emit`` assumes.

    They are aligned to 16 bytes, as far as ``extents`` allow: the modes' extents, and those of A's and B's contiguous
    dimensions by their names where these differ.
    """
    extents = extents or {}
    natural = natural_operand_layout if convolution is None else natural_layout
    layouts = [(operand, natural(operand.dtype, operand.modes)) for operand in dag.operands]
    a, b = (
        aligned_to(layout, extents.get(operand.name, extents.get(layout.contiguous or "", 0)))
        for operand, layout in layouts
    )
    tensors = []
    values: tuple[Input | Output, ...] = (*dag.inputs, *dag.outputs)
    for value in values:
        if set(map(base, value.modes)) & {"m", "n"}:
            assert value.dtype is not None
            batched = convolution is None  # or may be
            shared = batched and isinstance(value, Input) and "l" not in value.modes and not value.batchable
            layout = natural_layout(value.dtype, value.modes, "shared" if shared else "strided")
            tensors.append(
                (value.name, aligned_to(layout, extents.get(layout.contiguous or "", 0) if value.is_tile else 0))
            )
    return Signature(a, b, tuple(tensors), convolution)


def convolution_class(
    geometry: Convolution,
    problem: ConvolutionProblem | None,
    operand: DType = F16,
    operand_bytes: int = 0,
    packed: bool = True,
) -> ConvolutionClass:
    """Return the class of a convolution of operands of a type, the larger of which has ``operand_bytes``.

    Without a problem, assume a filter of several taps and many channels.
    """
    rank = max(geometry.rank, 2)
    if problem is None:
        several = 256 if geometry.groups > 1 else 0
        padded = geometry.padding is None or any(map(any, geometry.padding))
        unit = set(geometry.kernel_size) == {1}
        return ConvolutionClass(
            geometry.operator,
            rank,
            unit,
            geometry.is_unit_stride,
            padded,
            group_filters=several,
            group_channels=several,
            im2col=max(geometry.stride) <= _LARGEST_STEP,
            dilated=_is_dilated(geometry),
            large_filter=max(geometry.kernel_size, default=1) > LARGEST_FILTER,
            halo=halo_of(geometry, None, operand),
        )
    groups, element_bytes = geometry.groups, bytes_of(operand)
    row_channels = _row_channels(problem, element_bytes)
    depth = row_channels * problem.filter_size[-1] if row_channels else problem.depth
    return ConvolutionClass(
        geometry.operator,
        rank,
        set(problem.filter_size) == {1},
        geometry.is_unit_stride,
        any(map(any, problem.pads)),
        packed,
        max(problem.filter_size) > LARGEST_FILTER,
        problem.channels if problem.channels <= 8 else 0,
        _group_filters(problem.filters // groups) if groups > 1 else 0,
        _power_of_two(problem.channels // groups) if groups > 1 else 0,
        _fits_im2col(problem),
        _is_dilated(geometry),
        max(operand_bytes, _padded_bytes(problem, element_bytes)) >= 2**31,
        tile_columns(problem.columns),
        tile_bytes(depth * element_bytes),
        math.prod(problem.filter_size) * problem.depth * element_bytes <= _SHALLOW_BYTES,
        row_channels,
        halo_of(geometry, problem, operand),
        windows_of(problem, operand),
        problem.is_depthwise,
        depthwise_of(problem, element_bytes),
    )


def tile_columns(columns: int) -> int:
    """Return the width of tiles that these columns fill best; if two fill equally well, the wider."""
    width = min(_WIDTHS, key=lambda each: -(-columns // each) * each * _WIDTHS[each])
    return 256 if width == 128 and columns >= 256 else width


def tile_bytes(channels: int) -> int:
    """Return the depth of tiles that the channels of a tap, in bytes, fill best: 64 or 128.

    Steps of half the depth cost 8 % more, as measured on an H200.
    """
    return min((128, 64), key=lambda each: -(-channels // each) * each * (1.08 if each == 64 else 1.0))


def _is_dilated(geometry: Convolution) -> bool:
    return geometry.operator == "dgrad" and not geometry.is_unit_stride and set(geometry.dilation) != {1}


def _fits_im2col(problem: ConvolutionProblem, dimensions: int | None = None) -> bool:
    """Return whether strides are at most 8, and the corners of the box of taps and its extent fit TMA's bits.

    In 2 dimensions these are 8 bits each, in 3 dimensions 5 (CUDA driver API, cuTensorMapEncodeIm2col). Only the first
    ``dimensions`` are checked, if given.
    """
    geometry, pads = problem.geometry, problem.pads[:dimensions]
    corner = 128 if geometry.rank < 3 else 16
    sizes = zip(geometry.dilation[:dimensions], problem.filter_size[:dimensions], strict=True)
    reach = [dilation * (size - 1) for dilation, size in sizes]
    corners = [abs(number - of) for pad, of in zip(pads, reach, strict=True) for number in pad]
    corners += [number for pad in pads for number in pad]
    steps = max(geometry.stride[:dimensions], default=1)
    return steps <= _LARGEST_STEP and max(corners, default=0) < corner and max(reach, default=0) < 2 * corner - 1


def _padded_bytes(problem: ConvolutionProblem, element_bytes: int) -> int:
    """Return the bytes of an activation whose channels are padded to 4 or 8, where they are few."""
    channels = max(problem.channels, 4 if problem.channels <= 4 else 8)
    return problem.images * math.prod(problem.pixels) * channels * element_bytes


def _row_channels(problem: ConvolutionProblem, element_bytes: int) -> int:
    """Return how many channels the copy of an input of few needs, for steps along rows that are multiples of 16 bytes.

    Return 0 where there are more channels, or the taps of a row are not adjacent.
    """
    geometry = problem.geometry
    few = geometry.operator == "fprop" and geometry.rank < 3 and geometry.groups == 1 and problem.channels <= 8
    if not few or geometry.dilation[-1] != 1 or not _fits_im2col(problem, geometry.rank - 1):
        return 0
    return widened_channels(problem.channels, element_bytes, geometry.stride[-1])


def _group_filters(number: int) -> int:
    return number if number % 64 else _power_of_two(number)


def _power_of_two(number: int) -> int:
    return min(256, number & -number)
