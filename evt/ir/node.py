"""The node kinds of a graph, and the program's interface. All are flat, frozen and hashable.

::

    Node = Acc(name)            the accumulator: the product of A and B, or of A and an input, [m, n] of each batch
         | Element(name)        an element of the operand A or B, before the product
         | Load(name)           an input, as stored; its facts are in Dag.inputs
         | Const(bits, modes)   a constant, rounded to the type of the operation that reads it
         | Apply(function)      a function of evt.functions.TABLE, operands in slots 0, 1, ...
         | Cast(dtype)          a rounding point: the operand rounded to dtype (to nearest even, saturating)
         | Reduce(kind, modes)  sum, max, min, mean or var over modes, or the place of an extreme value: complete when
                                the kernel ends; arithmetic on it follows the kernel
         | ReduceBlocks(kind, width)    sum, max or min over each aligned block of columns: complete within the kernel
         | Pick(member, block)  the first (0) or second (1) column of each pair: half the columns
         | Interleave(block)    all columns from two values with half the columns: the inverse of Pick
         | Index(mode)          the element's coordinate, i32
         | Extent(mode)         the size of a mode, i32
         | Random()             Philox numbers in [0, 1) for a seed and an offset (two scalars, i32 or i64)
         | Store(name)          an output; its facts are in Dag.outputs
         | Feed(name)           the value that replaces the operand A or B in the product, rounded to its type
         | Scale(name)          the factor of A or B that is constant over blocks of k: it multiplies sums in f32

Modes are ``l`` (batch), ``m`` (rows) and ``n`` (columns). A value with half the columns has the mode ``n/2@1``, or
``n/2@32`` if the pairs lie 32 columns apart. A tensor with half the columns has ``n/2``, which fits either. A value for
each block of 32 columns has ``n/32``; for each block of 32 half-width columns it has ``n/64``. A reduction of blocks
names the mode of the blocks: ``Reduce("sum", ("m", "n/10"))`` sums all rows of each block of 10 columns. In a
convolution ``m/p`` are the images: a reduction over ``m/p`` has a value for each image. The operands' formulas,
from Element to Feed, have the contraction mode ``k``: formulas of A vary over m and k, formulas of B over k and n.
Their values do not reach the epilogue. A value for each block of 128 elements of k has ``k/128``. The inputs of a Scale
have such blocks of m, n and k. The last block may be partial.

A tensor that is gathered or scattered by rows has the mode ``index[m]``: any extent, and its value varies over m.
``index`` is an integer for each row, ``[m]`` or ``[l, m]``. A place out of range reads as 0 and is not stored. Likewise
``index[n]`` for columns.

Every kind except Apply declares its number of operands (``arity``) and its approximate cost on a GPU, in
``instructions`` per element. Apply takes both from its row in the function table.
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
#: The mode of the images of a convolution: blocks of rows, whose size a call has.
IMAGES = "m/p"
#: The parts of an operand, input or output that inference completes.
Inferred: TypeAlias = Literal["type", "modes"]
INFERRED: tuple[Inferred, ...] = get_args(Inferred)
#: The input with the ends of groups of rows, of a program whose groups have a B each. No node reads it.
OFFSETS = "offsets"
#: The modes of the operands' elements, in canonical order.
ELEMENT_MODES = {"A": ("m", "k"), "B": ("n", "k")}


@dataclass(frozen=True, slots=True)
class Acc:
    """A product of A: of A and B, or of A and an input with the modes of B, ``matmul(A, up)``."""

    name: str = "B"
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
    """A constant, stored as the bits of a double so that -0.0 and 0.0 differ.

    A constant that replaces a tensor has the tensor's ``modes``, because the width of a value may depend on them.
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
        """True if it is an i32 among integers; -0.0 is not."""
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
#: Kinds of reductions that give the place of a value, with the kind that gives the value.
PLACES = {"argmax": "max", "argmin": "min"}
#: Kinds of reductions whose parts are moments: a count, a mean and a centred sum of squares. ``var`` divides by the
#: count. A ``mean`` shares the parts of a ``var``; the optimiser replaces other means by sums.
MOMENTS = ("mean", "var")


@dataclass(frozen=True, slots=True)
class Reduce:
    kind: str
    modes: tuple[str, ...]
    arity: ClassVar[int] = 1

    @property
    def over(self) -> frozenset[str]:
        """The undivided modes that it reduces, also within blocks."""
        return frozenset(map(base, self.modes))

    @property
    def is_within(self) -> bool:
        """True if it reduces blocks: images, or groups of columns."""
        return any(map(is_divided, self.modes))

    @property
    def instructions(self) -> int:
        return 12 if self.kind in MOMENTS else 2


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
    """One column of each pair.

    If ``block`` is 1 the pairs are columns 2j and 2j + 1; otherwise c and c + block, for c in an even block.
    """

    member: int
    block: int
    arity: ClassVar[int] = 1
    instructions: ClassVar[int] = 2


@dataclass(frozen=True, slots=True)
class Interleave:
    """All columns from the first and second members of pairs, as :class:`Pick` defines pairs."""

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
    """The size of a mode at run time. ``k`` is the length of the product's sums; in a convolution, taps times
    channels.
    """

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


@dataclass(frozen=True, slots=True)
class Scale:
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
    | Scale
)

#: The nodes that nothing reads: the results of a program.
ROOTS = (Store, Feed, Scale)


@cache
def base(mode: str) -> str:
    """Return the undivided mode, or the mode that an index lies along: ``n`` for ``n/2``, ``m`` for ``index[m]``."""
    return mode.partition("/")[0].rpartition("[")[2].rstrip("]")


def index_of(mode: str) -> str:
    """Return the input that indexes a mode: ``index`` for ``index[m]``; "" for other modes."""
    return mode.rpartition("[")[0]


def direct(mode: str) -> str:
    """Return the mode over which values at a mode vary: ``m`` for ``index[m]``, otherwise the mode."""
    return base(mode) if index_of(mode) else mode


def is_divided(mode: str) -> bool:
    """Return whether a mode has fewer elements than its base mode: ``n/2``, ``n/32``."""
    return "/" in mode


def divisor(mode: str) -> int:
    """Return the number of elements of the base mode for each element of this mode; 1 for images."""
    number = mode.partition("/")[2].partition("@")[0]
    return int(number) if number.isdigit() else 1


def within(modes: Iterable[str], operand: Iterable[str]) -> tuple[str, ...]:
    """Return the modes of a value for each block that a reduction names: ``n/32`` for blocks of 16 half columns."""
    columns = next((divisor(mode) for mode in operand if base(mode) == "n"), 1)
    return tuple(f"n/{divisor(mode) * columns}" if base(mode) == "n" else mode for mode in modes if is_divided(mode))


def blocks_of(mode: str, extent: int) -> int:
    """Return the extent of a mode whose base mode has an extent; the last block may be partial."""
    return -(-extent // divisor(mode))


def distance(mode: str) -> int:
    """Return the distance of the two columns behind one column of this mode; 1 for other modes."""
    return int(mode.partition("@")[2] or 1)


def is_paired(mode: str) -> bool:
    """Return whether a mode determines the distance of its pairs: ``n/2@32``."""
    return "@" in mode


def written(mode: str) -> str:
    """Return the mode as a program writes it, without the distance of the pairs."""
    return mode.partition("@")[0]


def shown(modes: Iterable[str]) -> str:
    """Return modes as a program writes them."""
    return ", ".join(map(written, modes))


def reduced_text(modes: Iterable[str]) -> str:
    """Return the modes of a reduction as a program writes them: ``m%p, n%16``."""
    return ", ".join(mode.replace("/", "%") for mode in modes)


@dataclass(frozen=True, slots=True)
class ValueType:
    """The type and the modes of a value, in the order of :data:`MODES`.

    ``constant`` means that it depends on constants only, which take the type of their operation.
    """

    dtype: DType
    modes: tuple[str, ...]
    constant: bool = False

    @staticmethod
    @cache
    def of(dtype: DType, modes: tuple[str, ...], constant: bool = False) -> ValueType:
        """Return a type. Equal types are one object, because there are few types and many values."""
        return ValueType(dtype, modes, constant)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(self.modes)}]"


@dataclass(frozen=True, slots=True)
class Operand:
    """A or B: name, type, and modes in the order of the tensor's shape, ``("m", "k")`` or ``("k", "m")``.

    ``span`` is its place in a header.
    """

    name: str
    dtype: DType
    modes: tuple[str, ...]
    span: Span | None = field(default=None, compare=False)
    inferred: tuple[Inferred, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Input:
    """An input of the epilogue or of a mainloop fusion.

    ``modes`` are in the order of the tensor's shape. ``dtype`` None means undeclared: it has the type of D.
    ``batchable``: it has no subscript, so a batched call may pass it with a leading batch mode. ``default`` makes it
    optional: it replaces a scalar, or every element of a tensor, that a call omits. It is a Python int for an integer
    or truth type, which keeps 64 bits, and otherwise a float. ``flexible``: ``[m?]``, a vector or a single value; the
    call decides. ``span`` is the place of its declaration, or of its first use; ``default_span`` is the place of its
    default.
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
        """True if it is gathered: another input indexes it."""
        return any(map(index_of, self.modes))

    @property
    def is_scalar(self) -> bool:
        return not set(map(base, self.modes)) & {"m", "n", "k"}

    @property
    def is_blocked(self) -> bool:
        """True if it has a value for each block of k: only the factor of an operand reads it."""
        return any(base(mode) == "k" and is_divided(mode) for mode in self.modes)

    @property
    def is_tile(self) -> bool:
        """True if it has rows and columns."""
        return {"m", "n"} <= set(map(base, self.modes))

    @property
    def is_whole(self) -> bool:
        """True if it has whole elements for all rows and columns: no bits, no fewer columns."""
        return self.is_tile and self.dtype != B1 and not any(is_divided(mode) for mode in self.modes)


@dataclass(frozen=True, slots=True)
class Output:
    """An output. ``modes`` are in the order of the tensor's shape, so ``("n", "m")`` stores the transpose.

    ``batchable``: it has no ``l``, and a batched call gives it a leading batch mode. ``span`` is the place of its
    declaration, or of its assignment.
    """

    name: str
    dtype: DType | None
    modes: tuple[str, ...]
    batchable: bool = True
    span: Span | None = field(default=None, compare=False)
    inferred: tuple[Inferred, ...] = field(default=(), compare=False)

    @property
    def is_indexed(self) -> bool:
        """True if it is scattered: an input indexes it, and the call passes the buffer."""
        return any(map(index_of, self.modes))

    @property
    def of_images(self) -> bool:
        """True if it has a value for each image, and not for each pixel."""
        return IMAGES in self.modes

    @property
    def memory_modes(self) -> tuple[str, ...]:
        """The modes of the tensor: the written modes, after an implied batch mode."""
        return ("l", *self.modes) if self.batchable and "l" not in self.modes else self.modes

    @property
    def is_tile(self) -> bool:
        """True if it has rows and columns."""
        return {"m", "n"} <= set(map(base, self.modes)) and not self.of_images

    @property
    def is_whole(self) -> bool:
        """True if it has whole elements for all rows and columns: no bits, no fewer columns."""
        return self.is_tile and self.dtype != B1 and not any(is_divided(mode) for mode in self.modes)
