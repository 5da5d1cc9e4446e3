"""Where the steps of lowering report what is wrong."""

from __future__ import annotations

from collections.abc import Iterable

from evt.diagnostics import MAX_DIAGNOSTICS, Diagnostic, Source, Span, closest


class Report:
    """Collects diagnostics about one source; calling it adds one."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.diagnostics: list[Diagnostic] = []

    def __call__(self, code: str, message: str, span: Span, label: str = "", hint: str = "") -> None:
        self.diagnostics.append(Diagnostic(code, message, span, label, hint, source=self.source))

    def unsupported(self, what: str, span: Span, hint: str = "") -> None:
        self("E0901", f"{what} not supported yet", span, "planned, not built", hint)

    def guess(self, word: str, candidates: Iterable[str]) -> str | None:
        """A spelling suggestion, while there are mistakes that will be shown."""
        return closest(word, candidates) if len(self.diagnostics) < MAX_DIAGNOSTICS else None
