"""Weights with norms' parameters folded in, made again when a tensor changes: ``torch.ops.evt.fold_norms``.

For a norm ``(x - mean) * rstd * (g + offset) + b`` before a product with weights ``W`` and a bias, the operator returns

    weight    ``(g + offset) * W``, less the mean of each column for a norm that subtracts the mean of x
    sums      the column sums of ``weight`` after rounding
    constant  ``b @ W + bias``

so that the product is ``rstd * (x @ weight - mean * sums) + constant``. Weights without a mean change nothing for real
numbers. They keep the accumulator small where the mean of x is large.

One call folds all weights of a graph, because each call costs the host microseconds. A kept result is updated in place,
so that its address stays.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch.multiprocessing import reductions

_WeakReference: Any = reductions.StorageWeakRef  # has no types
_version = torch.Tensor._version.__get__  # type: ignore[attr-defined]
_address = torch.Tensor.data_ptr


class Fold(NamedTuple):
    """A norm before a product: the places of the weight, g, b and the bias among an operator's tensors, -1 for none.

    ``dim`` is the weight's contraction. ``centred``: the norm subtracts the mean of x.
    """

    weight: int
    gain: int
    shift: int
    bias: int
    dim: int
    centred: bool
    offset: float


def text_of(folds: Sequence[Fold], tensors: Sequence[torch.Tensor]) -> str:
    """Return folds as an argument of the operator; the text begins with the layouts of the tensors."""
    layouts = "; ".join(f"{each.dtype} {tuple(each.shape)} {each.stride()}" for each in tensors)
    lines = (f"{' '.join(map(str, map(int, each[:-1])))} {each.offset!r}" for each in folds)
    return "\n".join((layouts, *lines))


@lru_cache(maxsize=256)
def _folds_of(text: str) -> tuple[Fold, ...]:
    lines = (line.split() for line in text.splitlines()[1:])
    return tuple(Fold._make([*map(int, each[:5]), each[5] == "1", float(each[6])]) for each in lines)


@dataclass
class _Kept:
    """Results, and the versions of their tensors. References to memory are weak: they keep its address alone."""

    versions: list[int]
    storages: tuple[Any, ...]
    results: list[torch.Tensor]

    @property
    def is_alive(self) -> bool:
        return not any(each.expired() for each in self.storages)


#: The results by folds and the addresses of their tensors.
_kept: dict[tuple[object, ...], _Kept] = {}
_lock = threading.Lock()


def fold_norms(tensors: Sequence[torch.Tensor], folds: str, frozen: bool) -> list[torch.Tensor]:
    """Return the folded weight, its sums and the constant of each fold: the kept ones if no tensor has changed.

    Nothing is kept for tensors without version counters. A CUDA graph that is being captured folds in each replay,
    which reads the parameters of its time; ``frozen`` parameters do not change between replays.
    """
    capturing = tensors[0].is_cuda and torch.cuda.is_current_stream_capturing()
    if capturing and not frozen:
        return _results(tensors, folds)
    try:
        versions = [*map(_version, tensors)]
    except RuntimeError:  # inference tensors have no versions
        return _results(tensors, folds)
    key = (folds, *map(_address, tensors))
    known = _kept.get(key)
    if known is not None and known.versions == versions and known.is_alive:
        return [*known.results]
    if capturing:
        return _results(tensors, folds)
    with _lock, torch.inference_mode(False), torch.no_grad():
        for old in [old for old, each in _kept.items() if not each.is_alive]:
            del _kept[old]
        made = _results(tensors, folds)
        if (known := _kept.get(key)) is not None:
            for result, new in zip(known.results, made, strict=True):
                result.copy_(new)
            known.versions = versions
        else:
            storages = tuple(_WeakReference(each.untyped_storage()) for each in tensors)
            known = _kept[key] = _Kept(versions, storages, made)
        if tensors[0].is_cuda:
            torch.cuda.current_stream(tensors[0].device).synchronize()  # other streams read the results as well
    return [*known.results]


@dataclass(frozen=True)
class Refresh:
    """The folds of a graph, and the places of their tensors among its inputs.

    A CUDA graph of Inductor's reads kept results. So they are brought up to date before each replay.
    """

    folds: str
    places: tuple[int, ...]

    def before(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a call that takes a list of inputs, preceded by the folds of changed tensors."""

        def refreshed(inputs: Sequence[Any]) -> Any:
            fold_norms([inputs[place] for place in self.places], self.folds, True)
            return call(inputs)

        refreshed._boxed_call = True  # type: ignore[attr-defined]
        return refreshed


def _results(tensors: Sequence[torch.Tensor], folds: str) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for each in _folds_of(folds):
        gain, shift, bias = (tensors[place] if place >= 0 else None for place in each[1:4])
        found += folded(tensors[each.weight], gain, shift, bias, each.offset, each.dim, each.centred)
    return found


def folded(
    weight: torch.Tensor,
    gain: torch.Tensor | None,
    shift: torch.Tensor | None,
    bias: torch.Tensor | None,
    offset: float,
    dim: int,
    centred: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the folded weight, its sums and the constant of one fold: on CUDA devices by one kernel."""
    if weight.is_cuda:
        from evt.runtime import fold_kernel

        if fold_kernel.is_available():
            return fold_kernel.fold(weight, gain, shift, bias, offset, dim, centred)
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


def shapes(weight: torch.Tensor, dim: int) -> list[torch.Tensor]:
    """Return tensors like the results of a fold."""
    columns = weight.new_empty(weight.shape[1 - dim], dtype=result_type(weight))
    return [torch.empty_like(weight), columns, torch.empty_like(columns)]


def _shapes(tensors: Sequence[torch.Tensor], folds: str, frozen: bool) -> list[torch.Tensor]:
    return [made for each in _folds_of(folds) for made in shapes(tensors[each.weight], each.dim)]


_Library: Any = torch.library.Library  # has no types
_LIBRARY = _Library("evt", "FRAGMENT")
_LIBRARY.define("fold_norms(Tensor[] tensors, str folds, bool frozen) -> Tensor[]", tags=(torch.Tag.pt2_compliant_tag,))
_LIBRARY.impl("fold_norms", fold_norms, "CompositeExplicitAutograd")
_LIBRARY.impl("fold_norms", torch.library.fallthrough_kernel, "Autograd")
torch.library.register_fake("evt::fold_norms", _shapes, lib=_LIBRARY)
