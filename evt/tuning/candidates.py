"""The kernels that tuning builds and times: ``candidates(found, sizes, ...) -> Candidates``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from evt.errors import EvtError
from evt.plan import Candidate, Config, Plan, Survey
from evt.plan.batches import launches
from evt.plan.cards import Card
from evt.plan.plan import OwnProduct
from evt.plan.speed import duration, fastest
from evt.runtime.plans import check_batches, check_sizes
from evt.tuning.table import KernelTime, Name

#: The kernels that are built at most, besides the ones that calls choose from.
MOST = 24
#: The estimated time, relative to the best estimate, beyond which a kernel is not built.
SLOWEST = 1.5


@dataclass(frozen=True)
class Candidates:
    """The plans of a problem's kernels by name, and rows with the reasons against others.

    ``pruned`` counts as in :class:`evt.tuning.table.Tuning`; ``unfit`` counts without ``failed``.
    """

    plans: Mapping[Name, Plan]
    failed: Mapping[Name, KernelTime] = field(default_factory=dict)
    untuned: Name | None = None
    pruned: int = 0
    unfit: int = 0

    @property
    def names(self) -> list[Name]:
        """The names of the plans and of the failures, in order of preference."""
        return [*self.plans, *self.failed]


def names_of(found: Survey) -> list[Name]:
    """Return the kernels of a problem: its routes, in order of preference, in their default configurations."""
    return [(candidate.route.name, config.name) for candidate, config in found.kernels]


def candidates(
    found: Survey, sizes: Mapping[str, int], card: Card, *, wide: bool = False, most: int = MOST
) -> Candidates:
    """Return the kernels that support a problem's sizes: the ones that calls choose from.

    ``wide`` adds configurations of the search space. The cost model must expect them to be among the ``most`` fastest,
    and not much slower than the best.
    """
    plans: dict[Name, Plan] = {}
    failed: dict[Name, KernelTime] = {}
    batches = sizes.get("l", 1)  # groups have none
    count = {candidate: len(launches(candidate.max_batches, batches)) for candidate, _ in found.kernels}
    for candidate, config in found.kernels:
        name = candidate.route.name, config.name
        if count[candidate] > min(count.values()):
            failed[name] = KernelTime(*name, failure=f"a call is {count[candidate]} launches, and others are fewer")
            continue
        try:
            plans[name] = _plan(candidate, config, sizes)
        except EvtError as error:
            failed[name] = KernelTime(*name, failure=_reason(error))
    untuned = _untuned(plans, found.asked_for(None), sizes, card)
    if not wide or found.problem.grouped:
        return Candidates(plans, failed, untuned)
    estimated: dict[Name, Plan] = {}
    places: dict[Name, tuple[Candidate, Config]] = {}
    unfit = 0
    allowed = {candidate for candidate in count if count[candidate] == min(count.values())}
    for name, candidate, config in _searched(found):
        if candidate in allowed and name not in plans and name not in failed:
            try:
                estimated[name] = _outline(candidate, config, sizes)
                places[name] = candidate, config
            except EvtError:
                unfit += 1
    kept = {name: _plan(*places[name], sizes) for name in _promising(plans, estimated, sizes, card, most)}
    return Candidates({**plans, **kept}, failed, untuned, len(estimated) - len(kept), unfit)


def _searched(found: Survey) -> Iterator[tuple[Name, Candidate, Config]]:
    """Yield the search space of every route to choose from that applies."""
    for candidate in found.asked:
        if candidate.applies:
            for name, config in candidate.search_space.items():
                yield (candidate.route.name, name), candidate, config


def _plan(candidate: Candidate, config: Config, sizes: Mapping[str, int]) -> Plan:
    """Return the plan of a kernel. Raise EvtError if it does not run a problem."""
    check_batches(candidate.problem.dag, candidate.route, candidate.problem.target, sizes.get("l", 1))
    made = candidate.plan(config)
    check_sizes(made, sizes)
    return made


def _outline(candidate: Candidate, config: Config, sizes: Mapping[str, int]) -> Plan:
    """Return a plan with the estimate of a kernel's. Raise EvtError if the kernel does not run a problem.

    The plans of own products differ in their configurations only, and to plan all of a search space takes seconds.
    """
    usual = candidate.general
    if usual is None or not isinstance(usual.mainloop, OwnProduct):
        return _plan(candidate, config, sizes)
    made = replace(usual, config=config)
    check_sizes(made, sizes)
    return made


def _promising(
    plans: Mapping[Name, Plan], further: Mapping[Name, Plan], sizes: Mapping[str, int], card: Card, most: int
) -> list[Name]:
    """Return the further kernels that the cost model expects to be fast: stock epilogues stand for equal visitors."""
    every = {**plans, **further}
    times = {name: duration(plan, sizes, card).total for name, plan in every.items()}
    limit = SLOWEST * min(times.values(), default=math.inf)
    fast = sorted((name for name in further if times[name] <= limit), key=lambda name: times[name])
    stock = {name[1] for name in every if name[0].startswith("stock")}
    return [name for name in fast if name[1] not in stock or name[0].startswith("stock")][:most]


def _untuned(plans: Mapping[Name, Plan], found: Survey, sizes: Mapping[str, int], card: Card) -> Name | None:
    """Return the kernel that a call takes without measurements, if it is among the plans."""
    if found.problem.grouped:
        return next(iter(plans), None)
    usable = [plan for plan in found.defaults if (plan.route, plan.config.name) in plans]
    if not usable:
        return None
    taken = usable[fastest(usable, sizes, card)]
    return taken.route, taken.config.name


def _reason(error: EvtError) -> str:
    return "; ".join(f"{each.code}: {each.message}" for each in error.diagnostics)
