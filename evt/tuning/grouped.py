"""Tuning of a grouped call: ``tune_groups(request, a, b, inputs, offsets) -> Tuning``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from evt.measured import Store, size_class
from evt.plan import survey
from evt.request import LOOP, Request
from evt.runtime.grouped import GroupedCaller
from evt.runtime.kernels import device_target
from evt.tuning.gpu import Gpu
from evt.tuning.space import DEFAULTS, Options, Work
from evt.tuning.table import Name, Tuning
from evt.tuning.tune import Progress, check_call, check_program, measure

#: The loop's place among kernels: the kernel of each group has a separate configuration.
_LOOP: Name = (LOOP, "")


def tune_groups(
    request: Request,
    a: Any,
    b: Any,
    inputs: Mapping[str, Any],
    offsets: Any = None,
    *,
    options: Options = DEFAULTS,
    progress: Progress = lambda text: None,
    store: Store | None = None,
) -> Tuning:
    """Time the grouped kernel in all its configurations, and one kernel per group; keep the times.

    Groups without work are omitted. Raise the errors of :func:`evt.tuning.tune.tune`, and TargetError if there is no
    grouped kernel.
    """
    check_program(request)
    problem_for, groups, bounds = GroupedCaller(request).ask(a, b, inputs, offsets)
    index = check_call(bounds[0] if bounds else None)
    found = survey(problem_for(device_target(index)))
    _ = found.chosen  # raises TargetError if there is none

    all_a, all_b = [group.a for group in groups], [group.b for group in groups]
    values = {name: [group.inputs[name] for group in groups] for name in groups[0].inputs}

    def call_of(name: Name) -> Callable[[], Any]:
        call = GroupedCaller(request.forced(name[0], name[1] or None))
        return lambda: call(all_a, all_b, values, None, None)

    work = Work(request, found, size_class([bound.sizes for bound in bounds]), call_of, (_LOOP,))
    with torch.no_grad(), torch.cuda.device(index):
        return measure(work, Gpu(index), options, progress, store)
