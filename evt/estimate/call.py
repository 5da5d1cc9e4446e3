"""Estimates of a program's call: ``estimate_call(request, shapes, arch, a, b) -> Estimate``."""

from __future__ import annotations

from collections.abc import Mapping

from evt.diagnostics import Diagnostic
from evt.errors import ArgumentError, LaunchError
from evt.estimate.costs import Costs, costs_of
from evt.estimate.estimate import Estimate, estimate, estimates
from evt.plan import Plan, Survey
from evt.plan.cards import Card
from evt.plan.speed import fastest, refusal
from evt.request import Request, Shapes, packed_problem, problem_sizes, surveyed


def estimate_call(request: Request, shapes: Shapes, arch: str, a: str | None, b: str | None) -> Estimate:
    """Return the estimate of the kernel that a call takes without measurements: see ``Program.estimate``."""
    found, costs = _survey(request, shapes, arch, a, b)
    sizes, card = problem_sizes(request, shapes), _card(arch)
    return estimate(plan_taken(found, sizes, card), sizes, costs, card)


def plan_taken(found: Survey, sizes: Mapping[str, int], card: Card) -> Plan:
    """Return the kernel that a call takes without measurements. Raise LaunchError (E0804) if none can run it."""
    reasons = [refusal(plan, sizes, found.problem.sizes) for plan in found.defaults]
    able = [plan for plan, reason in zip(found.defaults, reasons, strict=True) if not reason]
    if not able:
        raise LaunchError(Diagnostic("E0804", reasons[0], help="leave `route` and `config` out, or take others"))
    return able[fastest(able, sizes, card)]


def estimate_kernels(request: Request, shapes: Shapes, arch: str, a: str | None, b: str | None) -> tuple[Estimate, ...]:
    """Return the estimates of the kernels of all routes in all configurations, the fastest first."""
    found, costs = _survey(request, shapes, arch, a, b)
    return estimates(found, problem_sizes(request, shapes), costs, _card(arch))


def _survey(request: Request, shapes: Shapes, arch: str, a: str | None, b: str | None) -> tuple[Survey, Costs]:
    """Return the kernels of a problem, and its costs. Raise ArgumentError (E0604) for an empty product."""
    found = surveyed(request, packed_problem(request, arch, a, b, shapes))
    costs = costs_of(found.problem.program, problem_sizes(request, shapes), shapes)
    if not costs.flops:
        raise ArgumentError(Diagnostic("E0604", "the product is empty: there is nothing to estimate"))
    return found, costs


def _card(arch: str) -> Card:
    """Return a card with the constants of this machine. Its module imports sqlite3, which the playground lacks."""
    from evt.measured import named_card

    return named_card(arch)
