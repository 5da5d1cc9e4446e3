"""Philox-2x32-10 and Philox-4x32-10, of Salmon and others (SC 2011), as the language numbers its elements."""

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
    return _numbers([left, right], sizes)


def uniform_wide(seed: int, offset: int, sizes: tuple[int, int, int]) -> np.ndarray:
    """As :func:`uniform`, of 64 bits each: element i takes word i % 4 of block i // 4."""
    count = int(np.prod(sizes))
    blocks = np.arange((count + 3) // 4, dtype=np.uint64)
    a, b = blocks & _WORD, blocks >> _SHIFT
    c, d = (np.full_like(blocks, offset % 2**64 >> shift & 0xFFFFFFFF) for shift in (0, 32))
    low, high = seed % 2**32, (seed >> 32) % 2**32
    for _ in range(10):
        first, second = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a, b, c, d = (
            (second >> _SHIFT) ^ b ^ np.uint64(low),
            second & _WORD,
            (first >> _SHIFT) ^ d ^ np.uint64(high),
            first & _WORD,
        )
        low, high = (low + 0x9E3779B9) % 2**32, (high + 0xBB67AE85) % 2**32
    return _numbers([a, b, c, d], sizes)


def _numbers(words: list[np.ndarray], sizes: tuple[int, int, int]) -> np.ndarray:
    whole = np.stack(words, -1).reshape(-1)[: int(np.prod(sizes))]
    return ((whole >> np.uint64(8)).astype(float) * 2.0**-24).reshape(sizes)
