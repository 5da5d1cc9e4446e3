"""Batches of several dimensions: ``spread`` and ``outer_batches``.

A kernel steps from batch to batch by one stride of each tensor. If one stride walks several batch dimensions of every
tensor, these dimensions are the mode ``l``. The kernel is launched once for each index of the other dimensions, at
other addresses. The dimensions of A that ``linear`` treats as rows ``m`` are divided in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from operator import mul

import torch

from evt.ir import TypedDag
from evt.layout import single_stride
from evt.plan import LayoutClass
from evt.plan.batches import MAX_LAUNCHES, counts

#: A shape as (mode, the dimensions it stands for).
Groups = Sequence[tuple[str, tuple[int, ...]]]


def spread(tensor: torch.Tensor, shapes: Sequence[Groups]) -> torch.Tensor:
    """Return a tensor with all of its batches: as in torch.matmul, batch dimensions of one element are expanded.

    ``shapes`` are the permitted shapes. A tensor of another shape that does not broadcast is returned unchanged.
    """
    wanted = [tuple(size for _, dims in groups for size in dims) for groups in shapes]
    if tuple(tensor.shape) not in wanted:
        for groups, expected in zip(shapes, wanted, strict=True):
            if _broadcasts(tuple(tensor.shape), expected, *_place(groups, "l")):
                return tensor.expand(expected)
    return tensor


def _broadcasts(shape: tuple[int, ...], expected: tuple[int, ...], at: int, count: int) -> bool:
    """Return whether a shape broadcasts to another one along the batch dimensions alone."""
    missing = len(expected) - len(shape)
    if not 0 <= missing <= (0 if at else count):
        return False
    pairs = zip((1,) * missing + shape, expected, strict=True)
    return all(have == want or (have == 1 and at <= i < at + count) for i, (have, want) in enumerate(pairs))


def _place(groups: Groups, mode: str) -> tuple[int, int]:
    """Return the first dimension of a mode, and the number of its dimensions."""
    position = 0
    for each, dims in groups:
        if each == mode:
            return position, len(dims)
        position += len(dims)
    return 0, 0


def unfolded(tensor: torch.Tensor, shapes: Sequence[Groups]) -> torch.Tensor:
    """Return a tensor with one dimension for each mode, viewed with all dimensions of its modes."""
    for groups in shapes:
        if tuple(tensor.shape) == tuple(math.prod(dims) for _, dims in groups):
            return tensor.view(tuple(size for _, dims in groups for size in dims))
    return tensor


@dataclass(frozen=True)
class OuterBatches:
    """A batch's dimensions: one launch computes the range ``kept``, and each index of the others has its own launch.

    ``places`` are the positions of the batch's first dimension in the shapes of the tensors that have it.
    """

    lead: tuple[int, ...]
    kept: tuple[int, int]
    places: Mapping[str, int]

    @property
    def inner(self) -> tuple[int, ...]:
        """The dimensions that one launch computes."""
        return self.lead[slice(*self.kept)]

    @property
    def outer(self) -> list[int]:
        """The positions of the dimensions with a launch for each index."""
        first, end = self.kept
        return [place for place in range(len(self.lead)) if not first <= place < end]

    def first(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return the part of a tensor that the first launch reads or writes."""
        if name in self.places:
            for place in reversed(self.outer):
                tensor = tensor.select(self.places[name] + place, 0)
        return tensor

    def offsets(self, name: str, tensor: torch.Tensor) -> tuple[int, ...]:
        """Return the bytes that each launch adds to a tensor's address."""
        if name not in self.places:
            return (0,) * math.prod(self.lead[place] for place in self.outer)
        strides = [tensor.stride(self.places[name] + place) * tensor.element_size() for place in self.outer]
        indices = product(*(range(self.lead[place]) for place in self.outer))
        return tuple(sum(map(mul, each, strides)) for each in indices)


def outer_batches(
    dag: TypedDag,
    mode: str,
    lead: tuple[int, ...],
    tensors: Mapping[str, torch.Tensor],
    shapes: Mapping[str, Sequence[Groups]],
) -> OuterBatches | None:
    """Divide a mode among as few launches as possible. Return None if one launch suffices, or the limit is exceeded.

    ``lead`` are the mode's dimensions, ``shapes`` the permitted shapes of each tensor. A reduction over the whole mode
    takes a single launch. There are at most :data:`evt.plan.batches.MAX_LAUNCHES` launches.
    """
    if 0 in lead or counts(dag, mode):
        return None
    places: dict[str, int] = {}
    steps: list[Sequence[tuple[int, int]]] = []
    for name, tensor in tensors.items():
        for groups in shapes[name]:
            at, count = _place(groups, mode)
            if count == len(lead) and tuple(tensor.shape) == tuple(size for _, dims in groups for size in dims):
                places[name] = at
                steps.append([(size, tensor.stride(at + place)) for place, size in enumerate(lead)])
                break
    ends = range(len(lead) + 1)
    splits = [(first, len(lead)) for first in ends] + [(0, end) for end in ends]
    fitting = [
        (first, end) for first, end in splits if all(single_stride(each[first:end]) is not None for each in steps)
    ]
    kept = max(fitting, key=lambda split: math.prod(lead[slice(*split)]))
    launches = math.prod(lead) // math.prod(lead[slice(*kept)])
    return OuterBatches(lead, kept, places) if 1 < launches <= MAX_LAUNCHES else None


def aligned(layout: LayoutClass, offsets: Sequence[int], size: int) -> LayoutClass:
    """Return the layout of a tensor that is also read at these offsets in bytes, which may lower its alignment."""
    common = math.gcd(*offsets)
    return replace(layout, alignment=min(layout.alignment, max(1, (common & -common) // size))) if common else layout
