"""Visible faults of emitted C++: ``faults(text)``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_HEADERS = Path(__file__).parents[2] / "codegen" / "include"
_SILENT = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])'", re.DOTALL)
_MARKS = {
    "a word of Python's": re.compile(r"(?<![\w.:])(nan|inf|None|True|False|Undefined)(?!\w)"),
    "a template's mark": re.compile(r"\{%|%\}|\{#|#\}"),
}


@cache
def _pasted() -> frozenset[str]:
    """Return the lines of the headers that are pasted into emitted text."""
    return frozenset(line.strip() for path in _HEADERS.rglob("*.hpp") for line in path.read_text().splitlines())


def faults(text: str) -> Iterator[str]:
    """Python's words in the place of a number, remains of a template, and unbalanced brackets."""
    for line in text.splitlines():
        if line.strip() not in _pasted():
            code = _SILENT.sub(" ", line)
            yield from (f"{what}: {line.strip()}" for what, mark in _MARKS.items() if mark.search(code))
    code = _SILENT.sub(" ", text)
    for pair in ("()", "[]", "{}"):
        opened, closed = map(code.count, pair)
        if opened != closed:
            yield f"brackets: {opened} times {pair[0]} and {closed} times {pair[1]}"
