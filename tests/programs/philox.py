"""Philox-2x32-10, of Salmon and others (SC 2011), as the language numbers its elements."""

from __future__ import annotations

import numpy as np

_WORD = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


def uniform(seed: int, offset: int, sizes: tuple[int, int, int]) -> np.ndarray:
    """24-bit numbers in [0, 1), [l, m, n]: element i takes word i % 2 of block i // 2, counted along n, m, l."""
    count = int(np.prod(sizes))
    blocks = np.arange((count + 1) // 2, dtype=np.uint64)
    left, right = blocks & _WORD, np.full_like(blocks, offset % 2**32)
    key = seed % 2**32
    for _ in range(10):
        wide = left * np.uint64(0xD256D193)
        left, right = (wide >> _SHIFT) ^ np.uint64(key) ^ right, wide & _WORD
        key = (key + 0x9E3779B9) % 2**32
    words = np.stack([left, right], -1).reshape(-1)[:count]
    return ((words >> np.uint64(8)).astype(float) * 2.0**-24).reshape(sizes)
