"""Answers to questions about a problem: what was found, or the reason why not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from evt.diagnostics import Span

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Match:
    """A rule holds; ``found`` is what it found for the kernel's planner, if anything."""

    found: object = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """A rule does not hold, or something does not fit, and why.

    ``place`` is the node of the problem's graph, or the declaration in the program's text, that is the cause.
    """

    reason: str
    place: int | Span | None = None


@dataclass(frozen=True, slots=True)
class Partial(Refusal):
    """A route that applies does not suit a problem as a whole, but some of its sizes; each call tells."""


Verdict = Match | Refusal

#: The match of a rule that found nothing for the planner.
HOLDS = Match()


class Matches:
    """What the rules of a route found, by its type."""

    def __init__(self, verdicts: Iterable[Verdict] = ()) -> None:
        found = (verdict.found for verdict in verdicts if isinstance(verdict, Match))
        self._found = {type(each): each for each in found if each is not None}

    def __getitem__(self, kind: type[T]) -> T:
        """Return the finding of a type, which one of the rules must have made."""
        found = self._found[kind]
        assert isinstance(found, kind)
        return found
