"""The checks of a kernel's launcher, as its header promises: ``checks(fields, read) -> ChecksText``.

The pointer of a scalar or of a flexible vector may be null: a call may pass a value instead. So may the pointer of an
indexed tensor without rows or columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from evt.emission.text import ChecksText
from evt.plan import Field

_OPERANDS = ("A", "B")


def checks(fields: Sequence[Field], read: Callable[[Field], str], *, stock: bool = False) -> ChecksText:
    """Return the checks of members, which ``read`` spells. A ``stock`` epilogue of 2.x has int row strides."""
    pointers = [each for each in fields if each.kind == "pointer" and each.tensor]
    sizes = [each for each in fields if each.kind == "size"]
    signed = [each for each in sizes if _is_signed(each) or _is_pitch(each, stock)]
    return ChecksText(
        operands=tuple(_null(fields, [each for each in pointers if each.tensor in _OPERANDS], read)),
        tensors=tuple(_null(fields, [each for each in pointers if each.tensor not in _OPERANDS], read)),
        extents=tuple(read(each) for each in sizes if not each.tensor and not _is_signed(each)),
        integers=tuple(map(read, signed)),
    )


def _null(fields: Sequence[Field], pointers: Sequence[Field], read: Callable[[Field], str]) -> Iterator[str]:
    """Yield a condition for each pointer that must not be null; the condition is true if the pointer is null."""
    valued = {each.tensor for each in fields if each.role == "value"}
    for each in pointers:
        extents = [of for of in fields if of.tensor == each.tensor and of.role.startswith("extent ")]
        if each.tensor not in valued:
            conditions = [f"{read(each)} == nullptr", *(f"{read(of)} != 0" for of in extents)]
            yield f"({' && '.join(conditions)})" if extents else conditions[0]


def _is_signed(field: Field) -> bool:
    """Return whether a size may be negative, as padding may."""
    return not field.tensor and "pad_" in field.role


def _is_pitch(field: Field, stock: bool) -> bool:
    """Return whether CUTLASS may keep a stride in an int: of an operand or a stock epilogue, but not of batches."""
    strided = bool(field.tensor) and field.role != "l" and not field.role.startswith("extent ")
    return strided and (stock or field.tensor in _OPERANDS)
