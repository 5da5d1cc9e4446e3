"""Element types."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Kind(enum.Enum):
    FLOAT = "float"
    INTEGER = "integer"
    BIT = "bit"


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

    @property
    def compute(self) -> DType:
        """The type that arithmetic on elements of this type is done in: f32, f64, i32 or b1."""
        if self.kind is Kind.FLOAT:
            return BY_NAME["f64" if self.bits == 64 else "f32"]
        return BY_NAME["i32" if self.kind is Kind.INTEGER else "b1"]

    @property
    def largest(self) -> float:
        """The largest finite value."""
        return _LARGEST[self.name]

    @property
    def is_float(self) -> bool:
        return self.kind is Kind.FLOAT


_TYPES = (
    DType("f64", 64, Kind.FLOAT, "double", "float64", ("float64", "double", "fp64")),
    DType("f32", 32, Kind.FLOAT, "float", "float32", ("float32", "float", "fp32", "single")),
    DType("tf32", 32, Kind.FLOAT, "cutlass::tfloat32_t", "float32", ("tfloat32",)),
    DType("f16", 16, Kind.FLOAT, "cutlass::half_t", "float16", ("float16", "half", "fp16")),
    DType("bf16", 16, Kind.FLOAT, "cutlass::bfloat16_t", "bfloat16", ("bfloat16",)),
    DType("e4m3", 8, Kind.FLOAT, "cutlass::float_e4m3_t", "float8_e4m3fn", ("fp8_e4m3", "float8_e4m3fn", "fp8")),
    DType("e5m2", 8, Kind.FLOAT, "cutlass::float_e5m2_t", "float8_e5m2", ("fp8_e5m2", "float8_e5m2")),
    DType("i32", 32, Kind.INTEGER, "int32_t", "int32", ("int32", "int", "s32")),
    DType("i8", 8, Kind.INTEGER, "int8_t", "int8", ("int8", "s8")),
    DType("u8", 8, Kind.INTEGER, "uint8_t", "uint8", ("uint8",)),
    DType("b1", 1, Kind.BIT, "cutlass::uint1b_t", "uint8", ("bool", "bit")),
)

_LARGEST = {
    "f64": 1.7976931348623157e308,
    "f32": 3.4028234663852886e38,
    "tf32": 3.4028234663852886e38,
    "f16": 65504.0,
    "bf16": 3.3895313892515355e38,
    "e4m3": 448.0,
    "e5m2": 57344.0,
    "i32": 2.0**31 - 1,
    "i8": 127.0,
    "u8": 255.0,
    "b1": 1.0,
}
BY_NAME: dict[str, DType] = {name: dtype for dtype in _TYPES for name in (dtype.name, *dtype.aliases)}
F64, F32, TF32, F16, BF16, E4M3, E5M2, I32, I8, U8, B1 = _TYPES
#: Types that tensors may be stored in; tf32 is f32 in memory.
STORAGE = (F64, F32, F16, BF16, E4M3, E5M2, I32, I8, U8, B1)
#: Types that scalars may have.
SCALARS = (F64, F32, F16, BF16, I32)
#: Types that the operands A and B may have.
OPERANDS = (F16, BF16, F32, TF32, F64, E4M3, E5M2, I8, U8)
#: Operands of two types that the tensor cores multiply.
MIXED_OPERANDS = (frozenset({F32, TF32}), frozenset({E4M3, E5M2}), frozenset({I8, U8}))


def accumulator(operand: DType) -> DType:
    """The type that products of operands are summed in: f64 of f64, i32 of integers, else f32."""
    return operand.compute


def from_torch_name(name: str) -> DType | None:
    """The type stored as a torch dtype (``"float16"``), or None. ``tf32`` is stored as f32, ``b1`` in uint8."""
    return next((dtype for dtype in _TYPES if dtype.torch == name), None)
