"""What a kernel is specialised for: types, majorness, alignment class and batching of every tensor.

Sizes and strides are not here: they are run-time arguments of every kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from evt.ir.dtype import DType

#: How a tensor meets the batch mode: ``strided`` (one per batch, at a run-time stride; also a problem of one batch)
#: or ``shared`` (a batched problem, the same tensor for every batch).
Batch = Literal["strided", "shared"]


@dataclass(frozen=True, slots=True)
class Layout:
    """One tensor's layout class.

    ``contiguous`` is the mode with stride 1, or None for a tensor with general strides. ``alignment`` is the
    largest power of two, in elements and at most 16 bytes, that divides the address, every other stride and
    the extent of the contiguous mode: how wide one access may be.
    """

    contiguous: str | None
    alignment: int
    batch: Batch = "strided"


@dataclass(frozen=True, slots=True)
class Signature:
    """The layouts of A, B and of every input and output that has ``m`` or ``n``, by name."""

    a: Layout
    b: Layout
    tensors: tuple[tuple[str, Layout], ...]

    def __getitem__(self, name: str) -> Layout:
        return dict(self.tensors)[name]


def alignment_of(dtype: DType, contiguous: str | None, address: int, strides: dict[str, int], extent: int) -> int:
    """Elements of ``dtype`` that one access may cover; ``strides`` in elements, without the contiguous mode's."""
    if contiguous is None:
        return 1
    size = bytes_of(dtype)
    common = (address // size if address % size == 0 else 1) | extent
    for stride in strides.values():
        common |= stride
    widest = 16 // size
    return min(widest, common & -common) if common else widest


def bytes_of(dtype: DType) -> int:
    """Bytes of an element in memory; packed bits are counted in whole bytes."""
    return max(1, dtype.bits // 8)


def natural_operand_layout(dtype: DType, modes: tuple[str, ...]) -> Layout:
    """The layout of a packed operand: the last mode is contiguous, but k where tensor cores need that."""
    return Layout("k" if dtype.bits == 8 else modes[-1], 16 // bytes_of(dtype))


def natural_layout(dtype: DType, modes: tuple[str, ...], batch: Batch = "strided") -> Layout:
    """The layout of a packed, 16-byte-aligned tensor: the last mode of its shape is contiguous."""
    inner = [mode for mode in modes if mode != "l"]
    return Layout(inner[-1], 16 // bytes_of(dtype), batch)
