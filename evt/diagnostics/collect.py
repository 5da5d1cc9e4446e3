"""Selection of the mistakes to report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from evt.diagnostics.diagnostic import Diagnostic

#: The largest number of mistakes that are reported for one program.
MAX_DIAGNOSTICS = 20


def first(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Return the first mistakes in the order of the text, one of each code and place.

    Several mistakes with one code at one place have one cause, such as the body of a function that is inlined twice. A
    last diagnostic says that more mistakes were found.
    """
    by_place: dict[object, Diagnostic] = {}
    for each in diagnostics:
        by_place.setdefault((each.code, each.span) if each.span else each, each)
    unique = sorted(by_place.values(), key=lambda each: each.span.start if each.span else 0)
    reported = unique[:MAX_DIAGNOSTICS]
    if len(unique) > MAX_DIAGNOSTICS:
        note = f"only the first {MAX_DIAGNOSTICS} mistakes are shown"
        reported[-1] = replace(reported[-1], notes=(*reported[-1].notes, note))
    return reported
