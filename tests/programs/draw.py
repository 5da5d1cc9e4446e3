"""Draws from a seeded source, and the choices that they are made from."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

_PRODUCTS = (*("gemm",) * 8, "linear", "grouped_gemm")
_CONVOLUTIONS = ("conv1d", "conv2d", "conv2d", "conv3d")
_GRADIENTS = ("conv1d_dgrad", "conv2d_dgrad", "conv3d_dgrad", "conv1d_wgrad", "conv2d_wgrad", "conv3d_wgrad")
#: Each operation once.
ALL_OPERATIONS = tuple(dict.fromkeys((*_PRODUCTS, *_CONVOLUTIONS, *_GRADIENTS)))


@dataclass(frozen=True)
class Profile:
    """The part of the language that programs use.

    ``pairs``: the types of A and B, all where None. ``functions``: the functions that are called, all where None;
    ``folding``: the functions that constants alone may meet; ``tame``: small data and constants, no derivatives, no
    mainloop fusions, no settings. ``feeds``: whether operands have mainloop fusions, by chance where None.
    ``by_offsets``: groups are consecutive rows.
    """

    operations: tuple[str, ...] = (*_PRODUCTS, *_CONVOLUTIONS, *_GRADIENTS)
    functions: tuple[str, ...] | None = None
    folding: tuple[str, ...] | None = None
    tame: bool = False
    pairs: tuple[tuple[str, str], ...] | None = None
    feeds: bool | None = None
    by_offsets: bool = False


class Draw:
    """A source of choices: the same seed and profile give the same choices everywhere."""

    def __init__(self, seed: int) -> None:
        self._source = random.Random(f"program {seed}")

    def pick(self, choices: Sequence[T]) -> T:
        return choices[self._source.randrange(len(choices))]

    def chance(self, one_in: float) -> bool:
        return self._source.random() * one_in < 1

    def whole(self, least: int, most: int) -> int:
        return self._source.randint(least, most)

    def part(self) -> float:
        """From 0 to 1."""
        return self._source.random()

    def shuffled(self, values: Sequence[T]) -> tuple[T, ...]:
        return tuple(self._source.sample(values, len(values)))
