"""Diagnostics: values that describe a user's mistakes.

A :class:`Diagnostic` is a frozen value with a code from the table in :mod:`evt.diagnostics.codes`. Stages collect
diagnostics; :class:`evt.errors.EvtError` carries them to the user; :func:`render` prints them.
"""

from evt.diagnostics.codes import CODES, Code, page
from evt.diagnostics.collect import MAX_DIAGNOSTICS, first
from evt.diagnostics.diagnostic import Diagnostic, Label
from evt.diagnostics.render import render, render_all
from evt.diagnostics.source import Source, Span
from evt.diagnostics.suggest import Misspellings, closest, hint, quoted, shown
from evt.diagnostics.visible import visible

__all__ = [
    "CODES",
    "MAX_DIAGNOSTICS",
    "Code",
    "Diagnostic",
    "Label",
    "Misspellings",
    "Source",
    "Span",
    "closest",
    "first",
    "hint",
    "page",
    "quoted",
    "render",
    "render_all",
    "shown",
    "visible",
]
