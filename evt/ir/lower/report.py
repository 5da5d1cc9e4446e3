"""The collector to which lowering reports mistakes."""

from __future__ import annotations

from collections.abc import Iterable

from evt.diagnostics import MAX_DIAGNOSTICS, Diagnostic, Label, Source, Span, closest, first
from evt.errors import ProgramError
from evt.ir.origin import Origin, at


class SourceDiagnostics:
    """Collects diagnostics about one source; calling it adds one.

    ``unused`` are about what nothing reads. A misspelt name or a refused declaration leaves something unused as well,
    so they are reported only where nothing else is wrong.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.diagnostics: list[Diagnostic] = []
        self.unused: list[Diagnostic] = []

    def check(self) -> None:
        """Raise ProgramError with what was found so far: what comes next would only see its consequences."""
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
        """Add a diagnostic; ``place`` is a part of the text, or where a value comes from."""
        made = Diagnostic(code, message, None, label, hint, secondary=tuple(secondary))
        self.diagnostics.append(at(place, self.source, made))

    def nothing_reads(self, code: str, message: str, place: Span, hint: str) -> None:
        """Add that nothing reads what stands at a place."""
        self.unused.append(at(place, self.source, Diagnostic(code, message, None, "unused", hint)))

    def unsupported(self, what: str, place: Span | Origin | None, hint: str = "") -> None:
        self("E0901", f"{what} not supported yet", place, "planned, not built", hint)

    def guess(self, word: str, candidates: Iterable[str]) -> str | None:
        """Return a spelling suggestion, unless more mistakes were found than will be shown."""
        return closest(word, candidates) if len(self.diagnostics) < MAX_DIAGNOSTICS else None
