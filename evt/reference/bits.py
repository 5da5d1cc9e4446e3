"""Differences between the bits of tensors: ``different_bits(found, wanted) -> int``."""

from __future__ import annotations

import torch

_AS_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def different_bits(found: torch.Tensor, wanted: torch.Tensor) -> int:
    """Return the number of elements with different bits; all NaNs are equal. Types and shapes must be equal."""
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    whole = _AS_INTEGERS[found.element_size()]
    differ = found.contiguous().view(whole) != wanted.contiguous().view(whole)
    if found.is_floating_point():
        numbers = [each.float() if each.element_size() == 1 else each for each in (found, wanted)]
        differ &= ~(numbers[0].isnan() & numbers[1].isnan())
    return int(differ.sum())


__all__ = ["different_bits"]
