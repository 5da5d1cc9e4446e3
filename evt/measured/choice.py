"""What a call and ``evt explain`` make of measurements."""

from __future__ import annotations

from collections.abc import Mapping

from evt.measured.key import problem_key
from evt.measured.measurement import Measurement, Timing
from evt.measured.store import Store
from evt.plan import Problem, Survey


def applicable(found: Survey, measurement: Measurement | None) -> Timing | None:
    """The kernel that was measured to be best, if it is one that there is for the problem that was surveyed."""
    best = measurement.best() if measurement is not None else None
    if best is None:
        return None
    fitting = (each for each in found.candidates if each.route.name == best.route and each.applies)
    return best if any(config.name == best.config for each in fitting for config in each.configs) else None


def measurements(problem: Problem, sizes: Mapping[str, int], gpu: str | None = None) -> tuple[Measurement, ...]:
    """What was measured of a problem: on each GPU, or on the one of that name."""
    store = Store()
    found = store.find(problem_key(problem, sizes)) if store.exists() else ()
    return tuple(each for each in found if gpu in (None, each.gpu))
