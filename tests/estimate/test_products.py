"""Estimates against products by own kernels on an H200, which several benchmarks timed, 2026-11-27.

A row is a program, the sizes, a configuration, and microseconds; without a configuration, a call's choice of that day.
The speeds of tiles of pairs are fitted to some of them, other constants are not.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections import defaultdict
from pathlib import Path

import evt
from evt.farm.fit import percentile
from evt.plan import Survey, survey
from evt.plan.cards import find_card
from evt.plan.speed import duration, fastest
from evt.request import packed_problem, problem_sizes

CARD = find_card("h200")
FOUND = json.loads((Path(__file__).parent / "products" / "h200.json").read_text(encoding="utf-8"))


def surveyed(name: str) -> Survey:
    text, a, b = FOUND["programs"][name]
    return survey(packed_problem(evt.linear(text, route="own").request, "sm90", a, b, ((8192, 4096), (4096, 4096))))


def test_estimates_agree_with_products_on_an_h200() -> None:
    surveys = {name: surveyed(name) for name in FOUND["programs"]}
    requests = {name: evt.linear(text).request for name, (text, _, _) in FOUND["programs"].items()}
    own = {name: next(each for each in found.asked if each.applies) for name, found in surveys.items()}
    problems, errors = defaultdict(list), defaultdict(list)
    for name, m, n, k, config, us in FOUND["rows"]:
        sizes = problem_sizes(requests[name], ((m, k), (n, k)))
        offered = surveys[name].defaults
        made = own[name].plan(own[name].search_space[config]) if config else offered[fastest(offered, sizes, CARD)]
        expected = duration(made, sizes, CARD).total
        problems[name, m, n, k, bool(config)].append((us, expected))
        errors[name].append(abs(expected / us - 1))
    every = sorted(itertools.chain.from_iterable(errors.values()))
    assert len(every) == 143
    assert statistics.median(every) < 0.09
    assert percentile(every, 0.9) < 0.22
    # Sums of rows take longer than their instructions.
    most = {"swiglu": 0.08, "plain": 0.09, "mask": 0.09, "rms": 0.15}
    assert all(statistics.median(found) < most[name] for name, found in errors.items())
    pairs = [pair for found in problems.values() for pair in itertools.combinations(found, 2)]
    apart = [(one, other) for one, other in pairs if max(one[0], other[0]) > 1.1 * min(one[0], other[0])]
    assert sum((one[0] < other[0]) == (one[1] < other[1]) for one, other in apart) > 0.96 * len(apart) > 300
