"""Which kernels serve a case: ``plans_of(case, data) -> plans``, and the one of them that a call takes."""

from __future__ import annotations

import torch

from evt.bench.case import Case, Data
from evt.plan import Plan
from evt.plan.speed import fastest
from evt.program import Program
from evt.runtime.arguments import bind
from evt.runtime.kernels import device_target, plan_kernels
from evt.runtime.tensors import Bound


def plans_of(case: Case, data: Data) -> tuple[Plan, ...]:
    """The plans of evt's kernels for data on a CUDA device, as a call makes them. Raises EvtError."""
    bound = _bound(case, data)
    index = _index(bound)
    return plan_kernels(_program(case, bound), bound, device_target(index), _is_atomic(case))


def kernel_taken(case: Case, data: Data) -> tuple[str, str]:
    """The route and the configuration that a call with this data takes. Raises EvtError."""
    bound = _bound(case, data)
    program, target = _program(case, bound), device_target(_index(bound))
    plans = plan_kernels(program, bound, target, _is_atomic(case))
    count = torch.cuda.get_device_properties(bound.device).multi_processor_count
    taken = plans[fastest(plans, bound.sizes, count)]
    return taken.route, taken.config.name


def _bound(case: Case, data: Data) -> Bound:
    return bind(case.program, data.A, data.B, data.inputs, data.outputs)


def _index(bound: Bound) -> int:
    return bound.device.index if bound.device.index is not None else torch.cuda.current_device()


def _is_atomic(case: Case) -> bool:
    return case.program.settings.deterministic is False and not torch.are_deterministic_algorithms_enabled()


def _program(case: Case, bound: Bound) -> Program:
    """The case's program, by the kernel that was measured to be best where there is one."""
    measured = case.program.measured(bound, _index(bound), _is_atomic(case))
    return case.program.forced(*measured) if measured else case.program
