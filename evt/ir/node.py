"""What stands in a graph's nodes, and the program's interface. All flat, frozen and hashable.

::

    Node = Acc                  the accumulator, [m, n] of each batch
         | Element(name)        an element of the operand A or B, before it is multiplied
         | Load(name)           an input, as stored; its facts are in Dag.inputs
         | Const(bits, modes)   a constant, rounded to the type of the operation that reads it
         | Apply(function)      a function of evt.functions.TABLE, operands in slots 0, 1, ...
         | Cast(dtype)          a rounding point: the operand rounded to dtype (to nearest even, saturating)
         | Reduce(kind, modes)  sum, max or min over modes, or where an extreme value is: complete when the kernel ends;
                                what is computed of it after that is stored
         | ReduceBlocks(kind, width)    sum, max or min over each aligned block of columns: known within the kernel
         | Pick(member, block)  of each pair of columns the first (0) or the second (1): half as many columns
         | Interleave(block)    the columns of two values of half as many: what Pick takes apart
         | Index(mode)          the element's coordinate, i32
         | Extent(mode)         the size of a mode, i32
         | Random()             Philox numbers in [0, 1) for a seed and an offset (two scalars, i32 or i64)
         | Store(name)          an output; its facts are in Dag.outputs
         | Feed(name)           what is multiplied in the place of the operand A or B, rounded to the operand's type

Modes are ``l`` (batch), ``m`` (rows) and ``n`` (columns). A value of half as many columns has the mode ``n/2@1``,
``n/2@32`` where the pairs lie 32 columns apart; a tensor of so many columns ``n/2``, which fits either. A value for
each block of 32 columns has ``n/32``, of 32 half-width columns ``n/64``. The operands' formulas, from Element to Feed,
have the mode ``k`` that the product sums over: those of A vary over m and k, those of B over k and n, and none of their
values meets the epilogue's.

A tensor whose rows are read or stored where an input says has the mode ``index[m]``: of any extent, and its value
varies over m. ``index`` is an integer for each row, ``[m]`` or ``[l, m]``; what is out of range reads as 0 and is not
stored. Likewise ``index[n]`` for columns.

Every kind but Apply, whose facts are its row's, says how many operands it has (``arity``) and what it costs on a GPU in
``instructions`` per element, roughly.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import ClassVar, Literal, TypeAlias, get_args

from evt.diagnostics import Span
from evt.ir.dtype import B1, DType

#: Index modes in canonical order: batch, rows, columns.
MODES = ("l", "m", "n")
#: What of an operand, input or output the program leaves to inference.
Inferred: TypeAlias = Literal["type", "modes"]
INFERRED: tuple[Inferred, ...] = get_args(Inferred)
#: The modes of the operands' elements, in canonical order.
ELEMENT_MODES = {"A": ("m", "k"), "B": ("n", "k")}


@dataclass(frozen=True, slots=True)
class Acc:
    arity: ClassVar[int] = 0
    instructions: ClassVar[int] = 0


@dataclass(frozen=True, slots=True)
class Element:
    name: str
    arity: ClassVar[int] = 0
    instructions: ClassVar[int] = 0


@dataclass(frozen=True, slots=True)
class Load:
    name: str
    arity: ClassVar[int] = 0
    instructions: ClassVar[int] = 0


@dataclass(frozen=True, slots=True)
class Const:
    """A constant, kept as the bits of its double so that -0.0 and 0.0 stay apart.

    Where it replaces a tensor it has the tensor's ``modes``, because the width of something may depend on them.
    """

    bits: int
    modes: tuple[str, ...] = ()
    arity: ClassVar[int] = 0
    instructions: ClassVar[int] = 0

    @staticmethod
    def of(value: float, modes: tuple[str, ...] = ()) -> Const:
        return Const(struct.unpack("<Q", struct.pack("<d", value))[0], modes)

    @property
    def value(self) -> float:
        number: float = struct.unpack("<d", struct.pack("<Q", self.bits))[0]
        return number

    @property
    def is_integer(self) -> bool:
        """Whether it is an i32 beside integers; -0.0 is not."""
        value = self.value
        return value.is_integer() and -(2**31) <= value < 2**31 and not (value == 0 and math.copysign(1, value) < 0)


@dataclass(frozen=True, slots=True)
class Apply:
    function: str


@dataclass(frozen=True, slots=True)
class Cast:
    dtype: DType
    arity: ClassVar[int] = 1
    instructions: ClassVar[int] = 1


#: Kinds of reductions, by the function of the table that combines two values.
REDUCTIONS = {"sum": "add", "max": "max", "min": "min"}
#: Kinds of reductions that give the place of a value, by that which gives the value.
PLACES = {"argmax": "max", "argmin": "min"}


@dataclass(frozen=True, slots=True)
class Reduce:
    kind: str
    modes: tuple[str, ...]
    arity: ClassVar[int] = 1
    instructions: ClassVar[int] = 2


@dataclass(frozen=True, slots=True)
class ReduceBlocks:
    kind: str
    width: int
    arity: ClassVar[int] = 1

    @property
    def instructions(self) -> int:
        return 2 + self.width.bit_length()


@dataclass(frozen=True, slots=True)
class Pick:
    """Deinterleaves columns: pairs are 2j and 2j + 1 if ``block`` is 1, else c and c + block for c in an even block."""

    member: int
    block: int
    arity: ClassVar[int] = 1
    instructions: ClassVar[int] = 2


@dataclass(frozen=True, slots=True)
class Interleave:
    """Its operands are the first and the second members of pairs as those of :class:`Pick`."""

    block: int
    arity: ClassVar[int] = 2
    instructions: ClassVar[int] = 1


@dataclass(frozen=True, slots=True)
class Index:
    mode: str
    arity: ClassVar[int] = 0
    instructions: ClassVar[int] = 1


@dataclass(frozen=True, slots=True)
class Extent:
    """The size of a mode at run time; ``k`` is what the product sums over, of a convolution taps times channels."""

    mode: str
    arity: ClassVar[int] = 0
    instructions: ClassVar[int] = 0


@dataclass(frozen=True, slots=True)
class Random:
    arity: ClassVar[int] = 2
    instructions: ClassVar[int] = 24  # ten rounds of Philox for two numbers


@dataclass(frozen=True, slots=True)
class Store:
    name: str
    arity: ClassVar[int] = 1
    instructions: ClassVar[int] = 0


@dataclass(frozen=True, slots=True)
class Feed:
    name: str
    arity: ClassVar[int] = 1
    instructions: ClassVar[int] = 0


Node: TypeAlias = (
    Acc
    | Element
    | Load
    | Const
    | Apply
    | Cast
    | Reduce
    | ReduceBlocks
    | Pick
    | Interleave
    | Index
    | Extent
    | Random
    | Store
    | Feed
)


@cache
def base(mode: str) -> str:
    """Return the undivided mode, or that along which an index lies: ``n`` of ``n/2``, ``m`` of ``index[m]``."""
    return mode.partition("/")[0].rpartition("[")[2].rstrip("]")


def index_of(mode: str) -> str:
    """Return the input that names the places along a mode: ``index`` of ``index[m]``; nothing of other modes."""
    return mode.rpartition("[")[0]


def direct(mode: str) -> str:
    """Return the mode over which values read or stored at a mode vary: ``m`` of ``index[m]``, any other itself."""
    return base(mode) if index_of(mode) else mode


def is_divided(mode: str) -> bool:
    """Return whether a mode has fewer places than the one that it divides: ``n/2``, ``n/32``."""
    return "/" in mode


def divisor(mode: str) -> int:
    """Return how many elements of its base mode one element of this mode stands for."""
    number = mode.partition("/")[2].partition("@")[0]
    return int(number) if number else 1


def distance(mode: str) -> int:
    """Return how far apart the two columns are that one column of this mode stands for; 1 of other modes."""
    return int(mode.partition("@")[2] or 1)


def is_paired(mode: str) -> bool:
    """Return whether a mode says how far apart the columns of its pairs are: ``n/2@32``."""
    return "@" in mode


def written(mode: str) -> str:
    """Return the mode as a program writes it, without the distance of the pairs."""
    return mode.partition("@")[0]


def shown(modes: Iterable[str]) -> str:
    """Return modes as a program writes them."""
    return ", ".join(map(written, modes))


@dataclass(frozen=True, slots=True)
class ValueType:
    """The type a value has and the modes it varies over, in the order of :data:`MODES`.

    ``constant``: it depends on constants only, which take the type of what they meet.
    """

    dtype: DType
    modes: tuple[str, ...]
    constant: bool = False

    @staticmethod
    @cache
    def of(dtype: DType, modes: tuple[str, ...], constant: bool = False) -> ValueType:
        """Return a type; equal types are one object, since there are few, and a graph has many values."""
        return ValueType(dtype, modes, constant)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(self.modes)}]"


@dataclass(frozen=True, slots=True)
class Operand:
    """A or B: name, type, and modes in the order of the tensor's shape, ``("m", "k")`` or ``("k", "m")``.

    ``span``: where a header declares it.
    """

    name: str
    dtype: DType
    modes: tuple[str, ...]
    span: Span | None = field(default=None, compare=False)
    inferred: tuple[Inferred, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Input:
    """An input, of the epilogue or of a mainloop fusion.

    ``modes`` are in the order of the tensor's shape. ``dtype`` None means undeclared: it follows D's.
    ``batchable``: no subscript was written, so a batched call may give it with a leading batch mode.
    ``default`` makes it optional: the value of a scalar, or of every element of a tensor, that a call leaves out.
    It is a Python int for an integer or truth type, which keeps 64 bits, and otherwise a float.
    ``flexible``: ``[m?]``, a vector or a single value, decided at call time.
    ``span``: where its name is declared, or else read first; ``default_span``: where its default is written.
    """

    name: str
    dtype: DType | None
    modes: tuple[str, ...]
    default: float | None = None
    batchable: bool = False
    flexible: bool = False
    span: Span | None = field(default=None, compare=False)
    default_span: Span | None = field(default=None, compare=False)
    inferred: tuple[Inferred, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        if self.default is not None:
            kept = float(self.default) if self.dtype is None else self.dtype.number(self.default)
            object.__setattr__(self, "default", kept)

    @property
    def is_indexed(self) -> bool:
        """Whether it is gathered: read at places that another input names."""
        return any(map(index_of, self.modes))

    @property
    def is_scalar(self) -> bool:
        return not set(map(base, self.modes)) & {"m", "n", "k"}

    @property
    def is_tile(self) -> bool:
        """Whether it has rows and columns."""
        return {"m", "n"} <= set(map(base, self.modes))

    @property
    def is_whole(self) -> bool:
        """Whether it has whole elements for all rows and columns: no bits, no fewer columns."""
        return self.is_tile and self.dtype != B1 and not any(is_divided(mode) for mode in self.modes)


@dataclass(frozen=True, slots=True)
class Output:
    """An output; ``modes`` are in the order of the tensor's shape, so ``("n", "m")`` stores the transpose.

    ``batchable``: no ``l`` is written, and a batched call gives it a leading batch mode.
    ``span``: where its name is declared, or else assigned.
    """

    name: str
    dtype: DType | None
    modes: tuple[str, ...]
    batchable: bool = True
    span: Span | None = field(default=None, compare=False)
    inferred: tuple[Inferred, ...] = field(default=(), compare=False)

    @property
    def is_indexed(self) -> bool:
        """Whether it is scattered: stored at places that an input names, into a buffer that the call gives."""
        return any(map(index_of, self.modes))

    @property
    def memory_modes(self) -> tuple[str, ...]:
        """The modes of the tensor: the written ones, after an implied batch mode."""
        return ("l", *self.modes) if self.batchable and "l" not in self.modes else self.modes

    @property
    def is_tile(self) -> bool:
        """Whether it has rows and columns."""
        return {"m", "n"} <= set(map(base, self.modes))

    @property
    def is_whole(self) -> bool:
        """Whether it has whole elements for all rows and columns: no bits, no fewer columns."""
        return self.is_tile and self.dtype != B1 and not any(is_divided(mode) for mode in self.modes)
