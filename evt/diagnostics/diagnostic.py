"""One diagnostic."""

from __future__ import annotations

from dataclasses import dataclass

from evt.diagnostics.codes import CODES
from evt.diagnostics.source import Source, Span


@dataclass(frozen=True)
class Diagnostic:
    """What is wrong, where, and what to type instead.

    ``label`` stands under the caret; ``help`` is something the user can type or do;
    ``notes`` add facts (for example the rules of a target that failed).
    """

    code: str
    message: str
    span: Span | None = None
    label: str = ""
    help: str = ""
    notes: tuple[str, ...] = ()
    source: Source | None = None

    def __post_init__(self) -> None:
        if self.code not in CODES:
            raise KeyError(f"diagnostic code {self.code} is not in evt.diagnostics.codes")

    def to_json(self) -> dict[str, object]:
        """A JSON-ready form; positions are 1-based lines and columns."""
        where: dict[str, object] = {}
        if self.source is not None and self.span is not None:
            line, column = self.source.position(self.span.start)
            end_line, end_column = self.source.position(max(self.span.start, self.span.end))
            where = {
                "file": self.source.name,
                "line": line,
                "column": column,
                "end_line": end_line,
                "end_column": end_column,
            }
        return {
            "code": self.code,
            "message": self.message,
            "label": self.label,
            "help": self.help,
            "notes": list(self.notes),
            **where,
        }
