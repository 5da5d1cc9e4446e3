"""Convolution operands as kernels see them: channels last, pixels by their strides.

PyTorch's tensors are [N, C, H, W] whatever their memory. Kernels work on the view [N, H, W, C], whose last stride is
1; a tensor that is not so is copied at the call, explicitly, by :func:`channels_last`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from evt.diagnostics import Diagnostic
from evt.errors import ArgumentError
from evt.ir import Operand
from evt.ir.convolution import SPATIAL, Convolution, ConvolutionProblem
from evt.plan import Layout, alignment_of
from evt.reference import as_view, is_image, reference
from evt.reference.convolution import from_view, to_view
from evt.reference.dense import not_dense
from evt.runtime.layout import TensorArgument, strides_of

if TYPE_CHECKING:
    from evt.program import Program
    from evt.runtime.tensors import Bound, Report


def channels_last(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` [N, C, ...] with its channels next to each other in memory: itself, or a copy.

    For four and five dimensions this is PyTorch's torch.channels_last and torch.channels_last_3d, which has no name for
    it where there are three. Convert a weight once with it instead of at every call. Raises ArgumentError (E0604,
    E0606, E0607, E0612).
    """
    given: object = tensor
    if not isinstance(given, torch.Tensor):
        raise ArgumentError(Diagnostic("E0607", f"channels_last takes a tensor, not {type(given).__name__}"))
    if refused := not_dense("tensor", tensor):
        raise ArgumentError(refused)
    if tensor.dim() < 3:
        message = f"a tensor of shape {list(tensor.shape)} has no channels; expected [N, C, ...]"
        raise ArgumentError(Diagnostic("E0604", message))
    return tensor if to_view(tensor).is_contiguous() else copied_channels_last(tensor)


def copied_channels_last(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of ``tensor`` [N, C, ...] in packed memory, channels last."""
    return from_view(to_view(tensor).clone(memory_format=torch.contiguous_format))


def is_readable(view: torch.Tensor) -> bool:
    """Whether kernels read the view [N, ..., C] of an operand as it is: channels together, pixels at any pitch."""
    *outer, (size, stride) = zip(view.shape, view.stride(), strict=True)
    return (size == 1 or stride == 1) and all(stride > 0 for size, stride in outer if size > 1)


def _pitch(view: torch.Tensor) -> int | None:
    """The single stride of the pixels of a view [N, ..., C], 0 where there is one pixel, or None."""
    shape = tuple(view.shape)
    strides = strides_of(view, [("pixels", shape[:-1]), ("channels", shape[-1:])])
    return strides["pixels"] if isinstance(strides, dict) else None


def convolution_views(
    program: Program, problem: ConvolutionProblem, tensors: Mapping[str, torch.Tensor], report: Report
) -> tuple[dict[str, torch.Tensor], tuple[str, ...]]:
    """The tensors of a call as [N, ..., C], and the names of those in whose place the kernel is given others.

    Of these the view is one without memory, of the strides that the other will have.
    """
    geometry = problem.geometry
    found: dict[str, torch.Tensor] = {}
    copied: list[str] = []
    for name, tensor in tensors.items():
        value = program.dag.input.get(name) or program.dag.output.get(name)
        view = to_view(tensor) if name in ("A", "B") else as_view(value, tensor, geometry)
        if view is tensor:
            found[name] = tensor
            continue
        if name not in ("A", "B") and not _is_shaped(problem, name, view, tensor, report):
            continue
        if is_readable(view) if name in ("A", "B") else _is_walkable(problem, view):
            found[name] = view
        else:
            copied.append(name)
            found[name] = torch.empty(view.shape, dtype=tensor.dtype, device="meta")
    return found, tuple(copied)


def _is_shaped(
    problem: ConvolutionProblem, name: str, view: torch.Tensor, tensor: torch.Tensor, report: Report
) -> bool:
    expected = (*problem.leads["m"], *problem.leads["n"])
    if tuple(view.shape) == expected:
        return True
    shape = from_view(torch.empty(expected, device="meta")).shape
    report("E0604", f"`{name}` has shape {list(tensor.shape)}; expected {list(shape)}")
    return False


def _is_walkable(problem: ConvolutionProblem, view: torch.Tensor) -> bool:
    """Whether an epilogue's tile has one pitch along its rows and its columns together."""
    if 0 in view.shape:
        return True
    groups = [("m", problem.leads["m"]), ("n", problem.leads["n"])]
    strides = strides_of(view, groups)
    expanded = any(stride == 0 for size, stride in zip(view.shape, view.stride(), strict=True) if size > 1)
    return isinstance(strides, dict) and (problem.sizes["n"] == 1 or strides["n"] == 1) and not expanded


def convolution_operand(
    problem: ConvolutionProblem, operand: Operand, view: torch.Tensor, limit: int, report: Report
) -> TensorArgument:
    """A or B as the kernel will see it: the strides of its view by dimension, and by mode where it is a matrix.

    ``pixel`` is the pitch of an activation's pixels, or 0 where they have no single one; 1 of filters.
    """
    outer, inner = operand.modes
    *sizes, channels = view.shape
    names = ("outer", *SPATIAL[-len(sizes) + 1 :])
    strides = dict(zip(names, _legal(view.shape, view.stride()), strict=True))
    others = {name: strides[name] for name, size in zip(names, sizes, strict=True) if size > 1}
    alignment = alignment_of(operand.dtype, inner, view.data_ptr(), others, problem.extents[operand.name])
    strides.setdefault("height", strides["width"] * sizes[-1])  # of a row of pixels
    if max(strides.values()) > limit:
        report("E0606", f"`{operand.name}` has a stride beyond {limit}")
    filters = operand.name == "B" and problem.geometry.operator != "wgrad"
    pitch = 1 if filters else _pitch(view)
    strides["pixel"] = channels if pitch == 0 else pitch or 0
    strides |= {outer: strides["outer"] if filters else strides["pixel"], inner: 1, "l": 0}
    return TensorArgument(operand.name, strides, Layout(inner, alignment))


def _legal(shape: Sequence[int], strides: Sequence[int]) -> list[int]:
    """Strides of the dimensions before the last; of dimensions of one element those of a packed tensor."""
    found: list[int] = []
    step = shape[-1]
    for size, stride in reversed(list(zip(shape[:-1], strides[:-1], strict=True))):
        found.append(stride if size > 1 else step)
        step = found[-1] * size
    return found[::-1]


def suggests_channels_last(tensor: torch.Tensor) -> bool:
    """Whether PyTorch takes a tensor [N, C, ...] for channels_last, by its strides.

    They have to grow from C over the last dimension to the first, none may be a multiple too small, and what would
    do for contiguous memory as well counts as that (c10/core/MemoryFormat.h).
    """
    shape, strides = tensor.shape, tensor.stride()
    if strides[1] == 0:
        return False
    least = 0
    for dim in (1, *range(tensor.dim() - 1, 1, -1), 0):
        if shape[dim] == 0 or strides[dim] < least or (dim == 0 and least == strides[1]):
            return False
        least = strides[dim] * max(shape[dim], 1)
    return True


def follows_channels_last(geometry: Convolution, a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether PyTorch's convolution of A with B is channels_last: where one of them is, or for wgrad where x is.

    PyTorch convolves rows as images of height 1, after it has made all but a weight contiguous.
    """
    wgrad = geometry.operator == "wgrad"
    first = b if wgrad else a
    if geometry.rank > 1:
        return suggests_channels_last(first) or suggests_channels_last(b)
    if first.is_contiguous() and suggests_channels_last(first.unsqueeze(2)):
        return True
    return not wgrad and suggests_channels_last(b.unsqueeze(2))


def contiguous_image(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor in contiguous memory, with the strides of that also where dimensions of one element leave them open."""
    steps = [math.prod(tensor.shape[dim + 1 :]) for dim in range(tensor.dim())]
    if tensor.is_contiguous():
        return tensor.as_strided(tensor.shape, steps)
    return tensor.clone(memory_format=torch.contiguous_format)


def call_reference(program: Program, bound: Bound, float64: bool = False) -> dict[str, torch.Tensor]:
    """The reference's outputs by name, in the memory formats that a call gives them."""
    a, b = bound.values["A"], bound.values["B"]
    inputs = {name: value for name, value in bound.values.items() if name in program.dag.input}
    results = reference(bound.dag, a, b, inputs, float64=float64, convolution=program.convolution)
    if program.convolution is None:
        return results
    formatted = channels_last if follows_channels_last(program.convolution, a, b) else contiguous_image
    return {name: formatted(r) if is_image(bound.dag.output[name]) else r for name, r in results.items()}
