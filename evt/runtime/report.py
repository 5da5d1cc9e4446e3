"""What is wrong with a call, collected: ``Report``."""

from __future__ import annotations

from evt.diagnostics import Diagnostic
from evt.errors import ArgumentError


class Report:
    """Collects what is wrong, to report together."""

    def __init__(self) -> None:
        self.diagnostics: list[Diagnostic] = []

    def __call__(self, code: str, message: str, hint: str = "") -> None:
        self.diagnostics.append(Diagnostic(code, message, help=hint))

    def add(self, *found: Diagnostic | None) -> None:
        """Add what was found, None being nothing."""
        self.diagnostics += [each for each in found if each is not None]

    def check(self) -> None:
        if self.diagnostics:
            raise ArgumentError(self.diagnostics)
