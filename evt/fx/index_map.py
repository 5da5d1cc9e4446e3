"""The map from a tensor's dimensions to the modes of a product: ``IndexMap``.

Every value of a region has the elements of the accumulator, with modes l, m and n, in some shape. The rows of a product
may have the shape ``[batch, sequence]``; a convolution has the shape ``[N, K, P, Q]``. In an index map each dimension
runs along one mode with a stride. A view that splits, merges or permutes dimensions changes the index map, not the
value. A reduction removes modes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from torch.fx.experimental.symbolic_shapes import statically_known_true

from evt.ir.node import IMAGES, base, is_divided

#: A size: an int, or a torch.SymInt of a dynamic shape.
Size = Any
MODES = ("l", "m", "n")


def same(x: Size, y: Size) -> bool:
    """Return whether two sizes are provably equal; add no guard."""
    return bool(statically_known_true(x == y))


def all_same(x: Sequence[Size], y: Sequence[Size]) -> bool:
    """Return whether two lists of sizes are provably equal; add no guard."""
    return len(x) == len(y) and all(map(same, x, y))


@dataclass(frozen=True)
class Dim:
    """A dimension: its size, its mode, and its stride along the mode. A dimension of size 1 has no mode."""

    size: Size
    mode: str = ""
    stride: Size = 0

    def equals(self, other: Dim) -> bool:
        return self.mode == other.mode and same(self.size, other.size) and same(self.stride, other.stride)


@dataclass(frozen=True)
class Arrangement:
    """A change of shape: reshape to ``split``, permute by ``order``, reshape to ``merged``."""

    split: tuple[Size, ...]
    order: tuple[int, ...]
    merged: tuple[Size, ...]


@dataclass(frozen=True)
class IndexMap:
    """The dimensions of a value; ``reduced`` are the modes over which the value is already reduced.

    ``pixels`` are the rows of an image of a convolution; 0 for rows that are no pixels.
    """

    dims: tuple[Dim, ...]
    reduced: tuple[str, ...] = ()
    pixels: Size = 0

    @staticmethod
    def of(sizes: Sequence[Size], modes: Sequence[str], pixels: Size = 0) -> IndexMap:
        """Return the index map of packed dimensions; the last dimension of each mode is its innermost."""
        inner: dict[str, Size] = {}
        dims = []
        for size, mode in reversed(list(zip(sizes, modes, strict=True))):
            stride = inner.get(mode, 1)
            inner[mode] = stride * size
            dims.append(Dim(1) if same(size, 1) else Dim(size, mode, stride))
        return IndexMap(tuple(reversed(dims)), (), pixels)

    @property
    def is_packed(self) -> bool:
        """Whether the order is batches, rows, columns, as a kernel writes them; False if unknown."""
        places: list[int] = []
        for mode in MODES:
            found = self.places(mode)
            if found is None:
                return False
            places += found
        return places == sorted(places)

    def places(self, mode: str) -> list[int] | None:
        """Return the places of a mode's dimensions, outermost first, or None if the order is unknown."""
        left = [place for place, dim in enumerate(self.dims) if dim.mode == mode]
        stride: Size = 1
        found: list[int] = []
        while left:
            place = next((each for each in left if same(self.dims[each].stride, stride)), None)
            if place is None:
                return None
            left.remove(place)
            found.append(place)
            stride = stride * self.dims[place].size
        return found[::-1]

    def keeps_order(self, mode: str) -> bool:
        """Return whether the dimensions of a mode come outermost first; False if unknown."""
        places = self.places(mode)
        return places is not None and places == sorted(places)

    @property
    def sizes(self) -> tuple[Size, ...]:
        return tuple(dim.size for dim in self.dims)

    def extent(self, mode: str) -> Size:
        return math.prod(dim.size for dim in self.dims if dim.mode == mode)

    def equals(self, other: IndexMap) -> bool:
        return (
            self.reduced == other.reduced
            and len(self.dims) == len(other.dims)
            and all(map(Dim.equals, self.dims, other.dims))
        )

    def has_shape(self, shape: Sequence[Size]) -> bool:
        return all_same(self.sizes, shape)

    def view(self, shape: Sequence[Size]) -> IndexMap | None:
        """Return the index map after a reshape, or None if a new dimension would run along two modes."""
        dims: list[Dim] = []
        for taken, made in runs(self.sizes, shape):
            merged = _merge(self.dims[taken])
            if merged is None:
                return None
            stride, parts = merged.stride, []
            for size in reversed(shape[made]):
                parts.append(Dim(1) if same(size, 1) else Dim(size, merged.mode, stride))
                stride = stride * size
            dims += reversed(parts)
        done = replace(self, dims=tuple(dims))
        return done if len(dims) == len(shape) else None

    def permute(self, order: Sequence[int]) -> IndexMap:
        return replace(self, dims=tuple(self.dims[place] for place in order))

    def reduce(self, places: Iterable[int], keep: bool) -> IndexMap | None:
        """Return the index map after a reduction, or None if the dimensions are a part of a mode, but no block."""
        gone = {place % len(self.dims) for place in places}
        modes = {self._reduced(mode, gone) for mode in {self.dims[place].mode for place in gone} - {""}}
        if "" in modes:
            return None
        dims = [Dim(1) if place in gone else dim for place, dim in enumerate(self.dims) if keep or place not in gone]
        reduced = sorted({*self.reduced, *modes}, key=lambda mode: MODES.index(base(mode)))
        return replace(self, dims=tuple(dims), reduced=tuple(reduced))

    def _reduced(self, mode: str, gone: Set[int]) -> str:
        """Return the reduced mode: the mode, its blocks (images, or groups of columns), or "" for other dimensions."""
        order = self.places(mode)
        if order is None:
            return ""
        lost = [place in gone for place in order]
        if all(lost):
            return mode
        if lost != sorted(lost):  # blocks are the innermost dimensions
            return ""
        count = math.prod(self.dims[place].size for place in order if place in gone)
        if mode == "m":
            return IMAGES if same(count, self.pixels) else ""
        return f"{mode}/{count}" if mode == "n" and isinstance(count, int) else ""

    def varies(self, shape: Sequence[Size]) -> tuple[str, ...] | None:
        """Return the modes over which a broadcast tensor varies, or None if it varies over a part of m or n.

        It varies over m or n if it has all dimensions of the mode, and over l if it has any dimension of l.
        """
        if any(map(is_divided, self.reduced)):
            return () if all(same(size, 1) for size in shape) else None
        if len(shape) > len(self.dims):
            return None
        has: dict[str, set[bool]] = {}
        for given, dim in zip(aligned(shape, len(self.dims)), self.dims, strict=True):
            whole = same(given, dim.size)
            if not (whole or same(given, 1)):
                return None
            if dim.mode:
                has.setdefault(dim.mode, set()).add(whole)
        if any(len(found) > 1 for mode, found in has.items() if mode != "l"):
            return None
        return tuple(mode for mode in MODES if True in has.get(mode, ()))

    def arrange(self, shape: Sequence[Size], target: IndexMap) -> Arrangement | None:
        """Return the arrangement of a tensor, broadcast to this map, with the dimensions of another map.

        Dimensions that the tensor lacks become 1. Return None if no split and merge leads to the target's dimensions.
        """
        present = aligned(shape, len(self.dims))
        # The pieces of each dimension of the tensor: the target's dimension, the place within it, and the size.
        pieces: list[list[tuple[int, int, Size]]] = [[] for _ in self.dims]
        for mode in {dim.mode for dim in target.dims} - {""}:
            mine, theirs = self.places(mode), target.places(mode)
            if mine is None or theirs is None:
                return None
            done = 0
            for taken, made in runs(
                [self.dims[each].size for each in mine], [target.dims[each].size for each in theirs]
            ):
                here, there = mine[taken], theirs[made]
                if len(here) > 1 and len(there) > 1:
                    return None
                for count, (place, goal) in enumerate((x, y) for x in here for y in there):
                    size = (self.dims[place] if len(there) == 1 else target.dims[goal]).size
                    pieces[place].append((goal, count, 1 if same(present[place], 1) else size))
                done += len(here)
            if done < len(mine):
                return None
        flat = [piece for found in pieces for piece in found]
        order = tuple(sorted(range(len(flat)), key=lambda each: flat[each][:2]))
        merged = [math.prod(size for goal, _, size in flat if goal == place) for place in range(len(target.dims))]
        if not all(same(size, 1) or same(size, dim.size) for size, dim in zip(merged, target.dims, strict=True)):
            return None  # the tensor has a part of the batch dimensions, which the target merges
        return Arrangement(tuple(size for _, _, size in flat), order, tuple(merged))

    def only(self, modes: Sequence[str]) -> IndexMap:
        """Return the map of some modes: all batch dimensions, and one dimension each for m and n."""
        dims = [dim for dim in self.dims if dim.mode == "l"] if "l" in modes else []
        dims += [Dim(self.extent(mode), mode, 1) for mode in ("m", "n") if mode in modes]
        return IndexMap(tuple(dims))


def aligned(shape: Sequence[Size], rank: int) -> tuple[Size, ...]:
    """Return a shape with the leading dimensions of size 1 that broadcasting adds."""
    return (1,) * (rank - len(shape)) + tuple(shape)


def runs(before: Sequence[Size], after: Sequence[Size]) -> Iterator[tuple[slice, slice]]:
    """Yield pairs of shortest runs of two shapes with equal numbers of elements; stop if no such runs are left."""
    place = done = 0
    while place < len(before) or done < len(after):
        found = _run(before[place:], after[done:])
        if found is None:
            return
        taken, made = found
        yield slice(place, place + taken), slice(done, done + made)
        place, done = place + taken, done + made


def _run(before: Sequence[Size], after: Sequence[Size]) -> tuple[int, int] | None:
    for total in range(1, len(before) + len(after) + 1):
        for taken in range(min(total, len(before)), -1, -1):
            made = total - taken
            if made <= len(after) and same(math.prod(before[:taken]), math.prod(after[:made])):
                return taken, made
    return None


def _merge(dims: Sequence[Dim]) -> Dim | None:
    """Merge dimensions into one; return None if they are not adjacent in one mode."""
    merged = Dim(1)
    for dim in reversed(dims):
        if not dim.mode:
            continue
        if not merged.mode:
            merged = dim
        elif dim.mode == merged.mode and same(dim.stride, merged.stride * merged.size):
            merged = Dim(dim.size * merged.size, dim.mode, merged.stride)
        else:
            return None
    return merged
