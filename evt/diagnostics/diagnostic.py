"""One diagnostic."""

from __future__ import annotations

from dataclasses import dataclass

from evt.diagnostics.codes import CODES
from evt.diagnostics.source import Source, Span

#: The longest message, label or help, in characters. Names in a program may be longer and are shortened.
_MAX_TEXT = 400


@dataclass(frozen=True, slots=True)
class Label:
    """A second place in the same text, and the text under it."""

    span: Span
    text: str


@dataclass(frozen=True)
class Diagnostic:
    """A mistake: its code, message, place and remedy.

    ``label`` is the text under the caret. ``help`` is something that the user can type or do. ``notes`` add facts, such
    as the rules that a target fails. ``secondary`` are related places, such as the declaration that an expression
    contradicts.
    """

    code: str
    message: str
    span: Span | None = None
    label: str = ""
    help: str = ""
    notes: tuple[str, ...] = ()
    source: Source | None = None
    secondary: tuple[Label, ...] = ()

    def __post_init__(self) -> None:
        if self.code not in CODES:
            raise KeyError(f"diagnostic code {self.code} is not in evt.diagnostics.codes")
        for name in ("message", "label", "help"):
            object.__setattr__(self, name, _shorten(getattr(self, name)))

    @property
    def severity(self) -> str:
        """Return "error" or "warning"."""
        return "warning" if self.code.startswith("W") else "error"

    def to_json(self) -> dict[str, object]:
        """Return a JSON-ready form with 1-based lines and columns."""
        where: dict[str, object] = {}
        if self.source is not None and self.span is not None:
            source = self.source
            others = [{"label": label.text, **_positions(source, label.span)} for label in self.secondary]
            where = {"file": source.name, **_positions(source, self.span), "secondary": others}
        return {
            "code": self.code,
            "message": self.message,
            "label": self.label,
            "help": self.help,
            "notes": list(self.notes),
            **where,
        }


def _positions(source: Source, span: Span) -> dict[str, int]:
    line, column = source.position(span.start)
    end_line, end_column = source.position(max(span.start, span.end))
    return {"line": line, "column": column, "end_line": end_line, "end_column": end_column}


def _shorten(text: str) -> str:
    """Return the text, with its middle cut out if it is longer than the limit."""
    half = _MAX_TEXT // 2
    return text if len(text) <= _MAX_TEXT else f"{text[:half]} ... {text[-half:]}"
