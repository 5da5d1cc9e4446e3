"""The origin of a value: an expression of the program's text, or a node of another graph.

Origins are stored in ``Dag.origins``, separate from the nodes: graphs are equal regardless of their texts. A merged
node has the origin of the first of its equal nodes, so that a graph stays small.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TypeAlias

from evt.diagnostics import Diagnostic, Label, Source, Span, visible

#: The number of characters of an expression that are shown next to its place.
_LONGEST = 60
#: The number of characters that are read for this, because each of several nested expressions may be long.
_MOST_READ = 4096


@dataclass(frozen=True, slots=True)
class Place:
    """An expression of the program's text, or the statement that stores a value.

    ``calls`` are the calls that inlined it from a user's function, innermost first.
    """

    span: Span
    calls: tuple[Span, ...] = ()

    @property
    def site(self) -> Span:
        """The expression within its statement; for an inlined expression, the outermost call."""
        return self.calls[-1] if self.calls else self.span


@dataclass(frozen=True, slots=True)
class Foreign:
    """A node of a foreign graph, by its name there: ``fx: relu_3``."""

    name: str


Origin: TypeAlias = Place | Foreign


def at(place: Span | Origin | None, source: Source | None, diagnostic: Diagnostic) -> Diagnostic:
    """Return the diagnostic with a place: a part of the text, or a value's origin and the calls that inlined it."""
    match place:
        case Span() if source is not None:
            return replace(diagnostic, span=place, source=source)
        case Place(span, calls) if source is not None:
            shown = dict.fromkeys((*calls[:1], *calls[-1:]))
            called = (Label(call, "called here") for call in shown)
            return replace(diagnostic, span=span, source=source, secondary=(*diagnostic.secondary, *called))
        case Foreign(name):
            return replace(diagnostic, notes=(*diagnostic.notes, f"from {name}"))
    return diagnostic


def describe(origin: Origin | None, source: Source | None) -> str:
    """Return an origin in one line: ``3:5 relu(acc + bias)``, ``1:12 x * 2, called at 3:5``; "" if there is none."""
    match origin:
        case Place(span, calls) if source is not None:
            end = min(span.end, span.start + _MOST_READ)
            text = " ".join(re.sub("#.*", "", source.text[span.start : end]).split())
            text = text if len(text) <= _LONGEST and end == span.end else f"{text[: _LONGEST - 3]}..."
            called = f", called at {_position(source, calls[-1])}" if calls else ""
            return f"{_position(source, span)} {text}{called}"
        case Foreign(name):
            return visible(name)
    return ""


def quoted(origin: Origin | None, source: Source | None) -> str:
    """Return :func:`describe` for a value of the user's text, and "" for a node of another graph, for kernels.

    Names of another graph's nodes would make the kernels of equal layers differ.
    """
    return describe(origin, source) if isinstance(origin, Place) else ""


def _position(source: Source, span: Span) -> str:
    line, column = source.position(span.start)
    return f"{line}:{column}"
