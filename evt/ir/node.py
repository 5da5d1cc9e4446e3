"""What stands in a graph's nodes, and the program's interface. All flat, frozen and hashable.

::

    Node = Acc                the accumulator, [m, n] of each batch
         | Load(name)         an input, as stored; its facts are in Dag.inputs
         | Const(bits)        an f32 constant
         | Apply(function)    a function of evt.functions.TABLE, operands in slots 0, 1, ...
         | Cast(dtype)        a rounding point: the operand rounded to dtype (to nearest even)
         | Store(name)        an output; its facts are in Dag.outputs
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TypeAlias

from evt.diagnostics import Span
from evt.ir.dtype import DType

#: Index modes in canonical order: batch, rows, columns.
MODES = ("l", "m", "n")


@dataclass(frozen=True, slots=True)
class Acc:
    pass


@dataclass(frozen=True, slots=True)
class Load:
    name: str


@dataclass(frozen=True, slots=True)
class Const:
    """An f32 constant, kept as its bits so that -0.0 and 0.0 stay apart."""

    bits: int

    @staticmethod
    def of(value: float) -> Const:
        """The constant nearest to ``value``. Raises OverflowError when that is beyond f32."""
        return Const(struct.unpack("<I", struct.pack("<f", value))[0])

    @property
    def value(self) -> float:
        number: float = struct.unpack("<f", struct.pack("<I", self.bits))[0]
        return number


@dataclass(frozen=True, slots=True)
class Apply:
    function: str


@dataclass(frozen=True, slots=True)
class Cast:
    dtype: DType


@dataclass(frozen=True, slots=True)
class Store:
    name: str


Node: TypeAlias = Acc | Load | Const | Apply | Cast | Store


@dataclass(frozen=True, slots=True)
class ValueType:
    """The type a value has and the modes it varies over, in the order of :data:`MODES`."""

    dtype: DType
    modes: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(self.modes)}]"


@dataclass(frozen=True, slots=True)
class Operand:
    """A or B: name, type, and modes in the order of the tensor's shape, ``("m", "k")`` or ``("k", "m")``."""

    name: str
    dtype: DType
    modes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Input:
    """An epilogue input.

    ``modes`` are in the order of the tensor's shape. ``dtype`` None means undeclared: it follows D's.
    ``batchable``: no subscript was written, so that a batched call may give it with a leading batch mode.
    ``default`` makes a scalar optional.
    """

    name: str
    dtype: DType | None
    modes: tuple[str, ...]
    default: float | None = None
    batchable: bool = False
    span: Span | None = field(default=None, compare=False)

    @property
    def is_scalar(self) -> bool:
        return not set(self.modes) & {"m", "n"}

    @property
    def is_tile(self) -> bool:
        """Whether it has an element for each element of D's rows and columns."""
        return {"m", "n"} <= set(self.modes)


@dataclass(frozen=True, slots=True)
class Output:
    """An output; ``modes`` are in the order of the tensor's shape, so ``("n", "m")`` stores the transpose."""

    name: str
    dtype: DType | None
    modes: tuple[str, ...]
    batchable: bool = True
    span: Span | None = field(default=None, compare=False)
