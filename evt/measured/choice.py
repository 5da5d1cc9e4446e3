"""The use of measurements by calls and ``evt explain``."""

from __future__ import annotations

from collections.abc import Mapping

from evt.measured.key import groups_key, problem_key
from evt.measured.measurement import Measurement, Timing
from evt.measured.shipped import any_shipped, has_shipped, shipped
from evt.measured.store import Store
from evt.plan import Problem, Survey
from evt.request import LOOP


def applicable(found: Survey, measurement: Measurement | None) -> Timing | None:
    """Return the kernel that was measured to be fastest, if the surveyed problem has it; else None.

    For groups it may be the loop, which launches one kernel per group.
    """
    best = measurement.best() if measurement is not None else None
    if best is None or best.route == LOOP:
        return best
    fitting = (each for each in found.candidates if each.route.name == best.route and each.applies)
    return best if any(each.find_config(best.config) for each in fitting) else None


def is_measured(problem: Problem) -> bool:
    """Return whether a grouped problem has measurements, for any sizes of its groups."""
    store, beginning = Store(), groups_key(problem)
    return has_shipped(beginning) or (store.exists() and store.has(beginning))


def measurements(problem: Problem, sizes: Mapping[str, int], gpu: str | None = None) -> tuple[Measurement, ...]:
    """Return the measurements of a problem: on each GPU, or on the GPU of that name.

    Measurements that ship with evt count for GPUs on which this machine has none.
    """
    store, key = Store(), problem_key(problem, sizes)
    own = store.find(key) if store.exists() else ()
    measured = {each.gpu for each in own}
    found = (*own, *(each for each in shipped(key) if each.gpu not in measured))
    return tuple(each for each in found if gpu in (None, each.gpu))


def may_be_measured() -> bool:
    """Return whether there are any measurements; this is cheap."""
    return any_shipped() or Store().exists()
