"""The canonical layout of a program's text: ``format_text(source) -> text``.

The formatter changes white space and statement ends alone: the tokens, their order and the comments stay. Therefore it
keeps the meaning.

- Each statement has its own line. A line break within a statement stays.
- Blanks surround the operators of sums, comparisons and conditions: ``alpha*acc + beta*C``.
- The ``=`` of adjacent assignments are aligned, and so are the comments after adjacent lines.
- Of several empty lines one remains.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import lark

from evt.diagnostics import Source
from evt.language.parse import parse, split

#: The first column of a comment after code, unless the code is longer.
_COMMENT_COLUMN = 39
_INDENT = 4
_OPENING, _CLOSING = ("(", "["), (")", "]")
#: The last tokens of an operand. A sign after another token is a prefix.
_ENDS = frozenset(("NAME", "NUMBER", "RPAR", "RSQB"))
_SIGNS = ("+", "-", "!")
#: Operators between blanks. The other operators bind tighter and stand without blanks.
_SPACED = frozenset(("+", "-", "<", "<=", ">", ">=", "==", "!=", "&&", "||"))
_KEYWORDS = {"IN": "in  ", "OUT": "out ", "DEF": "def "}


@dataclass
class _Line:
    """A line of the result: code, a comment, both or neither.

    ``target`` is the width of the code before the ``=`` of an assignment, and 0 on other lines.
    """

    code: str = ""
    comment: str = ""
    target: int = 0


@dataclass(frozen=True)
class _Gap:
    """The text between two tokens: the comment that ends the line, and the comments of the lines in between.

    An empty line has the comment "".
    """

    after: str
    between: list[str]
    is_broken: bool

    @classmethod
    def of(cls, text: str) -> _Gap:
        first, *rest = text.split("\n")
        between = [_comment(line) for line in rest]
        return cls(_comment(first), between if between[-1:] != [""] else between[:-1], bool(rest))


def format_text(source: Source | str) -> str:
    """Return the text of a program in canonical layout. Raise ProgramError with every syntax error (E01xx)."""
    source = parse(source).source
    lines, end = [_Line()], 0
    for tokens in split(source):
        start = int(tokens[0].start_pos or 0)
        _add_gap(lines, _Gap.of(source.text[end:start]))
        lines += _lines_of(source.text, tokens)
        end = int(tokens[-1].end_pos or 0)
    _add_gap(lines, _Gap.of(source.text[end:]))
    lines = _without_extra_blanks(lines)
    _align_targets(lines)
    return "".join(f"{line}\n" for line in _joined(lines))


def _comment(text: str) -> str:
    start = text.find("#")
    return text[start:].rstrip() if start >= 0 else ""


def _add_gap(lines: list[_Line], gap: _Gap) -> None:
    lines[-1].comment = gap.after
    lines += [_Line(comment=comment) for comment in gap.between]


def _lines_of(text: str, tokens: list[lark.Token]) -> Iterator[_Line]:
    """Yield the lines of a statement."""
    first, *rest = tokens
    line, before, depth, is_prefix = _Line(_KEYWORDS.get(first.type, str(first))), first, 0, False
    for token in rest:
        depth -= token in _CLOSING
        gap = _Gap.of(text[before.end_pos : token.start_pos])
        if gap.is_broken:
            line.comment = gap.after
            yield line
            indent = " " * _INDENT * (depth if token in _CLOSING else max(1, depth))
            yield from (_Line(indent, comment) for comment in gap.between if comment)
            line = _Line(indent)
        elif not is_prefix and _is_spaced(before, token, depth):
            line.code += " "
        if token == "=" and depth == 0 and first.type not in _KEYWORDS:
            line.target = len(line.code.rstrip())
        line.code += token
        depth += token in _OPENING
        is_prefix = token in _SIGNS and before.type not in _ENDS
        before = token
    yield line


def _is_spaced(before: lark.Token, token: lark.Token, depth: int) -> bool:
    """Return whether a blank stands between two tokens of a line; the first is no prefix."""
    if before in _OPENING or before.type in _KEYWORDS or token in (*_CLOSING, ",", ":"):
        return False
    if "=" in (before, token):
        return depth == 0  # in brackets it names an argument
    return before in (",", ":") or before in _SPACED or (token in _SPACED and before.type in (*_ENDS, "PRIME"))


def _without_extra_blanks(lines: list[_Line]) -> list[_Line]:
    """Return the lines without empty lines at both ends and after another empty line."""
    kept: list[_Line] = []
    for line in lines:
        if line.code or line.comment or (kept and (kept[-1].code or kept[-1].comment)):
            kept.append(line)
    return kept if kept[-1].code or kept[-1].comment else kept[:-1]


def _align_targets(lines: list[_Line]) -> None:
    """Align the ``=`` of adjacent assignments."""
    for is_assignment, group in groupby(lines, lambda line: line.target > 0):
        if is_assignment:
            adjacent = list(group)
            width = max(line.target for line in adjacent)
            for line in adjacent:
                line.code = f"{line.code[: line.target]:<{width}}{line.code[line.target :]}"


def _joined(lines: list[_Line]) -> Iterator[str]:
    """Yield each line with its comment; the comments after adjacent lines of code are aligned."""
    for has_both, group in groupby(lines, lambda line: bool(line.code.strip() and line.comment)):
        adjacent = list(group)
        column = max(_COMMENT_COLUMN, 2 + max(len(line.code) for line in adjacent)) if has_both else 0
        yield from (f"{line.code:<{column}}{line.comment}".rstrip() for line in adjacent)
