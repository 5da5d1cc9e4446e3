"""Element types."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass


class Kind(enum.Enum):
    FLOAT = "float"
    INTEGER = "integer"
    BIT = "bit"


@dataclass(frozen=True, slots=True)
class Format:
    """A binary format: the bits of the fraction, the exponent of the smallest normal number, the largest finite
    number.
    """

    fraction: int
    least_exponent: int
    largest: float


@dataclass(frozen=True, slots=True)
class DType:
    """An element type: its name in the language, width in bits, C++ type and torch dtype name."""

    name: str
    bits: int
    kind: Kind
    cutlass: str
    torch: str
    aliases: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def compute(self) -> DType:
        """The type of arithmetic on elements of this type: f32, f64, i32 or b1. Nothing is computed in i64."""
        return _COMPUTE[self.name]

    @property
    def largest(self) -> float:
        """The largest finite value; an int for an integer type."""
        return _FORMATS[self.name].largest if self.is_float else _RANGES[self.name][1]

    @property
    def least(self) -> float:
        """The smallest finite value; an int for an integer type."""
        return -_FORMATS[self.name].largest if self.is_float else _RANGES[self.name][0]

    def spans(self, value: float) -> bool:
        """Return whether a number is within the range. Floats whose casts do not saturate also have infinities."""
        return self.least <= value <= self.largest or (math.isinf(value) and not self.saturates)

    @property
    def range_text(self) -> str:
        """The type's range, as text."""
        if self.is_float:
            return f"{self} holds magnitudes up to {self.largest:g}"
        return f"{self} holds {self.least} to {self.largest}"

    def number(self, value: float) -> float:
        """Return a number as this type keeps it: an int for a whole number of an integer or truth type, else a
        float.
        """
        if self.is_float:
            return float(value)
        return int(value) if math.isfinite(value) and value == int(value) else value

    @property
    def format(self) -> Format:
        """The format of a float type."""
        return _FORMATS[self.name]

    @property
    def saturates(self) -> bool:
        """True if casts map values beyond the range to the largest value; among floats, only 8-bit types saturate."""
        return not self.is_float or self.bits == 8

    @property
    def is_float(self) -> bool:
        return self.kind is Kind.FLOAT


TYPES = (
    DType("f64", 64, Kind.FLOAT, "double", "float64", ("float64", "double", "fp64")),
    DType("f32", 32, Kind.FLOAT, "float", "float32", ("float32", "float", "fp32", "single")),
    DType("tf32", 32, Kind.FLOAT, "cutlass::tfloat32_t", "float32", ("tfloat32",)),
    DType("f16", 16, Kind.FLOAT, "cutlass::half_t", "float16", ("float16", "half", "fp16")),
    DType("bf16", 16, Kind.FLOAT, "cutlass::bfloat16_t", "bfloat16", ("bfloat16",)),
    DType("e4m3", 8, Kind.FLOAT, "cutlass::float_e4m3_t", "float8_e4m3fn", ("fp8_e4m3", "float8_e4m3fn", "fp8")),
    DType("e5m2", 8, Kind.FLOAT, "cutlass::float_e5m2_t", "float8_e5m2", ("fp8_e5m2", "float8_e5m2")),
    DType("i64", 64, Kind.INTEGER, "int64_t", "int64", ("int64", "s64")),
    DType("i32", 32, Kind.INTEGER, "int32_t", "int32", ("int32", "int", "s32")),
    DType("i8", 8, Kind.INTEGER, "int8_t", "int8", ("int8", "s8")),
    DType("u8", 8, Kind.INTEGER, "uint8_t", "uint8", ("uint8",)),
    DType("bool", 8, Kind.BIT, "bool", "bool"),
    DType("b1", 1, Kind.BIT, "cutlass::uint1b_t", "uint8", ("bit",)),
    DType("i4", 4, Kind.INTEGER, "cutlass::int4b_t", "uint8", ("int4", "s4")),
    DType("u4", 4, Kind.INTEGER, "cutlass::uint4b_t", "uint8", ("uint4",)),
)

_FORMATS = {
    "f64": Format(52, -1022, (2 - 2.0**-52) * 2.0**1023),
    "f32": Format(23, -126, (2 - 2.0**-23) * 2.0**127),
    "tf32": Format(10, -126, (2 - 2.0**-10) * 2.0**127),
    "f16": Format(10, -14, 65504.0),
    "bf16": Format(7, -126, (2 - 2.0**-7) * 2.0**127),
    "e4m3": Format(3, -6, 448.0),
    "e5m2": Format(2, -14, 57344.0),
}
_RANGES = {
    "i64": (-(2**63), 2**63 - 1),
    "i32": (-(2**31), 2**31 - 1),
    "i8": (-128, 127),
    "u8": (0, 255),
    "bool": (0, 1),
    "b1": (0, 1),
    "i4": (-8, 7),
    "u4": (0, 15),
}
BY_NAME: dict[str, DType] = {name: dtype for dtype in TYPES for name in (dtype.name, *dtype.aliases)}
F64, F32, TF32, F16, BF16, E4M3, E5M2, I64, I32, I8, U8, BOOL, B1, I4, U4 = TYPES
_COMPUTE = {
    each.name: each if each in (F64, I64) else {Kind.FLOAT: F32, Kind.INTEGER: I32, Kind.BIT: B1}[each.kind]
    for each in TYPES
}
#: Types of tensors; tf32 is f32 in memory.
STORAGE = (F64, F32, F16, BF16, E4M3, E5M2, I64, I32, I8, U8, BOOL, B1)
#: Types of outputs and casts. No value is a 64-bit integer.
OUTPUTS = tuple(dtype for dtype in STORAGE if dtype != I64)
#: Types of scalars.
SCALARS = (F64, F32, F16, BF16, I64, I32, BOOL)
#: Types of the operands A and B.
OPERANDS = (F16, BF16, F32, TF32, F64, E4M3, E5M2, I8, U8)
#: Pairs of different operand types that the tensor cores multiply.
MIXED_OPERANDS = (frozenset({F32, TF32}), frozenset({E4M3, E5M2}), frozenset({I8, U8}))


#: Types of A, and narrower types of B that are converted to them exactly.
_CONVERTING, _CONVERTED = (F16, BF16), (I8, U8, E4M3, E5M2, I4, U4)
#: Types of a B that is packed two elements to a byte.
PACKED_OPERANDS = (I4, U4)


def converts(a: DType, b: DType) -> bool:
    """Return whether a matrix product converts B to the type of A."""
    return a in _CONVERTING and b in _CONVERTED


def accumulator(operand: DType) -> DType:
    """Return the accumulator type of operands: f64 for f64, i32 for integers, else f32."""
    return operand.compute


def from_torch_name(name: str) -> DType | None:
    """Return the type that a torch dtype (``"float16"``) stores, or None.

    ``tf32`` is stored as f32, and packed elements as uint8.
    """
    return next((dtype for dtype in TYPES if dtype.torch == name), None)
