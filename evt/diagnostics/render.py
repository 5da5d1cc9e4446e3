"""Diagnostics as text, in the style of rustc."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

from evt.diagnostics.diagnostic import Diagnostic
from evt.diagnostics.source import Source, Span
from evt.diagnostics.visible import visible

_RESET = "\x1b[0m"
_STYLES = {
    "error": "\x1b[1;31m",
    "warning": "\x1b[1;33m",
    "bold": "\x1b[1m",
    "frame": "\x1b[1;34m",
    "help": "\x1b[1;36m",
}
#: The largest number of columns of a user's line that are shown. A longer line is cut around the caret.
_WINDOW = 100


def render(diagnostic: Diagnostic, *, color: bool = False) -> str:
    """Return one diagnostic as text: code, message, place, source lines with a caret, help and notes."""

    def paint(style: str, text: str) -> str:
        return f"{_STYLES[style]}{text}{_RESET}" if color else text

    head = paint(diagnostic.severity, f"{diagnostic.severity}[{diagnostic.code}]")
    lines = [head + paint("bold", f": {visible(diagnostic.message)}")]
    margin = " "
    if diagnostic.source is not None and diagnostic.span is not None:
        number, column = diagnostic.source.position(diagnostic.span.start)
        marks = _marks(diagnostic.source, diagnostic.span, diagnostic)
        margin = " " * len(str(marks[-1].number))
        lines.append(paint("frame", f"{margin}-->") + f" {visible(diagnostic.source.name)}:{number}:{column}")
        lines.append(paint("frame", f"{margin} |"))
        for before, mark in zip((None, *marks), marks, strict=False):
            if before is not None and mark.number > before.number + 1:
                lines.append(paint("frame", "..."))
            if before is None or (before.number, before.line) != (mark.number, mark.line):
                lines.append(paint("frame", f"{mark.number:>{len(margin)}} |") + f" {mark.line}")
            lines.append(paint("frame", f"{margin} |") + f" {mark.indent}" + paint(mark.style, mark.text))
    if diagnostic.help:
        lines.append(f"{margin} = {paint('help', 'help')}: {visible(diagnostic.help)}")
    lines.extend(f"{margin} = {paint('bold', 'note')}: {visible(note)}" for note in diagnostic.notes)
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class _Mark:
    """A line of the user's text and the marks under it."""

    number: int
    line: str
    indent: str
    text: str
    style: str


def _marks(source: Source, place: Span, diagnostic: Diagnostic) -> list[_Mark]:
    """Return the source lines to show, in order: ``^^^`` marks the place, ``---`` marks related places."""

    def mark(span: Span, label: str, sign: str, style: str) -> _Mark:
        number, column = source.position(span.start)
        line, start, width = _window(_printable(source.line(number)), column - 1, span.end - span.start)
        text = sign * max(1, _columns(line[start : start + width]))
        return _Mark(number, line, " " * _columns(line[:start]), f"{text} {visible(label)}" if label else text, style)

    marks = [mark(place, diagnostic.label, "^", diagnostic.severity)]
    marks += [mark(label.span, label.text, "-", "frame") for label in diagnostic.secondary]
    return sorted(marks, key=lambda each: each.number)


def render_all(diagnostics: Iterable[Diagnostic], *, color: bool = False) -> str:
    """Return several diagnostics as text, separated by empty lines."""
    return "\n\n".join(render(diagnostic, color=color) for diagnostic in diagnostics)


def _printable(line: str) -> str:
    """Return the line with control characters replaced, so that it cannot control the terminal."""
    return "".join(
        " " if char == "\t" else char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in line
    )


def _columns(text: str) -> int:
    """Return the width of a text in terminal columns: 2 for a wide character, 0 for a combining one."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def _window(line: str, caret: int, width: int) -> tuple[str, int, int]:
    """Cut a long line around the caret. Return (text, caret column, caret width)."""
    width = max(1, min(width, len(line) - caret))
    if len(line) <= _WINDOW:
        return line, caret, width
    start = max(0, min(caret - _WINDOW // 3, len(line) - _WINDOW))
    head, tail = ("..." if start else ""), ("..." if start + _WINDOW < len(line) else "")
    shown = caret - start
    return (
        head + line[start : start + _WINDOW] + tail,
        shown + len(head),
        max(1, min(width, _WINDOW - shown)),
    )
