"""A call of a program with its results, for the self-test of an exported package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Data:
    """A tensor as text: PyTorch's name of its type, its shape and strides, and its bytes in the order of the
    strides.
    """

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    data: bytes


#: The value of an input in a call.
Given: TypeAlias = "Data | float | int | bool"


@dataclass(frozen=True, slots=True)
class Example:
    """A call: the tensors and numbers by their names, including A and B; the results, and their tolerances.

    ``results`` are unrounded, ``tolerances`` relative errors in the norm. ``sizes`` has the strides of tensors by
    (tensor, role), and the extents by ("", name): the sizes that a kernel is called with.
    """

    arguments: Mapping[str, Given]
    results: Mapping[str, Data]
    tolerances: Mapping[str, float]
    sizes: Mapping[tuple[str, str], int]
