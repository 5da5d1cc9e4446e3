"""Values of every type: drawn, as arrays of doubles, and as tensors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .dtypes import RANGE_OF_DATA, TYPES
from .rounding import FLOATS, RANGES, rounded

Array = np.ndarray
_LARGEST_TF32 = FLOATS["tf32"][2]


class Maker:
    """Makes values of a kind: ``"plain"`` quarters, ``"normal"``, or ``"edge"`` with rare values, inf and NaN."""

    def __init__(self, generator: np.random.Generator, kind: str) -> None:
        self.random = generator
        self.kind = kind

    def pick(self, choices: Sequence[Any]) -> Any:
        return choices[int(self.random.integers(len(choices)))]

    def operand(self, dtype: str, shape: tuple[int, ...], rare: float = 0.01) -> Array:
        """Return values of A or B; f32 values are finite in tf32, to which tensor cores round them."""
        found = self.values(dtype, shape, rare)
        if dtype not in ("f32", "tf32"):
            return found
        return np.where(np.isinf(found), found, np.clip(found, -_LARGEST_TF32, _LARGEST_TF32))

    def scalar(self, dtype: str, name: str, signed: bool) -> float | int:
        """Return a number; a seed or an offset may have all bits, unless it is ``signed``."""
        if name in ("seed", "offset"):
            half = 2**63 if dtype == "i64" else 2**31
            found = int(self.pick((0, 1, 7, half - 1, -1, -half, 2 * half - 1, 987654321987654321 % half)))
            return (found + half) % (2 * half) - half if signed else found
        return float(self.values(dtype, (1,))[0])

    def values(self, dtype: str, shape: tuple[int, ...], rare: float = 0.2) -> Array:
        kind = TYPES[dtype].kind
        if kind == "bit":
            return self.random.integers(0, 2, shape).astype(float)
        if kind == "integer":
            low, high = RANGE_OF_DATA[dtype] if self.kind != "plain" else (-5, 5)
            found = self.random.integers(0 if dtype == "u8" else low, high + 1, shape).astype(float)
            special: Sequence[float] = (*RANGES[dtype], 0.0, 1.0)
        elif self.kind == "plain":
            return rounded(dtype, self.random.integers(-12, 13, shape) / 4)
        else:
            found = self.random.normal(size=shape) * self.pick((1.0, 1.0, 0.1, 8.0))
            special = _specials(dtype)
        if self.kind == "edge":
            chosen = np.array(special)[self.random.integers(0, len(special), shape)]
            found = np.where(self.random.random(shape) < rare, chosen, found)
        return rounded(dtype, found) if dtype != "e5m2" else np.where(np.isinf(found), found, rounded(dtype, found))


def _specials(dtype: str) -> tuple[float, ...]:
    """Return special values: NaN, infinities, the ends of the range, zeros, halves."""
    if dtype == "f64":
        fraction, least, largest = 52, -1022, 1.7976931348623157e308
    else:
        fraction, least, largest, _ = FLOATS[dtype]
    tiny, normal = math.ldexp(1.0, least - fraction), math.ldexp(1.0, least)
    ends = [sign * size for sign, size in itertools.product((1.0, -1.0), (largest, tiny, normal, 0.0, 1.0, 0.5))]
    infinite = () if dtype == "e4m3" else (math.inf, -math.inf)
    return (math.nan, *infinite, *ends, 3.0, 6.0, 20.0, 100.0, -100.0)


def tensor(dtype: str, values: Array) -> Any:
    """Return a tensor of the type, of values that it has."""
    import torch

    target = getattr(torch, TYPES[dtype].torch)
    if dtype == "b1":
        values = np.packbits(values.astype(np.uint8), axis=-1, bitorder="little")
    kind = {"integer": np.int64, "bit": np.uint8, "float": np.float64}[TYPES[dtype].kind]
    made = torch.empty(values.shape, dtype=target)
    made.copy_(torch.from_numpy(np.array(values, dtype=kind, order="C")))
    words = {"f64": torch.int64, "f32": torch.int32, "f16": torch.int16, "bf16": torch.int16}
    if dtype in words and made.isnan().any():  # CUDA's NaN has every bit set
        bits = made.view(words[dtype])
        bits[made.isnan()] = torch.iinfo(words[dtype]).max
    return made
