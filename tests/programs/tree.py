"""A program as data, and as the text that evt reads.

Names in the tree are resolved: a :class:`Read` is of an input, of a value that is assigned above, or of a parameter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import TypeAlias


@dataclass(frozen=True)
class Acc:
    pass


@dataclass(frozen=True)
class Element:
    """An element of the operand A or B, in its own formula."""

    operand: str


@dataclass(frozen=True)
class Number:
    """A literal as it is written, perhaps with a sign."""

    text: str

    @property
    def value(self) -> float:
        return float(self.text)


@dataclass(frozen=True)
class Read:
    """A name; ``subscript`` as written at this use."""

    name: str
    subscript: str = ""


@dataclass(frozen=True)
class Call:
    """A function of the table or of the program's own; ``word`` is an operator or a name for it.

    The last arguments have the keywords ``names``.
    """

    function: str
    arguments: tuple[Expression, ...]
    word: str = ""
    names: tuple[str, ...] = ()
    primes: int = 0


@dataclass(frozen=True)
class Cast:
    type: str
    x: Expression
    word: str = ""


@dataclass(frozen=True)
class Reduce:
    """``sum[n](x)``, complete when the kernel ends; ``mean[n](x)`` and ``var[n](x)`` divide by the count.

    ``argmax[n](x)`` is where the first of the largest is.
    """

    kind: str
    modes: tuple[str, ...]
    x: Expression


@dataclass(frozen=True)
class Block:
    """``max[n%32](x)``, of each block of columns, or of half-width columns."""

    kind: str
    width: int
    x: Expression


@dataclass(frozen=True)
class Pair:
    """``even(x)`` and ``odd(x, 32)``."""

    member: int
    distance: int
    x: Expression


@dataclass(frozen=True)
class Interleave:
    """``interleave(x, y, 32)``: the columns of two values of half the width."""

    x: Expression
    y: Expression
    distance: int


@dataclass(frozen=True)
class Iota:
    mode: str


@dataclass(frozen=True)
class Size:
    """``size(n)``, the extent of a mode."""

    mode: str


@dataclass(frozen=True)
class Rand:
    seed: Expression
    offset: Expression


@dataclass(frozen=True)
class Dropout:
    x: Expression
    p: Expression
    seed: Expression
    offset: Expression


Expression: TypeAlias = (
    Acc | Element | Number | Read | Call | Cast | Reduce | Block | Pair | Interleave | Iota | Size | Rand | Dropout
)
OPERATORS = dict(
    zip(
        ("add", "sub", "mul", "div", "pow", "lt", "le", "gt", "ge", "eq", "ne", "logical_and", "logical_or"),
        ["+", "-", "*", "/", "**", "<", "<=", ">", ">=", "==", "!=", "&&", "||"],
        strict=True,
    )
)
PREFIXES = {"neg": "-", "logical_not": "!"}


def children(node: Expression) -> tuple[Expression, ...]:
    if isinstance(node, Call):
        return node.arguments
    values = (getattr(node, each.name) for each in fields(node))
    return tuple(each for each in values if isinstance(each, NODES))


def with_children(node: Expression, new: tuple[Expression, ...]) -> Expression:
    if isinstance(node, Call):
        return replace(node, arguments=new)
    names = [each.name for each in fields(node) if isinstance(getattr(node, each.name), NODES)]
    return replace(node, **dict(zip(names, new, strict=True)))


def walk(node: Expression) -> Iterator[Expression]:
    """Yield a node and all its parts."""
    yield node
    for child in children(node):
        yield from walk(child)


NODES = (Acc, Element, Number, Read, Call, Cast, Reduce, Block, Pair, Interleave, Iota, Size, Rand, Dropout)


@dataclass(frozen=True)
class Input:
    """An input. ``modes`` are its meaning; an undeclared one has them by its name, or by the subscript at its use.

    ``type`` None leaves the type open. ``given`` is how a call gives it: ``"tensor"``, ``"number"``, ``"element"`` (a
    tensor of one element), ``"batched"`` (with the batch's dimensions, which the program leaves open), ``"absent"``.
    ``indexed`` are the modes of the indices that say where it is read: ``"m"``, or ``"lm"`` of one for each batch.
    """

    name: str
    modes: tuple[str, ...]
    type: str | None
    declared: bool = True
    flexible: bool = False
    default: str = ""
    given: str = "tensor"
    indexed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Output:
    """An output. ``modes`` are its meaning without an implied batch; ``subscript`` whether they are written.

    ``indexed`` are the modes of the indices of its stores, as for inputs.
    """

    name: str
    modes: tuple[str, ...]
    type: str | None = None
    subscript: bool = True
    indexed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Define:
    name: str
    parameters: tuple[str, ...]
    body: Expression


@dataclass(frozen=True)
class Assign:
    name: str
    value: Expression


@dataclass(frozen=True)
class Factor:
    """An input, with a value for each block of k, by which an operand is multiplied or divided."""

    operand: str
    name: str
    divides: bool


@dataclass(frozen=True)
class Sizes:
    """The extents of a problem: ``batch`` dimensions, rows (several of ``linear``), columns and k."""

    batch: tuple[int, ...] = ()
    rows: tuple[int, ...] = (5,)
    n: int = 8
    k: int = 4


@dataclass(frozen=True)
class Geometry:
    """A convolution: its keywords, one number a dimension, and the sizes of one problem.

    ``padding`` has (before, after) pairs; ``words`` are the keywords as a call gives them.
    """

    operator: str
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int
    filter: tuple[int, ...]
    pixels: tuple[int, ...]
    images: int
    channels: int
    filters: int
    words: tuple[tuple[str, object], ...] = ()

    @property
    def rank(self) -> int:
        return len(self.stride)

    @property
    def results(self) -> tuple[int, ...]:
        """The pixels of the output."""
        rows = zip(self.pixels, self.padding, self.dilation, self.filter, self.stride, strict=True)
        return tuple((size + sum(pad) - step * (taps - 1) - 1) // stride + 1 for size, pad, step, taps, stride in rows)


@dataclass(frozen=True)
class Style:
    """Other words for the same program.

    ``together``: one statement declares all inputs. ``subscript_first``: ``in x[m]: f32``. ``assigned``: the subscripts
    of outputs are written at their assignments. ``sparse``: parentheses only where the grammar needs them.
    """

    together: bool = False
    subscript_first: bool = False
    assigned: bool = False
    sparse: bool = False


PLAIN_STYLE = Style()


@dataclass(frozen=True)
class Program:
    """A program, how it is compiled, and the kind of call that it is tried with.

    ``views``: the call gives parts of larger tensors, with strides of all kinds.
    """

    operation: str = "gemm"
    a: str = "f16"
    b: str = "f16"
    header: tuple[tuple[str, ...], tuple[str, ...]] | None = None
    inputs: tuple[Input, ...] = ()
    outputs: tuple[Output, ...] = ()
    declares_outputs: bool = True
    defines: tuple[Define, ...] = ()
    assigns: tuple[Assign, ...] = ()
    feeds: tuple[Assign, ...] = ()
    factors: tuple[Factor, ...] = ()
    settings: tuple[tuple[str, object], ...] = ()
    sizes: Sizes = field(default_factory=Sizes)
    geometry: Geometry | None = None
    groups: tuple[Sizes, ...] = ()
    data: str = "plain"
    transposed: tuple[bool, bool] = (False, False)
    views: bool = False
    separator: str = "\n"
    seed: int = 0
    style: Style = PLAIN_STYLE

    @property
    def text(self) -> str:
        from .text import statements

        return self.separator.join(statements(self))

    @property
    def operand_modes(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The modes of A's and B's last two dimensions, of a matrix product."""
        if self.header and self.header[0]:
            return self.header
        return ("m", "k"), (("n", "k") if self.operation == "linear" else ("k", "n"))

    @property
    def by_offsets(self) -> bool:
        """Whether the groups are consecutive rows, whose ends are on the device."""
        return dict(self.settings).get("route") == "gemm-own-ragged"

    def expressions(self) -> Iterator[Expression]:
        bodies = [each.body for each in self.defines]
        for each in (*bodies, *(each.value for each in (*self.assigns, *self.feeds))):
            yield from walk(each)

    def __str__(self) -> str:
        from .text import describe_call

        return f"{self.text}\n{describe_call(self)}"


def index_name(index: str) -> str:
    """Return the input that says where others are read or stored, by its modes: ``"m"``, ``"lm"``."""
    return f"index_{index}"


GREEK = ("alpha", "beta", "gamma", "delta", "theta", "kappa", "sigma", "omega", "mu")


def is_constant(node: Expression) -> bool:
    """Return whether an expression is made of literals only."""
    if isinstance(node, Number):
        return True
    return isinstance(node, Call) and not node.primes and all(map(is_constant, node.arguments))


def surviving(node: Expression) -> Iterator[Expression]:
    """Yield the parts of an expression, without the arguments of derivatives, which may cancel."""
    yield node
    if not (isinstance(node, Call) and node.primes):
        for child in children(node):
            yield from surviving(child)
