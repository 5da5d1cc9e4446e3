"""The text about the word at an offset, as Markdown: ``hover(document, offset) -> Hover``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import lark

from evt.diagnostics import Span
from evt.editor.document import Definition, Document, innermost_bracket
from evt.editor.words import FORMS, KEYWORDS, MODES, NAMES, REDUCING
from evt.functions import lookup
from evt.functions.row import Function
from evt.ir.dtype import BY_NAME, DType, Kind
from evt.ir.interface import declaration
from evt.ir.lower import OPERATIONS
from evt.language.parse import span_of

#: One step along a mode, and several steps.
_STEPS = {"m": ("row", "rows"), "n": ("column", "columns"), "k": ("element of k", "elements of k")}


@dataclass(frozen=True, slots=True)
class Hover:
    """A text about a place of the program."""

    text: str
    span: Span


def hover(document: Document, offset: int) -> Hover | None:
    """Return the text about the word or operator at an offset, or None if there is nothing to say."""
    token = document.token_at(offset)
    if token is None:
        return None
    is_word = token.type == "NAME" or token.type.lower() in KEYWORDS
    text = _of_word(document, token) if is_word else _typed(document, token)
    return Hover(text, span_of(token)) if text else None


def _of_word(document: Document, token: lark.Token) -> str:
    """Return the text about a name: its definition in the program, else its meaning in the language."""
    name, after = str(token), _after(document, token)
    if token.type.lower() in KEYWORDS:
        return _titled(*KEYWORDS[token.type.lower()])
    if _in_subscript(document, token) and after != "[":
        return _titled(name, MODES[name]) if name in MODES else ""
    if (defined := document.definition_of(token)) is not None:
        return _of_definition(document, defined)
    is_call = after in ("(", "'", "[")
    if is_call and name in FORMS and (after == "[" or name not in REDUCING or lookup(name) is None):
        return _with_type(_titled(FORMS[name].form, FORMS[name].text), document, token)
    if is_call and name in OPERATIONS and document.statements and token is document.statements[0][0]:
        a, b = (declaration(each, None, modes) for each, modes in zip("AB", OPERATIONS[name], strict=True))
        return _titled(f"{name}({a}, {b})", "The operation, and the types of its operands.")
    if is_call and (row := lookup(name)) is not None:
        return _with_type(_of_function(row), document, token)
    if name in BY_NAME:
        return _of_dtype(BY_NAME[name])
    if document.dag is not None and name in document.dag.input:
        return _of_input(document, name)
    if document.dag is not None and name in ("A", "B"):
        operand = document.dag.operands["AB".index(name)]
        return _titled(declaration(name, operand.dtype, operand.modes), NAMES[name])
    if name in NAMES:
        return _with_type(_titled(name, NAMES[name]), document, token)
    return ""


def _of_definition(document: Document, defined: Definition) -> str:
    dag, name = document.dag, defined.name
    statement = document.source.text[defined.statement.start : defined.statement.end]
    if dag is not None and name in dag.input:
        return _of_input(document, name)
    if defined.kind in ("function", "parameter"):
        return _titled(statement, "" if defined.kind == "function" else "A parameter.")
    if dag is not None and name in dag.output:
        output = dag.output[name]
        return _titled(declaration(name, output.dtype, output.modes), "An output.", statement)
    found = document.type_of(defined)
    title = name if found is None else declaration(name, found.dtype, found.modes)
    return _titled(title, f"A {defined.kind}." if defined.kind != "input" else "An input.", statement)


def _of_input(document: Document, name: str) -> str:
    assert document.dag is not None
    value = document.dag.input[name]
    title = declaration(name, value.dtype, value.modes, value.flexible)
    shape = _in_words([mode for mode in value.modes if mode != "l"])
    if value.flexible:
        shape = f"{shape}, or a single value"
    inferred = [what for what in ("type", "modes") if what in value.inferred]
    facts = [
        f"An input: {shape}." if shape else "An input.",
        f"Its {' and '.join(inferred)} {'is' if inferred == ['type'] else 'are'} inferred." if inferred else "",
        f"Its default is {value.default:g}." if value.default is not None else "",
    ]
    return _titled(title, " ".join(filter(None, facts)))


def _in_words(modes: Sequence[str]) -> str:
    """Describe an input by its modes: "a value for each row and 128 elements of k"; "" if unknown."""
    if not modes:
        return "a single value"
    if list(modes) == ["m", "n"]:
        return "a value for each element"
    parts = [mode.partition("/") for mode in modes]
    if any(name not in _STEPS for name, _, _ in parts):
        return ""
    steps = (f"{size} {_STEPS[name][1]}" if size else _STEPS[name][0] for name, _, size in parts)
    return f"a value for each {' and '.join(steps)}"


def _of_function(row: Function) -> str:
    aliases = f"Also {', '.join(f'`{each}`' for each in row.aliases)}." if row.aliases else ""
    slopes = zip(row.parameters, row.derivatives, strict=False)
    derivatives = [f"`d/d{each.name}`: `{text}`" for each, text in slopes if text]
    return _titled(str(row), row.text, aliases, "  \n".join(derivatives))


def _of_dtype(dtype: DType) -> str:
    aliases = f"Also {', '.join(f'`{each}`' for each in dtype.aliases)}." if dtype.aliases else ""
    computed = f"Arithmetic on it is in {dtype.compute}." if dtype.compute != dtype else ""
    article = "An" if dtype.kind is Kind.INTEGER else "A"
    kind = f"{article} {dtype.kind.value} of {dtype.bits} bits" if dtype.bits > 1 else "A bit"
    return _titled(dtype.name, f"{kind}; {dtype.range_text}. {computed}".strip(), aliases)


def _typed(document: Document, token: lark.Token) -> str:
    """Return the type of the expression around an operator."""
    found = document.typed_at(span_of(token)) if token.type not in ("COMMA", "COLON", "NEWLINE") else None
    if found is None:
        return ""
    span, value = found
    text = " ".join(document.source.text[span.start : span.end].split())
    return _titled(f"{text}: {value}")


def _with_type(text: str, document: Document, token: lark.Token) -> str:
    found = _typed(document, token)
    return f"{text}\n\n{found}" if found else text


def _titled(title: str, *paragraphs: str) -> str:
    return "\n\n".join((f"```evt\n{title}\n```", *filter(None, paragraphs)))


def _after(document: Document, token: lark.Token) -> str:
    place = next(index for index, each in enumerate(document.tokens) if each is token)
    return str(next(iter(document.tokens[place + 1 : place + 2]), ""))


def _in_subscript(document: Document, token: lark.Token) -> bool:
    """Return whether the innermost open bracket before a token is square."""
    return innermost_bracket(takewhile(lambda each: each is not token, document.tokens)) == "["
