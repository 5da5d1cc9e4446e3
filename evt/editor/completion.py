"""The words that may stand at an offset: ``complete(document, offset) -> completions``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import lark

from evt.diagnostics import Span
from evt.editor.document import Document, innermost_bracket
from evt.editor.words import FORMS, KEYWORDS, MODES, NAMES
from evt.functions import TABLE
from evt.ir.dtype import BY_NAME, TYPES
from evt.ir.interface import declaration
from evt.ir.lower import OPERATIONS
from evt.ir.lower.words import FEWER_COLUMNS, FOLD_WIDTHS
from evt.language.parse import span_of


@dataclass(frozen=True, slots=True)
class Completion:
    """A word, its kind, its form or type, and its meaning."""

    label: str
    kind: Literal["keyword", "function", "variable", "type", "mode"]
    detail: str = ""
    text: str = ""


def complete(document: Document, offset: int) -> list[Completion]:
    """Return the words that may stand at an offset, in place of the word that ends there."""
    line = document.source.text[:offset].rpartition("\n")[2]
    if "#" in line:
        return []  # a comment
    before = [token for token in document.tokens if span_of(token).end <= offset]
    if before and before[-1].type in ("NAME", "IN", "OUT", "DEF") and span_of(before[-1]).end == offset:
        before.pop()
    statement = _open_statement(before)
    found = {each.label: each for each in _words(document, statement, offset)}
    return list(found.values())


def _words(document: Document, statement: list[lark.Token], offset: int) -> Iterator[Completion]:
    if not statement:
        yield from _first_words(document, offset)
    elif (opened := innermost_bracket(statement)) == "[":
        yield from _modes(document, statement)
    elif statement[-1] == ":":
        yield from (Completion(each.name, "type", "", each.range_text) for each in TYPES)
    elif statement[0].type == "IN" or (statement[0].type == "DEF" and "=" not in statement):
        return  # a new name
    elif statement[0].type == "OUT":
        yield from _names(document, ("value",))
    elif "=" in statement or opened == "(":
        yield from _operands(document, span_of(statement[0]), offset)


def _first_words(document: Document, offset: int) -> Iterator[Completion]:
    """Yield the words that begin a statement: keywords, outputs without a value, and at first operations."""
    yield from (Completion(word, "keyword", form, text) for word, (form, text) in KEYWORDS.items())
    assigned = {each.name for each in document.definitions if each.kind == "value"}
    outputs = [each.name for each in document.definitions if each.kind == "output"] or ["D"]
    yield from (Completion(name, "variable", "output") for name in outputs if name not in assigned)
    if not any(span_of(statement[-1]).end < offset for statement in document.statements):
        yield from (Completion(name, "keyword", "operation") for name in OPERATIONS)


def _modes(document: Document, statement: list[lark.Token]) -> Iterator[Completion]:
    """Yield modes; within a reduction also blocks of columns, and within a tensor also fewer columns and indices."""
    yield from (Completion(mode, "mode", "", text) for mode, text in MODES.items())
    opening = max(place for place, token in enumerate(statement) if token == "[")
    if opening and statement[opening - 1] in FORMS:
        yield from (Completion(f"n%{width}", "mode", "", f"Blocks of {width} columns.") for width in FOLD_WIDTHS)
        return
    yield from (Completion(mode, "mode", "", "Fewer columns.") for mode in FEWER_COLUMNS)
    yield from _names(document, ("input",))


def _operands(document: Document, beginning: Span, offset: int) -> Iterator[Completion]:
    """Yield the words of an expression: names of the program, then functions and casts.

    ``beginning`` is the first word of the statement, which may define parameters.
    """
    parameters = (
        each for each in document.definitions if each.kind == "parameter" and each.statement.start == beginning.start
    )
    yield from (Completion(each.name, "variable", "parameter") for each in parameters)
    yield from _names(document, ("value", "input", "function"))
    if document.dag is not None:
        yield from (
            Completion(each.name, "variable", declaration(each.name, each.dtype, each.modes))
            for each in document.dag.inputs
        )
    yield from _other_names(document, offset)
    yield from (Completion(name, "variable", "", text) for name, text in NAMES.items())
    yield from (Completion(form.name, "function", form.form, form.text) for form in FORMS.values())
    for row in TABLE.values():
        yield from (Completion(name, "function", str(row), row.text) for name in (row.name, *row.aliases))
    yield from (Completion(each.name, "type", f"{each}(x)", "A cast.") for each in TYPES)


def _other_names(document: Document, offset: int) -> Iterator[Completion]:
    """Yield the undeclared inputs of a text that may be invalid: the names without another meaning."""
    known = {*FORMS, *TABLE.names(), *BY_NAME, *OPERATIONS, *MODES, *NAMES}
    for token in document.tokens:
        if token.type == "NAME" and token not in known and span_of(token).end != offset:
            yield Completion(str(token), "variable")


def _names(document: Document, kinds: tuple[str, ...]) -> Iterator[Completion]:
    for each in document.definitions:
        if each.kind in kinds:
            found = document.type_of(each)
            detail = each.kind if found is None else declaration(each.name, found.dtype, found.modes)
            yield Completion(each.name, "function" if each.kind == "function" else "variable", detail)


def _open_statement(tokens: list[lark.Token]) -> list[lark.Token]:
    """Return the tokens of the last statement, which the offset continues."""
    statement: list[lark.Token] = []
    depth = 0
    for token in tokens:
        if token.type == "NEWLINE":
            if depth == 0 and not (statement and statement[-1] == ","):
                statement = []
            continue
        depth = max(0, depth + (token in ("(", "[")) - (token in (")", "]")))
        statement.append(token)
    return statement
