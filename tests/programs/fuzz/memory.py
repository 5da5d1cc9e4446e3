"""Tensors within larger buffers: canaries before, after and between their rows, and poison in their elements."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

#: The bytes of a buffer in each of two runs: NaN of every float type, and a finite number.
POISON = (0xFF, 0x55)
#: Bytes before and after a tensor, at least.
MARGIN = 272
_STYLES = ("packed", "aligned", "aligned", "odd")
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Freedom:
    """The strides that a tensor may have.

    ``unit`` is the dimension with stride 1, any of the last two where None. ``sparse``: no dimension needs stride 1.
    ``chained``: dimensions before the last share one mode, so that all have one pitch. ``dense``: it is contiguous.
    """

    unit: int | None = None
    image: bool = False
    chained: bool = False
    sparse: bool = False
    dense: bool = False


@dataclass(frozen=True)
class Placement:
    """The elements of a tensor in a buffer; ``offset`` and ``strides`` count elements."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    size: int

    def buffer(self, device: str, byte: int) -> torch.Tensor:
        """Return a buffer of one byte, repeated."""
        return torch.full((self.size * self.dtype.itemsize,), byte, dtype=torch.uint8, device=device)

    def tensor(self, buffer: torch.Tensor) -> torch.Tensor:
        """Return the tensor in a buffer."""
        return buffer.view(self.dtype).as_strided(self.shape, self.strides, self.offset)

    def words(self, buffer: torch.Tensor) -> torch.Tensor:
        """Return the tensor's elements as integers, which every copy preserves."""
        return buffer.view(_WORDS[self.dtype.itemsize]).as_strided(self.shape, self.strides, self.offset)


def place(value: torch.Tensor, freedom: Freedom, name: str, layouts: int, seed: int, margin: int = MARGIN) -> Placement:
    """Return a place for a tensor's elements.

    The case's number ``layouts`` and the name decide about order and alignment, which all problems of a kernel have in
    common; ``seed`` decides about pitches. With ``layouts`` 0 the tensor is packed. ``margin`` counts bytes.
    """
    style, pads = random.Random(f"{layouts} {name}"), random.Random(f"{seed} {name}")
    rank, size = value.dim(), value.dtype.itemsize
    kind = style.choice((*_STYLES, "sparse") if freedom.sparse else _STYLES)
    kind = kind if layouts and not freedom.dense else "packed"
    turned = style.random()
    order = list(range(rank))
    if freedom.image and not (layouts and turned < 0.1):
        order = [0, *range(2, rank), 1]
    elif freedom.unit is not None:
        order = [*(each for each in order if each != freedom.unit), freedom.unit]
    elif rank > 1 and not freedom.image and not freedom.chained and layouts and turned < 0.2:
        order = [*order[:-2], rank - 1, rank - 2]
    block = max(16 // size, 1)
    strides = [0] * rank
    step = 2 if kind == "sparse" else 1
    for depth, dim in enumerate(reversed(order)):
        strides[dim] = step
        step *= max(value.shape[dim], 1)
        padded = depth == 0 or (depth == 1 and not freedom.chained and not freedom.image)
        if kind == "aligned" and padded:
            step = (-(-step // block) + pads.choice((0, 1, 3))) * block
        elif kind == "odd" and padded:
            step += 1 - step % 2 + 2 * pads.choice((0, 1, 3))
    margin = -(-margin // size)
    offset = margin | 1 if kind == "odd" else -(-margin // block) * block
    span = sum((extent - 1) * stride for extent, stride in zip(value.shape, strides, strict=True)) + 1
    whole = -(-(offset + max(span, 0) + margin) // block) * block
    return Placement(value.dtype, tuple(value.shape), tuple(strides), offset, whole)


@dataclass(frozen=True)
class Kept:
    """A tensor in its buffer, which has canaries elsewhere.

    ``before`` is a copy of the buffer; ``holds``: the tensor had values before the launch, not poison. ``whole`` is the
    place of the tensor that a call gets, where the kernel writes a part of it.
    """

    place: Placement
    buffer: torch.Tensor
    byte: int
    before: torch.Tensor
    holds: bool
    whole: Placement | None = None

    @staticmethod
    def of(value: torch.Tensor | None, place: Placement, device: str, byte: int) -> Kept:
        """Return a buffer with a tensor's values, or with poison in its elements."""
        buffer = place.buffer(device, byte)
        if value is not None:
            words = value.contiguous().view(_WORDS[value.dtype.itemsize])
            place.words(buffer).copy_(words.to(device))
        return Kept(place, buffer, byte, buffer.clone(), value is not None)

    @cached_property
    def tensor(self) -> torch.Tensor:
        return (self.whole or self.place).tensor(self.buffer)

    def poisoned(self, byte: int) -> Kept:
        """Return another buffer, with other poison; a tensor that holds values keeps them."""
        buffer = self.place.buffer(str(self.buffer.device), byte)
        if self.holds:
            self.place.words(buffer).copy_(self.place.words(self.before))
        return Kept(self.place, buffer, byte, buffer.clone(), self.holds, self.whole)

    def is_unchanged(self) -> bool:
        return torch.equal(self.buffer, self.before)

    def touched(self) -> str:
        """Return where a canary changed, or ""."""
        now = self.buffer.clone()
        self.place.words(now).copy_(self.place.words(self.before))
        changed = (now != self.before).nonzero().flatten()
        if not len(changed):
            return ""
        first, size = int(changed[0]), self.place.dtype.itemsize
        start = self.place.offset * size
        pairs = zip(self.place.shape, self.place.strides, strict=True)
        end = start + (sum((extent - 1) * stride for extent, stride in pairs) + 1) * size
        where = "before the tensor" if first < start else "after the tensor" if first >= end else "between its rows"
        return f"{len(changed)} bytes outside, the first {where}, {first - start} bytes from its first element"


def unwritten(runs: Sequence[Kept]) -> int:
    """Return how many elements keep the poison of every run."""
    keep = None
    for run in runs:
        same = run.place.words(run.buffer) == run.place.words(run.before)
        keep = same if keep is None else keep & same
    return 0 if keep is None else int(keep.sum())


def differing(runs: Sequence[Kept]) -> int:
    """Return how many elements differ between two runs."""
    one, two = (run.place.words(run.buffer) for run in runs)
    return int((one != two).sum())
