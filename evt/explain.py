"""The reasons behind a program's plan: ``explain(found) -> Explanation``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from evt.diagnostics import visible
from evt.emission.stock import given
from evt.emission.text import Jobs
from evt.emission.workspace import jobs_after, jobs_before, parts
from evt.errors import TargetError
from evt.estimate import Costs, Estimate, costs_of, estimate, total
from evt.ir.interface import format_interface
from evt.measured import Measurement, Timing
from evt.plan import Candidate, Plan, Survey
from evt.plan.batches import refusal
from evt.plan.cards import Card
from evt.plan.epilogue.program import EpilogueProgram
from evt.plan.routes.route import Kind
from evt.plan.speed import fastest
from evt.plan.verdict import Refusal
from evt.request import LOOP, Shapes


@dataclass(frozen=True, slots=True)
class RouteExplanation:
    """One route: its summary, its rules, and whether it was chosen.

    ``rules`` are pairs of a statement and the reason of its failure, "" if it holds. ``unmet`` is the condition for
    preferring the route, if that is not met. ``beside`` means that the route's kernels are also built, for some sizes.
    A route that applies also has estimates for its kernel: ``shared_memory`` in bytes, ``registers`` out of
    ``register_limit`` per thread (0 if they are not estimated), and the measured ``timings``.
    """

    name: str
    kind: Kind
    summary: str
    rules: tuple[tuple[str, str], ...]
    chosen: bool
    shared_memory: int = 0
    registers: int = 0
    register_limit: int = 0
    timings: tuple[Timing, ...] = ()
    unmet: str = ""
    beside: bool = False

    @property
    def applies(self) -> bool:
        """True if all rules of the route hold."""
        return not any(reason for _, reason in self.rules)

    @property
    def costs(self) -> str:
        """The estimates and measurements, as text."""
        parts = []
        if self.shared_memory:
            parts.append(f"at least {self.shared_memory / 1024:.0f} KiB of shared memory")
        if self.registers:
            parts.append(f"about {self.registers} of {self.register_limit} registers")
        for timing in self.timings:
            how = f" with {timing.config}" if timing.config else ""
            parts += [f"{timing.ms:.4f} ms measured{how}"]
        return ", ".join(parts)

    @property
    def lines(self) -> Iterator[str]:
        """The description of the route: all rules if it was chosen, otherwise only the failed ones."""
        for rule, reason in self.rules:
            if reason or self.chosen:
                yield f"{'fails' if reason else 'holds'}  {rule}{f': {reason}' if reason else ''}"
        if self.unmet and self.applies:
            yield f"it applies, and is preferred where {self.unmet}"
            if self.beside:
                yield "its kernels are built, too: a call takes one where it is expected to be faster"
        elif self.applies and not self.chosen:
            asked = 'it applies, and is taken where `route="loop"` asks for it or it was measured to be the fastest'
            yield asked if self.name == LOOP else "it also applies, with lower priority"
        if self.costs:
            yield self.costs

    def to_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "kind": self.kind,
            "summary": self.summary,
            "applies": self.applies,
            "chosen": self.chosen,
            "rules": [{"rule": rule, "holds": not reason, "reason": reason} for rule, reason in self.rules],
            "shared_memory_bytes": self.shared_memory if self.applies else None,
            "registers": self.registers if self.applies else None,
            "preferred_where": self.unmet,
            "built_beside": self.beside,
            "measured": [{"config": timing.config, "ms": timing.ms} for timing in self.timings],
        }


@dataclass(frozen=True)
class Explanation:
    """The content of ``evt explain``. Epilogue traffic is in bytes per element of the product.

    ``interface`` lists the program's inputs and outputs. ``chosen_by`` is rules, force or measurement; ``gpus`` are the
    GPUs on which the problem was measured. ``costs`` are the costs of a problem of known sizes, and ``estimate`` is the
    estimate of the kernel that a call of these sizes takes.
    """

    target: str
    interface: tuple[str, ...]
    routes: tuple[RouteExplanation, ...]
    plan: Plan
    configurations: tuple[str, ...]
    visitors: tuple[str, ...]
    chosen_by: str = "rules"
    gpus: tuple[str, ...] = ()
    costs: Costs | None = None
    estimate: Estimate | None = None

    @property
    def kernels(self) -> tuple[tuple[str, tuple[Jobs, ...]], ...]:
        """The auxiliary kernels before and after the kernel."""
        return ("before", jobs_before(self.plan)), ("after", jobs_after(self.plan))

    def to_json(self) -> dict[str, object]:
        return {
            "target": self.target,
            "interface": list(self.interface),
            "chosen_by": self.chosen_by,
            "measured_on": list(self.gpus),
            "routes": [route.to_json() for route in self.routes],
            "configurations": list(self.configurations),
            "visitors": list(self.visitors),
            "tree": self.plan.tree,
            "shared_memory_bytes": self.plan.shared_memory,
            "registers": self.plan.registers,
            "kernels": [
                {
                    "name": jobs.kernel,
                    "when": when,
                    "summary": jobs.summary,
                    "jobs": [{"name": job.name, "type": job.type} for job in jobs.jobs],
                }
                for when, kernels in self.kernels
                for jobs in kernels
            ],
            "workspace": [
                {"node": part.node, "element": part.element, "parts": part.count, "extent": part.kept}
                for part in parts(self.plan)
            ],
            "epilogue_bytes_per_element": {"read": self.plan.read_bytes, "written": self.plan.written_bytes},
            "costs": self.costs.to_json() if self.costs else None,
            "estimate": self.estimate.to_json() if self.estimate else None,
        }

    def __str__(self) -> str:
        lines = [*self.interface, f"target {self.target}"]
        for route in self.routes:
            how = f" (by {self.chosen_by})" if route.chosen and self.chosen_by != "rules" else ""
            lines.append(f"{'->' if route.chosen else '  '} {route.name}: {route.summary}{how}")
            lines += [f"      {line}" for line in route.lines]
        if self.gpus:
            advice = "" if len(self.gpus) == 1 else "; for which of them is not said, so the rules choose"
            lines.append(f"measured on {', '.join(self.gpus)}{advice}")
        straight = self.plan.family == "own"
        kind = (
            "as straight-line code"
            if straight
            else "as a tree"
            if self.plan.tree
            else "as a topological visitor (a value is shared)"
        )
        lines.append("epilogue, of CUTLASS's own:" if is_stock(self.plan) else f"visitors, {kind}:")
        lines += [f"   {visitor}" for visitor in self.visitors]
        for when, kernels in self.kernels:
            for jobs in kernels:
                summary = jobs.summary[:1].lower() + jobs.summary[1:].rstrip(".")
                lines.append(f"{when} the kernel, {jobs.kernel}: {summary}")
                lines += [f"   {job.name}: {job.type}" for job in jobs.jobs]
        if workspace := parts(self.plan):
            lines.append("workspace, for each batch:")
            for part in workspace:
                lines.append(f"   {part.node}: {part.element}{''.join(f'[{extent}]' for extent in part.shape)}")
        lines.append(f"configurations: {', '.join(self.configurations)}")
        lines.append(f"shared memory: at least {self.plan.shared_memory / 1024:.0f} KiB a thread block")
        if self.plan.registers:
            limit = self.plan.register_limit
            fits = "" if self.plan.registers <= limit else ": values will be spilled to memory"
            lines.append(f"registers: about {self.plan.registers} of {limit} a thread, estimated{fits}")
        lines.append(
            f"epilogue traffic: {self.plan.read_bytes:g} bytes read and {self.plan.written_bytes:g} written "
            "per element of acc"
        )
        if self.costs:
            lines.append(str(self.costs))
        if self.estimate:
            lines += [f"kernel for these sizes: {self.estimate.route} {self.estimate.config}", str(self.estimate)]
        return visible("\n".join(lines), keep="\n")


def explain(
    found: Survey,
    products: Sequence[tuple[Mapping[str, int], Shapes]] = (),
    measured: Sequence[Measurement] = (),
    best: Timing | None = None,
    loop: Survey | None = None,
    *,
    looped: bool = False,
    card: Card | None = None,
) -> Explanation:
    """Explain a survey's choice of route.

    ``products`` are the extents of a problem and its operands' shapes, several for groups. ``measured`` are its
    measurements, and ``best`` is the kernel that a call takes. ``loop`` is the survey of one group's product, for a
    loop that launches one kernel per group; ``looped`` means that the loop is forced. ``card`` is the GPU of estimates.

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
    costs = total([costs_of(problem.dag, sizes, shapes) for sizes, shapes in products]) if products else None
    expected = None
    if card is not None and costs is not None and costs.flops and len(products) == 1 and not problem.grouped:
        sizes, _ = products[0]
        expected = estimate(plans[fastest(plans, sizes, card.multiprocessors)], sizes, costs, card)
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
        format_interface(problem.dag),
        tuple(routes),
        made,
        tuple(each.config.name for each in plans if each.route == made.route),
        _epilogue(made),
        "measurement" if best else "force" if forced else "rules",
        tuple(measurement.gpu for measurement in measured),
        costs,
        expected,
    )


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
        beside,
    )


def is_stock(plan: Plan) -> bool:
    """Return whether a kernel's epilogue is one of CUTLASS's, not a program of evt."""
    return not isinstance(plan.epilogue, EpilogueProgram)


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
