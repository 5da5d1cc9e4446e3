"""Gather and scatter of rows and columns by an index: ``gathered`` for reads, ``scattered`` for stores.

Values have the dimensions of :data:`evt.ir.node.MODES`. A tensor gets one more row or column behind its last, for all
places that are out of range: it reads as zero, and stores to it are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from evt.ir.node import MODES


def gathered(tensor: torch.Tensor, indices: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return a tensor [l, m, n] gathered by the ``indices``, by mode, which broadcast to it."""
    padded = _padded(tensor, indices)
    return padded[_places(tensor.shape, indices, tensor.device)]


def scattered(held: torch.Tensor, value: torch.Tensor, indices: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return a tensor [l, m, n] with a value scattered to the ``indices``."""
    padded = _padded(held, indices)
    padded[_places(held.shape, indices, held.device)] = value
    return padded[tuple(slice(size) for size in held.shape)]


def _padded(tensor: torch.Tensor, indices: Mapping[str, torch.Tensor]) -> torch.Tensor:
    padded = tensor.new_zeros([size + (mode in indices) for mode, size in zip(MODES, tensor.shape, strict=True)])
    padded[tuple(slice(size) for size in tensor.shape)] = tensor
    return padded


def _places(
    shape: Sequence[int], indices: Mapping[str, torch.Tensor], device: torch.device
) -> tuple[torch.Tensor, ...]:
    """Return the place of each element along each mode; the places broadcast."""
    places = []
    for position, (mode, size) in enumerate(zip(MODES, shape, strict=True)):
        if mode in indices:
            index = indices[mode].long()
            places.append(torch.where((index >= 0) & (index < size), index, size))
        else:
            along = [-1 if each == position else 1 for each in range(len(MODES))]
            places.append(torch.arange(size, device=device).reshape(along))
    return tuple(places)
