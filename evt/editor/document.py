"""A program while it is written: its tokens, definitions, diagnostics and, if it is valid, its typed graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import dropwhile, pairwise, takewhile
from typing import Literal

import lark

from evt.diagnostics import Diagnostic, Source, Span
from evt.errors import EvtError, ProgramError
from evt.ir import TypedDag
from evt.ir.doubts import doubts
from evt.ir.node import ValueType
from evt.ir.origin import Place
from evt.language import format_text
from evt.language.parse import lex, span_of
from evt.request import GROUPED, from_text, typed_graph

Kind = Literal["input", "output", "value", "function", "parameter", "operand"]
_DECLARING: dict[str, Kind] = {"IN": "input", "OUT": "output"}


@dataclass(frozen=True, slots=True)
class Definition:
    """A name that a program gives: its place, the statement, and the scope of a parameter.

    ``value`` is the place of an assigned expression.
    """

    name: str
    kind: Kind
    span: Span
    statement: Span
    value: Span | None = None


@dataclass(frozen=True)
class Document:
    """A text that may be invalid. ``operation`` applies to a program without a header."""

    source: Source
    operation: str = "gemm"

    @cached_property
    def tokens(self) -> list[lark.Token]:
        """The tokens of the text, ends of lines included."""
        return lex(self.source)

    @cached_property
    def _typed(self) -> TypedDag | EvtError:
        try:
            grouped = self.operation == GROUPED
            return typed_graph(from_text(self.source, "gemm" if grouped else self.operation, {}, grouped=grouped))
        except EvtError as error:
            return error

    @property
    def dag(self) -> TypedDag | None:
        """The typed graph of a valid program."""
        return self._typed if isinstance(self._typed, TypedDag) else None

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """The mistakes of an invalid program, or the warnings about a valid one."""
        return doubts(self._typed) if isinstance(self._typed, TypedDag) else self._typed.diagnostics

    def formatted(self) -> str | None:
        """Return the text in canonical layout, or None if it has syntax errors."""
        try:
            return format_text(self.source)
        except ProgramError:
            return None

    @cached_property
    def definitions(self) -> tuple[Definition, ...]:
        """The names that the text gives, in its order. Statements may be incomplete."""
        return tuple(definition for statement in self.statements for definition in _defined(statement))

    @cached_property
    def statements(self) -> tuple[list[lark.Token], ...]:
        """The tokens of each statement. An unclosed bracket ends where a line begins with a new statement."""
        return tuple(_statements(self.tokens))

    def token_at(self, offset: int) -> lark.Token | None:
        """Return the token that begins, ends or covers an offset, names before operators."""
        touching = [token for token in self.tokens if span_of(token).start <= offset <= span_of(token).end]
        known = (token for token in reversed(touching) if token.type not in ("NEWLINE", "INVALID"))
        return min(known, key=lambda token: token.type not in ("NAME", "NUMBER"), default=None)

    def definition_at(self, offset: int) -> Span | None:
        """Return the place that defines the name at an offset; for an undeclared input, its first use."""
        token = self.token_at(offset)
        if token is None or token.type != "NAME":
            return None
        found = self.definition_of(token)
        if found is not None:
            return found.span
        return self.dag.input[token].span if self.dag is not None and token in self.dag.input else None

    def definition_of(self, token: lark.Token) -> Definition | None:
        """Return the definition of a name: a parameter within its statement, else the first of the text."""
        place = span_of(token)
        found = [each for each in self.definitions if each.name == token]
        inner = [each for each in found if each.kind == "parameter" and each.statement.covers(place)]
        outer = (each for each in found if each.kind not in ("parameter", "operand"))
        ranked = sorted(outer, key=lambda each: each.kind not in ("value", "function"))
        return next(iter((*inner, *ranked)), None)

    def typed_at(self, span: Span) -> tuple[Span, ValueType] | None:
        """Return the smallest expression that covers a place, and its type. Equal expressions count as their first."""
        if self.dag is None:
            return None
        places = (
            (origin.span.end - origin.span.start, origin.span.start, node)
            for node, origin in enumerate(self.dag.origins)
            if isinstance(origin, Place) and origin.span.covers(span)
        )
        smallest = min(places, default=None)
        if smallest is None:
            return None
        length, start, node = smallest
        return Span(start, start + length), self.dag.types[node]

    @cached_property
    def _types(self) -> dict[Span, ValueType]:
        """The types of the expressions that the text of a valid program writes, by their places."""
        found: dict[Span, ValueType] = {}
        if self.dag is not None:
            for origin, type_ in zip(self.dag.origins, self.dag.types, strict=True):
                if isinstance(origin, Place) and not origin.calls:
                    found.setdefault(origin.span, type_)
        return found

    def type_of(self, definition: Definition) -> ValueType | None:
        """Return the type of an assigned value."""
        if self.dag is None or definition.value is None:
            return None
        if definition.name in self.dag.stores:
            return self.dag.types[self.dag.arguments(self.dag.stores[definition.name])[0]]
        return self._types.get(definition.value)


def innermost_bracket(tokens: Iterable[lark.Token]) -> str:
    """Return the innermost open bracket of a statement's beginning, or ""."""
    opened = [""]
    for token in tokens:
        if token in ("(", "["):
            opened.append(str(token))
        elif token in (")", "]") and len(opened) > 1:
            opened.pop()
    return opened[-1]


def _statements(tokens: list[lark.Token]) -> list[list[lark.Token]]:
    """Split tokens into statements. If a bracket is unclosed, every line end ends a statement."""
    found: list[list[lark.Token]] = [[]]
    depth, is_closed = 0, sum(token in ("(", "[") for token in tokens) <= sum(token in (")", "]") for token in tokens)
    for token in tokens:
        depth = max(0, depth + (token in ("(", "[")) - (token in (")", "]"))) if is_closed else 0
        if token.type != "NEWLINE":
            found[-1].append(token)
        elif depth == 0 and found[-1] and found[-1][-1] != ",":
            found.append([])
    return [statement for statement in found if statement]


def _defined(tokens: list[lark.Token]) -> Iterator[Definition]:
    """Yield the names that a statement gives."""
    first, place = tokens[0], span_of(tokens[0]).to(span_of(tokens[-1]))

    def definition(token: lark.Token, kind: Kind, value: Span | None = None) -> Definition:
        return Definition(str(token), kind, span_of(token), place, value)

    outer = list(_outer(tokens))
    if first.type in _DECLARING:
        for before, token in pairwise(outer):
            if token.type == "NAME" and (before is first or before == ","):
                yield definition(token, _DECLARING[first.type])
    elif first.type == "DEF":
        signature = takewhile(lambda token: token != ")", tokens)
        for position, name in enumerate(token for token in signature if token.type == "NAME"):
            yield definition(name, "parameter" if position else "function")
    elif any(token == "=" for token in outer):
        value = list(dropwhile(lambda token: token != "=", tokens))[1:]
        if first.type == "NAME" and value:
            yield definition(first, "value", span_of(value[0]).to(span_of(value[-1])))
    elif first.type == "NAME":
        for token, after in pairwise(tokens):
            if token.type == "NAME" and after == ":":
                yield definition(token, "operand")


def _outer(tokens: list[lark.Token]) -> Iterator[lark.Token]:
    """Yield the tokens outside brackets."""
    depth = 0
    for token in tokens:
        depth -= token in (")", "]")
        if depth == 0 and token not in (")", "]", "(", "["):
            yield token
        depth += token in ("(", "[")
