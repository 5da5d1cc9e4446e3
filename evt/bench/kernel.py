"""The kernels of a case, ``plans_of(case, data) -> plans``, and the kernel that a call takes."""

from __future__ import annotations

from evt.bench.case import Case, Data
from evt.plan import Plan
from evt.plan.speed import fastest
from evt.runtime.arguments import bind
from evt.runtime.bound import Bound
from evt.runtime.kernels import device_card, device_target, is_atomic, measured_best, plan_kernels


def plans_of(case: Case, data: Data) -> tuple[Plan, ...]:
    """Return the plans of evt's kernels for data on a CUDA device, as a call makes them. Raise EvtError."""
    return _plans(case, _bound(case, data))


def kernel_taken(case: Case, data: Data) -> tuple[str, str]:
    """Return the route and the configuration that a call with this data takes. Raise EvtError."""
    bound = _bound(case, data)
    plans = _plans(case, bound)
    taken = plans[fastest(plans, bound.sizes, device_card(bound.index, plans[0].target.name))]
    return taken.route, taken.config.name


def _bound(case: Case, data: Data) -> Bound:
    return bind(case.program.request, data.A, data.B, data.inputs, data.outputs)


def _plans(case: Case, bound: Bound) -> tuple[Plan, ...]:
    """Return the plans of the kernel that was measured to be fastest, if there is one."""
    request = case.program.request
    atomic = is_atomic(request)
    return plan_kernels(measured_best(request, bound, atomic), bound, device_target(bound.index), atomic)
