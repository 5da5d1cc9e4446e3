"""Which dimension of a tensor is which mode of a product: ``Frame``.

Every value of a region has the elements of the accumulator, l x m x n, in some shape: a product's rows may be
``[batch, sequence]``, the images and pixels of a convolution ``[N, K, P, Q]``. A frame says what each dimension is; a
view that only splits and merges the dimensions of one mode gives the same value in another frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx.experimental.symbolic_shapes import statically_known_true

#: A size: an int, or a torch.SymInt of a dynamic shape.
Size = Any


def same(x: Size, y: Size) -> bool:
    """Return whether two sizes are known to be equal, without a guard."""
    return bool(statically_known_true(x == y))


@dataclass(frozen=True)
class Frame:
    """The sizes of a value's dimensions, and the mode that each belongs to: ``l``, ``m`` or ``n``."""

    sizes: tuple[Size, ...]
    modes: tuple[str, ...]

    def view(self, shape: Sequence[Size]) -> Frame | None:
        """Return the frame of a reshape, or None where it mixes modes."""
        sizes, modes = list(self.sizes), list(self.modes)
        found: list[tuple[Size, str]] = []
        place = 0
        for wanted in shape:
            if place < len(sizes) and same(sizes[place], wanted):
                found.append((wanted, modes[place]))
                place += 1
            elif same(wanted, 1):
                found.append((1, modes[min(place, len(modes) - 1)]))
            else:
                split = self._regroup(sizes, modes, place, wanted)
                if split is None:
                    return None
                found.append((wanted, modes[place]))
                place = split
        if any(not same(size, 1) for size in sizes[place:]):
            return None
        return Frame(tuple(size for size, _ in found), tuple(mode for _, mode in found))

    @staticmethod
    def _regroup(sizes: list[Size], modes: list[str], place: int, wanted: Size) -> int | None:
        """Merge or split dimensions of one mode so that ``wanted`` is next; return the place after it."""
        if place >= len(sizes):
            return None
        product, end = sizes[place], place + 1
        while not same(product, wanted):
            if isinstance(product, int) and isinstance(wanted, int) and product > wanted and product % wanted == 0:
                sizes.insert(end, product // wanted)
                modes.insert(end, modes[place])
                return end
            if end >= len(sizes) or modes[end] != modes[place]:
                return None
            product, end = product * sizes[end], end + 1
        return end

    def modes_of(self, shape: Sequence[Size]) -> tuple[str, ...] | None:
        """Return the modes over which a tensor that broadcasts to the frame varies, or None where that is no set.

        It varies over a mode when it has all of that mode's dimensions; one that has some of them is none.
        """
        if len(shape) > len(self.sizes):
            return None
        aligned = [1] * (len(self.sizes) - len(shape)) + list(shape)
        has: dict[str, set[bool]] = {}
        for given, size, mode in zip(aligned, self.sizes, self.modes, strict=True):
            if same(size, 1):
                if not same(given, 1):
                    return None
                continue
            if same(given, size):
                has.setdefault(mode, set()).add(True)
            elif same(given, 1):
                has.setdefault(mode, set()).add(False)
            else:
                return None
        if any(len(found) > 1 for found in has.values()):
            return None
        return tuple(mode for mode in ("l", "m", "n") if has.get(mode) == {True})

    def is_shape(self, shape: Sequence[Size]) -> bool:
        return len(shape) == len(self.sizes) and all(map(same, shape, self.sizes))
