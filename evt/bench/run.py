"""The whole benchmark: ``bench(cases) -> results``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

import torch

from evt.bench.answer import Answer, oracle
from evt.bench.case import Case, draw
from evt.bench.kernel import kernel_taken, plans_of
from evt.bench.machine import require_gpu
from evt.bench.result import AGAIN, EVT, CaseResult, VersionResult, summarise
from evt.bench.versions import (
    BASELINES,
    COMPILED,
    PRODUCTS,
    Call,
    baseline,
    check_baselines,
    evt_version,
    fastest_convolutions,
    tensor_core_floats,
)
from evt.compilation import KernelSource, build
from evt.eager.idiom import UnwrittenError
from evt.errors import EvtError
from evt.runtime.plans import kernel_sources
from evt.tuning.clock import GpuClock, RoundTimer, interleave

Progress = Callable[[str], object]


def bench(
    cases: Sequence[Case],
    *,
    rounds: int = 51,
    baselines: Sequence[str] = BASELINES,
    seed: int = 0,
    progress: Progress = lambda text: None,
) -> Iterator[CaseResult]:
    """Measure cases one after the other, each with all its versions in one interleaved run.

    Every version is checked before it is timed, against the oracle in float64 on the same data. A version that cannot
    be built, or whose result is wrong, has a row with the reason. Before anything is measured, raise LaunchError
    (E0801) without a CUDA GPU and ArgumentError (E0602) for an unknown baseline.
    """
    names = check_baselines(tuple(baselines))
    device = require_gpu()

    def run() -> Iterator[CaseResult]:
        build_all(cases, device, progress)
        clock = GpuClock(device)
        for case in cases:
            with torch.no_grad(), tensor_core_floats(), fastest_convolutions():
                result = measure(case, names, clock, device, rounds=rounds, seed=seed, progress=progress)
            torch.cuda.empty_cache()
            yield result

    return run()


def build_all(cases: Sequence[Case], device: torch.device, progress: Progress = lambda text: None) -> None:
    """Build the kernels of all cases in parallel. A failure is reported later, by the case that has it."""
    if device.type != "cuda":
        return  # the reference computes the case
    programs = {(id(case.program), case.dtype) for case in cases}
    progress(f"building the kernels of {len(programs)} program{'s' if len(programs) > 1 else ''}")
    sources: dict[KernelSource, None] = {}
    for case in cases:
        small = case.small()
        with suppress(EvtError), torch.no_grad():
            sources |= dict.fromkeys(kernel_sources(plans_of(small, draw(small, device))))
    with suppress(EvtError):
        build(list(sources))


def measure(
    case: Case,
    names: Sequence[str],
    clock: RoundTimer,
    device: torch.device,
    *,
    rounds: int,
    seed: int = 0,
    progress: Progress = lambda text: None,
) -> CaseResult:
    """Build, check and time evt and the baselines ``names`` of one case."""
    if not COMPILED.keys().isdisjoint(names):
        _forget_compiled()
    progress(f"{case.name}: reference")
    try:
        answer = oracle(case, device, seed)
    except EvtError as problem:
        return CaseResult(case, (VersionResult(EVT, failure=reason(problem)),), {})
    rows: dict[str, VersionResult] = {}
    calls: dict[str, Call] = {}
    for name in dict.fromkeys((EVT, *(case.product if name in PRODUCTS else name for name in names))):
        progress(f"{case.name}: {name}")
        rows[name], call = checked(name, case, answer)
        if call is not None:
            calls[name] = call
    kernel = kernel_taken(case, answer.data) if EVT in calls and device.type == "cuda" else None
    wrong = EVT not in calls and rows[EVT].error is not None
    if EVT in calls:
        rows = {EVT: rows[EVT], AGAIN: VersionResult(AGAIN), **rows}
        calls[AGAIN] = calls[EVT]
    progress(f"{case.name}: timing")
    samples, exposed = timed(calls, clock, rounds, seed)
    return CaseResult(case, with_times(rows, samples), answer.data.bytes, exposed, wrong, kernel)


def timed(calls: Mapping[str, Call], clock: RoundTimer, rounds: int, seed: int) -> tuple[dict[str, list[float]], int]:
    """Return the samples of each call in ms, and the number of discarded samples."""
    interleave(calls, 2, clock, seed=seed)  # lets the clock calibrate its spin, and the GPU raise its clock rates
    return interleave(calls, rounds, clock, seed=seed)


def with_times(rows: Mapping[str, VersionResult], samples: Mapping[str, Sequence[float]]) -> tuple[VersionResult, ...]:
    """Return the rows with their times; a call without samples has failed."""

    def filled(name: str, row: VersionResult) -> VersionResult:
        if name not in samples:
            return row
        if samples[name]:
            return VersionResult(name, summarise(samples[name]), row.error)
        return VersionResult(name, error=row.error, failure="it waits for the GPU, or is too slow to keep it busy")

    return tuple(filled(name, row) for name, row in rows.items())


def checked(name: str, case: Case, answer: Answer) -> tuple[VersionResult, Call | None]:
    """Return a version if its result is right; otherwise record the reason in its row."""
    try:
        if name == EVT:
            call = evt_version(case, answer.data)
            for _ in range(2):  # on the same buffers: a kernel must not depend on their contents
                answer.data.poison()
                call()
            outputs = tuple(answer.data.outputs.values())
        else:
            call = baseline(name, case, answer.data)
            if name == case.product:
                return VersionResult(name), call
            result = call()
            outputs = (result,) if isinstance(result, torch.Tensor) else tuple(result)
        error = answer.error(outputs)
    except EvtError as problem:
        return VersionResult(name, failure=reason(problem)), None
    except Exception as problem:  # a compiler may raise any exception
        if name == EVT:
            raise
        return VersionResult(name, failure=reason(problem)), None
    refusal = answer.refusal(error, stepwise=name != EVT)
    return VersionResult(name, error=error, failure=refusal), None if refusal else call


def reason(problem: Exception) -> str:
    """Return the cause of a failure, on one line."""
    if isinstance(problem, EvtError):
        return "; ".join(f"{each.code}: {each.message}" for each in problem.diagnostics)
    if isinstance(problem, UnwrittenError):
        return str(problem)
    if isinstance(inner := getattr(problem, "inner_exception", None), Exception):  # from a backend of torch.compile
        return reason(inner)
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    text = f"{type(problem).__name__}: {lines[0]}" if lines else type(problem).__name__
    return text if len(text) <= 160 else f"{text[:157]}..."


def _forget_compiled() -> None:
    """Reset torch.compile, so that earlier cases do not slow this one down or exhaust its limits."""
    import torch._dynamo

    reset: Callable[[], None] = torch._dynamo.reset
    reset()
