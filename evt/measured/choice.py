"""What a call and ``evt explain`` make of measurements."""

from __future__ import annotations

from collections.abc import Mapping

from evt.measured.key import groups_key, problem_key
from evt.measured.measurement import Measurement, Timing
from evt.measured.store import Store
from evt.plan import Problem, Survey
from evt.spec import LOOP


def applicable(found: Survey, measurement: Measurement | None) -> Timing | None:
    """The kernel that was measured to be best, if it is one that there is for the problem that was surveyed.

    Of groups it may be the loop, which needs no kernel for all of them.
    """
    best = measurement.best() if measurement is not None else None
    if best is None or best.route == LOOP:
        return best
    fitting = (each for each in found.candidates if each.route.name == best.route and each.applies)
    return best if any(config.name == best.config for each in fitting for config in each.configs) else None


def is_measured(problem: Problem) -> bool:
    """Whether anything was measured of a grouped problem, for any sizes of its groups."""
    store = Store()
    return store.exists() and store.has(groups_key(problem))


def measurements(problem: Problem, sizes: Mapping[str, int], gpu: str | None = None) -> tuple[Measurement, ...]:
    """What was measured of a problem: on each GPU, or on the one of that name."""
    store = Store()
    found = store.find(problem_key(problem, sizes)) if store.exists() else ()
    return tuple(each for each in found if gpu in (None, each.gpu))
