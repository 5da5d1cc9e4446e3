"""The syntax tree: the user's program with places, before any decision.

::

    Tree        = Statement*
    Statement   = Header(name, Operand*) | Inputs(Declaration*) | Outputs(Declaration*)
                | Define(name, parameter*, Expression) | Assign(target, subscript?, Expression)
    Expression  = Number | Name | Element | Unary | Binary | Call
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from evt.diagnostics import Source, Span


@dataclass(frozen=True, slots=True, eq=False)
class Identifier:
    text: str
    span: Span


@dataclass(frozen=True, slots=True, eq=False)
class Mode:
    """One mode of a subscript, ``n``, ``n/2`` or ``n%32``; ``optional`` is the ``?`` of ``[m?]``.

    For ``index[m]``, a mode that an input gathers, ``name`` is the input's name and ``subscript`` is the input's
    subscript.
    """

    name: str
    optional: bool
    span: Span
    subscript: Subscript | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Subscript:
    modes: tuple[Mode, ...]
    span: Span


@dataclass(frozen=True, slots=True, eq=False)
class Number:
    text: str
    span: Span


@dataclass(frozen=True, slots=True, eq=False)
class Name:
    name: str
    span: Span


@dataclass(frozen=True, slots=True, eq=False)
class Element:
    """A subscripted name, ``bias[n]``."""

    name: str
    subscript: Subscript
    span: Span


@dataclass(frozen=True, slots=True, eq=False)
class Unary:
    operator: str
    operand: Expression
    span: Span


@dataclass(frozen=True, slots=True, eq=False)
class Binary:
    operator: str
    left: Expression
    right: Expression
    span: Span


@dataclass(frozen=True, slots=True, eq=False)
class Argument:
    keyword: Identifier | None
    value: Expression
    span: Span


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A call ``gelu(z)``, a derivative ``gelu'(z)`` (``primes``) or a reduction ``sum[n](z)`` (``subscript``)."""

    function: Identifier
    primes: int
    subscript: Subscript | None
    arguments: tuple[Argument, ...]
    span: Span


Expression: TypeAlias = Number | Name | Element | Unary | Binary | Call


@dataclass(frozen=True, slots=True, eq=False)
class Operand:
    name: Identifier
    dtype: Identifier
    subscript: Subscript | None
    span: Span


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A declared default; ``text`` includes the sign."""

    text: str
    span: Span


@dataclass(frozen=True, slots=True, eq=False)
class Declaration:
    name: Identifier
    dtype: Identifier | None
    subscript: Subscript | None
    default: Constant | None
    span: Span


@dataclass(frozen=True, slots=True, eq=False)
class Header:
    operation: Identifier
    operands: tuple[Operand, ...]
    span: Span


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    declarations: tuple[Declaration, ...]
    span: Span


@dataclass(frozen=True, slots=True, eq=False)
class Outputs:
    declarations: tuple[Declaration, ...]
    span: Span


@dataclass(frozen=True, slots=True, eq=False)
class Define:
    name: Identifier
    parameters: tuple[Identifier, ...]
    body: Expression
    span: Span


@dataclass(frozen=True, slots=True, eq=False)
class Assign:
    target: Identifier
    subscript: Subscript | None
    value: Expression
    span: Span


Statement: TypeAlias = Header | Inputs | Outputs | Define | Assign


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    statements: tuple[Statement, ...]
    source: Source


#: The largest number of operations of a program, as written and as a graph. No compiler accepts a larger kernel.
MOST_OPERATIONS = 50_000
#: The product of A and an input.
PRODUCT = "matmul"
#: Functions whose arguments are modes or whole matrices, not values: ``iota(m)``, ``matmul(A, up)``.
OF_NAMES = frozenset({"iota", "size", PRODUCT})


def children(node: Expression) -> tuple[Expression, ...]:
    """Return the direct subexpressions that are values, in textual order."""
    match node:
        case Call(function=function) if function.text in OF_NAMES:
            return ()
        case Unary(operand=operand):
            return (operand,)
        case Binary(left=left, right=right):
            return (left, right)
        case Call(arguments=arguments):
            return tuple(argument.value for argument in arguments)
        case _:
            return ()


def postorder(root: Expression) -> list[Expression]:
    """Return every subexpression, operands before users, iteratively, because formulas may nest thousands deep."""
    stack, order = [root], []
    while stack:
        node = stack.pop()
        order.append(node)
        stack.extend(children(node))
    order.reverse()
    return order


def format_tree(tree: Tree) -> str:
    """Return the tree as program text in canonical spacing, fully parenthesised; it parses back to an equal tree."""
    return "".join(_format_statement(statement) + "\n" for statement in tree.statements)


def _format_statement(statement: Statement) -> str:
    match statement:
        case Header(operation, operands):
            inner = ", ".join(f"{o.name.text}: {o.dtype.text}{_format_subscript(o.subscript)}" for o in operands)
            return f"{operation.text}({inner})"
        case Inputs(declarations):
            return "in " + ", ".join(map(_format_declaration, declarations))
        case Outputs(declarations):
            return "out " + ", ".join(map(_format_declaration, declarations))
        case Define(name, parameters, body):
            return f"def {name.text}({', '.join(p.text for p in parameters)}) = {format_expression(body)}"
        case Assign(target, subscript, value):
            return f"{target.text}{_format_subscript(subscript)} = {format_expression(value)}"


def _format_declaration(declaration: Declaration) -> str:
    text, subscript = declaration.name.text, _format_subscript(declaration.subscript)
    text += f": {declaration.dtype.text}{subscript}" if declaration.dtype else subscript
    return text + (f" = {declaration.default.text}" if declaration.default else "")


def _format_subscript(subscript: Subscript | None) -> str:
    return _format_places([] if subscript is None else [subscript])


def format_mode(mode: Mode) -> str:
    """Return one mode of a subscript as text."""
    return _format_places([mode])


def _format_places(stack: list[Subscript | Mode | str]) -> str:
    """Return subscripts as text, iteratively, because they may nest thousands deep. The last part is printed first."""
    pieces: list[str] = []
    while stack:
        match stack.pop():
            case str(piece):
                pieces.append(piece)
            case Mode(name, optional, _, subscript):
                pieces.append(name)
                stack += ["?" * optional, *([] if subscript is None else [subscript])]
            case Subscript(modes):
                pieces.append("[")
                stack.append("]")
                for position, mode in reversed(list(enumerate(modes))):
                    stack += [mode, *([", "] if position else [])]
    return "".join(pieces)


def format_expression(root: Expression) -> str:
    """Return one expression as text, with parentheses around every operator."""
    pieces: list[str] = []
    stack: list[Expression | str] = [root]
    while stack:
        node = stack.pop()
        match node:
            case str():
                pieces.append(node)
            case Number(text):
                pieces.append(text)
            case Name(name):
                pieces.append(name)
            case Element(name, subscript):
                pieces.append(name + _format_subscript(subscript))
            case Unary(operator, operand):
                stack += [")", operand, f"({operator}"]
            case Binary(operator, left, right):
                stack += [")", right, f" {operator} ", left, "("]
            case Call(function, primes, subscript, arguments):
                pieces.append(function.text + "'" * primes + _format_subscript(subscript) + "(")
                stack.append(")")
                for position, argument in reversed(list(enumerate(arguments))):
                    stack.append(argument.value)
                    if argument.keyword:
                        stack.append(f"{argument.keyword.text}=")
                    if position:
                        stack.append(", ")
    return "".join(pieces)
