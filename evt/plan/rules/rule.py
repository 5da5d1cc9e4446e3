"""Rules: conditions on a problem."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from evt.plan.problem import Problem
from evt.plan.verdict import Verdict

Check = Callable[[Problem], Verdict]


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """A rule: its statement, and the check that decides whether a problem meets it.

    ``code`` is a name for programs: rules of one code ask the same question, of other operands or targets.
    """

    statement: str
    check: Check
    code: str


def rule(statement: str) -> Callable[[Check], Rule]:
    """Make a function the check of a rule with this statement."""

    def make(check: Check) -> Rule:
        return Rule(statement, check, check.__name__)

    return make
