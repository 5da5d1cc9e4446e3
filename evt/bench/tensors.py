"""Tensors of every type: random ones, and poison. ``evt bench`` and ``evt run`` use them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from evt.ir.dtype import B1, BOOL, PACKED_OPERANDS, U8, DType
from evt.reference import int4
from evt.reference.rounding import packed, torch_type

#: The bound of random integers: their products and sums are exact in f32.
_INTEGERS = (-8, 8)
#: The value of integers before they are written.
_POISON = {1: 0xA5, 4: 0x7F7F7F7F, 8: 0x7F7F7F7F7F7F7F7F}


def random_tensor(
    shape: Sequence[int], dtype: DType, generator: torch.Generator, *, scale: float = 1.0, positive: bool = False
) -> torch.Tensor:
    """Return normal numbers times ``scale``, small integers, or bits. The ``shape`` of bits counts columns, not bytes.

    ``positive`` gives numbers in (0.1, 1.1) times ``scale``, and integers from 1.
    """
    device = generator.device
    if dtype == B1:
        return torch.randint(0, 256, packed(shape), generator=generator, device=device, dtype=torch.uint8)
    if not dtype.is_float:
        low, high = (0, 1) if dtype == BOOL else _INTEGERS
        low = 1 if positive else 0 if dtype == U8 else low
        return torch.randint(low, high + 1, tuple(shape), generator=generator, device=device, dtype=torch_type(dtype))
    draw = torch.float64 if dtype.bits == 64 else torch.float32
    if positive:
        values = torch.rand(tuple(shape), generator=generator, device=device, dtype=draw) + 0.1
    else:
        values = torch.randn(tuple(shape), generator=generator, device=device, dtype=draw)
    return values.mul_(scale).to(torch_type(dtype))


def random_index(shape: Sequence[int], extent: int, dtype: DType, generator: torch.Generator) -> torch.Tensor:
    """Return random places among ``extent`` along the last dimension, each at most once if there are enough of them."""
    *batch, count = shape
    order = torch.rand((*batch, max(count, extent)), generator=generator, device=generator.device).argsort(-1)
    return (order[..., :count] % max(1, extent)).to(torch_type(dtype))


def random_operand(
    shape: Sequence[int],
    modes: Sequence[str],
    dtype: DType,
    generator: torch.Generator,
    *,
    scale: float = 1.0,
    positive: bool = False,
) -> torch.Tensor:
    """Return A or B, packed; 8-bit operands are contiguous along k, as tensor cores need them.

    Elements of 4 bits are prepared if they have whole tiles.
    """
    if dtype in PACKED_OPERANDS:
        return int4.any_layout(torch.randint(0, 16, tuple(shape), generator=generator, device=generator.device))
    operand = random_tensor(shape, dtype, generator, scale=scale, positive=positive)
    return operand.mT.contiguous().mT if dtype.bits == 8 and modes[-1] != "k" else operand


def poison(tensor: torch.Tensor) -> None:
    """Fill a buffer with values that no kernel writes by chance, so that unwritten elements are visible."""
    if tensor.dtype.is_floating_point:
        tensor.fill_(math.nan)
    else:
        if tensor.dtype == torch.bool:
            tensor = tensor.view(torch.uint8)  # a byte that is neither truth value
        value = _POISON[tensor.element_size()]
        tensor.fill_(value - 256 if tensor.dtype == torch.int8 else value)
