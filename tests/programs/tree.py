"""A program as data, and as the text that evt reads.

Names in the tree are resolved: a :class:`Read` is of an input, of a value that is assigned above, or of a parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
    """``sum[n](x)``, complete when the kernel ends; ``mean[n](x)`` is a sum over how many there are.

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
    """``interleave(x, y, 32)``: the columns of two values of half as many."""

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

    ``indexed`` are the modes of the indices that say where it is stored, as those of inputs.
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
        return self.separator.join(_statements(self))

    @property
    def operand_modes(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The modes of A's and B's last two dimensions, of a matrix product."""
        if self.header and self.header[0]:
            return self.header
        return ("m", "k"), (("n", "k") if self.operation == "linear" else ("k", "n"))

    def expressions(self) -> Iterator[Expression]:
        for each in (*self.defines, *self.assigns, *self.feeds):
            yield from walk(each.body if isinstance(each, Define) else each.value)

    def __str__(self) -> str:
        return f"{self.text}\n{describe_call(self)}"


def describe_call(program: Program) -> str:
    """Return what belongs to a program besides its text."""
    parts = [f"operation {program.operation}", f"A {program.a}", f"B {program.b}"]
    parts += [f"{key}={value!r}" for key, value in program.settings]
    parts += ["views"] if program.views else []
    if program.geometry:
        parts.append(f"{program.geometry}")
    else:
        parts.append(f"{program.groups or program.sizes}")
    given = [f"{each.name} {each.given}" for each in program.inputs if each.given != "tensor"]
    return f"# seed {program.seed}: {', '.join([*parts, f'data {program.data}', *given])}"


def _statements(program: Program) -> Iterator[str]:
    if program.header:
        operands = zip("AB", (program.a, program.b), program.header, strict=True)
        written = (f"{name}: {dtype}" + (f"[{', '.join(modes)}]" if modes else "") for name, dtype, modes in operands)
        operation = "gemm" if program.operation == "grouped_gemm" else program.operation
        yield f"{operation}({', '.join(written)})"
    style = program.style
    declared = [declaration(each, style.subscript_first) for each in program.inputs if each.declared]
    if declared and style.together:
        yield f"in {', '.join(declared)}"
    else:
        yield from (f"in {each}" for each in declared)
    at_assignment = {each.name: _subscript(each) for each in program.outputs if style.assigned and each.subscript}
    if program.declares_outputs:
        outputs = []
        for each in program.outputs:
            subscript = _subscript(each) if each.subscript and not style.assigned else ""
            outputs.append(_typed(each.name, each.type, subscript, style.subscript_first))
        yield f"out {', '.join(outputs)}"
    for each in program.defines:
        yield f"def {each.name}({', '.join(each.parameters)}) = {_shown(each.body, style)}"
    for each in (*program.feeds, *program.assigns):
        yield f"{each.name}{at_assignment.get(each.name, '')} = {_shown(each.value, style)}"


def _subscript(value: Input | Output) -> str:
    return f"[{', '.join(written_modes(value))}]"


def _typed(name: str, dtype: str | None, subscript: str, subscript_first: bool) -> str:
    if not dtype:
        return name + subscript
    return f"{name}{subscript}: {dtype}" if subscript_first else f"{name}: {dtype}{subscript}"


def _shown(node: Expression, style: Style) -> str:
    return show_sparse(node) if style.sparse else show(node)


def declaration(value: Input, subscript_first: bool = False) -> str:
    modes = written_modes(value)
    subscript = ", ".join(f"{mode}?" if value.flexible and mode != "l" else mode for mode in modes)
    text = _typed(value.name, value.type, f"[{subscript}]" if subscript else "", subscript_first)
    return text + (f" = {value.default}" if value.default else "")


def written_modes(value: Input | Output) -> list[str]:
    """Return the modes of a subscript, with the indices: ``index_m[m]``."""
    found = {index[-1]: f"{index_name(index)}[{', '.join(index)}]" for index in value.indexed}
    return [found.get(mode, mode) for mode in value.modes]


def index_name(index: str) -> str:
    """Return the input that says where others are read or stored, by its modes: ``"m"``, ``"lm"``."""
    return f"index_{index}"


GREEK = ("alpha", "beta", "gamma", "delta", "theta", "kappa", "sigma", "omega", "mu")


def show(node: Expression) -> str:
    """Return an expression, with parentheses around every operation."""
    if _is_operation(node):
        return f"({_operation(node, show, show)})"
    if isinstance(node, Number) and node.text.startswith("-"):
        return f"({node.text})"
    return _atom(node, show)


#: How tightly operators bind, as grammar/evt.lark has it; ``_ATOM`` binds what needs no parentheses.
_BINDING = {
    "||": 1,
    "&&": 2,
    "!": 3,
    "+": 5,
    "-": 5,
    "*": 6,
    "/": 6,
    "**": 8,
    **dict.fromkeys(("<", "<=", ">", ">=", "==", "!="), 4),
}
_SIGN, _ATOM = 7, 9


def show_sparse(node: Expression, least: int = 0) -> str:
    """Return an expression with the parentheses that it needs as an operand of an operator that binds so tightly."""
    if isinstance(node, Number) and node.text.startswith("-"):
        own, text = _SIGN, node.text
    elif _is_operation(node):
        assert isinstance(node, Call)
        if len(node.arguments) == 1:
            own = first = _SIGN if node.word == "-" else _BINDING[node.word]
            second = first
        else:
            own = _BINDING[node.word]
            first = {"**": _ATOM}.get(node.word, own + 1 if own == _BINDING["<"] else own)
            second = {"**": _SIGN}.get(node.word, own + 1)
        text = _operation(node, lambda x: show_sparse(x, first), lambda x: show_sparse(x, second))
    else:
        return _atom(node, show_sparse)
    return f"({text})" if own < least else text


def _is_operation(node: Expression) -> bool:
    return isinstance(node, Call) and bool(node.word) and not node.word[0].isalpha()


def _operation(node: Expression, first: Callable[[Expression], str], second: Callable[[Expression], str]) -> str:
    assert isinstance(node, Call)
    if len(node.arguments) == 1:
        return f"{node.word}{first(node.arguments[0])}"
    return f"{first(node.arguments[0])} {node.word} {second(node.arguments[1])}"


def _atom(node: Expression, inner: Callable[[Expression], str]) -> str:
    """Return an expression that is no operation; ``inner`` writes its arguments."""
    match node:
        case Acc():
            return "acc"
        case Element(operand):
            return operand
        case Number(text):
            return text
        case Read(name, subscript):
            return name + subscript
        case Cast(dtype, x, word):
            return f"{word or dtype}({inner(x)})"
        case Reduce(kind, modes, x):
            return f"{kind}[{', '.join(modes)}]({inner(x)})"
        case Block(kind, width, x):
            return f"{kind}[n%{width}]({inner(x)})"
        case Pair(member, distance, x):
            return f"{('even', 'odd')[member]}({inner(x)}{f', {distance}' if distance > 1 else ''})"
        case Interleave(x, y, distance):
            return f"interleave({inner(x)}, {inner(y)}{f', {distance}' if distance > 1 else ''})"
        case Iota(mode):
            return f"iota({mode})"
        case Size(mode):
            return f"size({mode})"
        case Rand(seed, offset):
            return f"rand({inner(seed)}, {inner(offset)})"
        case Dropout(x, p, seed, offset):
            return f"dropout({inner(x)}, {inner(p)}, {inner(seed)}, {inner(offset)})"
        case Call(arguments=arguments, names=names):
            texts = [inner(each) for each in arguments]
            first = len(arguments) - len(names)
            named = [f"{name}={text}" for name, text in zip(names, texts[first:], strict=True)]
            return f"{node.word or node.function}{chr(39) * node.primes}({', '.join([*texts[:first], *named])})"
