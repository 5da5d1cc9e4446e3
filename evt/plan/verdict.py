"""Verdicts of rules about a problem: a match with its finding, or a refusal with its reason."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from evt.diagnostics import Span

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Match:
    """A rule holds; ``found`` is its finding for the kernel's planner, if any."""

    found: object = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """A rule does not hold, or a configuration does not fit, with the reason.

    ``place`` is the node of the problem's graph, or the declaration in the program's text, that is the cause.
    """

    reason: str
    place: int | Span | None = None


@dataclass(frozen=True, slots=True)
class Partial(Refusal):
    """A route that applies suits only some sizes of a problem; each call decides."""


Verdict = Match | Refusal

#: The match of a rule that found nothing for the planner.
HOLDS = Match()


def refused_for(reason: str) -> Verdict:
    """Return a refusal with the reason, or HOLDS if there is none."""
    return Refusal(reason) if reason else HOLDS


class Matches:
    """The findings of a route's rules, by type."""

    def __init__(self, verdicts: Iterable[Verdict] = ()) -> None:
        found = (verdict.found for verdict in verdicts if isinstance(verdict, Match))
        self._found = {type(each): each for each in found if each is not None}

    def __getitem__(self, kind: type[T]) -> T:
        """Return the finding of a type; one of the rules must have made it."""
        found = self._found[kind]
        assert isinstance(found, kind)
        return found
