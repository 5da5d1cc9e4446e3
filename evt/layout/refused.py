"""Errors of evt.layout: the failed condition, its layouts, and a remedy."""

from __future__ import annotations

from evt.diagnostics import Diagnostic
from evt.errors import LayoutError


def refused(code: str, message: str, help: str = "", **operands: object) -> LayoutError:
    """Return an error to raise; ``operands`` become notes with their names, as text."""
    notes = (_note(name, str(value)) for name, value in operands.items())
    return LayoutError(Diagnostic(code, message, help=help, notes=tuple(notes)))


def _note(name: str, text: str) -> str:
    return f"{name} = {text}" if len(text) <= 200 else f"{name} = {text[:100]} ... {text[-100:]}"
