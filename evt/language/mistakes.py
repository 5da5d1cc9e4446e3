"""Syntax errors in the user's words."""

from __future__ import annotations

import unicodedata
from typing import Any

import lark

from evt.diagnostics import Diagnostic, Source, Span

_OPERAND = {"NAME", "NUMBER", "LPAR"}
_ASSIGN = "a statement is an assignment: `D = relu(acc + bias)`"
_HINTS = {
    "=": "compare with `==`; `=` assigns, once per statement",
    "^": "write a power as `x ** 2`",
    "@": "the matrix product itself is written `acc`",
    "?": "use `where(condition, a, b)`",
    "&": "write `&&`",
    "|": "write `||`",
    "%": "there is no remainder operator",
    ".": "functions are called by their own name: `relu(x)`",
    "{": "use parentheses",
    "}": "use parentheses",
    ":": "declare types in an `in` or `out` statement: `in bias: f32[n]`",
    "<": "compare two values at a time",
    ",": "write one expression for each name: `D = acc; E = 2 * acc`",
}
_HINTS |= dict.fromkeys(("<=", ">", ">=", "==", "!="), _HINTS["<"])
_WORDS = {
    "if": "there is no `if`: use functions such as `max(x, 0)`",
    "else": "there is no `if`: use functions such as `max(x, 0)`",
    "and": "write `&&`",
    "or": "write `||`",
    "not": "write `!`",
}
_SUFFIXES = frozenset({"f", "F", "h", "l", "L", "d", "u", "U", "f16", "f32", "bf16"})
_LOOKALIKES = {
    "≤": "<=",
    "≥": ">=",
    "≠": "!=",
    "＝": "=",
    "√": "sqrt",
    "²": "** 2",
    "³": "** 3",
    **dict.fromkeys("×·∗⋅✕", "*"),
    **dict.fromkeys("−–—", "-"),
    **dict.fromkeys("÷∕⁄", "/"),
    **dict.fromkeys("’‘´", "'"),
}


def explain(source: Source, tokens: list[lark.Token], error: lark.exceptions.UnexpectedToken) -> Diagnostic:
    """Return a syntax error in the user's words."""
    token = error.token
    at_end = token.type == "$END"
    last = tokens[-1]
    kinds = {t.type for t in tokens}
    index = next((i for i, t in enumerate(tokens) if t is token), len(tokens))
    place, label = (_span(last), "ends here") if at_end else (_span(token), "not expected here")

    def report(message: str, hint: str = "", code: str = "E0101") -> Diagnostic:
        return Diagnostic(code, message, place, label, help=hint, source=source)

    if not kinds & {"EQUAL", "COLON", "IN", "OUT", "DEF"}:
        place, label = _span(tokens[0]).to(_span(last)), "no name to assign to"
        return report("the statement assigns nothing", _assigning(source, tokens))
    if index == 0 and token.type == "EQUAL":
        return report("a name is missing before `=`", "name the value: `D = acc`")
    if at_end:
        missing = error.expected & _OPERAND
        return report(f"an operand is missing after `{last}`" if missing else "the statement is not complete")
    if token.type in {"IN", "OUT", "DEF"} and token is not tokens[0]:
        return report(f"`{token}` is a word of the language", f"rename it, for example `{token}_`", "E0108")
    before = tokens[index - 1] if index else None
    if token.type in _OPERAND and before is not None and before.type in {"NAME", "NUMBER", "RPAR", "RSQB"}:
        hint = "statements are separated by a line end or `;`"
        if word := _WORDS.get(str(token)) or _WORDS.get(str(before)):
            hint = word
        elif before.type == "NUMBER" and token in _SUFFIXES and before.end_pos == token.start_pos:
            hint = f"numbers have no suffix: write `{before}`"
        elif {before.type, token.type} <= {"NAME", "NUMBER"}:
            call = f" or `{before}({token})`" if before.type == token.type == "NAME" else ""
            hint = f"write `{before} * {token}`{call}; {hint}"
        return report(f"an operator is missing between `{before}` and `{token}`", hint)
    if before is not None and before.type in {"IN", "OUT", "DEF"}:
        return report(f"`{before}` is a word of the language", f"rename it, for example `{before}_`", "E0108")
    if before is not None and before.type == "LSQB":
        return report(f"`{token}` is not an index mode", "a subscript holds modes: `C[m, n]`, `bias[n]`, `alpha[]`")
    after = tokens[index + 1] if index + 1 < len(tokens) else None
    if after is not None and after.type == "EQUAL" and index == 1:
        return report(f"`{token}=` is not expected here", "write `=`; a name is assigned once")
    return report(f"`{token}` is not expected here", _HINTS.get(str(token), ""))


def _assigning(source: Source, tokens: list[lark.Token]) -> str:
    """Return how a statement without `=` should have been written."""
    if {"A", "B"} <= {str(token) for token in tokens}:
        return "a header has types: `gemm(A: f16[m, k], B: f16[k, n])`; the product is `acc`"
    start = 1 if tokens[0] == "return" and len(tokens) > 1 else 0
    text = " ".join(source.text[tokens[start].start_pos : tokens[-1].end_pos].split())
    return f"give the value a name: `D = {text}`" if len(text) < 60 else _ASSIGN


def odd_character(source: Source, token: lark.Token) -> Diagnostic:
    char = str(token)
    name = f"U+{ord(char):04X}"
    shown = f"`{char}` ({name})" if char.isprintable() else name
    hint = _HINTS.get(char, "")
    if replacement := _LOOKALIKES.get(char) or _greek(char) or _plain(char):
        hint = f"write `{replacement}`"
    elif char.isspace() or unicodedata.category(char) == "Cf":
        hint = "it looks like nothing or like a space; remove it"
    elif char in "\"'\\`$":
        hint = "a program holds no quotes and no escapes"
    return Diagnostic(
        "E0102",
        f"the character {shown} has no meaning in a program",
        _span(token),
        "not expected",
        help=hint,
        source=source,
    )


def _plain(char: str) -> str:
    """Return the ASCII character of which this is a styled form (``𝔻``), or ""."""
    plain = unicodedata.normalize("NFKC", char)
    return plain if plain != char and plain.isascii() and plain.strip() else ""


def _greek(char: str) -> str:
    """Return the name of a Greek letter (``alpha``), or ""."""
    match unicodedata.name(char, "").lower().split():
        case ["greek", _, "letter", name]:
            return {"lamda": "lambda"}.get(name, name)
    return ""


def unbalanced(source: Source, token: lark.Token, open_brackets: list[lark.Token]) -> Diagnostic:
    if not open_brackets:
        return Diagnostic(
            "E0104",
            f"this `{token}` closes nothing",
            _span(token),
            "no bracket is open here",
            help="remove it, or add the bracket that it should close",
            source=source,
        )
    opened = open_brackets[-1]
    return Diagnostic(
        "E0104",
        f"`{opened}` is closed by `{token}`",
        _span(opened).to(_span(token)),
        "these two do not match",
        source=source,
    )


def unclosed(source: Source, token: lark.Token) -> Diagnostic:
    closing = ")" if token.type == "LPAR" else "]"
    return Diagnostic(
        "E0104",
        f"this `{token}` is never closed",
        _span(token),
        "opened here",
        help=f"add the missing `{closing}`",
        source=source,
    )


def _span(token: Any) -> Span:
    return Span(token.start_pos, token.end_pos)
