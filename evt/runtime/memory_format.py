"""Memory formats of convolution tensors: channels last, which kernels need, and when PyTorch's convolutions return it.

PyTorch's tensors are [N, C, H, W] in each memory format. :func:`channels_last` copies a tensor whose channels are not
contiguous.
"""

from __future__ import annotations

import math

import torch

from evt.diagnostics import Diagnostic
from evt.errors import ArgumentError
from evt.ir.convolution import Convolution
from evt.reference.convolution import from_view, to_view
from evt.reference.dense import not_dense


def channels_last(tensor: torch.Tensor) -> torch.Tensor:
    """Return ``tensor`` [N, C, ...] with contiguous channels: itself, or a copy.

    For four and five dimensions this is PyTorch's torch.channels_last and torch.channels_last_3d; for three, PyTorch
    has no name for it. Convert a weight once with it instead of at every call. Raise ArgumentError (E0604, E0606,
    E0607, E0612).
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
    """Return a copy of ``tensor`` [N, C, ...] in packed memory, channels last."""
    return from_view(to_view(tensor).clone(memory_format=torch.contiguous_format))


def suggests_channels_last(tensor: torch.Tensor) -> bool:
    """Return whether PyTorch takes a tensor [N, C, ...] to be channels_last, by its strides.

    From C over the last dimension to the first, each stride must be at least the one before times its extent; strides
    that fit contiguous memory as well count as contiguous (c10/core/MemoryFormat.h).
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
    """Return whether PyTorch's convolution of A and B is channels_last: if one of them is, or for wgrad if x is.

    PyTorch convolves one-dimensional inputs with height 1, after making all but a weight contiguous.
    """
    wgrad = geometry.operator == "wgrad"
    first = b if wgrad else a
    if geometry.rank > 1:
        return suggests_channels_last(first) or suggests_channels_last(b)
    if first.is_contiguous() and suggests_channels_last(first.unsqueeze(2)):
        return True
    return not wgrad and suggests_channels_last(b.unsqueeze(2))


def contiguous_image(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in contiguous memory, with the standard strides even for dimensions of one element."""
    steps = [math.prod(tensor.shape[dim + 1 :]) for dim in range(tensor.dim())]
    if tensor.is_contiguous():
        return tensor.as_strided(tensor.shape, steps)
    return tensor.clone(memory_format=torch.contiguous_format)
