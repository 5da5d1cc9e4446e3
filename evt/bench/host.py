"""Host time: the time that one call occupies the Python thread, without waiting for the GPU."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Mapping
from time import perf_counter

import torch

from evt.bench.case import Case, draw
from evt.bench.machine import require_gpu
from evt.bench.result import HostResult, summarise
from evt.bench.run import build_all
from evt.bench.versions import evt_version, operand_views, product_alone

#: Launches between two synchronisations: few enough that the queue of launches never fills up.
_GROUP = 200
_GROUPS = 10
_WARM_UP = 300


def bench_host(case: Case, *, repeats: int = 11, seed: int = 0) -> HostResult:
    """Measure the microseconds of ``op(A, B, ...)`` and of ``torch.mm(A, B)``, with and without ``out=``.

    Raise LaunchError (E0801) without a CUDA GPU, and the errors of a call.
    """
    device = require_gpu()
    build_all([case], device)  # no thread builds during the measurement
    with torch.no_grad():
        data = draw(case, device, seed)
        a, b = operand_views(case, data)
        product = product_alone(case, data)
        buffer = product(a, b)
        into = evt_version(case, data)
        program, inputs = case.program, data.inputs
        calls: dict[str, Callable[[], object]] = {
            "evt": lambda: program(data.A, data.B, **inputs),
            "evt out=": into,
            "mm": lambda: product(a, b),
            "mm out=": lambda: product(a, b, out=buffer),
        }
        samples = host_samples(calls, repeats, torch.cuda.synchronize, seed=seed)
    return HostResult(case, {name: summarise(values) for name, values in samples.items()})


def host_samples(
    calls: Mapping[str, Callable[[], object]],
    repeats: int,
    synchronise: Callable[[], object],
    *,
    seed: int = 0,
    warm_up: int = _WARM_UP,
) -> dict[str, list[float]]:
    """Return the microseconds of each call, one sample per repeat; the repeats are interleaved and shuffled."""
    order = random.Random(seed)
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for position in range(warm_up):
            call()
            if position % _GROUP == 0:
                synchronise()
        synchronise()
    collecting = gc.isenabled()
    gc.disable()
    try:
        for _ in range(repeats):
            names = list(calls)
            order.shuffle(names)
            for name in names:
                samples[name].append(_loop(calls[name], synchronise) * 1e6)
            gc.collect()
    finally:
        if collecting:
            gc.enable()
    return samples


def _loop(call: Callable[[], object], synchronise: Callable[[], object]) -> float:
    """Return the seconds of a call, without the synchronisations between groups."""
    total = 0.0
    synchronise()
    for _ in range(_GROUPS):
        start = perf_counter()
        for _ in range(_GROUP):
            call()
        total += perf_counter() - start
        synchronise()
    return total / (_GROUP * _GROUPS)
