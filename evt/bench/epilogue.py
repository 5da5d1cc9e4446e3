"""The costs of epilogues: kernels that differ in their epilogue only, timed in the same rounds on one GPU.

All kernels share the product and the bare store of D. The other tensors of an epilogue must cross the memory bus, at
best as fast as a copy. The copy is timed in the same rounds, and gives the bound for each epilogue.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import torch

from evt.bench.answer import oracle
from evt.bench.case import Case
from evt.bench.machine import require_gpu
from evt.bench.result import AGAIN, EVT, EpilogueResult, VersionResult, summarise
from evt.bench.run import Progress, build_all, checked, reason, timed, with_times
from evt.bench.versions import Call, tensor_core_floats
from evt.errors import EvtError
from evt.tuning.clock import GpuClock, RoundTimer

#: The size of the copy in bytes: more than any L2 cache holds.
_COPIED_BYTES = 512 << 20
_COPY = "copy"


def bench_epilogues(
    cases: Sequence[Case],
    *,
    rounds: int = 51,
    seed: int = 0,
    progress: Progress = lambda text: None,
) -> Iterator[EpilogueResult]:
    """Measure cases, the cases of one product side by side; the first of them is the bare store.

    Every result is checked before it is timed. Raise LaunchError (E0801) without a CUDA GPU.
    """
    device = require_gpu()

    def run() -> Iterator[EpilogueResult]:
        build_all(cases, device, progress)
        clock = GpuClock(device)
        for _, group in groupby(cases, key=lambda case: (case.sizes, case.dtype)):
            with torch.no_grad(), tensor_core_floats():
                result = measure_epilogues(tuple(group), clock, device, rounds=rounds, seed=seed, progress=progress)
            torch.cuda.empty_cache()
            yield result

    return run()


def measure_epilogues(
    cases: Sequence[Case],
    clock: RoundTimer,
    device: torch.device,
    *,
    rounds: int,
    seed: int = 0,
    progress: Progress = lambda text: None,
) -> EpilogueResult:
    """Build, check and time the kernels of one product's epilogues, and a copy."""
    rows: dict[str, VersionResult] = {}
    calls: dict[str, Call] = {}
    sizes: dict[str, dict[str, int]] = {}
    for case in cases:
        progress(f"{case.name}, m={case.m}, n={case.n}, k={case.k}")
        try:
            answer = oracle(case, device, seed)
        except EvtError as problem:
            rows[case.name] = VersionResult(case.name, failure=reason(problem))
            continue
        row, call = checked(EVT, case, answer)
        rows[case.name] = VersionResult(case.name, error=row.error, failure=row.failure)
        if call is not None:
            calls[case.name] = call
            sizes[case.name] = answer.data.bytes
    wrong = tuple(name for name, row in rows.items() if row.failure and row.error is not None)
    bare = cases[0].name
    if bare in calls:
        rows = {bare: rows[bare], AGAIN: VersionResult(AGAIN), **rows}
        calls[AGAIN] = calls[bare]
    source = torch.ones(_COPIED_BYTES, dtype=torch.uint8, device=device)
    destination = torch.empty_like(source)
    calls[_COPY] = lambda: destination.copy_(source)
    progress("timing")
    samples, exposed = timed(calls, clock, rounds, seed)
    copy = summarise(samples[_COPY]) if samples[_COPY] else None
    return EpilogueResult(tuple(cases), with_times(rows, samples), sizes, copy, 2 * _COPIED_BYTES, exposed, wrong)
