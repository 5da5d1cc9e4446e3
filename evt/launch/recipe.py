"""The launches of a kernel for the sizes of a call: ``recipe_of(kernel, sizes, multiprocessors) -> Recipe | None``.

A recipe has the bytes of the parameters, without the pointers and the numbers of a call, and says where these go.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from evt.launch import depthwise, gemm, gemv, halo, padded, wgrad
from evt.launch.layout import Layout, layout_of
from evt.launch.members import (
    COPY,
    MULTIPLY,
    PAD,
    InWorkspace,
    IsAligned,
    IsOverwritten,
    LowWord,
    PaddedChannels,
    PartCount,
    PartialSums,
    Pitch,
    Quotient,
    Shaped,
    Struct,
    Value,
    part_bytes,
    part_count,
    structs,
)
from evt.launch.shape import Map, Shape, aligned
from evt.plan import Field, Plan
from evt.plan.gemv import Gemv
from evt.plan.geometry.convolution import ceil_div
from evt.plan.plan import DepthwiseConvolution, FilterGradient, OwnProduct

#: Threads of a block of the small kernels, and of a place: kFinishThreads and kFinishLanes of finish.hpp.
_FINISH_THREADS, _FINISH_LANES, _FINISH_BLOCKS = 256, 8, 1056

#: The C type of a member, by its type as the module ``struct`` names it. Pointers are written as integers.
C_TYPES: Mapping[str, Any] = {
    "P": ctypes.c_uint64,
    "?": ctypes.c_bool,
    "f": ctypes.c_float,
    "d": ctypes.c_double,
    "b": ctypes.c_int8,
    "B": ctypes.c_uint8,
    "h": ctypes.c_int16,
    "H": ctypes.c_uint16,
    "i": ctypes.c_int32,
    "I": ctypes.c_uint32,
    "q": ctypes.c_int64,
    "Q": ctypes.c_uint64,
}


@dataclass(frozen=True, slots=True)
class Kernel:
    """The kernels of a plan: the end of each name, its parameters, and their layout in the cubin."""

    plan: Plan
    structs: tuple[Struct, ...]
    layouts: tuple[Layout, ...]

    @staticmethod
    def of(plan: Plan, cubin: bytes, name: str) -> Kernel:
        """Return the kernels of a plan. Raise ValueError for a cubin that does not have them."""
        found = structs(plan)
        return Kernel(plan, found, layout_of(cubin, name, found))


@dataclass(frozen=True, slots=True)
class Patch:
    """A value of the call that a launch puts into the parameters: argument ``index`` plus ``addend``.

    ``is_aligned``: whether the argument is a multiple of 16, in place of the argument. With ``pairs`` of arguments:
    whether the two of a pair are equal.
    """

    at: int
    type: str
    index: int
    addend: int = 0
    is_aligned: bool = False
    pairs: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel's launch. ``maps`` are the descriptors, each with its offset and the index of its address."""

    kernel: str
    params: bytes
    patches: tuple[Patch, ...]
    maps: tuple[tuple[int, int, Map], ...]
    grid: tuple[int, int]
    threads: int
    shared_bytes: int
    cluster: int


@dataclass(frozen=True, slots=True)
class Recipe:
    """The launches for the sizes of a call, in order, and the bytes of the workspace."""

    launches: tuple[Launch, ...]
    workspace: int


def workspace_of(plan: Plan, sizes: Mapping[str, int]) -> int:
    """Return the bytes of the workspace: it does not depend on the GPU."""
    if not any(field.role == "workspace" for field in plan.fields):
        return 0
    shape = _shape(plan, tuple(sizes.items()), 1)
    return _parts(plan, sizes, shape)[1] if shape else 0


def recipe_of(kernel: Kernel, sizes: Mapping[str, int], multiprocessors: int) -> Recipe | None:
    """Return the launches for the sizes of a call, by the names of fields; None if the kernel cannot run it."""
    plan = kernel.plan
    shape = _shape(plan, tuple(sizes.items()), multiprocessors)
    if shape is None:
        return None
    offsets, workspace = _parts(plan, sizes, shape)
    writer = _Writer(plan, sizes, shape, offsets)
    pairs = zip(kernel.structs, kernel.layouts, strict=True)
    launches = (writer.launch(struct, layout) for struct, layout in pairs)
    return Recipe(tuple(each for each in launches if each.grid[0]), workspace)


@lru_cache(maxsize=256)
def _shape(plan: Plan, sizes: tuple[tuple[str, int], ...], multiprocessors: int) -> Shape | None:
    if isinstance(plan.mainloop, DepthwiseConvolution):
        return depthwise.shape(plan, dict(sizes))
    if isinstance(plan.mainloop, OwnProduct):
        return gemm.shape(plan, dict(sizes), multiprocessors)
    if isinstance(plan.mainloop, Gemv):
        return gemv.shape(plan, dict(sizes), multiprocessors)
    if isinstance(plan.mainloop, FilterGradient):
        return wgrad.shape(plan, dict(sizes))
    return halo.shape(plan, dict(sizes), multiprocessors)


def _extent(value: Field | int, sizes: Mapping[str, int]) -> int:
    return sizes[value.name] if isinstance(value, Field) else value


def _parts(plan: Plan, sizes: Mapping[str, int], shape: Shape) -> tuple[dict[str, int], int]:
    """Return the offset of each copy and of each reduction's parts in the workspace, and the bytes of the workspace.

    The copies of operands, or the partial sums of a filter gradient, come first.
    """
    offsets, end = padded.copies_of(plan.copies, sizes) if plan.copies else gemm.copies_of(plan, sizes)
    if isinstance(plan.mainloop, FilterGradient):
        end = aligned(wgrad.partial_bytes(plan, sizes))
    for each in plan.reductions:
        if not each.atomic:
            offsets[each.name] = end
            size = part_count(each, shape.tiles) * _extent(each.extent, sizes) * part_bytes(each)
            end += aligned(size)
    return offsets, end


class _Writer:
    """A writer of the parameters of launches."""

    def __init__(self, plan: Plan, sizes: Mapping[str, int], shape: Shape, offsets: Mapping[str, int]) -> None:
        self._sizes, self._shape, self._offsets = sizes, shape, offsets
        self._index = {field.name: index for index, field in enumerate(plan.fields)}
        self._reductions = {each.name: each for each in plan.reductions}
        self._copies, self._padded = plan.row_copies, plan.copies
        self._merging = {each.name for each in plan.results if each.merges}

    def launch(self, struct: Struct, layout: Layout) -> Launch:
        params, patches = bytearray(layout.size), []
        for name, value in struct.members:
            at, kind = layout.members[name]
            if kind:
                patches += self._write(params, at, kind, name, value)
        shape = self._shape.first if struct.kernel == MULTIPLY and self._shape.first else self._shape
        if struct.jobs:
            return Launch(struct.kernel, bytes(params), tuple(patches), (), self._blocks(struct), _FINISH_THREADS, 0, 1)
        maps = tuple((layout.members[each.member][0], self._index[each.pointer.name], each) for each in shape.maps)
        grid, params_ = (shape.grid, 1), bytes(params)
        return Launch(
            struct.kernel, params_, tuple(patches), maps, grid, shape.threads, shape.shared_bytes, shape.cluster
        )

    def _write(self, params: bytearray, at: int, kind: str, name: str, value: Value) -> list[Patch]:
        """Write a member, or return the patch that writes it at a call."""
        match value:
            case Field() if value.name not in self._sizes:
                return [Patch(at, kind, self._index[value.name])]
            case LowWord(field):
                return [Patch(at, "I", self._index[field.name])]  # the bytes after it are zeros
            case PartialSums():
                return [Patch(at, kind, self._index["workspace"])]
            case InWorkspace(name):
                return [Patch(at, kind, self._index["workspace"], self._offsets[name])]
            case IsAligned(pointer) if name not in self._shape.values:
                return [Patch(at, kind, self._index[pointer.name], is_aligned=True)]
            case IsOverwritten(pairs):
                indices = tuple((self._index[one.name], self._index[other.name]) for one, other in pairs)
                return [Patch(at, kind, indices[0][0], pairs=indices)]
        number = self._number(name, value)
        numbers = number if isinstance(number, Sequence) else (number,)
        type_ = C_TYPES[kind]
        made = (type_ * len(numbers))(*numbers)
        params[at : at + ctypes.sizeof(made)] = bytes(made)
        return []

    def _number(self, name: str, value: Value) -> int | Sequence[int]:
        match value:
            case Field():
                return self._sizes[value.name]
            case Pitch(copy):
                return gemm.pitch_of(copy, self._sizes)
            case PaddedChannels(padded_copy):
                return padded.channels_of(padded_copy, self._sizes)
            case PartCount(reduction, of_images):
                parts = part_count(self._reductions[reduction], self._shape.tiles)
                return parts // self._sizes["images"] if of_images else parts
            case Quotient(extent, divisor):
                return self._sizes[extent.name] // divisor
            case Shaped() | IsAligned():
                return self._shape.values[name]
            case int():
                return value
        raise AssertionError(value)

    def _blocks(self, struct: Struct) -> tuple[int, int]:
        """Return the grid of a small kernel: the most blocks that a job can use, and the jobs."""
        members = dict(struct.members)
        if struct.kernel == COPY:
            return max(gemm.copy_blocks(each, self._sizes) for each in self._copies), len(struct.jobs)
        if struct.kernel == PAD:
            return max(padded.blocks_of(each, self._sizes) for each in self._padded), len(struct.jobs)
        most = 1
        for job in struct.jobs:
            kept, batches = (self._number("", members[f"{job}.{name}"]) for name in ("kept", "batches"))
            assert isinstance(kept, int)
            assert isinstance(batches, int)
            finishes = struct.kernel == "finish"
            blocks = _finish_blocks(kept, batches, job in self._merging) if finishes else _initial_blocks(kept, batches)
            most = max(most, blocks)
        return most, len(struct.jobs)


def _finish_blocks(kept: int, batches: int, merges: bool) -> int:
    """Return the blocks of a job that combines parts: see finish.hpp."""
    places = kept * batches
    few = min(places if merges else ceil_div(places, 32 // _FINISH_LANES), _FINISH_BLOCKS)
    return batches if kept == 1 else max(few, ceil_div(places, _FINISH_THREADS // _FINISH_LANES))


def _initial_blocks(kept: int, batches: int) -> int:
    return ceil_div(kept * batches, _FINISH_THREADS)
