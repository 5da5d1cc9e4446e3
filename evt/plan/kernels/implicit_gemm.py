"""The main loops of convolutions: implicit GEMMs of CUTLASS 2.x and 3.x, over the operands or over padded copies.

With few channels, a row of the filter is one tap in 3.x. An output pixel's window of S pixels and C channels is
contiguous in the copy, as S * C channels of one pixel; overlapping windows are pixels whose stride is smaller than
their channels. So there are R taps of S * C channels, not R * S taps of C, each padded to the depth of a tile.
"""

from __future__ import annotations

from dataclasses import replace

from evt.ir import Operand
from evt.ir.convolution import SPATIAL
from evt.plan.fields import Field
from evt.plan.fusions import Work
from evt.plan.halo_cost import Groups
from evt.plan.kernels.draft import Draft
from evt.plan.kernels.work import plan_work
from evt.plan.plan import Convolution2x, Convolution3x, Image, Iterators, PaddedCopy, RowPadding


def convolution_2x(draft: Draft) -> Convolution2x:
    """Return an implicit GEMM of CUTLASS 2.x with visitors."""
    return _convolution_2x(draft, ())


def worked_convolution_2x(draft: Draft) -> Convolution2x:
    """Return the same with a mainloop fusion on its input."""
    return _convolution_2x(draft, plan_work(draft))


def _convolution_2x(draft: Draft, work: tuple[Work, ...]) -> Convolution2x:
    shape, groups = draft.problem.convolution, _groups(draft)
    vector = 0 if work else draft.problem.padded_vector  # the fusion finds its channels in the tensor itself
    if vector:
        _add_copies(draft)
    spatial = _spatial(draft)
    for name in ("images", "channels", "filters", "groups"):
        draft.fields.size(name)
    for name in spatial:
        for part in ("", "filter_", "output_", "pad_", "stride_", "dilation_"):
            draft.fields.size(f"{part}{name}")
    few = draft.problem.has_few_channels
    a, b = (image(draft, operand) for operand in draft.problem.dag.operands)
    if shape.group_filters:  # an access does not reach into the next group
        a = replace(a, alignment=min(a.alignment, b.alignment))
    alignments = [vector or image.alignment for image in (a, b)] if shape.rank == 2 else []
    iterators: Iterators = "analytic" if shape.large_filter or (groups == "multiple" and not work) else "optimized"
    return Convolution2x(
        shape.operator,
        shape.rank,
        _copy(draft, a, vector, vector if few else 0) if vector else a,
        _copy(draft, b, vector, vector if few else 0) if vector else b,
        groups=groups,
        # A mainloop fusion needs tiles that lie within one tap, from which it finds its channels and its padding.
        iterators="fixed channels" if few and not work else iterators,
        # dgrad: the convolution's stride; otherwise the stride of D's pixels. A fprop without strides takes any stride;
        # the pixels of its output have one pitch.
        strided=shape.operator == "wgrad",
        alignments=tuple(alignments),
        padded=shape.padded,
        work=work,
    )


def stock_convolution_2x(draft: Draft) -> Convolution2x:
    """Return the same with the iterators of the kernels that have a stock epilogue."""
    made = convolution_2x(draft)
    if not is_strided_dgrad(draft):
        return made
    return replace(made, strided=True, iterators="analytic" if made.rank == 3 else made.iterators)


def is_strided_dgrad(draft: Draft) -> bool:
    """Return whether taps meet pixels only at some steps."""
    shape = draft.problem.convolution
    return shape.operator == "dgrad" and not shape.unit_stride


def _groups(draft: Draft) -> Groups:
    filters = draft.problem.convolution.group_filters
    if not filters:
        return "one"
    return "single" if filters % draft.config.tile[1] == 0 else "multiple"


def convolution_3x(draft: Draft) -> Convolution3x:
    """Return an implicit GEMM of CUTLASS 3.x."""
    _add_sizes_3x(draft)
    a, b = (image(draft, operand) for operand in draft.problem.dag.operands)
    return Convolution3x(draft.problem.convolution.operator, draft.problem.convolution.rank, a, b)


def padded_convolution_3x(draft: Draft) -> Convolution3x:
    """Return the same over copies; with few channels, their windows are pixels."""
    shape = draft.problem.convolution
    if shape.row_channels:
        a, b = _windows(draft, shape.row_channels)
    else:
        _add_copies(draft)
        vector = _vector(draft)
        a, b = (_copy(draft, image(draft, operand), vector, 0) for operand in draft.problem.dag.operands)
    _add_sizes_3x(draft)
    return Convolution3x(shape.operator, shape.rank, a, b, shape.row_channels)


def _windows(draft: Draft, channels: int) -> tuple[PaddedCopy, PaddedCopy]:
    """Return padded copies of A and B with a number of channels, in which a row of taps is contiguous."""
    vector = _vector(draft)
    _add_copies(draft)
    padding = (draft.fields.size("pad_width"), draft.fields.size("upper_pad_width"))
    originals = [image(draft, operand) for operand in draft.problem.dag.operands]
    a, b = (_copy(draft, image, min(channels, vector), channels) for image in originals)
    pixels = max(1, vector // channels)  # of a row are whole vectors
    return replace(a, row=RowPadding(pixels, padding)), replace(b, row=RowPadding(pixels, None))


def _vector(draft: Draft) -> int:
    """Return the elements in 16 bytes, to which TMA is aligned."""
    return 16 // draft.problem.operand_bytes


def _add_sizes_3x(draft: Draft) -> None:
    """Add the sizes of a convolution of CUTLASS 3.x to the members."""
    fields, spatial = draft.fields, _spatial(draft)
    for name in (*spatial, "channels", *(f"output_{name}" for name in spatial), "filters"):
        fields.size(name)
    _strides(draft, "A")
    for name in ("images", *(f"filter_{name}" for name in spatial)):
        fields.size(name)
    _strides(draft, "B")
    for part in ("pad", "upper_pad", "stride", "dilation"):
        for name in spatial:
            fields.size(f"{part}_{name}")


def _spatial(draft: Draft) -> tuple[str, ...]:
    """Return the spatial dimensions, innermost last."""
    return SPATIAL[-draft.problem.convolution.rank :]


def _strides(draft: Draft, operand: str) -> tuple[Field, ...]:
    return tuple(draft.fields.stride(operand, name) for name in ("outer", *_spatial(draft)))


def image(draft: Draft, operand: Operand) -> Image:
    """Return A or B, channels last."""
    layout = draft.signature.a if operand.name == "A" else draft.signature.b
    pointer = draft.fields.pointer(operand.name)
    return Image(operand.name, operand.dtype, layout.alignment, pointer, _strides(draft, operand.name))


def _extents(draft: Draft, operand: str) -> tuple[Field, ...]:
    """Return the sizes of A or B of fprop, outermost first, the channels left out."""
    spatial = _spatial(draft)
    names = ("images", *spatial) if operand == "A" else ("filters", *(f"filter_{name}" for name in spatial))
    return tuple(map(draft.fields.size, names))


def padded_images(draft: Draft) -> tuple[Image | PaddedCopy, ...]:
    """Return A and B, each copied if its pixels are not aligned to 16 bytes."""
    vector, found = _vector(draft), list[Image | PaddedCopy]()
    for operand in draft.problem.dag.operands:
        original = image(draft, operand)
        found.append(original if original.alignment >= vector else _copy(draft, original, vector, 0))
    return tuple(found)


def _add_copies(draft: Draft) -> None:
    """Add the members that make the copies."""
    for operand in ("A", "B"):
        _extents(draft, operand)
        draft.fields.size("channels")


def _copy(draft: Draft, original: Image, vector: int, padded_channels: int) -> PaddedCopy:
    """Return a copy with ``padded_channels``, or with whole vectors of channels."""
    draft.fields.workspace()
    channels = draft.fields.size("channels")
    return PaddedCopy(original, _extents(draft, original.name), channels, vector, padded_channels)
