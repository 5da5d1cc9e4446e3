"""Tensors of every type: random ones, poison, and numbers to compare. Used by ``evt bench`` and ``evt run``."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from evt.ir.dtype import B1, U8, DType
from evt.reference.rounding import packed, unpack_bits

#: Random integers lie in this range: their products and sums stay exact in f32.
_INTEGERS = (-8, 8)
#: What integers hold before they are written.
_POISON = {1: 0xA5, 4: 0x7F7F7F7F}
_NAN = 1000  #: where NaN lies, in steps


def random_tensor(
    shape: Sequence[int], dtype: DType, generator: torch.Generator, *, scale: float = 1.0, positive: bool = False
) -> torch.Tensor:
    """Normal numbers times ``scale``, small integers, or bits, of which ``shape`` counts columns and not bytes.

    ``positive``: of (0.1, 1.1) times ``scale``, and integers from 1.
    """
    device = generator.device
    if dtype == B1:
        return torch.randint(0, 256, packed(shape), generator=generator, device=device, dtype=torch.uint8)
    if not dtype.is_float:
        low, high = _INTEGERS
        low = 1 if positive else 0 if dtype == U8 else low
        return torch.randint(low, high + 1, tuple(shape), generator=generator, device=device, dtype=_torch(dtype))
    draw = torch.float64 if dtype.bits == 64 else torch.float32
    if positive:
        values = torch.rand(tuple(shape), generator=generator, device=device, dtype=draw) + 0.1
    else:
        values = torch.randn(tuple(shape), generator=generator, device=device, dtype=draw)
    return values.mul_(scale).to(_torch(dtype))


def random_operand(
    shape: Sequence[int],
    modes: Sequence[str],
    dtype: DType,
    generator: torch.Generator,
    *,
    scale: float = 1.0,
    positive: bool = False,
) -> torch.Tensor:
    """A or B, packed; tensor cores take 8-bit operands contiguous along k only."""
    operand = random_tensor(shape, dtype, generator, scale=scale, positive=positive)
    return operand.mT.contiguous().mT if dtype.bits == 8 and modes[-1] != "k" else operand


def poison(tensor: torch.Tensor) -> None:
    """Fill a buffer with what no kernel writes by chance, so that elements left unwritten show."""
    if tensor.dtype.is_floating_point:
        tensor.fill_(math.nan)
    else:
        value = _POISON[tensor.element_size()]
        tensor.fill_(value - 256 if tensor.dtype == torch.int8 else value)


def as_numbers(tensor: torch.Tensor, dtype: DType, columns: int) -> torch.Tensor:
    """The values of an output as f64; ``columns`` is n, which packed bits do not tell."""
    return (unpack_bits(tensor, columns) if dtype == B1 else tensor).double()


def as_steps(tensor: torch.Tensor, dtype: DType, columns: int) -> torch.Tensor:
    """The values of an output as whole numbers that are one apart where the values are neighbours in its type.

    ``dtype`` is b1, an integer or an 8-bit float, whose NaN are one value, far from all others.
    """
    if not dtype.is_float:
        return as_numbers(tensor, dtype, columns).to(torch.int64)
    code = tensor.contiguous().view(torch.uint8).to(torch.int64)
    steps = torch.where(code >= 0x80, -(code & 0x7F), code & 0x7F)
    return torch.where(tensor.float().isnan(), _NAN, steps)


def is_quantised(dtype: DType) -> bool:
    """Whether neighbours in the type are far apart, so that results are compared step by step."""
    return not dtype.is_float or dtype.bits == 8


def _torch(dtype: DType) -> torch.dtype:
    found: torch.dtype = getattr(torch, dtype.torch)
    return found
