"""Formulas of derivatives: validation, and evaluation on tensors or floats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from evt.diagnostics import Diagnostic, Source, Span
from evt.errors import ProgramError
from evt.functions import scalar
from evt.functions.row import Function
from evt.functions.table import BINARY, UNARY, lookup

if TYPE_CHECKING:
    from evt.language import tree as syntax

_PREFIX = "D = "
_MOST = (2.0 - 2.0**-23) * 2.0**127


@cache
def parse_formula(text: str) -> syntax.Expression:
    """Return the tree of a formula. Its places count from before ``D = ``. Raise ProgramError."""
    from evt.language import parse
    from evt.language import tree as syntax

    tree = parse(_PREFIX + text)
    statement = tree.statements[0]
    if len(tree.statements) != 1 or not isinstance(statement, syntax.Assign):
        raise ProgramError(Diagnostic("E0101", "a derivative is one formula"))
    return statement.value


def problems(text: str, row: Function) -> Iterator[Diagnostic]:
    """Yield the mistakes in a formula over the parameters of ``row``, which may call the row itself."""
    from evt.language import tree as syntax

    source = Source(text, "<derivative>")

    def problem(message: str, span: Span, help_text: str) -> Diagnostic:
        start = max(span.start - len(_PREFIX), 0)
        end = max(span.end - len(_PREFIX), start)
        return Diagnostic("E0655", message, Span(start, end), help=help_text, source=source)

    try:
        root = parse_formula(text)
    except ProgramError as error:
        for each in error.diagnostics:
            yield problem(f"the derivative cannot be read: {each.message}", each.span or Span(0, 0), each.help)
        return
    names = [parameter.name for parameter in row.parameters]
    for node in reversed(syntax.postorder(root)):
        match node:
            case syntax.Name(name, span) if name not in names:
                yield problem(f"`{row.name}` has no parameter `{name}`", span, f"parameters: {', '.join(names)}")
            case syntax.Number(number, span) if float(number) > _MOST:
                yield problem(f"`{number}` cannot be represented in f32", span, "f32 holds magnitudes up to 3.4e38")
            case syntax.Element(name, _, span):
                yield problem("a derivative reads parameters without subscripts", span, f"write `{name}`")
            case syntax.Call():
                yield from (problem(*each) for each in _calls(node, row))
            case syntax.Binary("**", _, exponent) if any(
                isinstance(each, syntax.Name) for each in syntax.postorder(exponent)
            ):
                help_text = "write `pow(x, y)` for a variable exponent"
                yield problem("the exponent of `**` is a constant", exponent.span, help_text)


def _calls(call: syntax.Call, row: Function) -> Iterator[tuple[str, Span, str]]:
    name, span = call.function.text, call.span
    called = row if name in (row.name, *row.aliases) else lookup(name)
    if called is None or call.subscript is not None:
        yield f"there is no function `{name}`", call.function.span, "functions of the table and this one may be called"
    elif call.primes:
        yield "a derivative cannot contain `'`", span, f"write the derivative of `{name}` as a formula"
    elif bound_arguments(call, called) is None:
        yield f"`{name}` is called with arguments that it does not have", span, f"`{called}`"


def bound_arguments(call: syntax.Call, row: Function) -> list[syntax.Expression | float] | None:
    """Return the arguments of a call in the row's order, with defaults; None if they do not fit."""
    names = [parameter.name for parameter in row.parameters]
    bound: dict[str, syntax.Expression | float] = {p.name: p.default for p in row.parameters if p.default is not None}
    given: set[str] = set()
    for position, argument in enumerate(call.arguments):
        if argument.keyword is None and (position >= len(names) or len(given) != position):
            return None
        name = names[position] if argument.keyword is None else argument.keyword.text
        if name not in names or name in given:
            return None
        given.add(name)
        bound[name] = argument.value
    return [bound[name] for name in names] if len(bound) == len(names) else None


def evaluate(text: str, values: Mapping[str, Any], t: Any = scalar, own: Function | None = None) -> Any:
    """Return the value of a formula over named values: tensors if ``t`` is torch, else floats.

    ``own`` is a row that is not in the table yet and that the formula may call.
    """
    from evt.language import tree as syntax

    def constant(value: float) -> Any:
        if t is scalar:
            return value
        like = next(iter(values.values()))
        return t.full((), value, dtype=like.dtype, device=like.device)

    def named(name: str) -> Function:
        row = own if own is not None and name in (own.name, *own.aliases) else lookup(name)
        assert row is not None
        return row

    def apply(name: str, arguments: Sequence[Any]) -> Any:
        return named(name).torch(t, *arguments)

    root = parse_formula(text)
    results: dict[int, Any] = {}
    for node in syntax.postorder(root):
        operands = [results[id(child)] for child in syntax.children(node)]
        match node:
            case syntax.Number(number):
                result = constant(float(number))
            case syntax.Name(name):
                result = values[name]
            case syntax.Unary(operator):
                result = apply(UNARY[operator], operands)
            case syntax.Binary(operator):
                result = apply(BINARY[operator], operands)
            case syntax.Call(function=function):
                row = named(function.text)
                bound = bound_arguments(node, row)
                assert bound is not None
                arguments = (constant(each) if isinstance(each, float) else results[id(each)] for each in bound)
                result = apply(row.name, list(arguments))
            case syntax.Element():
                raise ValueError(f"a formula of the table has no subscripts: {text}")
        results[id(node)] = result
    return results[id(root)]
