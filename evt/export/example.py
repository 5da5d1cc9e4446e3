"""A call of a program with its results, by which an exported package tests itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Data:
    """A tensor as text: PyTorch's name of its type, its shape and strides, and its bytes in order of the strides."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    data: bytes


#: What a call gives for an input.
Given: TypeAlias = "Data | float | int | bool"


@dataclass(frozen=True, slots=True)
class Example:
    """A call: the tensors and numbers by their names, A and B among them; the results, and how far off they may be.

    ``results`` are unrounded, ``tolerances`` relative errors in the norm. ``sizes`` has the strides of tensors by
    (tensor, role), and the extents by ("", name): what a kernel is called with.
    """

    arguments: Mapping[str, Given]
    results: Mapping[str, Data]
    tolerances: Mapping[str, float]
    sizes: Mapping[tuple[str, str], int]
