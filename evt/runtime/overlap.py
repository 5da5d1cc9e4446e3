"""Memory that a call's tensors share: ``find_overlap(...) -> Overlap``, checked at every call with buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from evt.diagnostics import Diagnostic
from evt.errors import ArgumentError, LayoutError
from evt.layout import interleaves, span
from evt.runtime.tensors import Bound


@dataclass(frozen=True, slots=True)
class Overlap:
    """What of a call's tensors, by slot, says whether they share memory.

    ``spans`` are their bytes, from the first to the last; ``modes`` their (extent, stride) pairs, and ``sizes`` the
    bytes of an element. ``in_place`` are the (buffer, input) slots that may be one memory.
    """

    spans: tuple[int, ...]
    modes: tuple[tuple[tuple[int, int], ...], ...]
    sizes: tuple[int, ...]
    in_place: frozenset[tuple[int, int]]

    def check(self, addresses: Sequence[int], buffers: int, names: Callable[[], Sequence[str]]) -> None:
        """Refuse one of the last ``buffers`` tensors that shares memory with another, unless element by element.

        Raises ArgumentError (E0609); ``names`` gives the tensors' names, for it.
        """
        for buffer in range(len(addresses) - buffers, len(addresses)):
            start = addresses[buffer]
            end = start + self.spans[buffer]
            for other, address in enumerate(addresses):
                if other == buffer or address >= end or start >= address + self.spans[other]:
                    continue
                if address == start and (buffer, other) in self.in_place:
                    continue
                if not self._interleave(buffer, other, address - start):
                    continue
                raise ArgumentError(
                    Diagnostic(
                        "E0609",
                        f"the buffer `{names()[buffer]}` shares memory with `{names()[other]}`",
                        help="pass a buffer of its own; only a tile input of the same strides may be overwritten",
                    )
                )

    def _interleave(self, slot: int, other: int, distance: int) -> bool:
        """Whether two tensors whose bytes overlap share one: halves of the columns of one matrix do not."""
        try:
            return interleaves(self.modes[slot], self.modes[other], distance, self.sizes[slot], self.sizes[other])
        except LayoutError:  # no answer after very many tries
            return True


def find_overlap(bound: Bound, tensors: Sequence[tuple[str, torch.Tensor]], buffers: Iterable[str]) -> Overlap:
    """What of a call's metadata the check needs; ``tensors`` are in the order of the call's slots."""
    slots = {name: slot for slot, (name, _) in enumerate(tensors)}
    strides = tuple(tuple(zip(tensor.shape, tensor.stride(), strict=True)) for _, tensor in tensors)
    return Overlap(
        tuple(span(modes)[1] * tensor.element_size() for modes, (_, tensor) in zip(strides, tensors, strict=True)),
        strides,
        tuple(tensor.element_size() for _, tensor in tensors),
        frozenset((slots[buffer], slots[name]) for buffer, name in _in_place(bound, buffers)),
    )


def _in_place(bound: Bound, buffers: Iterable[str]) -> list[tuple[str, str]]:
    """(buffer, input) pairs that may be the same memory: every element is read before it is written.

    That holds for an input of the buffer's own modes, strides and width, read once per batch.
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
                or read.layout.batch == "shared"
            ):
                continue
            assert output.dtype is not None
            assert value.dtype is not None
            if value.dtype.bits == output.dtype.bits and read.strides == written.strides:
                pairs.append((buffer, value.name))
    return pairs
