"""How questions about a problem are answered: with what was found, or with the reason why not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from evt.diagnostics import Span

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Match:
    """A rule holds; ``found`` is what it came upon that a kernel's planner goes on with, if anything."""

    found: object = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """A rule does not hold, or something does not fit, and why.

    ``place`` is the node of the problem's graph, or the declaration in the program's text, that is the cause.
    """

    reason: str
    place: int | Span | None = None


Verdict = Match | Refusal

#: The match of a rule with nothing to hand on.
HOLDS = Match()


class Matches:
    """What the rules of a route found, by its type."""

    def __init__(self, verdicts: Iterable[Verdict] = ()) -> None:
        found = (verdict.found for verdict in verdicts if isinstance(verdict, Match))
        self._found = {type(each): each for each in found if each is not None}

    def __getitem__(self, kind: type[T]) -> T:
        """What is of a type, which one of the rules has to have found."""
        found = self._found[kind]
        assert isinstance(found, kind)
        return found
