"""Explanations of syntax errors, in terms of the user's program."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Set
from itertools import pairwise
from typing import Any

import lark

from evt.diagnostics import Diagnostic, Source, Span
from evt.language.foreign import approximated, foreign

_OPERAND = {"NAME", "NUMBER", "LPAR"}
_ASSIGN = "a statement is an assignment: `D = relu(acc + bias)`"
_CHOICE = "write `where(condition, a, b)`"
_HINTS = {
    "=": "compare with `==`; `=` assigns, once per statement",
    "^": "write a power as `x ** 2`",
    "?": _CHOICE,
    "&": "write `&&`",
    "|": "write `||`",
    "%": "write `remainder(x, y)`",
    ".": "functions are called by their own name: `relu(x)`",
    "{": "use parentheses",
    "}": "use parentheses",
    ":": "declare types in an `in` or `out` statement: `in bias: f32[n]`",
    "<": "compare two values at a time",
    ",": "assign one expression to each name: `D = acc; E = 2 * acc`",
    "~": "write `!`",
    "[": "use parentheses; brackets hold modes, as in `bias[n]`",
}
_HINTS |= dict.fromkeys(("<=", ">", ">=", "==", "!="), _HINTS["<"])
_WORDS = {
    "if": _CHOICE,
    "else": _CHOICE,
    "and": "write `&&`",
    "or": "write `||`",
    "not": "write `!`",
    "as": "a cast is written `f16(x)`",
}
#: Operators that bind looser than ``not`` of Python.
_LOGIC = frozenset({"and", "or", "if", "else", "&&", "||", "?"})
_OPENING, _CLOSING = frozenset({"LPAR", "LSQB"}), frozenset({"RPAR", "RSQB"})
#: The last tokens of an operand.
_ENDS = frozenset({"NAME", "NUMBER", "RPAR", "RSQB"})
_MODULES = frozenset({"torch", "F", "functional", "nn", "np", "numpy", "jnp", "jax", "math", "tl", "tensor", "tf"})
#: Methods of tensors that take a type.
_CASTS = frozenset({"to", "type", "astype", "cast"})
#: The number of characters to inspect around a character.
_NEAR = 200
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
    """Return a syntax error in terms of the user's program."""
    token = error.token
    at_end = token.type == "$END"
    last = tokens[-1]
    kinds = {t.type for t in tokens}
    index = next((i for i, t in enumerate(tokens) if t is token), len(tokens))
    place, label = (_span(last), "ends here") if at_end else (_span(token), "not expected here")

    def report(message: str, hint: str = "", code: str = "E0101") -> Diagnostic:
        return Diagnostic(code, message, place, label, help=hint, source=source)

    found = foreign(source, tokens, index)
    if not kinds & {"EQUAL", "COLON", "IN", "OUT", "DEF"}:
        place, label = _span(tokens[0]).to(_span(last)), "no name to assign to"
        return report("the statement assigns nothing", found[2] if found else _assigning(source, tokens))
    if index == 0 and token.type == "EQUAL":
        return report("a name is missing before `=`", "name the value: `D = acc`")
    if at_end:
        message, hint = _incomplete(tokens, last, error.expected)
        return report(message, found[2] if found else hint)
    if found:
        first, end, hint = found
        place = _span(tokens[first]).to(_span(tokens[end]))
        return report(f"`{source.text[place.start : place.end]}` is not expected here", hint)
    if token.type in {"IN", "OUT", "DEF"} and token is not tokens[0]:
        return report(f"`{token}` is a word of the language", f"rename it, for example `{token}_`", "E0108")
    before = tokens[index - 1] if index else None
    if token.type != "LSQB" and before is not None and tokens[_brackets(tokens, index, ())[0] - 1].type == "LSQB":
        hint = "a subscript holds modes: `C[m, n]`, `bias[n]`, `alpha[]`"
        if {before.type, token.type} == {"NAME"}:
            return report(f"a comma is missing between `{before}` and `{token}`", f"write `{before}, {token}`")
        return report(
            f"`{token}` is not an index mode" if token != "]" else f"a mode is missing after `{before}`", hint
        )
    if token.type in _OPERAND and before is not None and before.type in _ENDS:
        return report(f"an operator is missing between `{before}` and `{token}`", _joining(source, tokens, index))
    if before is not None and before.type in {"IN", "OUT", "DEF"}:
        return report(f"`{before}` is a word of the language", f"rename it, for example `{before}_`", "E0108")
    operator = token.type in {*_CLOSING, "COMMA", "PRODUCT", "POWER", "COMPARE"}
    if before is not None and operator and error.expected & _OPERAND and before.type not in {"LPAR", "COMMA"}:
        return report(*_incomplete(tokens, before, error.expected))
    after = tokens[index + 1] if index + 1 < len(tokens) else None
    if after is not None and after.type == "EQUAL" and index == 1:
        return report(f"`{token}=` is not expected here", "write `=`; a name is assigned once")
    hint = _HINTS.get(str(token), "")
    if token == "?":
        hint = _choice(source, tokens, index) or hint
    elif token == "%":
        hint = _remainder(source, tokens, index) or hint
    return report(f"`{token}` is not expected here", hint or _like(tokens))


def _joining(source: Source, tokens: list[lark.Token], index: int) -> str:
    """Return a help for an operand that directly follows another one."""
    before, token = tokens[index - 1], tokens[index]
    separate = "statements are separated by a line end or `;`"
    if before == "not":
        return f"write `!{_negated(source, tokens, index)}`"
    if word := _WORDS.get(str(token)) or _WORDS.get(str(before)):
        return _choice(source, tokens, index) or word
    if before.type == "NUMBER" and token in _SUFFIXES and before.end_pos == token.start_pos:
        return f"numbers have no suffix: write `{before}`"
    if {before.type, token.type} <= {"NAME", "NUMBER"}:
        call = f" or `{before}({token})`" if before.type == token.type == "NAME" else ""
        return f"write `{before} * {token}`{call}; {separate}"
    return f"write `*` for a product; {separate}"


def _like(tokens: list[lark.Token]) -> str:
    """Return an example of a statement of this kind."""
    if tokens[0].type in {"IN", "OUT"}:
        return f"a declaration is `{tokens[0]} name: f32[n]`, several are separated by commas"
    if tokens[0].type == "DEF":
        return "a function is `def f(x, y) = x * y`"
    if "COLON" in {token.type for token in tokens}:
        return "a header is `gemm(A: f16[m, k], B: f16[k, n])`"
    return _ASSIGN


def _incomplete(tokens: list[lark.Token], last: lark.Token, expected: Set[str]) -> tuple[str, str]:
    """Return the part that is missing after a token, and a help."""
    if last.type in {"IN", "OUT", "DEF"}:
        return f"a name is missing after `{last}`", _like(tokens)
    if last.type == "COLON":
        return "a type is missing after `:`", "write one, as in `bias: f32[n]`"
    if expected & _OPERAND:
        return f"an operand is missing after `{last}`", f"write a value after it, or remove the `{last}`"
    return "the statement is not complete", "a statement is `D = acc`, `in bias: f32[n]` or `out D: f16[m, n]`"


def _choice(source: Source, tokens: list[lark.Token], index: int) -> str:
    """Return evt's form of ``a if c else b`` or ``c ? a : b`` around a token; "" for other texts."""
    first, last = _brackets(tokens, index)
    depths, depth = list[int](), 0
    for token in tokens[first:last]:
        depth -= token.type in _CLOSING
        depths.append(depth)
        depth += token.type in _OPENING
    outer = [first + place for place, depth in enumerate(depths) if depth == 0]

    def text(start: int, end: int) -> str:
        return source.text[tokens[start].start_pos : tokens[end - 1].end_pos] if start < end else ""

    for signs in (("if", "else"), ("?", ":")):
        found = [next((place for place in outer if tokens[place] == sign), -1) for sign in signs]
        if first < found[0] < found[1] < last - 1:
            parts = text(first, found[0]), text(found[0] + 1, found[1]), text(found[1] + 1, last)
            value, condition, other = parts if signs[0] == "if" else (parts[1], parts[0], parts[2])
            return f"write `where({condition}, {value}, {other})`" if all(parts) else ""
    return ""


def _negated(source: Source, tokens: list[lark.Token], index: int) -> str:
    """Return the operand of ``not``, which takes a whole comparison, for ``!``, which takes one operand."""
    end, last, depth, whole = index, _brackets(tokens, index)[1], 0, True
    while end < last and (depth or tokens[end] not in _LOGIC):
        depth += (tokens[end].type in _OPENING) - (tokens[end].type in _CLOSING)
        whole = whole and (depth > 0 or tokens[end].type in _ENDS)
        end += 1
    text = source.text[tokens[index].start_pos : tokens[end - 1].end_pos]
    return text if whole else f"({text})"


def _remainder(source: Source, tokens: list[lark.Token], index: int) -> str:
    """Return evt's form of ``x % 2`` if both operands are a name, a number, a call or in parentheses."""
    first, last = _brackets(tokens, index)
    start, end = index - 1, index + 1
    if start < first or end >= last:
        return ""
    if tokens[start].type in _CLOSING:
        start = _brackets(tokens, start)[0] - 1
        start -= start > first and tokens[start - 1].type == "NAME"
    end += tokens[end].type == "SUM" and end + 1 < last
    if end + 1 < last and tokens[end].type == "NAME" and tokens[end + 1].type == "LPAR":
        end += 1
    if tokens[end].type == "LPAR":
        end = _brackets(tokens, end + 1)[1]
    if start < first or end >= last:
        return ""
    x = source.text[tokens[start].start_pos : tokens[index - 1].end_pos]
    y = source.text[tokens[index + 1].start_pos : tokens[end].end_pos]
    return f"write `remainder({x}, {y})`"


def _brackets(tokens: list[lark.Token], index: int, bounds: tuple[str, ...] = ("COMMA", "EQUAL")) -> tuple[int, int]:
    """Return the tokens around one that are in its brackets, between commas; at the top, those after ``=``."""
    depth, first = 0, index
    while first > 0:
        before = tokens[first - 1]
        if not depth and (before.type in _OPENING or before.type in bounds):
            break
        depth += (before.type in _CLOSING) - (before.type in _OPENING)
        first -= 1
    depth, last = 0, index
    while last < len(tokens):
        token = tokens[last]
        if not depth and (token.type in _CLOSING or token.type == "COMMA") and last > index - 1:
            break
        depth += (token.type in _OPENING) - (token.type in _CLOSING)
        last += 1
    return first, last


def _assigning(source: Source, tokens: list[lark.Token]) -> str:
    """Return a help for a statement without `=`."""
    if {"A", "B"} <= {str(token) for token in tokens}:
        return "a header has types: `gemm(A: f16[m, k], B: f16[k, n])`; the product is `acc`"
    start = 1 if tokens[0] == "return" and len(tokens) > 1 else 0
    if start and len(tokens) == 2 and tokens[1].type == "NAME" and tokens[1] != "acc":
        return "remove it: every assigned name that nothing reads is returned; `out` names further outputs"
    if len(tokens) > 2 and tokens[0].type == "NAME" and tokens[1] == "==":
        value = " ".join(source.text[tokens[2].start_pos : tokens[-1].end_pos].split())
        return f"write `{tokens[0]} = {value}`; `==` compares"
    if any(a.type in _ENDS and b.type in _OPERAND - {"LPAR"} for a, b in pairwise(tokens[start:])) or tokens[-1] == ",":
        return _ASSIGN
    text = " ".join(source.text[tokens[start].start_pos : tokens[-1].end_pos].split())
    is_value = len(text) < 60 and (len(tokens) > start + 1 or text == "acc" or tokens[start].type == "NUMBER")
    return f"give the value a name: `D = {text}`" if is_value else _ASSIGN


def odd_character(source: Source, token: lark.Token) -> Diagnostic:
    char = str(token)
    name = f"U+{ord(char):04X}"
    shown = f"`{char}` ({name})" if char.isprintable() else name
    message, hint = f"the character {shown} has no meaning in a program", _HINTS.get(char, "remove it")
    if replacement := _LOOKALIKES.get(char) or _greek(char) or _plain(char):
        hint = f"write `{replacement}`"
    elif char.isspace() or unicodedata.category(char) in ("Cc", "Cf"):
        hint = "it is invisible or looks like a space; remove it"
    elif meant := _called(source, token):
        hint = f"write `{meant}`"
    elif char in "\"'\\`$" or unicodedata.category(char) in ("Pi", "Pf"):
        hint = "a program holds no quotes and no escapes"
    elif char == "@":
        message, hint = _product(source, token)
    elif char == ".":
        hint = _method(source, token) or hint
    elif char.isalpha():
        hint = "names have the letters a to z and A to Z, digits and `_`"
    return Diagnostic("E0102", message, _span(token), "not expected", help=hint, source=source)


def _called(source: Source, token: lark.Token) -> str:
    """Return evt's form of a call whose last argument is in quotes, or ""."""
    start, end = token.start_pos or 0, token.end_pos or 0
    opened = re.search(r"gelu\((?!.*gelu\()[^\n;]*$", source.text[max(start - _NEAR, 0) : start])
    closed = re.match(r"\w+.\s*\)", source.text[end : end + _NEAR])
    return approximated(f"{opened[0]}{token}{closed[0]}") if opened and closed else ""


def _around(source: Source, token: lark.Token) -> tuple[str, str]:
    """Return the approximate text of a statement, before and after a token."""
    before, after = source.text[: token.start_pos], source.text[token.end_pos :]
    return re.split("[\n;=]", before[-_NEAR:])[-1], re.split("[\n;]", after[:_NEAR])[0]


def _product(source: Source, token: lark.Token) -> tuple[str, str]:
    """Return the explanation of ``@``: the product of A and B is `acc`, and the one of A and an input is a function."""
    before, after = _around(source, token)
    if not (re.search(r"[\w)\]]\s*$", before) and re.match(r"\s*[\w(]", after)):
        return f"the character `{token}` has no meaning in a program", "remove it; the product of A and B is `acc`"
    if before.rfind("[") > before.rfind("]"):
        return f"`{token}` is not part of a subscript", "an input of i32 is the index of rows: `D[index[m], n] = acc`"
    operands = re.search(r"\bA\s*$", before) and re.match(r"\s*B\b", after)
    if operands and not re.search(r"\bacc|@", before + after):
        return "the product of A and B is not written with `@`", "write `acc` for `A @ B`"
    message = "a product is not written with `@`"
    return message, "write `acc` for A and B, `matmul(A, up)` for A and an input, or read the result of another program"


def _method(source: Source, token: lark.Token) -> str:
    """Return evt's form of ``acc.relu()`` or ``torch.relu(acc)``; "" for other texts."""
    before, after = _around(source, token)
    owner, called = re.search(r"\w+$", before), re.match(r"(?:[A-Za-z_]+\.)*((\w+)\(([^()]*)\))", after)
    if owner is not None and re.match(r"m?T\b", after):
        stored = owner[0] == "acc"
        return "store the transpose: `out D[n, m]`" if stored else f"write `{owner[0]}[n, m]` for the transpose"
    if owner is None or called is None:
        return ""
    if owner[0] in _MODULES or called[0] != called[1]:
        return f"write `{approximated(called[1]) or called[1]}`"
    if called[2] in _CASTS and called[3].isidentifier():
        return f"write `{called[3]}({owner[0]})`"
    return f"write `{called[2]}({', '.join(filter(None, (owner[0], called[3])))})`"


def _plain(char: str) -> str:
    """Return the ASCII character of a styled form (``𝔻``) or of another script's digit, or ""."""
    if (digit := unicodedata.decimal(char, None)) is not None:
        return str(digit)
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
        help=f"close the `{opened}` before it, or remove the `{token}`",
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
