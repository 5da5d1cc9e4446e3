"""Convolution operands as kernels see them: channels last, pixels by their strides.

Kernels read the view [N, H, W, C] of PyTorch's [N, C, H, W], whose last stride is 1. A call copies any other tensor,
whose view here has no memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from evt.ir import Dag, Operand
from evt.ir.convolution import SPATIAL, ConvolutionProblem
from evt.plan import LayoutClass, alignment_of
from evt.reference import as_view
from evt.reference.convolution import from_view, to_view
from evt.runtime.layout import LIMIT, TensorArgument, strides_of
from evt.runtime.report import CallDiagnostics

#: The bytes to which TMA is aligned.
_TMA = 16


def is_readable(view: torch.Tensor) -> bool:
    """Return whether kernels read an operand's view [N, ..., C] in place: contiguous channels, pixels of any stride."""
    *outer, (size, stride) = zip(view.shape, view.stride(), strict=True)
    return (size == 1 or stride == 1) and all(stride > 0 for size, stride in outer if size > 1)


def pitch_of(view: torch.Tensor) -> int | None:
    """Return the stride of the pixels of a view [N, ..., C]: 0 for one pixel, None if they have no single stride."""
    shape = tuple(view.shape)
    strides = strides_of(view, [("pixels", shape[:-1]), ("channels", shape[-1:])])
    return strides["pixels"] if isinstance(strides, dict) else None


def convolution_views(
    dag: Dag, problem: ConvolutionProblem, tensors: Mapping[str, torch.Tensor], report: CallDiagnostics
) -> tuple[dict[str, torch.Tensor], tuple[str, ...]]:
    """Return the tensors of a call as [N, ..., C], and the names of the tensors that the kernel gets copies of.

    The view of a copied tensor has the strides of the copy and no memory.
    """
    geometry = problem.geometry
    found: dict[str, torch.Tensor] = {}
    copied: list[str] = []
    for name, tensor in tensors.items():
        value = dag.input.get(name) or dag.output.get(name)
        view = to_view(tensor) if name in ("A", "B") else as_view(value, tensor, geometry)
        if view is tensor:
            found[name] = tensor
            continue
        if name not in ("A", "B") and not _is_shaped(problem, name, view, tensor, report):
            continue
        readable = _is_operand(problem, name, view) if name in ("A", "B") else _is_walkable(problem, view)
        if readable and not (name == "A" and problem.is_depthwise and _is_aligned_by_a_copy(view)):
            found[name] = view
        else:
            copied.append(name)
            found[name] = torch.empty(view.shape, dtype=tensor.dtype, device="meta")
    return found, tuple(copied)


def _is_operand(problem: ConvolutionProblem, name: str, view: torch.Tensor) -> bool:
    """Return whether kernels read A or B without a copy.

    CUTLASS's iterators walk all taps of a filter, and all pixels of A in wgrad, with the innermost stride.
    """
    if not is_readable(view):
        return False
    if problem.geometry.operator == "wgrad":
        return name == "B" or pitch_of(view) is not None
    return name == "A" or pitch_of(view[:1]) is not None


def _is_aligned_by_a_copy(view: torch.Tensor) -> bool:
    """Return whether TMA can move a copy of an activation but not the view. Depthwise kernels need TMA."""
    size = view.element_size()
    steps = [stride for extent, stride in zip(view.shape[:-1], view.stride()[:-1], strict=True) if extent > 1]
    places = [view.data_ptr(), *(stride * size for stride in steps)]
    return view.shape[-1] * size % _TMA == 0 and any(place % _TMA for place in places)


def _is_shaped(
    problem: ConvolutionProblem, name: str, view: torch.Tensor, tensor: torch.Tensor, report: CallDiagnostics
) -> bool:
    expected = (*problem.leads["m"], *problem.leads["n"])
    if tuple(view.shape) == expected:
        return True
    shape = from_view(torch.empty(expected, device="meta")).shape
    help_text = f"`{name}` has the shape of the output"
    if tensor.numel() == tensor.shape[1]:
        help_text += f"; a number for each channel is declared `{name}[n]`, and has one dimension"
    report("E0604", f"`{name}` has shape {list(tensor.shape)}; expected {list(shape)}", help_text)
    return False


def _is_walkable(problem: ConvolutionProblem, view: torch.Tensor) -> bool:
    """Return whether a view has one stride along its rows and one along its columns, as an epilogue needs."""
    if 0 in view.shape:
        return True
    groups = [("m", problem.leads["m"]), ("n", problem.leads["n"])]
    strides = strides_of(view, groups)
    expanded = any(stride == 0 for size, stride in zip(view.shape, view.stride(), strict=True) if size > 1)
    return isinstance(strides, dict) and (problem.sizes["n"] == 1 or strides["n"] == 1) and not expanded


def convolution_operand(
    problem: ConvolutionProblem, operand: Operand, view: torch.Tensor, report: CallDiagnostics
) -> TensorArgument:
    """Return A or B as the kernel sees it: its strides by dimension, and by mode for a 1x1 convolution.

    ``pixel`` is the stride of an activation's pixels, 0 if there is no single one; for a weight it is 1.
    """
    outer, inner = operand.modes
    *sizes, channels = view.shape
    names = ("outer", *SPATIAL[-len(sizes) + 1 :])
    strides = dict(zip(names, _legal(view.shape, view.stride()), strict=True))
    others = {name: strides[name] for name, size in zip(names, sizes, strict=True) if size > 1}
    alignment = alignment_of(operand.dtype, inner, view.data_ptr(), others, problem.extents[operand.name])
    strides.setdefault("height", strides["width"] * sizes[-1])  # the stride of a row of pixels
    if max(strides.values()) > LIMIT:
        report("E0606", f"`{operand.name}` has a stride beyond {LIMIT}")
    filters = operand.name == "B" and problem.geometry.operator != "wgrad"
    pitch = 1 if filters else pitch_of(view)
    strides["pixel"] = channels if pitch == 0 else pitch or 0
    strides |= {outer: strides["outer"] if filters else strides["pixel"], inner: 1, "l": 0}
    return TensorArgument(operand.name, strides, LayoutClass(inner, alignment))


def _legal(shape: Sequence[int], strides: Sequence[int]) -> list[int]:
    """Return the strides of all dimensions but the last.

    A dimension of one element gets the packed stride of its neighbours, because kernels may walk several dimensions
    with the innermost stride.
    """
    outer = list(zip(shape[:-1], strides[:-1], strict=True))
    step = next((stride for size, stride in reversed(outer) if size > 1), shape[-1])
    found: list[int] = []
    for size, stride in reversed(outer):
        found.append(stride if size > 1 else step)
        step = found[-1] * size
    return found[::-1]
