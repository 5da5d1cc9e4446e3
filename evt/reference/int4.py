"""Elements of 4 bits: packed two to a byte, and prepared as kernels read them.

``pack_int4(values)`` packs whole numbers ``[..., n, k]`` into bytes ``[..., n, k / 2]``: elements with an even k are in
the lower halves. ``prepare(packed)`` has the layout of ``torch._convert_weight_to_int4pack`` with 8 inner tiles: int32
words ``[..., n / 8, k / 128, 32, 4]``. Lane ``4g + q`` of a warp has the elements ``2q``, ``2q + 1``, ``2q + 8`` and
``2q + 9`` of each 16 of column ``g``, eight to a word. Codes are up to 15; the code of an i4 is 8 above its value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from evt.diagnostics import Diagnostic
from evt.errors import ArgumentError
from evt.ir.dtype import I4, PACKED_OPERANDS, DType

#: Columns and elements of k of a tile, and the shape of a tile's words.
_COLUMNS, _DEPTH, _WORDS = 8, 128, (32, 4)
#: The number of dimensions of a prepared weight.
PREPARED_DIMENSIONS = 2 + len(_WORDS)
#: The code of zero of an i4.
_BIAS = 8


def pack_int4(values: object, *, signed: bool = True) -> torch.Tensor:
    """Return whole numbers ``[..., n, k]`` packed into bytes ``[..., n, k / 2]``, for a B of i4, or u4 if not signed.

    Raise ArgumentError: E0604 for an odd number of columns, E0607 for numbers beyond -8 to 7, or 0 to 15.
    """
    if not isinstance(values, torch.Tensor):
        message = f"`values` is of type {type(values).__name__}; expected a tensor"
        raise ArgumentError(Diagnostic("E0607", message))
    if values.dim() == 0 or values.shape[-1] % 2:
        message = f"two elements of 4 bits share a byte, and the tensor has the shape {list(values.shape)}"
        raise ArgumentError(Diagnostic("E0604", message, help="pad the last dimension to an even number"))
    bias = _BIAS if signed else 0
    codes = values.to(torch.int32) + bias
    wrong = (codes < 0) | (codes > 15) | (values != values.to(torch.int32))
    if not wrong.is_meta and bool(wrong.any()):
        message = f"`values` has elements that are no whole numbers from {-bias} to {15 - bias}"
        mend = "round and clamp them before" + "; pack a B of u4 with signed=False" * signed
        raise ArgumentError(Diagnostic("E0607", message, help=mend))
    codes = codes.to(torch.uint8)
    return codes[..., ::2] | codes[..., 1::2] << 4


def prepare(packed: object) -> torch.Tensor:
    """Return a packed weight ``[..., n, k / 2]`` in the layout that kernels read, once for all calls.

    Raise ArgumentError: E0603 for a tensor of another type than uint8, E0604 unless n is a multiple of 8 and k of 128.
    """
    for found in check("packed", packed, prepared=False):
        raise ArgumentError(found)
    assert isinstance(packed, torch.Tensor)
    if is_prepared(packed):
        return packed
    *batch, n, half = packed.shape
    if n % _COLUMNS or 2 * half % _DEPTH:
        message = (
            f"a weight of {n} columns and k = {2 * half} has no whole tiles of {_COLUMNS} columns and k = {_DEPTH}"
        )
        raise ArgumentError(Diagnostic("E0604", message, help="pad it: `torch.nn.functional.pad`"))
    codes = torch.stack((packed & 15, packed >> 4), -1).flatten(-2).to(torch.int32)
    # [tile, g, k tile, pair of 16, which of 16, half of 16, q, odd] -> [tile, k tile, g, q, pair, odd, which, half]
    tiles = codes.reshape(math.prod(batch), n // _COLUMNS, _COLUMNS, 2 * half // _DEPTH, 4, 2, 2, 4, 2)
    lanes = tiles.permute(0, 1, 3, 2, 7, 4, 8, 5, 6).flatten(-3)
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=packed.device)
    words = (lanes << shifts).sum(-1, dtype=torch.int32)
    return words.reshape(*batch, n // _COLUMNS, 2 * half // _DEPTH, *_WORDS)


def any_layout(codes: torch.Tensor) -> torch.Tensor:
    """Return codes ``[..., n, k]`` as a prepared weight, or as a packed one without whole tiles."""
    packed = pack_int4(codes, signed=False)
    return packed if codes.shape[-2] % _COLUMNS or codes.shape[-1] % _DEPTH else prepare(packed)


def is_prepared(tensor: torch.Tensor) -> bool:
    """Return whether a weight has the layout of :func:`prepare`."""
    return tensor.dtype == torch.int32


def has_batches(tensor: torch.Tensor) -> bool:
    """Return whether there are several weights."""
    return tensor.dim() > (PREPARED_DIMENSIONS if is_prepared(tensor) else 2)


def check(name: str, tensor: object, *, prepared: bool) -> Iterator[Diagnostic]:
    """Yield a diagnostic for a tensor that is no packed weight, or not a ``prepared`` one."""
    if not isinstance(tensor, torch.Tensor):
        yield Diagnostic("E0607", f"`{name}` is of type {type(tensor).__name__}; expected a tensor")
    elif tensor.dtype not in (torch.uint8, torch.int32):
        help_text = "two elements share a byte: evt.pack_int4(values), and evt.prepare(packed) for a GPU"
        yield Diagnostic(
            "E0603", f"`{name}` is {tensor.dtype}; packed elements of 4 bits are torch.uint8", help=help_text
        )
    elif is_prepared(tensor) and (tensor.dim() < 4 or tuple(tensor.shape[-2:]) != _WORDS):
        message = f"`{name}` has shape {list(tensor.shape)}; a prepared weight is [n / 8, k / 128, 32, 4]"
        yield Diagnostic("E0604", message, help="evt.prepare(packed)")
    elif not is_prepared(tensor) and tensor.dim() < 2:
        yield Diagnostic("E0604", f"`{name}` has shape {list(tensor.shape)}; a packed weight is [n, k / 2]")
    elif prepared and not is_prepared(tensor):
        message = f"`{name}` is packed, and kernels read weights in another order"
        yield Diagnostic("E0606", message, help=f"prepare it once, before the calls: {name} = evt.prepare({name})")
    elif is_prepared(tensor) and not tensor.is_contiguous():
        yield Diagnostic("E0606", f"`{name}` is not contiguous", help=f"pass {name}.contiguous()")


def shaped(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view of a packed weight's memory that has the shape of its elements; its values are meaningless."""
    if is_prepared(tensor):
        *batch, tiles, depth, _, _ = tensor.shape
        shape = (*batch, tiles * _COLUMNS, depth * _DEPTH)
    else:
        shape = (*tensor.shape[:-1], 2 * tensor.shape[-1])
    if not tensor.numel():
        return tensor.new_empty(shape, dtype=torch.uint8)
    return tensor.reshape(-1)[:1].view(torch.uint8)[:1].expand(shape)


def unpacked(dtype: DType, tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements ``[..., n, k]`` of a packed or prepared weight as int8. Return a tensor of another type."""
    if dtype not in PACKED_OPERANDS:
        return tensor
    if is_prepared(tensor):
        *batch, tiles, depth, _, _ = tensor.shape
        shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=tensor.device)
        codes = (tensor.unsqueeze(-1) >> shifts & 15).reshape(math.prod(batch), tiles, depth, _COLUMNS, 4, 4, 2, 2, 2)
        codes = codes.permute(0, 1, 3, 2, 5, 7, 8, 4, 6).reshape(*batch, tiles * _COLUMNS, depth * _DEPTH)
    else:
        codes = torch.stack((tensor & 15, tensor >> 4), -1).flatten(-2)
    return codes.to(torch.int8) - (_BIAS if dtype == I4 else 0)
