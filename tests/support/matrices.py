"""Extents and matrices of random numbers for tests of the reference."""

from __future__ import annotations

import torch
from torch import Tensor

M, N, K, L = 5, 7, 11, 3


def make(*shape: int, dtype: torch.dtype = torch.float16) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape) * 31 + len(shape))
    return torch.randn(shape, generator=generator).to(dtype)
