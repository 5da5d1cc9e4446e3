"""Estimates against measurements: ``python -m tests.estimate.judge FILE...``, of files of ``evt tune export``.

For each GPU it prints the error of the estimates of all measured kernels, by route and schedule. It also counts the
pairs of kernels of a problem that differ by 10 % and are ranked right. ``factor`` is the mean of measured over
estimated time, over two thirds of the problems. The last columns are the errors over the other third, before and after
this factor. A factor far from 1 means that a constant of the route's cost model is off.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evt.errors import EvtError
from evt.estimate import costs_of, estimates
from evt.farm.task import Task
from evt.measured import Measurement
from evt.plan.cards import find_card
from evt.request import problem_sizes

#: The least difference of the times of two kernels that a ranking must see.
_APART = 1.1


@dataclass(frozen=True)
class Row:
    """A measured kernel: its times in us. One third of the problems is ``held`` out of the factors."""

    gpu: str
    problem: str
    kind: str
    measured: float
    estimated: float
    held: bool

    @property
    def error(self) -> float:
        """The relative error of the estimate."""
        return abs(self.estimated / self.measured - 1)


def rows_of(entries: Iterable[dict[str, Any]]) -> Iterator[Row]:
    """Yield the kernels of exported measurements that have an estimate."""
    for entry in entries:
        found = Measurement.from_json(entry)
        try:
            task, card = Task.read(found.call), find_card(found.gpu)
            survey, sizes = task.survey(found.target), problem_sizes(task.request, task.shapes)
        except (EvtError, ValueError, LookupError):
            continue
        costs = costs_of(survey.problem.dag, sizes, task.shapes)
        expected = {(each.route, each.config): each.us for each in estimates(survey, sizes, costs, card, wide=True)}
        held = hashlib.sha256(entry["key"].encode()).digest()[0] % 3 == 0
        for timing in found.timings:
            us = expected.get((timing.route, timing.config))
            if us is not None:
                kind = f"{timing.route} {timing.config.split('_')[0]}"
                yield Row(found.gpu, entry["key"], kind, timing.ms * 1e3, us, held)


def percentile(errors: Sequence[float], part: float) -> float:
    """Return a percentile; NaN without errors."""
    return sorted(errors)[min(len(errors) - 1, int(part * len(errors)))] if errors else float("nan")


def ranked(rows: Sequence[Row]) -> tuple[int, int]:
    """Return the number of pairs of one problem that the estimates rank right, and of all pairs that differ."""
    right = count = 0
    for _, group in itertools.groupby(sorted(rows, key=lambda row: row.problem), key=lambda row: row.problem):
        for one, other in itertools.combinations(group, 2):
            if max(one.measured, other.measured) > _APART * min(one.measured, other.measured):
                count += 1
                right += (one.measured < other.measured) == (one.estimated < other.estimated)
    return right, count


def factor_of(rows: Sequence[Row]) -> float:
    """Return the geometric mean of measured over estimated time, over the problems that are not held out."""
    ratios = [row.measured / row.estimated for row in rows if not row.held]
    return statistics.geometric_mean(ratios) if ratios else 1.0


def line(title: str, rows: Sequence[Row]) -> str:
    """Return the errors of rows as a line of a table."""
    errors, factor = [row.error for row in rows], factor_of(rows)
    held = [row for row in rows if row.held]
    after = [abs(row.estimated * factor / row.measured - 1) for row in held]
    return (
        f"{title:<36}{len(rows):>6}{percentile(errors, 0.5):>9.1%}{percentile(errors, 0.9):>9.1%}{factor:>9.3f}"
        f"{percentile([row.error for row in held], 0.5):>9.1%}{percentile(after, 0.5):>9.1%}"
    )


def judge(entries: Iterable[dict[str, Any]]) -> str:
    """Return the comparison as text."""
    rows, lines = list(rows_of(entries)), []
    for gpu in sorted({row.gpu for row in rows}):
        mine = [row for row in rows if row.gpu == gpu]
        right, count = ranked(mine)
        lines += [gpu, f"{'kernels':<36}{'count':>6}{'median':>9}{'p90':>9}{'factor':>9}{'held out':>9}{'scaled':>9}"]
        lines += [line(kind, [row for row in mine if row.kind == kind]) for kind in sorted({row.kind for row in mine})]
        lines += [line("all", mine), f"pairs of a problem that differ by 10 %: {right} of {count} ranked right", ""]
    return "\n".join(lines) if lines else "no measured kernel has an estimate"


if __name__ == "__main__":
    print(judge(entry for file in sys.argv[1:] for entry in json.loads(Path(file).read_text())["measurements"]))
