"""The class of a kernel's inputs: types, majorness, alignment class and batching of every tensor.

Sizes and strides are not part of it: they are run-time arguments of every kernel.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Literal

from evt.ir import Input, Output, TypedDag
from evt.ir.convolution import Convolution, ConvolutionProblem, Operator
from evt.ir.dtype import F16, DType
from evt.ir.node import base, direct
from evt.layout import widest_vector
from evt.plan.depthwise import Filter, filter_of
from evt.plan.geometry.halo import TAPS_PER_STAGE
from evt.plan.halo import widened_channels
from evt.plan.tma import LARGEST_STRIDE

#: The relation of a tensor to the batch mode: ``strided`` (one per batch, at a run-time stride; also a problem of one
#: batch) or ``shared`` (a batched problem, one tensor for all batches).
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


#: A larger filter, along any dimension, is beyond CUTLASS's optimised iterators: they keep a bit for each tap.
LARGEST_FILTER = 32


@dataclass(frozen=True, slots=True)
class ConvolutionClass:
    """The facts about a convolution that a kernel's text depends on, besides types and alignments.

    No fact changes with the size or the number of images: :class:`evt.plan.sizes.Sizes` has these. ``geometry`` is
    the program's. ``unit_filter``, ``padded`` and ``packed`` (the pixels of A have one pitch, and so have the pixels of
    an activation B) decide whether the convolution is a matrix product. A ``large_filter`` has more than
    :data:`LARGEST_FILTER` taps along a dimension. ``few_channels`` is the number of input channels if at most 8, else
    0. ``im2col``: TMA's im2col mode reaches all taps.

    ``group_filters`` is the number of filters of a group; for a multiple of 64 it is the largest power of two, at most
    256, that divides this number. ``group_channels`` is such a power for the channels of a group. Both are 0 without
    groups. ``is_depthwise``: each channel has its own filter and yields one channel; ``filter`` is this filter, None
    for volumes and for other convolutions.

    ``row_channels`` is the number of channels of a padded copy in which TMA's im2col mode loads a row of taps as one
    tap; 0 if there is no such copy. ``stage_taps`` are the numbers of taps, and of rows of taps
    if a row is one tap, in a stage of a halo kernel. They hold if their filters fit; 0 if the launch decides.
    """

    geometry: Convolution
    unit_filter: bool
    padded: bool
    packed: bool = True
    large_filter: bool = False
    few_channels: int = 0
    group_filters: int = 0
    group_channels: int = 0
    im2col: bool = True
    row_channels: int = 0
    is_depthwise: bool = False
    filter: Filter | None = None
    #: Keys of measurements, which are made of the text, have the sizes of filters already.
    stage_taps: tuple[int, int] = field(default=(0, 0), repr=False)

    @property
    def operator(self) -> Operator:
        return self.geometry.operator

    @property
    def rank(self) -> int:
        """The spatial dimensions, 2 or 3: a one-dimensional convolution has images of height 1."""
        return max(self.geometry.rank, 2)

    @property
    def unit_stride(self) -> bool:
        return self.geometry.is_unit_stride

    @property
    def dilated(self) -> bool:
        """True if the taps of a strided dgrad lie apart."""
        geometry = self.geometry
        return geometry.operator == "dgrad" and not geometry.is_unit_stride and set(geometry.dilation) != {1}

    @property
    def not_matrices(self) -> str:
        """The reason that it is not a matrix product, or ""."""
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
        """Return the signature without the tensors of other names, such as inputs that the optimiser removed."""
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
    """Return the layout for an extent of the contiguous mode; 0 if it is unknown."""
    return replace(layout, alignment=min(layout.alignment, extent & -extent)) if extent else layout


def natural_operand_layout(dtype: DType, modes: tuple[str, ...]) -> LayoutClass:
    """Return the layout of a packed operand: the last mode is contiguous, or k if tensor cores need that."""
    return LayoutClass("k" if dtype.bits == 8 else modes[-1], 16 // bytes_of(dtype))


def natural_layout(dtype: DType, modes: tuple[str, ...], batch: Batch = "strided") -> LayoutClass:
    """Return the layout of a packed, 16-byte-aligned tensor: the last mode of its shape is contiguous."""
    inner = [direct(mode) for mode in modes if mode != "l"]
    return LayoutClass(inner[-1], 16 // bytes_of(dtype), batch)


def natural_signature(
    dag: TypedDag, convolution: ConvolutionClass | None = None, extents: Mapping[str, int] | None = None
) -> Signature:
    """Return the signature of packed tensors in the order of their subscripts, as ``evt emit`` assumes.

    They are aligned to 16 bytes, as far as ``extents`` allow: the modes' extents, and the extents of A's and B's
    contiguous dimensions by their names if these differ.
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
            if isinstance(value, Input) and value.is_blocked:
                tensors.append((value.name, LayoutClass(None, 1)))  # elements are read one by one
                continue
            layout = natural_layout(value.dtype, value.modes, "shared" if shared else "strided")
            tensors.append(
                (value.name, aligned_to(layout, extents.get(layout.contiguous or "", 0) if value.is_tile else 0))
            )
    return Signature(a, b, tuple(tensors), convolution)


def convolution_class(
    geometry: Convolution, problem: ConvolutionProblem | None, operand: DType = F16, packed: bool = True
) -> ConvolutionClass:
    """Return the class of a convolution of operands of a type.

    Without a problem, assume many channels, and several taps if the program does not determine their number.
    """
    if problem is None:
        several = 256 if geometry.groups > 1 else 0
        return ConvolutionClass(
            geometry,
            unit_filter=set(geometry.kernel_size) == {1},
            padded=geometry.padding is None or any(map(any, geometry.padding)),
            large_filter=max(geometry.kernel_size, default=1) > LARGEST_FILTER,
            group_filters=several,
            group_channels=several,
            im2col=max(geometry.stride) <= LARGEST_STRIDE,
        )
    groups = geometry.groups
    return ConvolutionClass(
        geometry,
        unit_filter=set(problem.filter_size) == {1},
        padded=any(map(any, problem.pads)),
        packed=packed,
        large_filter=max(problem.filter_size) > LARGEST_FILTER,
        few_channels=problem.channels if problem.channels <= 8 else 0,
        group_filters=_group_filters(problem.filters // groups) if groups > 1 else 0,
        group_channels=_power_of_two(problem.channels // groups) if groups > 1 else 0,
        im2col=_fits_im2col(problem),
        row_channels=_row_channels(problem, bytes_of(operand)),
        is_depthwise=problem.is_depthwise,
        stage_taps=_stage_taps(problem),
        filter=filter_of(problem) if problem.is_depthwise and geometry.rank < 3 else None,
    )


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
    return steps <= LARGEST_STRIDE and max(corners, default=0) < corner and max(reach, default=0) < 2 * corner - 1


def _row_channels(problem: ConvolutionProblem, element_bytes: int) -> int:
    """Return the number of channels in the padded copy of an input, for steps along rows that are multiples of 16
    bytes.

    Return 0 if there are more channels, or if the taps of a row are not adjacent.
    """
    geometry = problem.geometry
    few = geometry.operator == "fprop" and geometry.rank < 3 and geometry.groups == 1 and problem.channels <= 8
    if not few or geometry.dilation[-1] != 1 or not _fits_im2col(problem, geometry.rank - 1):
        return 0
    return widened_channels(problem.channels, element_bytes, geometry.stride[-1])


def _stage_taps(problem: ConvolutionProblem) -> tuple[int, int]:
    """Return the taps, and the rows of taps, whose filters share a stage if they fit.

    A volume whose filters are columns may become an image, and its depth the rows: the launch decides.
    """
    rows, taps = prod(problem.filter_size[-2:-1]), prod(problem.filter_size[-2:])
    if problem.geometry.rank == 3 and taps == 1:
        return 0, 0
    shared, shared_rows = (next(each for each in TAPS_PER_STAGE if count % each == 0) for count in (taps, rows))
    return shared, shared_rows


def _group_filters(number: int) -> int:
    return number if number % 64 else _power_of_two(number)


def _power_of_two(number: int) -> int:
    return min(256, number & -number)
