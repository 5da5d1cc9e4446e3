"""Random numbers as kernels draw them: Philox-2x32-10 for 32-bit seeds, Philox-4x32-10 for 64-bit seeds.

J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw: Parallel random numbers: as easy as 1, 2, 3 (SC 2011).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

_MULTIPLIER, _BUMP, _ROUNDS = 0xD256D193, 0x9E3779B9, 10
_MULTIPLIERS, _BUMPS = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)
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
        high, low = _product(first, _MULTIPLIER)
        first, second = high ^ key ^ second, low
        key = (key + _BUMP) & _WORD
    return _in_unit_interval(torch.where(index & 1 == 1, second, first)).reshape(l, m, n)


def uniform_wide(seed: torch.Tensor, offset: torch.Tensor, sizes: Sequence[int], device: torch.device) -> torch.Tensor:
    """Return 24-bit numbers in [0, 1), ``sizes`` [l, m, n], for a seed and an offset of 64 bits.

    Element i is word ``i & 3`` of the block with the counter (i >> 2, offset) and the key ``seed``, each 64 bits, the
    low word first; both are 0-d int64 tensors.
    """
    l, m, n = sizes  # noqa: E741
    index = torch.arange(l * m * n, dtype=torch.int64, device=device)
    block = index >> 2
    counter = [each.expand_as(block) for each in (*_words(block), *_words(offset))]
    keys = _words(seed)
    for _ in range(_ROUNDS):
        (high0, low0), (high1, low1) = (_product(x, by) for x, by in zip(counter[::2], _MULTIPLIERS, strict=True))
        counter = [high1 ^ counter[1] ^ keys[0], low1, high0 ^ counter[3] ^ keys[1], low0]
        keys = [(key + bump) & _WORD for key, bump in zip(keys, _BUMPS, strict=True)]
    words = torch.stack(counter).gather(0, (index & 3).unsqueeze(0)).squeeze(0)
    return _in_unit_interval(words).reshape(l, m, n)


def _words(value: torch.Tensor) -> list[torch.Tensor]:
    """Return the low and the high word of 64 bits."""
    return [value & _WORD, (value >> 32) & _WORD]


def _in_unit_interval(word: torch.Tensor) -> torch.Tensor:
    return (word >> 8).to(torch.float32) * 2.0**-24


def _product(x: torch.Tensor, multiplier: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the high and low words of 32-bit x times a multiplier, within int64's range."""
    low_half = (x & 0xFFFF) * multiplier
    high_half = (x >> 16) * multiplier
    total = high_half + (low_half >> 16)
    return total >> 16, ((total & 0xFFFF) << 16) | (low_half & 0xFFFF)
