"""Values and types of a plan as C++: literals, members, pointers, strides, elements."""

from __future__ import annotations

import math
import re

from evt.functions.single import round_f32, shortest
from evt.ir.dtype import B1, F32, F64, I32, I64, DType
from evt.ir.node import PLACES
from evt.plan import Field
from evt.plan.epilogue.values import Number, Single, Size, Stride, Strides, Varies
from evt.plan.epilogue.writes import MERGED, Reduction

#: The C++ types of values in registers, by compute type.
REGISTER = {F32: "float", F64: "double", I64: "int64_t", I32: "int32_t", B1: "bool"}
#: The functions that combine values, in reduce.hpp.
COMBINE = {
    "sum": "evt::Sum",
    "max": "evt::Max",
    "min": "evt::Min",
    **dict.fromkeys(PLACES, "evt::MaxKey"),
    MERGED: "evt::MergeMoments",
}


#: Text that a C++ comment cannot hold: non-printable or non-ASCII characters, and a continuation of the line.
_UNSAFE = re.compile(r"[^ -~]|\\")


def comment(text: str) -> str:
    """Return a line of the user's text for a C++ comment: ASCII, bounded, and unable to end or continue the comment."""
    return _UNSAFE.sub("?", text)[:200]


def element(dtype: DType) -> str:
    """Return the type of a tensor's elements in memory; bits are packed in bytes.

    Truth values are bytes as well: CUTLASS packs arrays of bool.
    """
    return "std::uint8_t" if dtype.compute == B1 else dtype.cutlass


def fragment_element(dtype: DType) -> str:
    """Return the type in element.hpp of a tensor's elements in memory."""
    if dtype.compute == B1:
        return "uint8_t"
    return f"evt::element::{dtype}" if dtype.is_float and dtype not in (F32, F64) else dtype.cutlass


def loaded(dtype: DType) -> str:
    """Return the type of a vector before its conversion to the compute type."""
    return REGISTER[I32] if dtype.compute == B1 else REGISTER[dtype.compute]


def operand_element(dtype: DType) -> str:
    """Return the type of the elements of A or B in memory: f32 for tf32, which tensor cores read from floats."""
    return F32.cutlass if dtype.bits == 32 else dtype.cutlass


def major(row_major: bool) -> str:
    """Return the layout tag of a matrix."""
    return f"cutlass::layout::{'RowMajor' if row_major else 'ColumnMajor'}"


def images(rank: int) -> str:
    """Return the layout tag of channels-last memory."""
    return f"cutlass::layout::Tensor{'NDHWC' if rank == 3 else 'NHWC'}"


def read(value: Field | int) -> str:
    """Return a member of the call's arguments, or a number."""
    return f"arguments.{value.name}" if isinstance(value, Field) else str(value)


def read_stride(stride: Stride) -> str:
    """Return a stride. The call decides the stride of a flexible vector: 0 for a single value."""
    return read(stride.given if isinstance(stride, Varies) else stride)


def as_int(value: str) -> str:
    return f"static_cast<int>({value})"


def input_pointer(dtype: DType, pointer: Field) -> str:
    return f"static_cast<{element(dtype)} const*>({read(pointer)})"


def pointer_without_const(dtype: DType, pointer: Field) -> str:
    """Return a pointer without const, which CUTLASS takes for stores and for many loads."""
    return f"static_cast<{element(dtype)}*>(const_cast<void*>({read(pointer)}))"


def value_of(single: Single) -> str:
    """Return a scalar that a call passes by value."""
    return f"static_cast<{element(single.dtype)}>({read(single.number)})"


def stride_type(strides: Strides, dynamic: str = "int64_t") -> str:
    """Return the type of strides; strides of a call have the type ``dynamic``."""

    def of(stride: Stride) -> str:
        match stride:
            case Field():
                return dynamic
            case Varies():
                return "bool"
            case _:
                return f"cute::_{stride}"

    return f"cute::Stride<{', '.join(map(of, strides))}>"


def stride_value(strides: Strides, cast: str = "") -> str:
    """Return the value of strides; strides of a call are cast."""

    def of(stride: Stride) -> str:
        match stride:
            case Field():
                return f"{cast}{read(stride)}"
            case Varies(given):
                return f"{read(given)} != 0"
            case _:
                return f"cute::_{stride}{{}}"

    return f"{{{', '.join(map(of, strides))}}}"


def part_type(node: Reduction) -> str:
    """Return the type of a reduction's parts: its compute type, keys with a place, or moments."""
    if node.kind == MERGED:
        return f"evt::Moments<{REGISTER[node.dtype]}>"
    return "int64_t" if node.kind in PLACES else REGISTER[node.dtype]


def size(value: Size) -> str:
    """Return the extent of a mode, as a program computes with it."""
    return f"static_cast<int32_t>({read(value.extent)})"


def number(value: Number) -> str:
    """Return a number of the program, in its type."""
    return literal(value.value, value.dtype)


def literal(value: float, dtype: DType = F32) -> str:
    """Return the shortest C++ literal for a value that is rounded to a compute type."""
    if dtype == B1:
        return "true" if value else "false"
    if dtype == I32:
        number = round(value)
        return "(-2147483647 - 1)" if number == -(2**31) else f"({number})" if number < 0 else str(number)
    value = value if dtype == F64 else round_f32(value)
    if math.isfinite(value):
        text = repr(value) if dtype == F64 else _shortest_f32(value)
    else:
        text = "NAN" if math.isnan(value) else "INFINITY" if value > 0 else "-INFINITY"
        text = text if dtype == F32 else f"static_cast<double>({text})"
    return f"({text})" if text.startswith("-") else text


def _shortest_f32(value: float) -> str:
    text = shortest(value)
    return f"{text}f" if "e" in text or "." in text else f"{text}.0f"
