"""The route that is taken for a problem."""

from __future__ import annotations

from evt.plan import Problem, plan


def route_of(problem: Problem, forced: str | None = None) -> str:
    """Return the name of the route taken; ``forced`` is the name of a route, or a kind of routes."""
    return plan(problem, forced).route
