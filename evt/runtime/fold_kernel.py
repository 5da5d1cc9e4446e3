"""The Triton kernel that folds a norm into weights: ``fold(weight, ...)``, see :mod:`evt.runtime.folded`.

A CUDA graph folds in each replay, so one kernel reads the weights from memory once, and writes the result once. A
program folds a few columns of the product. Its first loop over k sums the mean and the constant; the second one finds
the weights in L2.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from typing import Any

import torch

triton: Any = None
tl: Any = None
with suppress(ImportError):  # PyTorch for CPUs comes without Triton
    triton, tl = import_module("triton"), import_module("triton.language")

#: The elements that a program reads at a time, and the columns of a program if k is contiguous, and if it is not.
_ELEMENTS, _COLUMNS, _STRIDED_COLUMNS = 4096, 4, 64


def is_available() -> bool:
    """Return whether Triton is installed."""
    return triton is not None


def fold(
    weight: torch.Tensor,
    gain: torch.Tensor | None,
    shift: torch.Tensor | None,
    bias: torch.Tensor | None,
    offset: float,
    dim: int,
    centred: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the folded weight, its column sums after rounding, and the constant."""
    columns, terms = weight.shape[1 - dim], weight.shape[dim]
    made = torch.empty_like(weight)
    sums, constant = (weight.new_empty(columns, dtype=torch.float32) for _ in range(2))  # that share no memory
    together = _COLUMNS if weight.stride(dim) == 1 else _STRIDED_COLUMNS
    strides = (weight.stride(1 - dim), weight.stride(dim), made.stride(1 - dim), made.stride(dim))
    vectors = (weight if each is None else each for each in (gain, shift, bias))
    has = (each is not None for each in (gain, shift, bias))
    with torch.cuda.device(weight.device) if weight.is_cuda else torch.no_grad():
        _fold[(triton.cdiv(columns, together),)](
            *(weight, *vectors, made, sums, constant, columns, terms, *strides, offset),
            *(centred, *has, together, _ELEMENTS // together),
        )
    return made, sums, constant


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _fold(  # type: ignore[no-untyped-def]
        weight,
        gain,
        shift,
        bias,
        made,
        sums,
        constant,
        columns,
        terms,
        stride_n,
        stride_k,
        made_n,
        made_k,
        offset,
        centred: tl.constexpr,
        has_gain: tl.constexpr,
        has_shift: tl.constexpr,
        has_bias: tl.constexpr,
        together: tl.constexpr,
        step: tl.constexpr,
    ):
        n = (tl.program_id(0) * together + tl.arange(0, together)).to(tl.int64)
        inside = n < columns
        mean = tl.zeros((together,), tl.float32)
        shifted = tl.zeros((together,), tl.float32)
        if centred or has_shift:
            for start in range(0, terms, step):
                k = start + tl.arange(0, step)
                known = inside[:, None] & (k < terms)[None, :]
                w = tl.load(weight + n[:, None] * stride_n + k[None, :] * stride_k, known, 0.0).to(tl.float32)
                if has_shift:
                    shifted += tl.sum(w * tl.load(shift + k, k < terms, 0.0).to(tl.float32)[None, :], 1)
                if centred:
                    if has_gain:
                        w *= (tl.load(gain + k, k < terms, 0.0).to(tl.float32) + offset)[None, :]
                    mean += tl.sum(w, 1)
        mean /= terms
        total = tl.zeros((together,), tl.float32)
        for start in range(0, terms, step):
            k = start + tl.arange(0, step)
            known = inside[:, None] & (k < terms)[None, :]
            w = tl.load(weight + n[:, None] * stride_n + k[None, :] * stride_k, known, 0.0).to(tl.float32)
            if has_gain:
                w *= (tl.load(gain + k, k < terms, 0.0).to(tl.float32) + offset)[None, :]
            rounded = (w - mean[:, None]).to(made.dtype.element_ty)
            tl.store(made + n[:, None] * made_n + k[None, :] * made_k, rounded, known)
            total += tl.sum(tl.where(known, rounded.to(tl.float32), 0.0), 1)
        tl.store(sums + n, total, inside)
        if has_bias:
            shifted += tl.load(bias + n, inside, 0.0).to(tl.float32)
        tl.store(constant + n, shifted, inside)


__all__ = ["fold", "is_available"]
