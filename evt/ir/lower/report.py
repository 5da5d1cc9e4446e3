"""The collector of mistakes in lowering."""

from __future__ import annotations

from collections.abc import Iterable

from evt.diagnostics import MAX_DIAGNOSTICS, Diagnostic, Label, Source, Span, closest, first
from evt.errors import ProgramError
from evt.ir.origin import Origin, at


class SourceDiagnostics:
    """A collector of diagnostics about one source; calling it adds one.

    ``unused`` are about unread names. A misspelt name or a refused declaration leaves a name unread as well, so they
    are reported only if there is no other mistake.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.diagnostics: list[Diagnostic] = []
        self.unused: list[Diagnostic] = []

    def check(self) -> None:
        """Raise ProgramError with the mistakes so far, because later checks would report only consequences."""
        if found := self.diagnostics or self.unused:
            raise ProgramError(first(found))

    def __call__(
        self,
        code: str,
        message: str,
        place: Span | Origin | None,
        label: str = "",
        hint: str = "",
        secondary: Iterable[Label] = (),
    ) -> None:
        """Add a diagnostic. ``place`` is a part of the text, or the origin of a value."""
        made = Diagnostic(code, message, None, label, hint, secondary=tuple(secondary))
        self.diagnostics.append(at(place, self.source, made))

    def nothing_reads(self, code: str, message: str, place: Span, hint: str) -> None:
        """Add that nothing reads the name at a place."""
        self.unused.append(at(place, self.source, Diagnostic(code, message, None, "unused", hint)))

    def unsupported(self, what: str, place: Span | Origin | None, hint: str = "") -> None:
        self("E0901", f"{what} not supported yet", place, "planned, not built", hint)

    def guess(self, word: str, candidates: Iterable[str]) -> str | None:
        """Return a spelling suggestion, unless enough mistakes were already found."""
        return closest(word, candidates) if len(self.diagnostics) < MAX_DIAGNOSTICS else None
