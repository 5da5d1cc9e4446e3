"""What a call and ``evt explain`` make of measurements."""

from __future__ import annotations

from collections.abc import Mapping

from evt.measured.key import problem_key
from evt.measured.measurement import Measurement, Timing
from evt.measured.store import Store
from evt.plan import Problem, candidates, configs


def applicable(problem: Problem, measurement: Measurement | None) -> Timing | None:
    """The kernel that was measured to be best, if it is one that this evt can make for the problem."""
    best = measurement.best() if measurement is not None else None
    for route in candidates(problem):
        if best is not None and route.name == best.route and not route.failures(problem):
            known = [config.name for config in configs(problem, route)]
            return best if best.config in known else None
    return None


def measurements(problem: Problem, sizes: Mapping[str, int], gpu: str | None = None) -> tuple[Measurement, ...]:
    """What was measured of a problem: on each GPU, or on the one of that name."""
    store = Store()
    found = store.find(problem_key(problem, sizes)) if store.exists() else ()
    return tuple(each for each in found if gpu in (None, each.gpu))
