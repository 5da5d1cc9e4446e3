"""Plan and build the kernels of a graph's regions: ``planned(regions)``, ``failures_of(sources)``.

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
from dataclasses import replace
from functools import lru_cache

from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Node

from evt.compilation import BuildEvent, KernelSource, build
from evt.compilation.policy import may_compile
from evt.diagnostics import Diagnostic
from evt.errors import BuildError, EvtError
from evt.fx.build import RegionProgram
from evt.fx.example import example
from evt.fx.skip_reason import SkipReason
from evt.plan import Plan, find_target
from evt.plan.speed import fastest
from evt.request import Request
from evt.runtime.arguments import bind
from evt.runtime.bound import Bound
from evt.runtime.call import caller_of
from evt.runtime.kernels import device_target, is_atomic, kernel_sources, measured_best, plan_kernels
from evt.runtime.operator import write_program

_LOGGER = logging.getLogger("evt")


def sources_of(fused: RegionProgram) -> list[KernelSource]:
    """Return the sources of the kernels for calls of a region. Raise the errors of a call that precede nvcc."""
    caller = caller_of(program_text(fused))
    bound = bound_example(fused)
    atomic = is_atomic(caller.request)
    plans = plan_kernels(measured_best(caller.request, bound, atomic), bound, device_target(bound.index), atomic)
    caller.expect(bound)  # calls with other sizes, if the shapes are dynamic, use the same kernels
    return kernel_sources(plans)


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


def kernel_of(fused: RegionProgram, target: str, multiprocessors: int) -> Plan:
    """Return the kernel for a call of a region on a target. Raise the errors of a call that precede nvcc."""
    request, bound = shared_request(fused), bound_example(fused)
    plans = plan_kernels(request, bound, find_target(target), is_atomic(request))
    return plans[fastest(plans, bound.sizes, multiprocessors)]


def kernel_or_reason(fused: RegionProgram, target: str) -> Plan | str:
    """Return the kernel for a call of a region on a target, or the reason why there is none."""
    try:
        return kernel_of(fused, target, PROCESSORS)
    except EvtError as error:
        return reason_of(error)


def bound_example(fused: RegionProgram) -> Bound:
    """Return the call of a region in the graph, without memory."""
    with unset_fake_temporarily():
        a, b, inputs = example(fused)
        return bind(shared_request(fused), a, b, inputs, {}, memory=False)


#: The multiprocessors of an H100 or H200, the assumed GPU if none is known.
PROCESSORS = 132
#: The kinds of devices that run kernels. On other devices the reference computes a region.
_DEVICES = ("cuda",)


def planned(regions: Mapping[Node, RegionProgram]) -> tuple[dict[Node, list[KernelSource]], dict[Node, SkipReason]]:
    """Return by product the sources of regions on CUDA devices, and why regions cannot be called."""
    sources: dict[Node, list[KernelSource]] = {}
    without: dict[Node, SkipReason] = {}
    for node, fused in regions.items():
        try:
            if node.meta["val"].device.type in _DEVICES:
                sources[node] = sources_of(fused)
            else:
                bound_example(fused)
        except EvtError as error:  # noqa: PERF203
            without[node] = SkipReason(node, "E1018", reason_of(error))
    return sources, without


def failures_of(sources: Sequence[KernelSource]) -> dict[KernelSource, str]:
    """Build sources in parallel; return why some of them cannot be built.

    Raise BuildError if this process may not compile, CancelledError if a cancellation ends this thread's work.
    """
    try:
        build_all(sources)
        return {}
    except BuildError:
        if not may_compile():
            raise
    found = {each: _failure(each) for each in dict.fromkeys(sources)}  # the cache has the kernels that were built
    return {each: failure for each, failure in found.items() if failure}


def _failure(source: KernelSource) -> str:
    """Return why a source cannot be built, or ""."""
    try:
        build([source])
    except BuildError as error:
        return reason_of(error)
    return ""


def build_all(sources: Sequence[KernelSource]) -> None:
    """Build sources in parallel, and log their number and the time unless all are in the cache. Raise BuildError."""
    wanted = list(dict.fromkeys(sources))
    if not wanted:
        return
    start = time.perf_counter()
    kinds = Counter[str]()

    def count(event: BuildEvent) -> None:
        kinds[event.kind] += 1

    try:
        build(wanted, on_event=count)
    finally:
        if kinds["built"]:
            ready, seconds = kinds["hit"] + kinds["built"], time.perf_counter() - start
            _LOGGER.info(f"{ready} of {len(wanted)} kernels ready, {seconds:.0f} s")


def reason_of(error: EvtError) -> str:
    first: Diagnostic = error.diagnostics[0]
    return f"{first.code}: {first.message}"
