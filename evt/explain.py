"""The reasons behind a program's plan: ``explain(found) -> Explanation``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from evt.emission.stock import given
from evt.errors import TargetError
from evt.estimate import costs_of, estimate, plan_taken, total
from evt.explanation import Explanation, RouteExplanation
from evt.ir.interface import format_interface, in_one_line
from evt.plan import Candidate, Plan, Problem, Survey
from evt.plan.batches import refusal
from evt.plan.cards import Card
from evt.plan.epilogue.program import EpilogueProgram
from evt.plan.invariance import accumulation
from evt.plan.routes.route import Kind
from evt.plan.verdict import Refusal
from evt.request import LOOP, Shapes

if TYPE_CHECKING:
    from evt.measured import Measurement, Timing


def explain(
    found: Survey,
    products: Sequence[tuple[Mapping[str, int], Shapes]] = (),
    measured: Sequence[Measurement] = (),
    best: Timing | None = None,
    loop: Survey | None = None,
    *,
    looped: bool = False,
    card: Card | None = None,
    unmeasured: str = "",
) -> Explanation:
    """Explain a survey's choice of route.

    ``products`` are the extents of a problem and its operands' shapes, several for groups. ``measured`` are its
    measurements, and ``best`` is the kernel that a call takes. ``loop`` is the survey of one group's product, for a
    loop that launches one kernel per group; ``looped`` means that the loop is forced. ``card`` is the GPU of estimates,
    ``unmeasured`` the named GPU if it has no measurement of the problem.

    Raise TargetError: E0501 for an unknown configuration, E0502 for one that does not fit, E0503 if no route is left.
    """
    problem, forced = found.problem, looped or found.named is not None or found.config is not None
    looped = looped or (best is not None and best.route == LOOP)
    if best is not None and not looped:
        found = found.asked_for(best.route, best.config)
    taken = loop if looped and loop is not None else found
    try:
        plans = taken.defaults
    except TargetError as error:
        raise _in_full(error) from None
    made = plans[0]
    batches = max((sizes.get("l", 1) for sizes, _ in products), default=1)
    timings = measured[0].timings if len(measured) == 1 else ()
    built = {each.route for each in plans}
    costs = total([costs_of(problem.program, sizes, shapes) for sizes, shapes in products]) if products else None
    expected = None
    if card is not None and costs is not None and costs.flops and len(products) == 1 and not problem.grouped:
        sizes, _ = products[0]
        expected = estimate(plan_taken(taken, sizes, card), sizes, costs, card)
    routes = [
        _explain_route(
            each,
            made if each is taken.chosen else None,
            batches,
            timings,
            each is not taken.chosen and each.route.name in built,
        )
        for each in found.candidates
    ]
    if loop is not None:
        routes.append(_explain_loop(loop, made if looped else None, timings))
    return Explanation(
        problem.target.name,
        format_interface(problem.program),
        in_one_line(problem.program, problem.program.operation, ()),
        tuple(routes),
        made,
        tuple(each.config.name for each in plans if each.route == made.route),
        _epilogue(made),
        "measurement" if best else "force" if forced else "rules",
        tuple(measurement.gpu for measurement in measured),
        costs,
        expected,
        _proof(problem, plans),
        _emitted(taken),
        unmeasured,
    )


def _emitted(taken: Survey) -> str:
    """Return the route whose text is printed, if it is not the chosen one."""
    try:
        printed = taken.printed.chosen.route.name
    except TargetError:  # no route that is printed compiles the program
        return ""
    return "" if printed == taken.chosen.route.name else printed


def _in_full(error: TargetError) -> TargetError:
    """Return the error that no route compiles a program, with the refusal of each route."""
    reasons: dict[str, list[str]] = {}
    for route, reason in error.refusals:
        reasons.setdefault(route, []).append(reason)
    notes = tuple(f"{route}: {'; '.join(found)}" for route, found in reasons.items())
    (found,) = error.diagnostics
    return TargetError(replace(found, notes=notes), error.refusals) if notes else error


def _explain_loop(loop: Survey, taken: Plan | None, timings: Sequence[Timing]) -> RouteExplanation:
    """Explain the loop over groups, which takes the route of one group. ``taken`` as in :func:`_explain_route`."""
    kind: Kind = "evt"
    try:
        made, kind, reason = loop.plan, loop.chosen.route.kind, ""
    except TargetError as error:
        made, reason = None, error.diagnostics[0].message
    return RouteExplanation(
        LOOP,
        kind,
        f"a kernel for each group{f', by the route {made.route}' if made else ''}",
        (("a group alone is a product that a route compiles", reason),),
        taken is not None,
        made.shared_memory if made else 0,
        made.registers if made else 0,
        made.register_limit if made and made.registers else 0,
        tuple(timing for timing in timings if timing.route == LOOP),
    )


def _explain_route(
    candidate: Candidate, taken: Plan | None, batches: int, timings: Sequence[Timing], beside: bool
) -> RouteExplanation:
    """Explain a route for the given number of batches.

    ``taken`` is the plan if the route is chosen; ``beside`` means that its kernels are also built.
    """
    route, made = candidate.route, taken
    rules = [
        (rule.statement, verdict.reason if isinstance(verdict, Refusal) else "") for rule, verdict in candidate.verdicts
    ]
    if made is None and candidate.applies:
        made = candidate.general
        if made is None:
            rules += [("a configuration fits in shared memory", each.reason) for each in candidate.misfits]
    if candidate.applies:
        most = candidate.max_batches
        if reason := refusal(candidate.problem.dag, most, batches):
            rules.append((f"batches are at most {most} in a launch", reason))
    return RouteExplanation(
        route.name,
        route.kind,
        route.summary,
        tuple(rules),
        taken is not None,
        made.shared_memory if made else 0,
        made.registers if made else 0,
        made.register_limit if made and made.registers else 0,
        tuple(timing for timing in timings if timing.route == route.name),
        route.suits.statement if route.suits and candidate.applies and candidate.unsuited else "",
        candidate.unsuited if candidate.applies else "",
        beside,
        tuple(copy.matrix.name for copy in made.row_copies) if made else (),
    )


def _proof(problem: Problem, plans: Sequence[Plan]) -> str:
    """Return why a row does not depend on the number of rows, if the program asks for that."""
    if not problem.options.batch_invariant:
        return ""
    orders = list(dict.fromkeys(str(accumulation(problem, plan)) for plan in plans))
    return f"{'; '.join(orders)}, in {'all ' if len(plans) > 1 else ''}{len(plans)} kernel{'s' * (len(plans) > 1)}"


def _epilogue(plan: Plan) -> tuple[str, ...]:
    """Return each step once, by name; or the class of a stock epilogue, its functors, and its arguments."""
    if isinstance(plan.epilogue, EpilogueProgram):
        program = plan.epilogue
        lines = [f"{step.name}: {step.description}" for step in program.unique]
        lines += [f"{each.name}: {each.description}" for each in program.results if each.region is not None]
        return tuple(lines)
    fused = plan.epilogue.fused
    lines = [f"{fused.name}{' of ' if fused.functors else ''}{', '.join(fused.functors)}"]
    for each in given(plan):
        if not each.is_implied:
            names = ", ".join(str(field) for field in dict.fromkeys(each.fields))
            lines.append(f"{each.member}: {names or each.expression}")
    return tuple(lines)
