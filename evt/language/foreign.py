"""Forms of other languages: a table of rules, each with the form of evt that a user meant."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence

import lark

from evt.diagnostics import Source

#: The first and the last token of a form, and a help.
_Found = tuple[int, int, str]
_Rule = Callable[[Source, Sequence[lark.Token], int], _Found | None]

_OPENING, _CLOSING = frozenset({"LPAR", "LSQB"}), frozenset({"RPAR", "RSQB"})
_OPERATORS = frozenset({"+", "-", "*", "/", "**", "<=", ">=", "==", "!=", "<", ">", "||", "&&", "="})
_DECLARING = {"input": "in", "inputs": "in", "output": "out", "outputs": "out"}
#: Adjacent tokens that are one operator elsewhere.
_PAIRS = {
    "<>": "write `!=`",
    "=<": "write `<=`",
    "=>": "write `>=`",
    "===": "write `==`",
    "!==": "write `!=`",
    "<<": "multiply by a power of two",
    ">>": "divide by a power of two; `floor` rounds down",
    "->": "a cast is written `f16(x)`",
}
#: Words that look like types.
_TYPE = re.compile(r"[a-z]+\d+\w*|float|half|double|int|bool")
#: A call of PyTorch's GELU: its argument, the quotes, and the formula's name.
_GELU = re.compile(r"gelu\((.+), *approximate *= *(['\"])(tanh|none)\2\)", re.DOTALL)
_GELUS = {"tanh": "gelu_tanh", "none": "gelu"}
#: The end of a line, blank lines and comments, and the next statement.
_NEXT_LINE = re.compile(r"[^\S\n]*(#[^\n]*)?\n(\s|#[^\n]*\n)*[^\s;#]")
_CONTINUED = "a statement ends with its line; put its value in parentheses to continue it on the next line"


def foreign(source: Source, tokens: Sequence[lark.Token], index: int) -> _Found | None:
    """Return the form of another language around an unexpected token, and evt's form; None if no rule applies.

    ``index`` is the place of the token; it is the number of tokens at the end of the statement.
    """
    return next((found for rule in _RULES if (found := rule(source, tokens, index)) is not None), None)


def _comment(source: Source, tokens: Sequence[lark.Token], index: int) -> _Found | None:
    """``D = acc // text`` -> ``D = acc # text``."""
    for place in range(min(index + 1, len(tokens) - 1)):
        if _joined(tokens, place) in ("//", "/*", "/**"):
            quotient = "; `floor_divide(x, y)` rounds a quotient down" if place and tokens[place + 1] == "/" else ""
            return place, place + 1, f"a comment begins with `#`{quotient}"
    return None


def _introduced(source: Source, tokens: Sequence[lark.Token], index: int) -> _Found | None:
    """``let D = acc`` -> ``D = acc``, ``input bias: f32[n]`` -> ``in bias: f32[n]``."""
    if len(tokens) < 2 or {tokens[0].type, tokens[1].type} != {"NAME"} or index > 1:
        return None
    rest = _text(source, tokens, 1, len(tokens))
    if word := _DECLARING.get(tokens[0].lower()):
        return 0, 0, f"write `{word} {rest}`"
    if _outside(tokens, "EQUAL") is not None and tokens[0] not in {"if", "for", "while", "not"}:
        return 0, 0, f"write `{rest}`"
    return None


def _loop(source: Source, tokens: Sequence[lark.Token], index: int) -> _Found | None:
    """``for i in n: D = acc`` -> ``D = acc``."""
    if tokens[0] in {"for", "while"} and index == 1:
        return 0, 0, "a program has no loops; a formula is computed for every element"
    return None


def _defined(source: Source, tokens: Sequence[lark.Token], index: int) -> _Found | None:
    """``def f(x): return 2*x`` -> ``def f(x) = 2*x``."""
    if tokens[0].type != "DEF" or not 3 < index < len(tokens) or _closing(tokens, 2) != index - 1:
        return None
    body = index + (tokens[index].type == "COLON")
    body += body < len(tokens) - 1 and tokens[body] == "return"
    if body == len(tokens):
        return None
    return index, index, f"write `{_text(source, tokens, 0, index)} = {_text(source, tokens, body, len(tokens))}`"


def _several(source: Source, tokens: Sequence[lark.Token], index: int) -> _Found | None:
    """``D, E = acc, bias`` -> ``D = acc; E = bias``."""
    equal = _outside(tokens, "EQUAL")
    if index != 1 or equal is None or tokens[1].type != "COMMA":
        return None
    names = [str(token) for token in tokens[:equal] if token.type == "NAME"]
    values = _parts(source, tokens, equal + 1)
    if len(names) != len(values) or not all(values):
        return 1, 1, "assign one expression to each name: `D = acc; E = 2 * acc`"
    return 1, 1, f"write `{'; '.join(f'{name} = {value}' for name, value in zip(names, values, strict=True))}`"


def _typed(source: Source, tokens: Sequence[lark.Token], index: int) -> _Found | None:
    """``D: f16 = acc`` -> ``out D: f16; D = acc``, ``bias: f16`` -> ``in bias: f16``, ``D: -acc`` -> ``D = -acc``."""
    if not 1 <= index < len(tokens) - 1 or (tokens[0].type, tokens[index].type) != ("NAME", "COLON"):
        return None
    if index > 1 and (tokens[1].type != "LSQB" or _closing(tokens, 1) != index - 1):
        return None
    equal, after = _outside(tokens, "EQUAL"), tokens[index + 1]
    if equal is None and (after.type in {"LPAR", "NUMBER", "SUM"} or after == "acc" or _computes(tokens, index + 2)):
        name, value = _text(source, tokens, 0, index), _text(source, tokens, index + 1, len(tokens))
        return index, index, f"write `{name} = {value}`"
    if after.type != "NAME":
        return None
    if equal is None:
        return index, index, f"write `in {_text(source, tokens, 0, len(tokens))}`"
    left, value = _text(source, tokens, 0, equal), _text(source, tokens, equal + 1, len(tokens))
    return index, index, f"write `out {left}; {tokens[0]} = {value or 'acc'}`"


def _untyped(source: Source, tokens: Sequence[lark.Token], index: int) -> _Found | None:
    """``in bias f32[n]`` -> ``in bias: f32[n]``."""
    declares = tokens[0].type in {"IN", "OUT"} and 2 <= index < len(tokens) and _depth(tokens[:index]) == 0
    if not declares or (tokens[index - 1].type, tokens[index].type) != ("NAME", "NAME"):
        return None
    if tokens[index - 2].type not in {"IN", "OUT", "COMMA"}:
        return None
    name, kind = tokens[index - 1], tokens[index]
    return index, index, f"write `{name}: {kind}` for a type, or `{name}, {kind}` for two names"


def _parameter(source: Source, tokens: Sequence[lark.Token], index: int) -> _Found | None:
    """``def f(x, a=2) = a*x`` -> ``def f(x, a) = a*x``."""
    if tokens[0].type == "DEF" and index < len(tokens) and tokens[index].type == "EQUAL" and _depth(tokens[:index]):
        return index, index, "a parameter has no default: pass all arguments in each call"
    return None


def _default(source: Source, tokens: Sequence[lark.Token], index: int) -> _Found | None:
    """``in scale: f32 = 1/4`` -> ``in scale: f32 = 0.25``."""
    kinds = [token.type for token in tokens[max(index - 2, 0) : index]]
    if tokens[0].type != "IN" or kinds != ["EQUAL", "NUMBER"] or not _computes(tokens, index):
        return None
    ends = index + 2 == len(tokens) or (index + 2 < len(tokens) and tokens[index + 2].type == "COMMA")
    if tokens[index] != "/" or not ends or tokens[index + 1].type != "NUMBER" or not float(tokens[index + 1]):
        return index, index, "a default is one number"
    quotient = float(tokens[index - 1]) / float(tokens[index + 1])
    before, after = _text(source, tokens, 0, index - 1), _text(source, tokens, index + 2, len(tokens))
    return index - 1, index + 1, f"a default is one number: write `{before} {quotient:.9g}{after}`"


def _approximate(source: Source, tokens: Sequence[lark.Token], index: int) -> _Found | None:
    """``gelu(acc, approximate='tanh')`` -> ``gelu_tanh(acc)``."""
    if index < 5 or index >= len(tokens) or tokens[index - 2] != "approximate":
        return None
    depth = _depth(tokens[:index])
    first = next((place for place in reversed(range(index)) if _depth(tokens[:place]) < depth), 0)
    end = next((place for place in range(index, len(tokens)) if tokens[place].type == "RPAR"), index)
    meant = approximated(_text(source, tokens, first - 1, end + 1)) if first else ""
    return (first - 1, end, f"write `{meant}`") if meant else None


def approximated(text: str) -> str:
    """Return evt's form of a call of PyTorch's GELU with a keyword in quotes, or ""."""
    found = _GELU.fullmatch(text)
    return f"{_GELUS[found[3]]}({found[1]})" if found else ""


def _scoped(source: Source, tokens: Sequence[lark.Token], index: int) -> _Found | None:
    """``std::max(acc, 0)`` -> ``max(acc, 0)``."""
    place = index
    while _joined(tokens, place) == "::" and place + 2 < len(tokens) and tokens[place + 2].type == "NAME":
        place += 3
    if place == index:
        return None
    end = place
    if end < len(tokens) and tokens[end].type == "LPAR":
        end = _closing(tokens, end) + 1
    return index, index + 1, f"write `{_text(source, tokens, place - 1, end)}`"


def _digits(source: Source, tokens: Sequence[lark.Token], index: int) -> _Found | None:
    """``1_000`` -> ``1000``, ``0x10`` -> ``16``."""
    if not 0 < index < len(tokens) or tokens[index - 1].type != "NUMBER" or not _adjacent(tokens, index - 1):
        return None
    whole = f"{tokens[index - 1]}{tokens[index]}"
    if re.fullmatch(r"\d+(_\d+)+", whole):
        return index - 1, index, f"write `{whole.replace('_', '')}`"
    if re.fullmatch(r"0([xX][\da-fA-F]+|[bB][01]+|[oO][0-7]+)", whole) and int(whole, 0) <= sys.float_info.max:
        return index - 1, index, f"numbers are decimal: write `{int(whole, 0)}`"
    return None


def _arrow(source: Source, tokens: Sequence[lark.Token], index: int) -> _Found | None:
    """``D <- acc`` -> ``D = acc``."""
    if len(tokens) > 3 and tokens[0].type == "NAME" and _joined(tokens, 1) in ("<-", "->") and _adjacent(tokens, 1):
        return 1, 2, f"write `{tokens[0]} = {_text(source, tokens, 3, len(tokens))}`"
    return None


def _operator(source: Source, tokens: Sequence[lark.Token], index: int) -> _Found | None:
    """``acc <> 0`` -> ``acc != 0``."""
    for place in range(max(index - 1, 0), min(index + 1, len(tokens))):
        if hint := _PAIRS.get(_joined(tokens, place)):
            return place, place + 1, hint
    return None


def _cast(source: Source, tokens: Sequence[lark.Token], index: int) -> _Found | None:
    """``(f16) acc`` -> ``f16(acc)``."""
    kinds = [token.type for token in tokens[max(index - 3, 0) : index]]
    called = index > 3 and tokens[index - 4].type in {"NAME", "PRIME", "RSQB"}
    if kinds != ["LPAR", "NAME", "RPAR"] or called or index >= len(tokens) or not _TYPE.fullmatch(tokens[index - 2]):
        return None
    end = index + 1
    if tokens[index].type == "LPAR":
        end = _closing(tokens, index) + 1
    elif end < len(tokens) and (tokens[index].type, tokens[end].type) == ("NAME", "LPAR"):
        end = _closing(tokens, end) + 1
    kind, value = tokens[index - 2], _text(source, tokens, index, end)
    argument = value if tokens[index].type == "LPAR" else f"({value})"
    return index - 3, end - 1, f"write `{kind}{argument}` for a cast, or `{kind} * {value}` for a product"


def _continued(source: Source, tokens: Sequence[lark.Token], index: int) -> _Found | None:
    """``D = acc +`` and ``bias`` in the next line -> ``D = (acc +`` and ``bias)``."""
    last = len(tokens) - 1
    if index > last and tokens[last] in _OPERATORS and _NEXT_LINE.match(source.text, tokens[last].end_pos or 0):
        return last, last, _CONTINUED
    lines = [line.partition("#")[0].strip() for line in source.text[: tokens[0].start_pos].split("\n")]
    above = next(filter(None, reversed(lines)), "")
    goes_on = tokens[0] in _OPERATORS or above.endswith(tuple(_OPERATORS))
    if goes_on and above and not lines[-1] and above[-1] != ";" and _outside(tokens, "EQUAL") is None:
        return 0, last, _CONTINUED
    return None


#: The first rule that applies gives the help.
_RULES: tuple[_Rule, ...] = (
    _comment,
    _loop,
    _introduced,
    _defined,
    _several,
    _typed,
    _untyped,
    _parameter,
    _default,
    _approximate,
    _scoped,
    _digits,
    _arrow,
    _operator,
    _cast,
    _continued,
)


def _text(source: Source, tokens: Sequence[lark.Token], start: int, end: int) -> str:
    """Return the text of some tokens on one line."""
    if start >= end:
        return ""
    return " ".join(source.text[tokens[start].start_pos : tokens[end - 1].end_pos].split())


def _computes(tokens: Sequence[lark.Token], place: int) -> bool:
    """Return whether a token makes an expression of the name or number before it."""
    if place >= len(tokens) or tokens[place].type == "EQUAL":
        return False
    return tokens[place].type == "LPAR" or tokens[place] in _OPERATORS


def _adjacent(tokens: Sequence[lark.Token], place: int) -> bool:
    return place + 1 < len(tokens) and tokens[place].end_pos == tokens[place + 1].start_pos


def _joined(tokens: Sequence[lark.Token], place: int) -> str:
    """Return a token and its neighbour if no space separates them."""
    return f"{tokens[place]}{tokens[place + 1]}" if _adjacent(tokens, place) else ""


def _depth(tokens: Sequence[lark.Token]) -> int:
    return sum((token.type in _OPENING) - (token.type in _CLOSING) for token in tokens)


def _outside(tokens: Sequence[lark.Token], kind: str) -> int | None:
    """Return the first token of a kind outside of brackets."""
    depth = 0
    for place, token in enumerate(tokens):
        if token.type == kind and depth == 0:
            return place
        depth += (token.type in _OPENING) - (token.type in _CLOSING)
    return None


def _closing(tokens: Sequence[lark.Token], opening: int) -> int:
    """Return the bracket that closes one."""
    depth = 0
    for place in range(opening, len(tokens)):
        depth += (tokens[place].type in _OPENING) - (tokens[place].type in _CLOSING)
        if depth == 0:
            return place
    return len(tokens) - 1


def _parts(source: Source, tokens: Sequence[lark.Token], start: int) -> list[str]:
    """Return the texts between commas outside of brackets."""
    parts, first, depth = [], start, 0
    for place in range(start, len(tokens)):
        if tokens[place].type == "COMMA" and depth == 0:
            parts.append(_text(source, tokens, first, place))
            first = place + 1
        depth += (tokens[place].type in _OPENING) - (tokens[place].type in _CLOSING)
    return [*parts, _text(source, tokens, first, len(tokens))]
