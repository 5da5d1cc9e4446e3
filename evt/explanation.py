"""The explanation of a program's plan, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evt.diagnostics import visible
from evt.emission.text import Jobs
from evt.emission.workspace import jobs_after, jobs_before, parts
from evt.estimate import Costs, Estimate
from evt.html import code, details, page, table
from evt.plan import Plan
from evt.plan.epilogue.program import EpilogueProgram
from evt.plan.routes.route import Kind
from evt.request import LOOP

if TYPE_CHECKING:
    from evt.measured import Timing

#: The most steps of an epilogue, measurements and tiles in the short text.
_MOST_STEPS, _MOST_TIMINGS, _MOST_TILES = 6, 3, 3


@dataclass(frozen=True, slots=True)
class RouteExplanation:
    """One route: its summary, its rules, and whether it was chosen.

    ``rules`` are pairs of a statement and the reason of its failure, "" if it holds. ``unmet`` is the condition for
    preferring the route, if that is not met, and ``unsuited`` is the reason. ``beside`` means that the route's kernels
    are also built, for some sizes. A route that applies also has estimates for its kernel: ``shared_memory`` in bytes,
    ``registers`` out of ``register_limit`` per thread (0 if they are not estimated), and the measured ``timings``. The
    kernel reads copies of the operands ``copied``, whose rows are aligned.
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
    unsuited: str = ""
    beside: bool = False
    copied: tuple[str, ...] = ()

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
        if self.copied:
            parts.append(f"{' and '.join(self.copied)} copied into aligned rows")
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
            yield f"it also applies, with lower priority: {self.unsuited}"
            if self.beside:
                yield "its kernels are built, too: a call takes one if it is expected to be faster"
        elif self.applies and not self.chosen:
            asked = 'it applies, and a call takes it for `route="loop"`, or if it was measured to be the fastest'
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
            "copied": list(self.copied) if self.applies else [],
            "preferred_where": self.unmet,
            "not_preferred_because": self.unsuited,
            "built_beside": self.beside,
            "measured": [{"config": timing.config, "ms": timing.ms} for timing in self.timings],
        }


@dataclass(frozen=True, repr=False)
class Explanation:
    """The content of ``evt explain``: a short text, and the details in :meth:`details`.

    Epilogue traffic is in bytes per element of the product. ``interface`` lists the program's inputs and outputs, and
    ``signature`` has them in one line. ``chosen_by`` is rules, force or measurement; ``gpus`` are the GPUs on which the
    problem was measured. ``costs`` are the costs of a problem of known sizes, and ``estimate`` is the estimate of the
    kernel that a call of these sizes takes. ``proof`` is why a row does not depend on the number of rows, with
    ``batch_invariant``. ``emitted`` is the route whose text ``evt emit`` prints, if calls take another one.
    ``unmeasured`` is the GPU that was asked for, if it has no measurement of the problem.
    """

    target: str
    interface: tuple[str, ...]
    signature: str
    routes: tuple[RouteExplanation, ...]
    plan: Plan
    configurations: tuple[str, ...]
    visitors: tuple[str, ...]
    chosen_by: str = "rules"
    gpus: tuple[str, ...] = ()
    costs: Costs | None = None
    estimate: Estimate | None = None
    proof: str = ""
    emitted: str = ""
    unmeasured: str = ""

    @property
    def route(self) -> str:
        """The chosen route, one of ``routes``."""
        return next(route.name for route in self.routes if route.chosen)

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
            "not_measured_on": self.unmeasured or None,
            "routes": [route.to_json() for route in self.routes],
            "configurations": list(self.configurations),
            "visitors": list(self.visitors),
            "factors": self.factors or None,
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
            "batch_invariant": self.proof or None,
            "emitted_route": self.emitted or self.route,
        }

    def __str__(self) -> str:
        """Return the choice in about eight lines; :meth:`details` has every rule."""
        return visible("\n".join(self._summary()), keep="\n")

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        chosen = next(route for route in self.routes if route.chosen)
        rows, marks = [], []
        for route in self.routes:
            fate = next((title for title, found in _routes_by_fate(self.routes) if route in found), "chosen")
            failed = "; ".join(f"{rule}: {reason}" for rule, reason in route.rules if reason)
            rows.append((route.name, fate, route.summary, route.costs if route.applies else failed))
            marks.append("chosen" if route.chosen else "" if route.applies else "failed")
        facts = (line.strip().partition("  ") for line in self._summary() if line.startswith("   "))
        headings = ("route", "", "kernel", "costs, or the rule that fails")
        fates = ("also applies", "refused", "built beside")
        return page(
            code(self.signature),
            table(headings, rows, f"{chosen.name} on {self.target}", marks=marks),
            table(("", ""), [(name, value.strip()) for name, _, value in facts if name not in fates]),
            details("every rule", code(self.details())),
        )

    def _summary(self) -> Iterator[str]:
        chosen = next(route for route in self.routes if route.chosen)
        how = "" if self.chosen_by == "rules" else f", by {self.chosen_by}"
        yield self.signature
        yield f"{self.target}: {chosen.name}{how}: {chosen.summary}"
        for title, routes in _routes_by_fate(self.routes):
            yield f"   {title:<13} {', '.join(route.name for route in routes)}"
        for timing in sorted(self.timings, key=lambda timing: timing.ms)[:_MOST_TIMINGS]:
            yield f"   measured      {timing.ms:.4f} ms by {timing.route} {timing.config}".rstrip()
        if self.gpus:
            yield f"   measured on   {', '.join(self.gpus)}"
        if self.unmeasured:
            yield f"   measured      {self._missing}"
        if self.emitted:
            yield f"   evt emit      prints {self.emitted}, unless --route own asks for this kernel"
        yield f"   epilogue      {self._epilogue_in_short}"
        if self.factors:
            yield f"   factors       {self.factors}"
        more = len(self.configurations) - _MOST_TILES
        others = f" and {more} more" if more > 0 else ""
        yield f"   tiles         {', '.join(self.configurations[:_MOST_TILES])}{others}"
        yield f"   resources     {self._resources}"
        if self.proof:
            yield f"   invariance    {self.proof}"
        for when, kernels in self.kernels:
            if kernels:
                yield f"   {f'kernel {when}':<13} {', '.join(jobs.kernel for jobs in kernels)}"
        if self.costs:
            yield f"   sizes         {str(self.costs).removeprefix('costs of ')}"
        if self.estimate:
            first = str(self.estimate).partition("\n")[0].removeprefix("estimate: ")
            yield f"   estimate      {self.estimate.config}: {first}"

    @property
    def timings(self) -> tuple[Timing, ...]:
        """The measurements of all routes."""
        return tuple(timing for route in self.routes for timing in route.timings)

    @property
    def _missing(self) -> str:
        """The reason why a named GPU has no times."""
        if self.costs is None:
            return f"times on {self.unmeasured} need sizes"
        return f"no times of these sizes on {self.unmeasured}, so the rules choose"

    @property
    def factors(self) -> str:
        """The use of the operands' factors, in words."""
        factors = self.plan.factors
        if not factors:
            return ""
        found = ", ".join(dict.fromkeys(each.origin.partition(" ")[2] or each.operand for each in factors))
        sums = f"sums of {self.plan.config.tile[2]} elements of k times factors are added in f32"
        uses = {"the zero point is subtracted in registers" if each.role != "factor" else sums for each in factors}
        return f"{found}: {'; '.join(sorted(uses))}"

    @property
    def _epilogue_in_short(self) -> str:
        names = [visitor.partition(":")[0] for visitor in self.visitors]
        if is_stock(self.plan):
            return f"{self.visitors[0]}, of CUTLASS"
        kind = "straight-line code" if self.plan.family == "own" else "visitors"
        more = f" and {len(names) - _MOST_STEPS} more" if len(names) > _MOST_STEPS else ""
        return f"{kind}: {', '.join(names[:_MOST_STEPS])}{more}"

    @property
    def _resources(self) -> str:
        parts = [f"{self.plan.shared_memory / 1024:.0f} KiB of shared memory"]
        if self.plan.registers:
            spills = ", which spill" if self.plan.registers > self.plan.register_limit else ""
            parts.append(f"{self.plan.registers} of {self.plan.register_limit} registers{spills}")
        parts.append(f"{self.plan.read_bytes:g} bytes read and {self.plan.written_bytes:g} written an element")
        return ", ".join(parts)

    def details(self) -> str:
        """Return the explanation with every rule of every route, and the steps of the epilogue."""
        lines = [*self.interface, f"target {self.target}"]
        for route in self.routes:
            how = f" (by {self.chosen_by})" if route.chosen and self.chosen_by != "rules" else ""
            lines.append(f"{'->' if route.chosen else '  '} {route.name}: {route.summary}{how}")
            lines += [f"      {line}" for line in route.lines]
        if self.gpus:
            advice = "" if len(self.gpus) == 1 else "; for which of them is not said, so the rules choose"
            lines.append(f"measured on {', '.join(self.gpus)}{advice}")
        if self.unmeasured:
            lines.append(f"measured: {self._missing}")
        straight = self.plan.family == "own"
        kind = (
            "as straight-line code"
            if straight
            else "as a tree"
            if self.plan.tree
            else "as a topological visitor (a value is shared)"
        )
        lines.append("epilogue of CUTLASS:" if is_stock(self.plan) else f"visitors, {kind}:")
        lines += [f"   {visitor}" for visitor in self.visitors]
        if self.factors:
            lines.append(f"factors of operands: {self.factors}")
        if self.proof:
            lines.append(f"a row does not depend on the number of rows: {self.proof}")
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


def _routes_by_fate(routes: Sequence[RouteExplanation]) -> Iterator[tuple[str, list[RouteExplanation]]]:
    """Yield the routes that are built beside the chosen one, that also apply, and that are refused."""
    others = [route for route in routes if not route.chosen]
    fates = {
        "built beside": [route for route in others if route.applies and route.beside],
        "also applies": [route for route in others if route.applies and not route.beside],
        "refused": [route for route in others if not route.applies],
    }
    yield from ((title, found) for title, found in fates.items() if found)


def is_stock(plan: Plan) -> bool:
    """Return whether a kernel's epilogue is one of CUTLASS's, not a program of evt."""
    return not isinstance(plan.epilogue, EpilogueProgram)
