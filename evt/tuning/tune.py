"""Tuning of a call: ``tune(request, a, b, inputs) -> Tuning``.

candidates   the kernels that support the sizes, as far as the cost model expects them to be fast
build        side by side, as any build
race         in interleaved rounds on the call's tensors, with the epilogue; slow kernels leave early
keep         after each stage, in the database: an interrupted run loses nothing, and goes on
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from evt.compilation import KernelSource, build_each
from evt.diagnostics import Diagnostic
from evt.errors import ArgumentError, EvtError, LaunchError
from evt.ir import Output
from evt.measured import Measurement, Origin, Store, Timing
from evt.plan import survey
from evt.reference.compare import error, limit
from evt.request import Request
from evt.runtime.arguments import bind
from evt.runtime.bound import Bound
from evt.runtime.call import Caller
from evt.runtime.given import split_held
from evt.runtime.kernels import call_problem, device_target, is_atomic
from evt.tuning.candidates import Candidates, names_of
from evt.tuning.device import Device, who
from evt.tuning.gpu import Gpu
from evt.tuning.race import Samples, race
from evt.tuning.space import DEFAULTS, Options, Space, Work, known_times, space_of
from evt.tuning.table import KernelTime, Name, Tuning

#: The fastest kernels, which are also timed with a warm L2 cache, and the rounds of that.
_WARM, _WARM_ROUNDS = 3, 9

Calls = Mapping[Name, Callable[[], Any]]
Progress = Callable[[str], object]
#: An output; for groups, one for each.
_Value = torch.Tensor | Sequence[torch.Tensor]


def tune(
    request: Request,
    a: torch.Tensor,
    b: torch.Tensor,
    inputs: Mapping[str, Any],
    *,
    options: Options = DEFAULTS,
    progress: Progress = lambda text: None,
    store: Store | None = None,
) -> Tuning:
    """Time the kernels of a call on its tensors, and keep the times: see :func:`measure`.

    Raise LaunchError (E0801) without a GPU; ArgumentError for a program with a forced route, and for a call that does
    not fit, is not on the GPU or computes nothing. If every kernel fails, raise the error of the first.
    """
    check_program(request)
    read, held = split_held(request.dag, inputs)
    bound = bind(request, a, b, read, held)
    index = check_call(bound)
    found = survey(call_problem(request, bound, device_target(index), is_atomic(request)))

    def call_of(name: Name) -> Callable[[], Any]:
        call, buffers = Caller(request.forced(*name)), {each: buffer.clone() for each, buffer in held.items()}
        return lambda: call(a, b, read, buffers or None)

    with torch.no_grad(), torch.cuda.device(index):
        return measure(Work(request, found, bound.sizes, call_of), Gpu(index), options, progress, store)


def check_program(request: Request) -> None:
    """Raise ArgumentError for a program with a forced route, LaunchError (E0801) without a GPU."""
    for name in ("route", "config"):
        if getattr(request.settings, name) is not None:
            message = f"the program's `{name}` is forced, but tuning chooses it"
            raise ArgumentError(Diagnostic("E0602", message, help="leave it out"))
    need_gpu()


def need_gpu() -> None:
    """Raise LaunchError (E0801) without a GPU."""
    if not torch.cuda.is_available():
        help_text = "run `evt doctor` to see what is missing"
        raise LaunchError(Diagnostic("E0801", "no CUDA GPU to measure on: PyTorch finds none", help=help_text))


def check_call(bound: Bound | None) -> int:
    """Return the index of a call's GPU. Raise ArgumentError for a call that is not on a GPU, or computes nothing."""
    if bound is not None and bound.device.type != "cuda":
        raise ArgumentError(
            Diagnostic("E0605", f"the tensors are on {bound.device}; kernels are timed on a CUDA device")
        )
    if bound is None or bound.is_empty:
        raise ArgumentError(Diagnostic("E0604", "the product is empty: there is nothing to time"))
    return bound.index


def measure(
    work: Work,
    device: Device,
    options: Options = DEFAULTS,
    progress: Progress = lambda text: None,
    store: Store | None = None,
    space: Space | None = None,
) -> Tuning:
    """Build and time the kernels of a problem; keep the times. ``space`` is the problem's :func:`space_of`, if known.

    Kernels that this device and driver measured before, with the same text, keep their times unless ``options.again``.
    Other processes wait that time kernels on the device. Raise BuildError (E0704) if the times cannot be kept.
    """
    started, store = time.perf_counter(), store or Store()
    store.require_replaceable()
    space = space or space_of(work, device, options)
    chosen, sources, digests = space.chosen, space.sources, space.digests
    progress(f"building {len(sources)} kernels")
    known = {} if options.again else known_times(work, device, store, digests)
    broken = failures_of([source for name, source in sources.items() if name not in known])
    with store.alone(device.lock) as waited:
        if waited and not options.again:  # the other process may have measured them
            known = known_times(work, device, store, digests)
        calls = {
            name: work.call_of(name)
            for name in (*chosen.plans, *work.others)
            if name not in known and (name not in sources or sources[name] not in broken)
        }
        beside = _beside(work, device, store, chosen) if options.route is not None else {}
        record = _Record(
            work, device, store, {**beside, **known}, digests, (*names_of(work.found), *chosen.plans, *work.others)
        )
        progress(f"timing {len(calls)} kernels")
        outputs = work.found.problem.program.outputs
        timed = time_kernels(calls, outputs, device, options.rounds, record.keep) if calls else {}
        record.keep(timed, whole=True)
    rows = {**chosen.failed, **_failed(sources, broken), **_kept(known), **timed}
    ordered = [name for name in dict.fromkeys((*names_of(work.found), *chosen.plans, *work.others)) if name in rows]
    return _tuning(work, device, chosen, [rows[name] for name in ordered], record.best(), time.perf_counter() - started)


def failures_of(sources: Sequence[KernelSource]) -> dict[KernelSource, str]:
    """Build sources side by side; return why some cannot be built."""
    return {source: _reason(error) for source, error in build_each(sources)[1].items()}


def time_kernels(
    calls: Calls,
    outputs: Sequence[Output],
    device: Device,
    rounds: int,
    keep: Callable[[Mapping[Name, KernelTime]], object] = lambda rows: None,
) -> dict[Name, KernelTime]:
    """Return a row for each call, timed if its outputs agree with the first call's; ``keep`` gets rows in between.

    Raise the error of the first call if all fail.
    """
    rows: dict[Name, KernelTime] = {}
    errors: list[EvtError] = []
    first: tuple[_Value, ...] | None = None
    good: dict[str, Callable[[], Any]] = {}
    for name, call in calls.items():
        try:
            result = call()
        except EvtError as problem:
            errors.append(problem)
            rows[name] = KernelTime(*name, failure=_reason(problem))
            continue
        found: tuple[_Value, ...] = (result,) if len(outputs) == 1 else tuple(result)
        first = found if first is None else first
        apart = [_apart(*each) for each in zip(outputs, found, first, strict=True)]
        most = max(far for far, _ in apart)
        wrong = [output.name for output, (_, too_far) in zip(outputs, apart, strict=True) if too_far]
        failure = f"its {', '.join(wrong)} differs from the first kernel's by {most:.1e}" if wrong else ""
        rows[name] = KernelTime(*name, distance=most, failure=failure)
        if not wrong:
            good[" ".join(name)] = call
    if errors and not good:
        raise errors[0]

    def filled(samples: Samples) -> dict[Name, KernelTime]:
        made = {}
        for name, row in rows.items():
            if taken := samples.get(" ".join(name)):
                made[name] = replace(row, ms=statistics.median(taken), samples=len(taken))
            else:
                made[name] = row if row.failure else replace(row, failure="too slow to be timed")
        return made

    samples = race(good, device.clock(), rounds, lambda taken: keep(filled(taken)))
    timed = filled(samples)
    fastest = sorted((row.ms, name) for name, row in timed.items() if row.ms is not None)[:_WARM]
    finalists = {" ".join(name): good[" ".join(name)] for _, name in fastest}
    warm = race(finalists, device.clock(warm=True), min(rounds, _WARM_ROUNDS)) if finalists else {}
    for _, name in fastest:
        if taken := warm[" ".join(name)]:
            timed[name] = replace(timed[name], warm_ms=statistics.median(taken))
    return timed


class _Record:
    """The measurement of a problem in the database, while its kernels are timed."""

    def __init__(
        self,
        work: Work,
        device: Device,
        store: Store,
        known: Mapping[Name, Timing],
        digests: Mapping[Name, str],
        order: Sequence[Name],
    ) -> None:
        self._work, self._device, self._store, self._digests, self._order = work, device, store, digests, order
        self._timings = dict(known)
        self._origin = Origin(who(), driver=device.driver)

    def keep(self, rows: Mapping[Name, KernelTime], *, whole: bool = False) -> None:
        """Keep the rows with times, in the order of preference; if they are the ``whole`` result, forget all others."""
        for name, row in rows.items():
            if row.ms is not None:
                kernel = self._digests.get(name, "")
                self._timings[name] = Timing(row.route, row.config, row.ms, row.warm_ms, row.samples, kernel)
        if self._timings and rows:
            self._store.add(self._work.key, self._measurement(), merge=not whole)

    def best(self) -> Timing | None:
        """Return the kernel that later calls take."""
        return self._measurement().best()

    def _measurement(self) -> Measurement:
        work, order = self._work, dict.fromkeys((*self._order, *self._timings))
        timings = tuple(self._timings[name] for name in order if name in self._timings)
        text = " ".join(work.request.source.text.split())
        target = work.found.problem.target.name
        sizes = dict(work.sizes)
        return Measurement(self._device.name, target, text, sizes, timings, work.call, self._origin)


def _beside(work: Work, device: Device, store: Store, chosen: Candidates) -> dict[Name, Timing]:
    """Return the times that this device and driver measured of kernels that are not tuned now."""
    found = store.kernels(work.key, device.name, device.driver)
    return {name: timing for name, timing in found.items() if name not in chosen.names}


def _tuning(
    work: Work, device: Device, chosen: Candidates, rows: Sequence[KernelTime], best: Timing | None, seconds: float
) -> Tuning:
    return Tuning(
        work.request.operation,
        device.name,
        work.found.problem.target.name,
        dict(work.sizes),
        tuple(rows),
        best,
        chosen.untuned,
        chosen.pruned,
        chosen.unfit + len(chosen.failed),
        sum(bool(row.failure) for row in rows) - len(chosen.failed),
        seconds,
    )


def _failed(sources: Mapping[Name, KernelSource], broken: Mapping[KernelSource, str]) -> dict[Name, KernelTime]:
    """Return rows of the kernels that cannot be built."""
    return {name: KernelTime(*name, failure=broken[each]) for name, each in sources.items() if each in broken}


def _kept(known: Mapping[Name, Timing]) -> dict[Name, KernelTime]:
    """Return rows of the kernels that were measured before."""
    return {
        name: KernelTime(*name, each.ms, warm_ms=each.warm_ms, samples=each.samples, kept=True)
        for name, each in known.items()
    }


def _apart(output: Output, found: _Value, first: _Value) -> tuple[float, bool]:
    """Return the distance of an output from the first kernel's, and whether it is too large: each may be off, either
    way.
    """
    assert output.dtype is not None
    all_found, all_first = ([each] if isinstance(each, torch.Tensor) else each for each in (found, first))
    pairs = zip(all_found, all_first, strict=True)
    far = max((error(mine, theirs, output.dtype) for mine, theirs in pairs), default=0.0)
    return far, far > 2 * limit([output.dtype])


def _reason(error: EvtError) -> str:
    return "; ".join(f"{each.code}: {each.message}" for each in error.diagnostics)
