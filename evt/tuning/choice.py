"""What a call and ``evt explain`` make of measurements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from evt.plan import Problem, survey
from evt.tuning.key import problem_key
from evt.tuning.measurement import Measurement, Timing
from evt.tuning.store import Store

if TYPE_CHECKING:
    from evt.program import Program
    from evt.runtime.tensors import Bound


def applicable(problem: Problem, measurement: Measurement | None) -> Timing | None:
    """The kernel that was measured to be best, if it is one that this evt can make for the problem."""
    best = measurement.best() if measurement is not None else None
    if best is None:
        return None
    found = (each for each in survey(problem).candidates if each.route.name == best.route and each.applies)
    return best if any(config.name == best.config for each in found for config in each.configs) else None


def measurements(problem: Problem, sizes: Mapping[str, int], gpu: str | None = None) -> tuple[Measurement, ...]:
    """What was measured of a problem: on each GPU, or on the one of that name."""
    store = Store()
    found = store.find(problem_key(problem, sizes)) if store.exists() else ()
    return tuple(each for each in found if gpu in (None, each.gpu))


def measured_choice(program: Program, bound: Bound, device: int, atomic: bool = False) -> Timing | None:
    """The kernel that was measured to be best for a bound call on a CUDA device, if that was measured there."""
    if not Store().exists():
        return None
    import torch

    from evt.runtime.kernels import call_problem, device_target

    problem = call_problem(program, bound, device_target(device), atomic)
    found = measurements(problem, bound.sizes, torch.cuda.get_device_name(device))
    return applicable(problem, found[0]) if found else None
