"""Tuning of a call: ``tune(request, a, b, inputs) -> Tuning``."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

import torch

from evt.compilation import build
from evt.diagnostics import Diagnostic, visible
from evt.errors import ArgumentError, BuildError, EvtError, LaunchError
from evt.html import bar, page, table
from evt.ir import Output
from evt.measured import Measurement, Store, Timing, problem_key
from evt.plan import Plan, Survey, survey
from evt.plan.batches import launches
from evt.reference.compare import error, limit
from evt.request import Request
from evt.runtime.arguments import bind
from evt.runtime.bound import Bound
from evt.runtime.call import Caller
from evt.runtime.given import split_held
from evt.runtime.kernels import (
    call_problem,
    check_batches,
    check_sizes,
    device_target,
    is_atomic,
    kernel_sources,
)
from evt.tuning.clock import GpuClock, RoundTimer, interleave

ROUNDS = 31

#: The sizes that a table shows: a convolution has more, groups have their :func:`evt.measured.size_class`.
_SHOWN = ("m", "n", "k", "l", "groups", "mean_m", "mean_n", "mean_k")

#: A kernel's name: its route and its configuration.
Name = tuple[str, str]
Calls = Mapping[Name, Callable[[], Any]]
Progress = Callable[[str], object]
#: An output; for groups, one for each.
_Value = torch.Tensor | Sequence[torch.Tensor]


@dataclass(frozen=True, slots=True)
class KernelTime:
    """One kernel: its median time in ms, or the reason that there is none.

    ``distance`` is the distance of its outputs from the first kernel's.
    """

    route: str
    config: str
    ms: float | None = None
    distance: float | None = None
    failure: str = ""


@dataclass(frozen=True, repr=False)
class Tuning:
    """The result of tuning, in the order in which the rules prefer kernels; later calls take ``chosen``."""

    operation: str
    gpu: str
    target: str
    sizes: Mapping[str, int]
    rows: tuple[KernelTime, ...]
    chosen: Timing | None

    def to_json(self) -> dict[str, object]:
        """Return a dict ready for JSON; infinite values are null."""
        rows = [
            {**asdict(row), "distance": row.distance if row.distance is not None and isfinite(row.distance) else None}
            for row in self.rows
        ]
        return {"ok": self.chosen is not None, **asdict(self), "sizes": dict(self.sizes), "rows": rows}

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        slowest = max((row.ms for row in self.rows if row.ms is not None), default=1.0)
        rows = [
            (row.route, row.config, row.failure if row.ms is None else f"{row.ms:.4f}", bar((row.ms or 0.0) / slowest))
            for row in self.rows
        ]
        marks = ["failed" if row.ms is None else "chosen" if self._takes(row) else "" for row in self.rows]
        title, *_ = str(self).splitlines()
        return page(table(("route", "configuration", "ms", ""), rows, title, numbers=("ms",), marks=marks))

    def _takes(self, row: KernelTime) -> bool:
        return self.chosen is not None and (row.route, row.config) == (self.chosen.route, self.chosen.config)

    def __str__(self) -> str:
        sizes = " ".join(f"{mode}={size}" for mode, size in self.sizes.items() if mode in _SHOWN)
        lines = [f"{self.operation} on {self.gpu} ({self.target}): {sizes}"]
        width = max((len(f"{row.route} {row.config}".strip()) for row in self.rows), default=0)
        for row in self.rows:
            result = row.failure if row.ms is None else f"{row.ms:.4f} ms"
            lines.append(
                f"{'->' if self._takes(row) else '  '} {f'{row.route} {row.config}'.strip():<{width}}  {result}"
            )
        return visible("\n".join(lines), keep="\n")


def tune(
    request: Request,
    a: torch.Tensor,
    b: torch.Tensor,
    inputs: Mapping[str, Any],
    *,
    rounds: int = ROUNDS,
    progress: Progress = lambda text: None,
    store: Store | None = None,
) -> Tuning:
    """Time every route that applies to a call, in its default configurations, on the call's tensors; keep the times.

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

    return measure(request, found, index, bound.sizes, call_of, rounds=rounds, progress=progress, store=store)


def check_program(request: Request) -> None:
    """Raise ArgumentError for a program with a forced route, LaunchError (E0801) without a GPU."""
    for name in ("route", "config"):
        if getattr(request.settings, name) is not None:
            message = f"the program's `{name}` is forced, but tuning chooses it"
            raise ArgumentError(Diagnostic("E0602", message, help="leave it out"))
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
    request: Request,
    found: Survey,
    index: int,
    sizes: Mapping[str, int],
    call_of: Callable[[Name], Callable[[], Any]],
    others: Sequence[Name] = (),
    *,
    rounds: int,
    progress: Progress,
    store: Store | None,
) -> Tuning:
    """Build and time the kernels of a survey, and ``others`` after them; keep the times.

    ``call_of`` makes the call of a kernel on the GPU of this ``index``; the times are kept for these ``sizes``.
    """
    problem, store = found.problem, store or Store()
    store.require_replaceable()
    plans, failed = kernels_of(found, sizes)
    progress(f"building {len(plans)} kernels")
    with suppress(BuildError):  # the call of the kernel raises it again
        build(kernel_sources(plans.values()))
    progress("timing")
    with torch.no_grad(), torch.cuda.device(index):
        calls = {name: call_of(name) for name in (*plans, *others)}
        timed = time_kernels(calls, problem.dag.outputs, GpuClock(torch.device("cuda", index)), rounds)
    rows = {**failed, **timed}
    in_order = tuple(rows[name] for name in (*names_of(found), *others))
    timings = tuple(Timing(row.route, row.config, row.ms) for row in in_order if row.ms is not None)
    gpu = torch.cuda.get_device_name(index)
    text = " ".join(request.source.text.split())
    measurement = Measurement(gpu, problem.target.name, text, dict(sizes), timings)
    if timings:
        store.add(problem_key(problem, sizes), measurement)
    return Tuning(request.operation, gpu, problem.target.name, dict(sizes), in_order, measurement.best())


def names_of(found: Survey) -> list[Name]:
    """Return the kernels of a problem: its routes, in order of preference, in their default configurations."""
    return [(candidate.route.name, config.name) for candidate, config in found.kernels]


def kernels_of(found: Survey, sizes: Mapping[str, int]) -> tuple[dict[Name, Plan], dict[Name, KernelTime]]:
    """Return the plans of the kernels that support a problem's sizes, and rows with the reasons against the others."""
    plans: dict[Name, Plan] = {}
    failed: dict[Name, KernelTime] = {}
    batches = sizes.get("l", 1)  # groups have none
    count = {candidate: len(launches(candidate.max_batches, batches)) for candidate, _ in found.kernels}
    for candidate, config in found.kernels:
        name = candidate.route.name, config.name
        if count[candidate] > min(count.values()):
            failed[name] = KernelTime(*name, failure=f"a call is {count[candidate]} launches, and others are fewer")
            continue
        try:
            check_batches(candidate.problem.dag, candidate.route, candidate.problem.target, batches)
            made = candidate.plan(config)
            check_sizes(made, sizes)
            plans[name] = made
        except EvtError as error:
            failed[name] = KernelTime(*name, failure=_reason(error))
    return plans, failed


def time_kernels(calls: Calls, outputs: Sequence[Output], clock: RoundTimer, rounds: int) -> dict[Name, KernelTime]:
    """Return a row for each call, timed in interleaved rounds if its outputs agree with the first call's.

    Raise the error of the first call if all fail.
    """
    rows: dict[Name, KernelTime] = {}
    errors: list[EvtError] = []
    first: tuple[_Value, ...] | None = None
    good: dict[str, Callable[[], Any]] = {}
    for name, call in calls.items():
        try:
            result = call()
        except EvtError as error:
            errors.append(error)
            rows[name] = KernelTime(*name, failure=_reason(error))
            continue
        found = (result,) if len(outputs) == 1 else tuple(result)
        first = first or found
        apart = [_apart(*each) for each in zip(outputs, found, first, strict=True)]
        most = max(far for far, _ in apart)
        wrong = [output.name for output, (_, too_far) in zip(outputs, apart, strict=True) if too_far]
        failure = f"its {', '.join(wrong)} differs from the first kernel's by {most:.1e}" if wrong else ""
        rows[name] = KernelTime(*name, distance=most, failure=failure)
        if not wrong:
            good[" ".join(name)] = call
    if errors and not good:
        raise errors[0]
    interleave(good, 2, clock)  # lets the clock calibrate its spin, and the GPU raise its clock rates
    samples, _ = interleave(good, rounds, clock)
    for name, row in rows.items():
        if taken := samples.get(" ".join(name)):
            rows[name] = KernelTime(row.route, row.config, statistics.median(taken), row.distance)
        elif not row.failure:
            rows[name] = KernelTime(row.route, row.config, None, row.distance, "too slow to be timed")
    return rows


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
