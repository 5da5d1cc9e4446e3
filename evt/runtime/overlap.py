"""Memory shared by tensors: ``find_overlap(...) -> Overlap``, checked when a call's tensors are at new addresses.

Kernels read and write in any order. So a buffer must not share memory with any other tensor of the call
(:class:`Overlap`), nor with another group's tensors (:func:`check_groups`). :func:`evt.runtime.layout.repeated` checks
that a buffer's elements do not overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from evt.diagnostics import Diagnostic
from evt.errors import ArgumentError, LayoutError
from evt.layout import interleaves, span
from evt.runtime.bound import Bound
from evt.runtime.layout import Modes, modes_of


@dataclass(frozen=True, slots=True)
class MemoryRange:
    """The memory of a tensor of a group: its bytes from ``start`` to ``end``, and its elements."""

    start: int
    end: int
    group: int
    name: str
    written: bool
    modes: Modes
    size: int


@dataclass(frozen=True, slots=True)
class Overlap:
    """The facts about a call's tensors, by slot, that decide whether they share memory.

    ``spans`` are their bytes, from the first to the last; ``modes`` their (extent, stride) pairs, and ``sizes`` the
    bytes of an element. ``in_place`` are the (buffer, input) slots that may be the same memory.
    """

    spans: tuple[int, ...]
    modes: tuple[Modes, ...]
    sizes: tuple[int, ...]
    in_place: frozenset[tuple[int, int]]

    def check(self, addresses: Sequence[int], buffers: int, names: Callable[[], Sequence[str]]) -> None:
        """Refuse one of the last ``buffers`` tensors that shares memory with another, unless element by element.

        Raise ArgumentError (E0609) with the tensors' ``names``.
        """
        for buffer in range(len(addresses) - buffers, len(addresses)):
            start = addresses[buffer]
            end = start + self.spans[buffer]
            for other, address in enumerate(addresses):
                if other == buffer or address >= end or start >= address + self.spans[other]:
                    continue
                if address == start and (buffer, other) in self.in_place:
                    continue
                modes, sizes = self.modes, self.sizes
                if not _meet(modes[buffer], modes[other], address - start, sizes[buffer], sizes[other]):
                    continue
                raise ArgumentError(
                    Diagnostic(
                        "E0609",
                        f"the buffer `{names()[buffer]}` shares memory with `{names()[other]}`",
                        help="pass a separate buffer; only a tile input of the same strides may be overwritten",
                    )
                )

    def ranges(self, group: int, names: Sequence[str], addresses: Sequence[int], buffers: int) -> list[MemoryRange]:
        """Return the memory of a group's tensors; the last ``buffers`` of them are buffers."""
        inputs = len(addresses) - buffers
        return [
            MemoryRange(start, start + span, group, name, slot >= inputs, modes, size)
            for slot, (name, start, span, modes, size) in enumerate(
                zip(names, addresses, self.spans, self.modes, self.sizes, strict=True)
            )
        ]


def check_groups(places: Iterable[MemoryRange]) -> None:
    """Refuse buffers of one group that share memory with tensors of another. Raise ArgumentError (E0609)."""
    open_places: list[MemoryRange] = []
    for place in sorted(places, key=lambda each: each.start):
        open_places = [other for other in open_places if other.end > place.start]
        for other in open_places:
            if other.group == place.group or not (place.written or other.written):
                continue
            if _meet(other.modes, place.modes, place.start - other.start, other.size, place.size):
                message = (
                    f"`{place.name}` of group {place.group} shares memory with `{other.name}` of group {other.group}"
                )
                raise ArgumentError(Diagnostic("E0609", message, help="pass separate buffers"))
        open_places.append(place)


@lru_cache(maxsize=4096)
def _meet(modes: Modes, others: Modes, distance: int, size: int, other_size: int) -> bool:
    """Return whether two tensors whose bytes overlap share one: halves of the columns of one matrix do not.

    ``distance`` is from the first tensor's address to the other's.
    """
    try:
        return interleaves(modes, others, distance, size, other_size)
    except LayoutError:  # the search gave up
        return True


def find_overlap(bound: Bound, tensors: Sequence[tuple[str, torch.Tensor]], buffers: Iterable[str]) -> Overlap:
    """Return the metadata that the check needs; ``tensors`` are in the order of the call's slots."""
    slots = {name: slot for slot, (name, _) in enumerate(tensors)}
    modes = tuple(modes_of(tensor) for _, tensor in tensors)
    sizes = tuple(tensor.element_size() for _, tensor in tensors)
    return Overlap(
        tuple(span(each)[1] * size for each, size in zip(modes, sizes, strict=True)),
        modes,
        sizes,
        frozenset((slots[buffer], slots[name]) for buffer, name in _in_place(bound, buffers)),
    )


def _in_place(bound: Bound, buffers: Iterable[str]) -> list[tuple[str, str]]:
    """Return (buffer, input) pairs that may be the same memory: every element is read before it is written.

    That holds for an input of the buffer's own modes, strides and width, read once per batch and by the same launch.
    """
    pairs = []
    for buffer in buffers:
        output, written = bound.dag.output[buffer], bound.tensors[buffer]
        for value in bound.dag.inputs:
            read = bound.tensors.get(value.name)
            if (
                read is None
                or not value.is_tile
                or set(value.modes) != set(output.modes)
                or value.is_indexed  # the order in which its rows are read and written is not known
                or read.layout.batch == "shared"
            ):
                continue
            assert output.dtype is not None
            assert value.dtype is not None
            alike = bound.offsets.get(value.name) == bound.offsets.get(buffer)
            if value.dtype.bits == output.dtype.bits and read.strides == written.strides and alike:
                pairs.append((buffer, value.name))
    return pairs
