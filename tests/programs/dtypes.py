"""Element types, by the names of the language."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Type:
    """A type: its kind, the dtype of PyTorch's that stores it, and the names that a program may write for it."""

    name: str
    kind: str  # "float", "integer" or "bit"
    torch: str
    aliases: tuple[str, ...] = ()

    @property
    def compute(self) -> str:
        """The type in which arithmetic on its values is done; an i64 is read as an i32."""
        if self.kind == "float":
            return "f64" if self.name == "f64" else "f32"
        return "i32" if self.kind == "integer" else "b1"


TYPES = {
    each.name: each
    for each in (
        Type("f64", "float", "float64", ("float64", "double", "fp64")),
        Type("f32", "float", "float32", ("float32", "float", "fp32", "single")),
        Type("tf32", "float", "float32", ("tfloat32",)),
        Type("f16", "float", "float16", ("float16", "half", "fp16")),
        Type("bf16", "float", "bfloat16", ("bfloat16",)),
        Type("e4m3", "float", "float8_e4m3fn", ("fp8_e4m3", "float8_e4m3fn", "fp8")),
        Type("e5m2", "float", "float8_e5m2", ("fp8_e5m2", "float8_e5m2")),
        Type("i64", "integer", "int64", ("int64", "s64")),
        Type("i32", "integer", "int32", ("int32", "int", "s32")),
        Type("i8", "integer", "int8", ("int8", "s8")),
        Type("u8", "integer", "uint8", ("uint8",)),
        Type("bool", "bit", "bool"),
        Type("b1", "bit", "uint8", ("bit",)),
    )
}
#: Types of tensors: tf32 is f32 in memory.
STORAGE = tuple(name for name in TYPES if name != "tf32")
#: Types of stores and casts: none is to 64-bit integers.
OUTPUTS = tuple(name for name in STORAGE if name != "i64")
CASTS = tuple(name for name in TYPES if name != "i64")
SCALARS = ("f64", "f32", "f16", "bf16", "i64", "i32", "bool")
#: Types of a B that is packed two elements to a byte.
PACKED = ("i4", "u4")
TYPES |= {name: Type(name, "integer", "int8") for name in PACKED}
#: Types of A and B, alone and mixed.
OPERANDS = ("f64", "f32", "tf32", "f16", "bf16", "e4m3", "e5m2", "i8", "u8")
PAIRS = (
    *((name, name) for name in OPERANDS),
    *(("e4m3", "e5m2"), ("e5m2", "e4m3"), ("i8", "u8"), ("u8", "i8"), ("f32", "tf32"), ("tf32", "f32")),
)


def compute(name: str) -> str:
    return TYPES[name].compute


def primary(operand: str, declared: str | None) -> str:
    """Return the type of D, which undeclared tensors take too: that of A, but bf16 for 8-bit operands."""
    if declared is not None:
        return declared
    return {"tf32": "f32", **dict.fromkeys(("e4m3", "e5m2", "i8", "u8"), "bf16")}.get(operand, operand)


def promoted(types: Sequence[str]) -> str:
    """torch.promote_types of PyTorch's dtypes; 8-bit floats are computed in f32. Empty for numbers alone."""
    tensors = {each for each in types if each}
    floats = {each for each in tensors if TYPES[each].kind == "float"}
    if not floats:
        return "" if not tensors else "i32" if len(tensors) > 1 else next(iter(tensors))
    if "f64" in floats:
        return "f64"
    return next(iter(floats)) if floats in ({"f16"}, {"bf16"}) else "f32"


#: From which the integers of data are drawn, where they are not small.
RANGE_OF_DATA = {"i64": (-(2**33), 2**33), "i32": (-100_000, 100_000), "i8": (-128, 127), "u8": (0, 255)}
RANGE_OF_DATA |= {"i4": (-8, 7), "u4": (0, 15)}
