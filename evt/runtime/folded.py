"""Weights with a norm's parameters folded in, made again when a tensor changes: ``torch.ops.evt.fold_norm``.

For a norm ``(x - mean) * rstd * (g + offset) + b`` before a product with weights ``W`` and a bias, the operator returns

    weight    ``(g + offset) * W``, less the mean of each column for a norm that subtracts the mean of x
    sums      the column sums of ``weight`` after rounding
    constant  ``b @ W + bias``

so that the product is ``rstd * (x @ weight - mean * sums) + constant``. Weights without a mean change nothing for real
numbers. They keep the accumulator small where the mean of x is large.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing import reductions

_Result = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
_WeakReference: Any = reductions.StorageWeakRef  # has no types
_version = torch.Tensor._version.__get__  # type: ignore[attr-defined]


@dataclass(frozen=True)
class _Kept:
    """A result, and the versions of its tensors. References to their memory are weak: they keep its address alone."""

    versions: list[int]
    storages: tuple[Any, ...]
    result: _Result

    @property
    def is_alive(self) -> bool:
        return not any(each.expired() for each in self.storages)


#: The results by the memory and the layouts of their tensors.
_kept: dict[tuple[object, ...], _Kept] = {}
_lock = threading.Lock()


def fold_norm(
    weight: torch.Tensor,
    gain: torch.Tensor | None,
    shift: torch.Tensor | None,
    bias: torch.Tensor | None,
    offset: float,
    dim: int,
    centred: bool,
) -> _Result:
    """Return the folded weight, its sums and the constant: the kept ones if no tensor has changed.

    ``dim`` is the weight's contraction. Nothing is kept for tensors without version counters, and while a CUDA graph
    is captured: its replays read the parameters of their time.
    """
    given = [each for each in (weight, gain, shift, bias) if each is not None]
    capturing = weight.is_cuda and torch.cuda.is_current_stream_capturing()
    if capturing or any(each.is_inference() for each in given):
        return _folded(weight, gain, shift, bias, offset, dim, centred)
    storages = tuple(_WeakReference(each.untyped_storage()) for each in given)
    places = [
        (storage.cdata, each.storage_offset(), each.shape, each.stride(), each.dtype)
        for each, storage in zip(given, storages, strict=True)
    ]
    key = (offset, dim, centred, gain is None, shift is None, bias is None, *places)
    versions = [*map(_version, given)]
    known = _kept.get(key)
    if known is None or known.versions != versions:
        with _lock, torch.no_grad():
            for old in [old for old, each in _kept.items() if not each.is_alive]:
                del _kept[old]
            known = _kept[key] = _Kept(versions, storages, _folded(weight, gain, shift, bias, offset, dim, centred))
    return known.result


def _folded(
    weight: torch.Tensor,
    gain: torch.Tensor | None,
    shift: torch.Tensor | None,
    bias: torch.Tensor | None,
    offset: float,
    dim: int,
    centred: bool,
) -> _Result:
    wide = torch.float32 if weight.dtype.itemsize == 2 else torch.float64
    exact = weight.to(wide)
    constant = exact.new_zeros(weight.shape[1 - dim])
    if shift is not None:
        constant = (exact * shift.to(wide).unsqueeze(1 - dim)).sum(dim)
    if bias is not None:
        constant = constant + bias.to(wide)
    if gain is not None:
        exact = exact * (gain.to(wide) + offset).unsqueeze(1 - dim)
    if centred:
        exact = exact - exact.mean(dim, keepdim=True)
    made = torch.empty_like(weight).copy_(exact)
    sums = made.sum(dim, dtype=torch.float64)
    dtype = result_type(weight)
    return made, sums.to(dtype), constant.to(dtype)


def result_type(weight: torch.Tensor) -> torch.dtype:
    """Return the type of the sums and of the constant."""
    return torch.promote_types(weight.dtype, torch.float32)


def _shapes(
    weight: torch.Tensor,
    gain: torch.Tensor | None,
    shift: torch.Tensor | None,
    bias: torch.Tensor | None,
    offset: float,
    dim: int,
    centred: bool,
) -> _Result:
    columns = weight.new_empty(weight.shape[1 - dim], dtype=result_type(weight))
    return torch.empty_like(weight), columns, torch.empty_like(columns)


_Library: Any = torch.library.Library  # has no types
_LIBRARY = _Library("evt", "FRAGMENT")
_LIBRARY.define(
    "fold_norm(Tensor weight, Tensor? gain, Tensor? shift, Tensor? bias, float offset, int dim, bool centred)"
    " -> (Tensor, Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_LIBRARY.impl("fold_norm", fold_norm, "CompositeExplicitAutograd")
_LIBRARY.impl("fold_norm", torch.library.fallthrough_kernel, "Autograd")
torch.library.register_fake("evt::fold_norm", _shapes, lib=_LIBRARY)
