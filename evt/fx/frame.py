"""Which dimension of a tensor is which mode of a product: ``Frame``.

Every value of a region has the elements of the accumulator, l x m x n, in some shape: a product's rows may be
``[batch, sequence]``, the images and pixels of a convolution ``[N, K, P, Q]``. A frame says what each dimension is; a
view that only splits and merges the dimensions of one mode gives the same value in another frame.
"""

from __future__ import annotations

import math
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
        """Return the frame of a reshape, or None where it mixes modes.

        Both shapes fall into the same runs of dimensions, the shortest of equal products. A run's dimensions before
        the view have to belong to one mode, which those after it then have.
        """
        modes: list[str] = []
        place = done = 0
        while place < len(self.sizes) or done < len(shape):
            run = self._run(shape, place, done)
            if run is None:
                return None
            taken, made = run
            found = {
                mode
                for size, mode in zip(self.sizes[place : place + taken], self.modes[place : place + taken], strict=True)
                if not same(size, 1)
            }
            if len(found) > 1:
                return None
            nearest = self.modes[min(place, len(self.modes) - 1)]
            modes += [next(iter(found), nearest)] * made
            place, done = place + taken, done + made
        return Frame(tuple(shape), tuple(modes))

    def _run(self, shape: Sequence[Size], place: int, done: int) -> tuple[int, int] | None:
        """Return how many dimensions from here on have the same product before and after, at least one together."""
        before, after = len(self.sizes) - place, len(shape) - done
        for total in range(1, before + after + 1):
            for taken in range(min(total, before) + 1):
                made = total - taken
                if made <= after and same(
                    math.prod(self.sizes[place : place + taken]), math.prod(shape[done : done + made])
                ):
                    return taken, made
        return None

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
