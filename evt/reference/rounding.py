"""Rounding and packing as in kernels: ``round_to(dtype, value)``, and bits eight to a byte."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import index

import torch

from evt.diagnostics import Diagnostic
from evt.errors import ArgumentError
from evt.ir.dtype import B1, BF16, F16, F32, F64, DType
from evt.reference.dense import not_dense


def torch_type(dtype: DType) -> torch.dtype:
    """Return the dtype of a tensor of this type in memory."""
    found: torch.dtype = getattr(torch, dtype.torch)
    return found


def working(dtype: DType, computed: torch.dtype) -> torch.dtype:
    """Return the dtype in which values of a type are computed; ``computed`` replaces f32."""
    if dtype.compute == B1:
        return torch.bool
    return computed if dtype.compute == F32 else torch_type(dtype.compute)


def round_to(dtype: DType, value: torch.Tensor) -> torch.Tensor:
    """Return a tensor rounded to a type, to nearest even; 8-bit floats and integers saturate, truth is "not zero".

    Floats narrower than f32 are rounded by way of f32. NaN becomes the integer 0.
    """
    if value.dtype.is_floating_point and value.dtype.itemsize == 1:
        value = value.to(torch.float32)
    elif value.dtype in (torch.bool, torch.int8, torch.uint8):
        value = value.to(torch.int32)
    if dtype.compute == B1:
        return value != 0
    if not dtype.is_float:
        if value.dtype.is_floating_point:  # in f64, which represents both ends of i32
            value = torch.nan_to_num(torch.round(value.to(torch.float64)), nan=0.0)
        value = value.clamp(int(dtype.least), int(dtype.largest))
    elif dtype != F64:
        value = value.to(torch.float32)
        value = value if dtype in (F32, F16, BF16) else _nearest(dtype, value)
    return value.to(torch_type(dtype))


def _nearest(dtype: DType, value: torch.Tensor) -> torch.Tensor:
    """Return the nearest numbers of a type to f32 numbers, in f32.

    PyTorch has no cast to tf32, and its casts of large numbers to 8-bit floats depend on the release.
    """
    format_, magnitude = dtype.format, value.abs()
    # On the bits: add half of the dropped part, or slightly less so that ties go to even.
    dropped = F32.format.fraction - format_.fraction
    bits = magnitude.view(torch.int32)
    up = bits + (1 << (dropped - 1)) - 1 + ((bits >> dropped) & 1)
    rounded = (up >> dropped << dropped).view(torch.float32)
    if format_.least_exponent > F32.format.least_exponent:  # denormal numbers: their distance is fixed
        unit = 2.0 ** (format_.least_exponent + dropped)  # the range in which f32 numbers have that distance
        rounded = torch.where(magnitude < 2.0**format_.least_exponent, (magnitude + unit) - unit, rounded)
    rounded = torch.where(rounded > format_.largest, format_.largest if dtype.saturates else math.inf, rounded)
    return torch.where(value.isnan(), math.nan, torch.copysign(rounded, value))


def pack_bits(value: torch.Tensor) -> torch.Tensor:
    """Return truth values ``[..., n]`` packed into bytes ``[..., ceil(n / 8)]``; bit i of byte j is column 8j + i.

    Raise ArgumentError: E0604 for a tensor without dimensions, E0606, E0607 and E0612 for a value that is not a dense
    tensor.
    """
    _check_tensor("pack_bits", value)
    if value.dim() == 0:
        raise ArgumentError(Diagnostic("E0604", "bits are packed along the last dimension of a tensor"))
    padded = torch.nn.functional.pad((value != 0).to(torch.uint8), (0, -value.shape[-1] % 8))
    weights = 2 ** torch.arange(8, dtype=torch.int32, device=value.device)
    octets = padded.reshape(*padded.shape[:-1], padded.shape[-1] // 8, 8)
    return (octets.to(torch.int32) * weights).sum(-1).to(torch.uint8)


def unpack_bits(value: torch.Tensor, columns: int) -> torch.Tensor:
    """Return the truth values ``[..., columns]`` of packed bytes.

    Raise ArgumentError: E0603 and E0604 for tensors other than uint8 with ceil(columns / 8) bytes, E0607 for a bad
    number of columns, E0606, E0607 and E0612 for a value that is not a dense tensor.
    """
    _check_tensor("unpack_bits", value)
    if value.dtype != torch.uint8:
        raise ArgumentError(Diagnostic("E0603", f"packed bits are a uint8 tensor, and this one is {value.dtype}"))
    try:
        columns = index(columns)
    except TypeError:
        message = f"`columns` is of type {type(columns).__name__}; expected a whole number"
        raise ArgumentError(Diagnostic("E0607", message)) from None
    if value.dim() == 0 or value.shape[-1] != -(-columns // 8):
        message = f"{columns} bits are {-(-columns // 8)} bytes; the tensor has the shape {list(value.shape)}"
        raise ArgumentError(Diagnostic("E0604", message))
    shifts = torch.arange(8, dtype=torch.int32, device=value.device)
    bits = (value.to(torch.int32).unsqueeze(-1) >> shifts) & 1
    return bits.flatten(-2)[..., :columns].to(torch.bool)


def _check_tensor(name: str, value: object) -> None:
    """Raise ArgumentError (E0606, E0607, E0612) for a value that is not a dense tensor."""
    if not isinstance(value, torch.Tensor):
        raise ArgumentError(Diagnostic("E0607", f"{name} takes a tensor, not {type(value).__name__}"))
    if refused := not_dense("value", value):
        raise ArgumentError(refused)


def packed(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of the bytes of a b1 tensor."""
    return (*shape[:-1], -(-shape[-1] // 8))
