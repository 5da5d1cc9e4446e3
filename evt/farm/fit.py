"""Constants of a card, fitted to measurements: ``fit(rows, card, source) -> Fit``, ``judged(rows, card) -> Judgement``.

The model of each kind of kernels gives a start, a work and a memory traffic. Two factors for each kind, and the rate of
the memory, minimise the median of the relative errors. One third of the problems is held out: it only judges.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from evt.errors import EvtError
from evt.estimate import costs_of, estimate
from evt.estimate.costs import Costs
from evt.farm.task import Task
from evt.measured import Measurement
from evt.plan import Plan
from evt.plan.cards import Card, Fit, find_card
from evt.plan.speed import Duration, duration, kind_of, norm
from evt.request import problem_sizes

#: The least difference of the times of two kernels that a ranking must see.
_APART = 1.1
#: The steps of the search for a factor, each relative, and its limits.
_STEPS, _LIMITS = (1.3, 1.1, 1.03, 1.01, 1.003), (0.2, 5.0)
#: Passes over all factors.
_PASSES = 4
#: The fewest kernels that a factor is fitted to.
_FEWEST = 8


@dataclass(frozen=True)
class Row:
    """A measured kernel: its time in us. One third of the problems is ``held`` out of a fit."""

    problem: str
    plan: Plan
    sizes: Mapping[str, int]
    costs: Costs
    measured: float

    @property
    def kind(self) -> str:
        """The kind of the kernel."""
        return kind_of(self.plan)

    @property
    def held(self) -> bool:
        """Whether the problem is held out."""
        return hashlib.sha256(self.problem.encode()).digest()[0] % 3 == 0

    def estimated(self, card: Card) -> float:
        """Return the estimate in us."""
        return estimate(self.plan, self.sizes, self.costs, card).us

    def error(self, card: Card) -> float:
        """Return the relative error of the estimate."""
        return abs(self.estimated(card) / self.measured - 1)


def rows_of(measurements: Iterable[tuple[str, Measurement]]) -> dict[str, list[Row]]:
    """Return the measured kernels that have an estimate, by the name of the card."""
    found: dict[str, list[Row]] = {}
    for key, each in measurements:
        with suppress(EvtError, ValueError, LookupError):  # a call of another version, or a card without a model
            found.setdefault(find_card(each.gpu).name, []).extend(_rows(key, each))
    return {name: rows for name, rows in found.items() if rows}


def _rows(key: str, found: Measurement) -> Iterator[Row]:
    task = Task.read(found.call)
    survey, sizes = task.survey(found.target), problem_sizes(task.request, task.shapes)
    costs = costs_of(survey.problem.dag, sizes, task.shapes)
    timed = {timing.route for timing in found.timings}
    known = {each.route.name: each for each in survey.candidates if each.route.name in timed and each.applies}
    for timing in found.timings:
        candidate = known.get(timing.route)
        config = candidate.find_config(timing.config) if candidate is not None else None
        made = candidate.try_plan(config) if candidate is not None and config is not None else None
        if isinstance(made, Plan) and math.isfinite(duration(made, sizes, 132).total):
            yield Row(key, made, sizes, costs, timing.ms * 1e3)


def fit(rows: Sequence[Row], card: Card, source: str) -> Fit:
    """Return the constants of a card that fit measured kernels best, without the problems that are held out."""
    given = Fit(source, card.fit.busy_ghz, card.bytes_per_us)
    plain = replace(card, measured=given)
    times: dict[str, list[tuple[Duration, float]]] = {}
    for row in rows:
        if not row.held:
            times.setdefault(row.kind, []).append((duration(row.plan, row.sizes, plain), row.measured))
    times = {kind: found for kind, found in times.items() if len(found) >= _FEWEST}
    ratios = {kind: [measured / each.total for each, measured in found] for kind, found in sorted(times.items())}
    factors = {(kind, part): statistics.median(found) for kind, found in ratios.items() for part in ("start", "work")}
    if ratios:
        factors["", "memory"] = statistics.median(itertools.chain.from_iterable(ratios.values()))

    def loss(kinds: Iterable[str]) -> float:
        """Return the sum of the logarithmic errors of kinds of kernels."""
        memory = factors.get(("", "memory"), 1.0)
        return sum(
            abs(math.log((each.start * start + norm(each.work * work, each.memory * memory)) / measured))
            for kind in kinds
            for start, work in [(factors[kind, "start"], factors[kind, "work"])]
            for each, measured in times[kind]
        )

    for _ in range(_PASSES):
        for name in factors:
            _search(factors, name, partial(loss, [name[0]] if name[0] else list(ratios)))
    kernels = {kind: (round(factors[kind, "start"], 3), round(factors[kind, "work"], 3)) for kind in sorted(times)}
    moved = given.moved / factors.get(("", "memory"), 1.0)
    return replace(given, moved=float(f"{moved:.3g}"), kernels=kernels)


def _search(values: dict[tuple[str, str], float], name: tuple[str, str], loss: Callable[[], float]) -> None:
    """Move one value by ever smaller steps, as long as the loss falls."""
    least = loss()
    for step in _STEPS:
        for way in (step, 1 / step):
            while True:
                before = values[name]
                values[name] = min(max(before * way, _LIMITS[0]), _LIMITS[1])
                found = loss()
                if found >= least * (1 - 1e-9):
                    values[name] = before
                    break
                least = found


@dataclass(frozen=True)
class Judgement:
    """The errors of a card's estimates: by kind of kernels, and of all. ``right`` of ``pairs`` are ranked right.

    An entry is the number of kernels, the median of the relative errors, their 90th percentile, and the median over the
    problems that are held out.
    """

    card: str
    kinds: Mapping[str, tuple[int, float, float, float]]
    right: int
    pairs: int

    def to_json(self) -> dict[str, object]:
        """Return a dict ready for JSON."""
        names = ("kernels", "median", "p90", "held_out_median")
        kinds = {kind: dict(zip(names, found, strict=True)) for kind, found in self.kinds.items()}
        return {"card": self.card, "kinds": kinds, "ranked_right": self.right, "pairs": self.pairs}

    def __str__(self) -> str:
        lines = [f"{self.card:<24}{'kernels':>8}{'median':>9}{'p90':>9}{'held out':>10}"]
        for kind, (count, middle, most, held) in self.kinds.items():
            lines.append(f"{kind:<24}{count:>8}{middle:>9.1%}{most:>9.1%}{held:>10.1%}")
        share = f" ({self.right / self.pairs:.1%})" if self.pairs else ""
        return "\n".join((*lines, f"pairs that differ by 10 %: {self.right} of {self.pairs} ranked right{share}"))


def judged(rows: Sequence[Row], card: Card) -> Judgement:
    """Return the errors of the estimates of measured kernels."""
    errors = [(row.kind, row.error(card), row.held) for row in rows]
    kinds = {}
    for kind in (*sorted({kind for kind, _, _ in errors}), "all"):
        mine = [(error, held) for each, error, held in errors if kind in (each, "all")]
        every, out = [error for error, _ in mine], [error for error, held in mine if held]
        kinds[kind] = len(every), statistics.median(every), percentile(every, 0.9), percentile(out, 0.5)
    return Judgement(card.name, kinds, *ranked(rows, card))


def percentile(errors: Sequence[float], part: float) -> float:
    """Return a percentile; NaN without errors."""
    return sorted(errors)[min(len(errors) - 1, int(part * len(errors)))] if errors else math.nan


def ranked(rows: Sequence[Row], card: Card) -> tuple[int, int]:
    """Return the number of pairs of one problem that the estimates rank right, and of all pairs that differ."""
    right = count = 0
    for _, group in itertools.groupby(sorted(rows, key=lambda row: row.problem), key=lambda row: row.problem):
        timed = [(row.measured, row.estimated(card)) for row in group]
        for (one, expected), (other, other_expected) in itertools.combinations(timed, 2):
            if max(one, other) > _APART * min(one, other):
                count += 1
                right += (one < other) == (expected < other_expected)
    return right, count
