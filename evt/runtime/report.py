"""The mistakes in a call, collected: ``CallDiagnostics``."""

from __future__ import annotations

from evt.diagnostics import Diagnostic
from evt.errors import ArgumentError


class CallDiagnostics:
    """A collector of mistakes, which are reported together."""

    def __init__(self) -> None:
        self.diagnostics: list[Diagnostic] = []

    def __call__(self, code: str, message: str, hint: str = "") -> None:
        self.diagnostics.append(Diagnostic(code, message, help=hint))

    def add(self, *found: Diagnostic | None) -> None:
        """Add diagnostics, ignoring None."""
        self.diagnostics += [each for each in found if each is not None]

    def check(self) -> None:
        if self.diagnostics:
            raise ArgumentError(self.diagnostics)


def copied_back(name: str, copy: str, back: str = "") -> str:
    """Return the help for a buffer that no kernel writes to: the call writes to a copy, which is copied back.

    ``copy`` is the method that makes the copy, ``back`` the one that undoes a change of shape.
    """
    return f"copy it, and copy the result back: made = {name}.{copy}; op(..., {name}=made); {name}.copy_(made{back})"
