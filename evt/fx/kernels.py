"""The kernels of a graph's regions, planned and built before it is compiled: ``ready(fusion, devices) -> Ready``.

They are built here, side by side, and the compilation waits for them, as it waits for Triton's kernels: what PyTorch
compiles then is what will run. A region whose kernel cannot be planned or built has to be left to Inductor before the
graph is lowered; a kernel that arrived later would change results between calls, and could not be in a CUDA graph that
was recorded before. A line on the terminal, or the logger ``evt``, says how far it is.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Node

from evt.compilation import BuildEvent, KernelSource, Phases, build
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
    """Return the sources of the kernels that calls of a region take. Raise what a call would, before nvcc."""
    caller = caller_of(program_text(fused))
    bound = bound_example(fused, caller.request)
    atomic = is_atomic(caller.request)
    plans = plan_kernels(measured_best(caller.request, bound, atomic), bound, device_target(bound.index), atomic)
    caller.expect(bound)  # a call of other sizes, if the shapes are dynamic, takes the same kernels
    return kernel_sources(plans)


def program_text(fused: RegionProgram) -> str:
    """Return a region's program as the operators take it."""
    request = fused.program.request
    return write_program(replace(request, dag=replace(request.dag, origins=())))


def kernel_of(fused: RegionProgram, target: str, multiprocessors: int) -> Plan:
    """Return the kernel that a call of a region takes on a target. Raise what a call would, before nvcc."""
    request, bound = fused.program.request, bound_example(fused)
    plans = plan_kernels(request, bound, find_target(target), is_atomic(request))
    return plans[fastest(plans, bound.sizes, multiprocessors)]


def kernel_or_reason(fused: RegionProgram, target: str) -> Plan | str:
    """Return the kernel that a call of a region takes on a target, or why there is none."""
    try:
        return kernel_of(fused, target, PROCESSORS)
    except EvtError as error:
        return reason_of(error)


def bound_example(fused: RegionProgram, request: Request | None = None) -> Bound:
    """Return the call of a region in the graph, without memory; ``request`` is the region's program or its equal."""
    with unset_fake_temporarily():
        a, b, inputs = example(fused)
        return bind(request or fused.program.request, a, b, inputs, {}, memory=False)


#: The multiprocessors of an H100 or H200, for which kernels are chosen where no GPU is known.
PROCESSORS = 132
#: The devices that run kernels; on others the reference computes a region.
_DEVICES = ("cuda",)


def planned(regions: Mapping[Node, RegionProgram]) -> tuple[dict[Node, list[KernelSource]], dict[Node, SkipReason]]:
    """Return the sources of regions that run on CUDA, and why regions cannot be called; by their products."""
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


def built(sources: Mapping[Node, Sequence[KernelSource]]) -> dict[Node, SkipReason]:
    """Build kernels side by side; return why there are none, by product."""
    try:
        build_all([each for mine in sources.values() for each in mine])
        return {}
    except BuildError:
        pass
    found = {node: _failure(mine) for node, mine in sources.items()}  # what was built is found again
    return {node: SkipReason(node, "E1019", failure) for node, failure in found.items() if failure}


def _failure(sources: Sequence[KernelSource]) -> str:
    """Return why sources cannot be built, or "" where they are."""
    try:
        build(sources)
    except BuildError as error:
        return reason_of(error)
    return ""


def build_all(sources: Sequence[KernelSource]) -> None:
    """Build sources side by side, and say how far it is. Raise BuildError."""
    wanted = list(dict.fromkeys(sources))
    if wanted:
        line = _Line(len(wanted))
        try:
            build(wanted, on_event=line)
        finally:
            line.close()


def reason_of(error: EvtError) -> str:
    first: Diagnostic = error.diagnostics[0]
    return f"{first.code}: {first.message}"


class _Line:
    """How many kernels are built: a line that is written over on a terminal, else a record of the logger's at the end.

    Nothing is said where all are in the cache.
    """

    def __init__(self, count: int) -> None:
        self._count, self._done, self._built, self._start = count, 0, 0, time.perf_counter()
        self._shown, self._phases, self._phase = sys.stderr.isatty(), Phases(), ""

    def __call__(self, event: BuildEvent) -> None:
        if event.kind in ("hit", "built", "failed"):
            self._done += 1
        self._phase = self._phases.after(event)
        if event.kind in ("start", "end", "built", "failed"):
            self._built += event.kind == "built"
            if self._shown:
                print(f"\revt: {self._text()}", end="\033[K", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._built:
            _LOGGER.info(self._text())
            if self._shown:
                print(file=sys.stderr)

    def _text(self) -> str:
        phase = f", {self._phase}" if self._phase else ""
        return f"{self._done} of {self._count} kernels ready, {time.perf_counter() - self._start:.0f} s{phase}"
