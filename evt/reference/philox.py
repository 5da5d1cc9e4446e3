"""Random numbers as kernels draw them: Philox-2x32-10.

J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw: Parallel random numbers: as easy as 1, 2, 3 (SC 2011).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

_MULTIPLIER, _BUMP, _ROUNDS = 0xD256D193, 0x9E3779B9, 10
_WORD = 0xFFFFFFFF


def uniform(seed: torch.Tensor, offset: torch.Tensor, sizes: Sequence[int], device: torch.device) -> torch.Tensor:
    """Return 24-bit numbers in [0, 1), ``sizes`` [l, m, n].

    Element i, counted along n first, is word ``i & 1`` of the block with the counter (i >> 1, offset) and the key
    ``seed``, each 32 bits; both are 0-d int64 tensors.
    """
    l, m, n = sizes  # noqa: E741
    index = torch.arange(l * m * n, dtype=torch.int64, device=device)
    pair = index >> 1
    first, second = pair & _WORD, (offset & _WORD).expand_as(pair)
    key = seed & _WORD
    for _ in range(_ROUNDS):
        high, low = _product(first)
        first, second = high ^ key ^ second, low
        key = (key + _BUMP) & _WORD
    word = torch.where(index & 1 == 1, second, first)
    return ((word >> 8).to(torch.float32) * 2.0**-24).reshape(l, m, n)


def _product(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the high and low words of 32-bit x times the multiplier, without leaving int64's range."""
    low_half = (x & 0xFFFF) * _MULTIPLIER
    high_half = (x >> 16) * _MULTIPLIER
    total = high_half + (low_half >> 16)
    return total >> 16, ((total & 0xFFFF) << 16) | (low_half & 0xFFFF)
