"""The survey of a problem's kernels: ``survey(problem) -> Survey``, ``plan(problem) -> Plan``.

This is the one stage that knows the target. A survey is lazy and keeps its results: each rule is checked once for a
problem, and each configuration of a route is planned once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from evt.diagnostics import Diagnostic, Label, Span
from evt.errors import TargetError
from evt.ir.origin import Foreign, Place, at
from evt.plan.cards import find_card
from evt.plan.configurations.config import MOST_COLUMNS, Config
from evt.plan.epilogue.cost import is_light
from evt.plan.invariance import accumulation
from evt.plan.kernels.draft import Selection
from evt.plan.kernels.memory import exceeded_memory
from evt.plan.pairs import in_pairs
from evt.plan.plan import Plan
from evt.plan.problem import Problem
from evt.plan.routes.order import find_routes, routes_of
from evt.plan.routes.route import Route
from evt.plan.rules.rule import Rule
from evt.plan.speed import fastest
from evt.plan.verdict import Matches, Partial, Refusal, Verdict

#: The most places in the program's text that one refusal shows.
_MOST_PLACES = 3
#: Numbers of images whose fastest products are built beside another route's kernels.
_IMAGES = (1, 4, 16, 64, 256)
#: The configurations that a message names.
_NAMED = 8


class _Verdicts(dict[Rule, Verdict]):
    """The verdicts of rules about a problem; several routes may share a rule."""

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.problem = problem

    def __missing__(self, rule: Rule) -> Verdict:
        verdict = self[rule] = rule.check(self.problem)
        return verdict


class Candidate:
    """A route to a kernel for a problem: the verdicts of its rules, and the plans of its configurations."""

    def __init__(self, route: Route, verdicts: _Verdicts, fused: bool) -> None:
        self.route = route
        self.problem = verdicts.problem
        self._verdicts = verdicts
        self._fused = fused
        self._made: dict[Config, Plan | Refusal] = {}

    # Rules

    @cached_property
    def applies(self) -> bool:
        """Whether all rules hold. Rules after one that fails are not checked."""
        return not any(isinstance(self._verdicts[rule], Refusal) for rule in self.route.rules)

    @property
    def verdicts(self) -> tuple[tuple[Rule, Verdict], ...]:
        """The verdict of every rule."""
        return tuple((rule, self._verdicts[rule]) for rule in self.route.rules)

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """The refusals of the route; empty if it applies."""
        return tuple(verdict for _, verdict in self.verdicts if isinstance(verdict, Refusal))

    @property
    def reasons(self) -> tuple[Refusal, ...]:
        """The reasons why this route has no kernel: the rules that fail, else the configurations that do not fit."""
        return self.refusals or self.misfits

    @cached_property
    def unsuited(self) -> str:
        """The reason why a route that applies is expected to be slower than later routes, or ""."""
        verdict = self._verdicts[self.route.suits] if self.route.suits else None
        return verdict.reason if isinstance(verdict, Refusal) else ""

    @property
    def suits_partly(self) -> bool:
        """Whether a route that applies is expected to be the fastest for some sizes of the problem."""
        return self.applies and self.route.suits is not None and isinstance(self._verdicts[self.route.suits], Partial)

    @property
    def rivals(self) -> bool:
        """Whether a route that suits the problem may be faster than an earlier route that suits it, too."""
        rule = self.route.beside
        return self.applies and not self.unsuited and rule is not None and not isinstance(self._verdicts[rule], Refusal)

    # Batches, of a route that applies

    @property
    def max_batches(self) -> int | None:
        """The most batches of a launch; None if there is no limit."""
        return self.route.kernel(self.problem.target).max_batches

    # Configurations, of a route that applies

    @cached_property
    def configs(self) -> tuple[Config, ...]:
        """The configurations that the kernel may have, the general one first."""
        known = self.route.kernel(self.problem.target).configurations(self.problem)
        columns = self.problem.columns_together
        visiting = tuple(config for config in known if config.visits(columns))
        return visiting or tuple(wide for config in known if (wide := config.widened(columns)) is not None)

    @property
    def default_configs(self) -> tuple[Config, ...]:
        """The configurations that are built for every kernel; a call's sizes choose among them."""
        uses = ("always", "light") if is_light(self.problem.dag) else ("always",)
        return tuple(config for config in self.configs if config.use in uses) or self.configs[:1]

    @cached_property
    def search_space(self) -> Mapping[str, Config]:
        """The configurations that tuning may try and a user may name, by name: :attr:`configs`, then all others."""
        known = self.route.kernel(self.problem.target).space(self.problem)
        found = {config.name: config for config in self.configs}
        for config in known:
            if config.visits(self.problem.columns_together):
                found.setdefault(config.name, config)
        return found

    def find_config(self, name: str) -> Config | None:
        """Return the configuration of the search space that has a name; most named ones are usual."""
        usual = next((config for config in self.configs if config.name == name), None)
        return usual or self.search_space.get(name)

    def _invariant(self, made: Plan) -> Plan | Refusal:
        """Return a plan; if rows must not depend on their number, why they may."""
        if not self.problem.options.batch_invariant:
            return made
        found = accumulation(self.problem, made)
        return found if isinstance(found, Refusal) else made

    # Plans, of a route that applies

    def plan(self, config: Config) -> Plan:
        """Return the plan of a configuration. Raise TargetError (E0502) when it does not fit in shared memory."""
        made = self.try_plan(config)
        if isinstance(made, Refusal):
            raise TargetError(Diagnostic("E0502", made.reason, help="take another configuration"))
        return made

    @cached_property
    def general(self) -> Plan | None:
        """The plan of the first configuration that fits, if one does."""
        plans = map(self.try_plan, self.configs)
        return next((made for made in plans if isinstance(made, Plan)), None)

    @property
    def plans(self) -> list[Plan]:
        """The plans of the default configurations that fit."""
        made = map(self.try_plan, self.default_configs)
        return [each for each in made if isinstance(each, Plan)]

    @property
    def misfits(self) -> tuple[Refusal, ...]:
        """The reasons why no configuration fits."""
        if not self.configs:
            columns = self.problem.columns_together
            known = self.route.kernel(self.problem.target).configurations(self.problem)
            most = min(MOST_COLUMNS, max(config.tile[1] for config in known))
            return (Refusal(f"blocks or pairs take {columns} columns together, and the epilogue at most {most}"),)
        made = map(self.try_plan, self.configs)
        return tuple(dict.fromkeys(each for each in made if isinstance(each, Refusal)))

    def try_plan(self, config: Config) -> Plan | Refusal:
        """Return the plan of a configuration, or why it does not fit in shared memory."""
        if config not in self._made:
            route, matches = self.route, Matches(verdict for _, verdict in self.verdicts)
            kernel = route.kernel(self.problem.target)
            made = kernel.planner(Selection(self.problem, route.name, config, self._fused, matches))
            exceeded = exceeded_memory(made)
            self._made[config] = Refusal(exceeded) if exceeded else self._invariant(made)
        return self._made[config]


@dataclass(frozen=True)
class Survey:
    """The kernels of a problem: ``candidates`` are all its routes, ``asked`` those to choose from.

    ``named`` is the requested route, or kind of routes, and ``config`` the requested configuration.
    """

    problem: Problem
    candidates: tuple[Candidate, ...]
    asked: tuple[Candidate, ...]
    named: str | None = None
    config: Config | str | None = None

    @cached_property
    def chosen(self) -> Candidate:
        """The chosen route: the first whose rules all hold and one of whose configurations fits.

        Routes that do not suit the problem come last.

        Raise TargetError: E0502 when the one requested route cannot compile the program, E0503 when none can.
        """
        for unsuited in (False, True):
            for each in self._with_config:
                if not each.applies or bool(each.unsuited) != unsuited:
                    continue
                if self.config is not None or each.general is not None:
                    return each
        nearest, *others = sorted(self.asked, key=self._distance)
        reason = nearest.reasons[0].reason
        advice = "; ".join(each.route.otherwise for each in self.asked if each.route.otherwise)
        # A route with more reasons is for other problems: its places would mislead.
        near = [nearest, *(each for each in others if len(each.reasons) <= len(nearest.reasons))]
        refusals = [refusal for each in near for refusal in each.reasons if not self._is_beside(each)]
        if self.named is not None and len(self.asked) == 1:
            message = f"the route {nearest.route.name} cannot compile this program: {reason}"
            notes = tuple(refusal.reason for refusal in nearest.reasons[1:])
            raise TargetError(self._shown(Diagnostic("E0502", message, help=advice, notes=notes), refusals))
        subject = "no route" if self.named is None else f"no {self.named} route"
        message = f"{subject} compiles this program for {self.problem.target.name}: {reason}"
        notes = ("run `evt explain` (or op.explain) to see why each route was refused",)
        named = [(each.route.name, refusal.reason) for each in self.asked for refusal in each.reasons]
        raise TargetError(self._shown(Diagnostic("E0503", message, help=advice, notes=notes), refusals), named)

    @property
    def _with_config(self) -> Sequence[Candidate]:
        """The routes to choose from; without a requested route, the routes that have the requested configuration."""
        if self.named is not None or not isinstance(self.config, str):
            return self.asked
        return [each for each in self.asked if each.applies and each.find_config(self.config)] or self.asked

    def _is_beside(self, candidate: Candidate) -> bool:
        """Return whether a route's refusals are irrelevant to the user: the route is for other programs.

        A formula that is no stock epilogue matters only if stock routes are requested. Kernels of evt are an addition.
        """
        alone = [each for each in self.asked if each.route.alone(self.problem)]
        if alone or candidate.route.special:
            return candidate not in alone
        kinds = {each.route.kind for each in self.asked}
        unused = {"stock", "own", *([] if self.problem.dag.feeds else ["mainloop"])}
        return candidate.route.kind in unused and not kinds <= unused

    def _distance(self, candidate: Candidate) -> tuple[bool, int, bool, int]:
        """Return a sort key: the routes nearest to compiling the program, routes of convolutions, then general ones."""
        route = candidate.route
        return self._is_beside(candidate), len(candidate.reasons), "gemm" in route.shapes, -self.asked.index(candidate)

    def _shown(self, diagnostic: Diagnostic, refusals: Sequence[Refusal]) -> Diagnostic:
        """Return the diagnostic with the places in the program's text that are refused, in the order of refusals."""
        dag = self.problem.dag
        found: dict[Span, tuple[Place, str]] = {}
        for refusal in refusals:
            place = refusal.place
            origin = Place(place) if isinstance(place, Span) else None if place is None else dag.origins[place]
            if isinstance(origin, Foreign):
                return at(origin, None, diagnostic)
            if isinstance(origin, Place):
                found.setdefault(origin.span, (origin, refusal.reason))
        if dag.source is None or not found:
            return diagnostic
        (origin, reason), *others = list(found.values())[:_MOST_PLACES]
        labels = tuple(Label(other.span, text) for other, text in others)
        label = "" if diagnostic.message.endswith(reason) else reason
        return at(origin, dag.source, replace(diagnostic, label=label, secondary=labels))

    @cached_property
    def plan(self) -> Plan:
        """The plan of the general kernel, or of the requested configuration: see :attr:`chosen`.

        Raise TargetError also for a configuration: E0501 for an unknown one, E0502 for one that does not fit.
        """
        if self.config is not None:
            config = self.config
            return self.chosen.plan(self._find_config(config) if isinstance(config, str) else config)
        general = self.chosen.general
        assert general is not None
        return general

    @cached_property
    def printed(self) -> Survey:
        """The survey whose plan is printed and exported: without a requested route, of the routes that are printed.

        A program that only other routes compile is printed as they compile it. Raise TargetError as :attr:`plan`.
        """
        if self.named is not None or self.config is not None or self.chosen.route.printed:
            return self
        printed = tuple(each for each in self.asked if each.route.printed)
        return Survey(self.problem, self.candidates, printed) if any(each.applies for each in printed) else self

    def _find_config(self, name: str) -> Config:
        """Return the configuration with a name. Raise TargetError (E0501), with the routes that have it."""
        known = self.chosen.find_config(name)
        if known is not None:
            return known
        message = f"the route {self.chosen.route.name} has no configuration `{name}`"
        usual = [config.name for config in self.chosen.configs[:_NAMED]]
        more = ", and others: see `evt explain`" if len(self.chosen.configs) > _NAMED else ""
        others = [each.route.name for each in self.candidates if each.applies and each.find_config(name)]
        notes = (f"`{name}` is a configuration of {' and '.join(others)}: ask for that route, too",) if others else ()
        raise TargetError(Diagnostic("E0501", message, help=f"configurations: {', '.join(usual)}{more}", notes=notes))

    @cached_property
    def defaults(self) -> tuple[Plan, ...]:
        """The plans of the configurations that a kernel is built in, the general one first: see :attr:`plan`.

        The plans of other routes that suit some sizes, or as well as the chosen one, come last. They are of the
        requested kind.
        """
        if self.config is not None:
            return (self.plan,)
        if self.problem.options.batch_invariant:
            return self._invariant_defaults()
        others = [each for each in self.asked if each is not self.chosen]
        found = [plan for each in (self.chosen, *(each for each in others if each.suits_partly)) for plan in each.plans]
        found += [plan for each in others if each.rivals for plan in self._fastest_for_images(each.plans, found)]
        return self.plan, *(plan for plan in found if plan is not self.plan)

    def _fastest_for_images(self, plans: Sequence[Plan], others: Sequence[Plan]) -> Iterator[Plan]:
        """Yield the plans that are the fastest for the call's number of images, or for one of a few other numbers."""
        layer = self.problem.sizes.convolution
        assert layer is not None
        sizes = [replace(layer, images=images).extents for images in (layer.images, *_IMAGES)]
        card = find_card(self.problem.target.name)
        taken = {fastest((*plans, *others), each, card) for each in sizes}
        return (plans[at] for at in sorted(taken) if at < len(plans))

    def _invariant_defaults(self) -> tuple[Plan, ...]:
        """Return the plans of the chosen route whose order of sums is the general plan's."""
        order = accumulation(self.problem, self.plan)
        others = [self.chosen.try_plan(config) for config in self.chosen.default_configs]
        made = [each for each in others if isinstance(each, Plan) and each is not self.plan]
        return self.plan, *(each for each in made if accumulation(self.problem, each) == order)

    def asked_for(self, route: str | None, config: Config | str | None = None) -> Survey:
        """Return the same candidates, with a route or kind of routes to choose from.

        Raise TargetError (E0501) as survey.
        """
        wanted = find_routes(self.problem, route)
        asked = tuple(each for each in self.candidates if each.route in wanted)
        return Survey(self.problem, self.candidates, asked, route, config)

    @property
    def kernels(self) -> Iterator[tuple[Candidate, Config]]:
        """Every kernel that may be the fastest: each route to choose from that applies, in its default configurations.

        Grouped problems take all configurations: their kernel is built in one configuration for all sizes.
        """
        for each in sorted(self.asked, key=lambda candidate: candidate.applies and bool(candidate.unsuited)):
            if each.applies:
                configs = each.configs if self.problem.grouped else each.default_configs
                yield from ((each, config) for config in configs)


def survey(
    problem: Problem, route: str | None = None, config: Config | str | None = None, *, fused: bool = True
) -> Survey:
    """Survey the kernels of a problem; ``route`` names a route, or a kind of them.

    ``fused`` False lowers each operation to its own visitor node instead of one functor per region. Raise TargetError
    (E0501) for an unknown route.
    """
    found = in_pairs(problem)
    problem = problem if isinstance(found, Refusal) else found
    verdicts = _Verdicts(problem)
    candidates = tuple(Candidate(each, verdicts, fused) for each in routes_of(problem))
    return Survey(problem, candidates, candidates).asked_for(route, config)


def plan(problem: Problem, route: str | None = None, config: Config | str | None = None, *, fused: bool = True) -> Plan:
    """Decide everything about one kernel: the general one of the first route that has any.

    The arguments are as in :func:`survey`. Raise TargetError: E0501 for an unknown route or configuration, E0502
    when the requested one cannot compile the program, E0503 when none can.
    """
    return survey(problem, route, config, fused=fused).plan
