"""Plan and build the kernels of a graph's regions: ``planned(regions)``, ``built(sources)``.

A region of fixed sizes takes one kernel, its best. A region with symbolic sizes takes all kernels of its layer, among
which each call chooses.

The builds run in parallel, beside Inductor (:mod:`evt.fx.background`), and the compilation waits for them, as it waits
for Triton's kernels. If a kernel cannot be planned or built, its region goes to Inductor. A kernel that arrives after
the compilation would change results between calls, and would be missing in recorded CUDA graphs. A line on the
terminal, or the logger ``evt``, reports the progress.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Node

from evt.compilation import BuildEvent, KernelSource, build, build_each, missing_tools
from evt.compilation.policy import may_compile
from evt.diagnostics import Diagnostic
from evt.errors import EvtError, TargetError
from evt.fx.build import RegionProgram
from evt.fx.example import Form
from evt.fx.skip_reason import SkipReason
from evt.plan import Plan, Target, find_target
from evt.plan.speed import duration, fastest
from evt.request import Request, surveyed
from evt.runtime.arguments import bind
from evt.runtime.bound import Bound
from evt.runtime.call import caller_of
from evt.runtime.kernels import (
    BuiltKernel,
    CallKey,
    best_of,
    call_key,
    call_problem,
    device_card,
    device_target,
    is_atomic,
    measured_best,
    own_plans,
    plan_kernels,
)
from evt.runtime.operator import write_program
from evt.runtime.planar import with_planes
from evt.runtime.plans import kernel_sources

_LOGGER = logging.getLogger("evt")


@dataclass(frozen=True)
class RegionKernels:
    """The kernels of a region's program. ``call`` is the key of its call, None if its sizes are symbolic.

    ``note`` is the reason why own kernels take the place of others, or "".
    """

    program: str
    plans: tuple[Plan, ...]
    sources: tuple[KernelSource, ...]
    call: CallKey | None
    note: str = ""

    def provide(self, libraries: Mapping[KernelSource, Path]) -> list[Provided]:
        """Give the call its kernel, and return it."""
        if self.call is None:
            return []
        ((plan, source),) = zip(self.plans, self.sources, strict=True)
        made = Provided(self.program, self.call, BuiltKernel(plan, libraries[source], source.name))
        made.take()
        return [made]


@dataclass(frozen=True)
class Provided:
    """The kernel of one call of a program. It pickles."""

    program: str
    call: CallKey
    kernel: BuiltKernel

    def take(self) -> None:
        """Let the program use the kernel."""
        caller_of(self.program).provide(self.call, self.kernel)


class Calls:
    """The kernels of regions while one graph is compiled: the calls of equal layers are planned once.

    A later compilation may find other measurements and other tools.
    """

    def __init__(self) -> None:
        self._fastest: dict[object, Plan] = {}
        self._kernels: dict[object, RegionKernels] = {}

    def fastest(self, fused: RegionProgram, target: str, multiprocessors: int, *, here: bool) -> Plan:
        """Return :func:`kernel_of`."""
        key = shared_request(fused), Form.of(fused), target, multiprocessors, here
        if key not in self._fastest:
            self._fastest[key] = kernel_of(fused, target, multiprocessors, here=here)
        return self._fastest[key]

    def fastest_or_reason(self, fused: RegionProgram, target: str) -> Plan | str:
        """Return the kernel for a call of a region on a target, or the reason why there is none."""
        try:
            return self.fastest(fused, target, PROCESSORS, here=False)
        except EvtError as error:
            return reason_of(error)

    def kernels(self, fused: RegionProgram, *, every: bool) -> RegionKernels:
        """Return :func:`region_kernels`."""
        key = shared_request(fused), Form.of(fused), _is_fixed(fused), every
        if key not in self._kernels:
            self._kernels[key] = region_kernels(fused, every=every)
        return self._kernels[key]


def region_kernels(fused: RegionProgram, *, every: bool = False) -> RegionKernels:
    """Return the kernels for calls of a region; ``every`` kernel of its layer for fixed sizes, too.

    Raise the errors of a call that precede nvcc.
    """
    program = program_text(fused)
    caller = caller_of(program)
    bound = bound_example(fused)
    atomic, target = is_atomic(caller.request), device_target(bound.index)
    bound = with_planes(caller.request, bound, target, atomic, fresh=True)
    request = measured_best(caller.request, bound, atomic)
    offers_all, call = every or not _is_fixed(fused), None
    plans, note = _plans_here(request, bound, target, atomic, fixed=not offers_all)
    if offers_all:
        caller.expect(bound)  # calls with other sizes use the same kernels
    else:
        plans = (plans[best_of(plans, bound, device_card(bound.index, target.name))],)
        call = call_key(request, bound, target, atomic)
    return RegionKernels(program, plans, tuple(kernel_sources(plans)), call, note)


def _plans_here(
    request: Request, bound: Bound, target: Target, atomic: bool, *, fixed: bool
) -> tuple[tuple[Plan, ...], str]:
    """Return the plans of a call, and why they are own kernels if these take the place of others.

    Own kernels need NVRTC only, so they take the place of kernels that this machine cannot build.
    """
    plans = plan_kernels(request, bound, target, atomic)
    if request.is_forced or not may_compile() or not (missing := missing_tools(partial(kernel_sources, plans))):
        return _built_soon(plans, request, bound, target, atomic) if fixed else (plans, "")
    try:
        own = own_plans(call_problem(request, bound, target, atomic))
    except TargetError:
        return plans, ""  # the build fails, with the reason
    return own, f"{own[0].route} in place of {plans[0].route}: {missing}"


def _built_soon(
    plans: tuple[Plan, ...], request: Request, bound: Bound, target: Target, atomic: bool
) -> tuple[tuple[Plan, ...], str]:
    """Return own plans in the place of others if nvcc would compile the best kernel of a call, and the reason.

    The own kernel may take :data:`_MOST_LONGER` more, with the error of its estimate.
    """
    best = plans[best_of(plans, bound, PROCESSORS)]
    if best.family == "own" or not request.may_be_measured:
        return plans, ""
    try:
        own = own_plans(call_problem(request, bound, target, atomic))
        found = own[best_of(own, bound, PROCESSORS)]
    except EvtError:
        return plans, ""
    mine, theirs = (duration(each, bound.sizes, PROCESSORS).total for each in (found, best))
    if _DOUBT * mine - theirs > _MOST_LONGER:
        return plans, ""
    note = (
        f"{found.route} in place of {best.route}, which nvcc compiles: {mine:.1f} and {theirs:.1f} us by the estimate"
    )
    return own, note


def _is_fixed(fused: RegionProgram) -> bool:
    """Return whether all sizes and strides of a region's tensors are numbers."""
    product = fused.region.product
    nodes = (product.a, product.b, *fused.nodes, *(each.node for each in fused.arguments))
    values = (node.meta["val"] for node in nodes)
    return all(
        isinstance(size, int)
        for value in values
        if isinstance(value, torch.Tensor)
        for size in (*value.shape, *value.stride(), value.storage_offset())
    )


def program_text(fused: RegionProgram) -> str:
    """Return a region's program as the operators take it."""
    return _text_of(fused.program.request)


@lru_cache(maxsize=4096)
def _text_of(request: Request) -> str:
    """Return the text of a program without the names of its layer's nodes, once for equal layers."""
    return write_program(replace(request, dag=replace(request.dag, origins=())))


def shared_request(fused: RegionProgram) -> Request:
    """Return the request that all equal layers share, as their calls do: its graphs and plans are made once."""
    return caller_of(program_text(fused)).request


def kernel_of(fused: RegionProgram, target: str, multiprocessors: int, *, here: bool = False) -> Plan:
    """Return the kernel for a call of a region on a target; ``here`` means that this machine builds it.

    Raise the errors of a call that precede nvcc.
    """
    request, bound = shared_request(fused), bound_example(fused)
    found, atomic = find_target(target), is_atomic(request)
    fixed = _is_fixed(fused)
    if here:
        plans, _ = _plans_here(request, bound, found, atomic, fixed=fixed)
    else:
        plans = plan_kernels(request, bound, found, atomic)
        plans = _built_soon(plans, request, bound, found, atomic)[0] if fixed else plans
    return plans[fastest(plans, bound.sizes, multiprocessors)]


def bound_example(fused: RegionProgram) -> Bound:
    """Return the call of a region in the graph, without memory."""
    return _bound(shared_request(fused), Form.of(fused))


@lru_cache(maxsize=4096)
def _bound(request: Request, form: Form) -> Bound:
    with unset_fake_temporarily():
        a, b, inputs = form.empty()
        return bind(request, a, b, inputs, {}, memory=False)


def check_kernel(fused: RegionProgram, target: Target) -> None:
    """Raise TargetError for a region that no kernel of a target computes."""
    _check(shared_request(fused), Form.of(fused), target)


@lru_cache(maxsize=4096)
def _check(request: Request, form: Form, target: Target) -> None:
    _ = surveyed(request, call_problem(request, _bound(request, form), target)).chosen


#: The multiprocessors of an H100 or H200, the assumed GPU if none is known.
PROCESSORS = 132
#: Microseconds of a call that an own kernel may take longer than the best one, if nvcc compiles that one: it takes 59
#: CPU seconds for an implicit GEMM of CUTLASS 3.x, where NVRTC takes 1 for an own kernel (two cores, 2026-11-28).
_MOST_LONGER = 10.0
#: The error of the estimate of an own kernel in the place of another.
_DOUBT = 1.1
#: The kinds of devices that run kernels. On other devices the reference computes a region.
_DEVICES = ("cuda",)


def planned(
    regions: Mapping[Node, RegionProgram], *, every: bool = False, calls: Calls | None = None
) -> tuple[dict[Node, RegionKernels], dict[Node, SkipReason]]:
    """Return by product the kernels of regions on CUDA devices, and why regions cannot be called.

    ``every``: plan every kernel of a layer for fixed sizes, too.
    """
    calls = calls or Calls()
    kernels: dict[Node, RegionKernels] = {}
    without: dict[Node, SkipReason] = {}
    for node, fused in regions.items():
        try:
            if node.meta["val"].device.type in _DEVICES:
                kernels[node] = calls.kernels(fused, every=every)
            else:
                bound_example(fused)
        except EvtError as error:  # noqa: PERF203
            without[node] = SkipReason(node, "E1018", reason_of(error))
    return kernels, without


@dataclass(frozen=True)
class Builds:
    """The libraries of sources, and why the others cannot be built."""

    libraries: Mapping[KernelSource, Path] = field(default_factory=dict)
    failures: Mapping[KernelSource, str] = field(default_factory=dict)


def built(sources: Sequence[KernelSource]) -> Builds:
    """Build sources in parallel.

    Raise BuildError if this process may not compile, CancelledError if a cancellation ends this thread's work.
    """
    if not may_compile():
        return Builds(build_all(sources))
    libraries, errors = build_each(sources, lambda wanted: list(build_all(wanted).values()))
    return Builds(libraries, {source: reason_of(error) for source, error in errors.items()})


def build_all(sources: Sequence[KernelSource]) -> dict[KernelSource, Path]:
    """Return the libraries of sources, built in parallel. Raise BuildError.

    Log their number and the time unless all are in the cache.
    """
    wanted = list(dict.fromkeys(sources))
    if not wanted:
        return {}
    start = time.perf_counter()
    kinds = Counter[str]()

    def count(event: BuildEvent) -> None:
        kinds[event.kind] += 1

    try:
        return dict(zip(wanted, build(wanted, on_event=count), strict=True))
    finally:
        if kinds["built"]:
            ready, seconds = kinds["hit"] + kinds["built"], time.perf_counter() - start
            _LOGGER.info(f"{ready} of {len(wanted)} kernels ready, {seconds:.0f} s")


def reason_of(error: EvtError) -> str:
    first: Diagnostic = error.diagnostics[0]
    return f"{first.code}: {first.message}"
