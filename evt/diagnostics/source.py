"""The user's text and places in it."""

from __future__ import annotations

import bisect
import re
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, slots=True)
class Span:
    """A half-open range of character offsets ``[start, end)`` in a :class:`Source`."""

    start: int
    end: int

    def to(self, other: Span) -> Span:
        """Return the smallest span that covers both spans."""
        return Span(min(self.start, other.start), max(self.end, other.end))

    def covers(self, other: Span) -> bool:
        """Return whether this span contains the other."""
        return self.start <= other.start and other.end <= self.end


@dataclass(frozen=True)
class Source:
    """A program's text and its name: a path, or ``<formula>``. A lone CR ends a line: it becomes LF."""

    text: str
    name: str = "<formula>"

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise TypeError(f"a program is a str, not {type(self.text).__name__}")
        if "\r" in self.text:
            object.__setattr__(self, "text", re.sub("\r(?!\n)", "\n", self.text))

    @cached_property
    def _line_starts(self) -> list[int]:
        starts = [0]
        starts.extend(i + 1 for i, char in enumerate(self.text) if char == "\n")
        return starts

    def position(self, offset: int) -> tuple[int, int]:
        """Return the 1-based (line, column) of a character offset."""
        line = bisect.bisect_right(self._line_starts, offset)
        return line, offset - self._line_starts[line - 1] + 1

    def line(self, number: int) -> str:
        """Return the text of a 1-based line, without its line end."""
        start = self._line_starts[number - 1]
        end = self._line_starts[number] - 1 if number < len(self._line_starts) else len(self.text)
        return self.text[start:end].rstrip("\r")
