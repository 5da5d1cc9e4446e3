"""Convolutions in PyTorch, and their tensors in the layout of the implicit GEMM."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional, grad

from evt.ir.convolution import Convolution, ConvolutionProblem
from evt.ir.dtype import B1
from evt.ir.node import Input, Output

_FPROP = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
#: The types that PyTorch does not have.
_DGRAD: dict[int, Callable[..., torch.Tensor]] = {1: grad.conv1d_input, 2: grad.conv2d_input, 3: grad.conv3d_input}
_WGRAD: dict[int, Callable[..., torch.Tensor]] = {1: grad.conv1d_weight, 2: grad.conv2d_weight, 3: grad.conv3d_weight}


def to_view(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view [N, ..., C] of [N, C, ...]."""
    return tensor.movedim(1, -1)


def from_view(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view [N, C, ...] of [N, ..., C]."""
    return tensor.movedim(-1, 1)


def is_image(value: Input | Output) -> bool:
    """Return whether a convolution's input or output is [N, C, ...], as PyTorch shapes it.

    Such tensors have the accumulator's modes. Bits do not: they are packed along the channels.
    """
    return value.modes == ("m", "n") and value.dtype != B1


def as_view(value: Input | Output | None, given: Any, geometry: Convolution) -> Any:
    """Return a call's argument for an input or output in the layout of the implicit GEMM: [N, C, ...] becomes [N, ...,
    C].
    """
    image = value is not None and is_image(value) and isinstance(given, torch.Tensor)
    return to_view(given) if image and given.dim() == geometry.rank + 2 else given


def as_image(output: Output, result: torch.Tensor) -> torch.Tensor:
    """Return an output of the implicit GEMM as PyTorch shapes it."""
    return from_view(result) if is_image(output) else result


def convolve(geometry: Convolution, problem: ConvolutionProblem, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the accumulator of A and B in PyTorch's order, as the view [..., C], in their type."""
    if not (a.numel() and b.numel()):  # sums without terms, which PyTorch refuses
        return a.new_zeros((*problem.leads["m"], *problem.leads["n"]))
    rank, steps, dilation, groups = geometry.rank, geometry.stride, geometry.dilation, geometry.groups
    match geometry.operator:
        case "fprop":
            acc = _FPROP[rank](_padded(a, problem), b, None, steps, 0, dilation, groups)
        case "dgrad":
            reach = [size + sum(pad) for size, pad in zip(problem.pixels, problem.pads, strict=True)]
            size = [problem.images, problem.channels, *reach]
            acc = _DGRAD[rank](size, b, a, steps, 0, dilation, groups)
            for dim, (count, (before, _)) in enumerate(zip(problem.pixels, problem.pads, strict=True), 2):
                acc = acc.narrow(dim, before, count)
        case "wgrad":
            size = [problem.filters, problem.channels // groups, *problem.filter_size]
            acc = _WGRAD[rank](_padded(b, problem), size, a, steps, 0, dilation, groups)
    return to_view(acc)


def _padded(tensor: torch.Tensor, problem: ConvolutionProblem) -> torch.Tensor:
    pads: Sequence[int] = [number for pair in reversed(problem.pads) for number in pair]
    return functional.pad(tensor, pads) if any(pads) else tensor
