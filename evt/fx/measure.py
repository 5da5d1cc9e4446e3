"""Measure whether fusing a region pays: ``measured(fused) -> Benefit``, stored with the measurements of kernels.

Interleaved rounds time the region's program and the same operators compiled by Inductor. The tensors are random, of
the sizes of the call that is compiled. A later compilation of the same region on the same GPU reads the stored times.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Graph, GraphModule, Node

from evt.fx.build import RegionProgram
from evt.fx.cost_model import Benefit
from evt.fx.example import example, tensor_of
from evt.fx.gradient import backward_of, copy_alone
from evt.measured import Measurement, Store, Timing, problem_key
from evt.runtime.arguments import bind
from evt.runtime.kernels import call_problem, device_target, is_atomic
from evt.tuning.clock import Call, GpuClock, RoundTimer, interleave

ROUNDS = 15
_FUSED, _UNFUSED = "fused", "unfused"


def measured(fused: RegionProgram, clock: RoundTimer | None = None, store: Store | None = None) -> Benefit | None:
    """Return the times of a region with and without fusion; None if it is not on a GPU or cannot be timed."""
    device = fused.region.product.node.meta["val"].device
    if device.type != "cuda" and clock is None:
        return None
    store = store or Store()
    with unset_fake_temporarily(), torch.no_grad():
        request = fused.program.request
        a, b, inputs = example(fused)
        bound = bind(request, a, b, inputs, {}, memory=False)
        target = device_target(bound.index)
        problem = call_problem(request, bound, target, is_atomic(request))
        key = f"region:{problem_key(problem, bound.sizes)}:{_shape(fused)}"
        gpu = torch.cuda.get_device_name(bound.index)
        known = next((each for each in store.find(key) if each.gpu == gpu), None) if store.exists() else None
        if known is None:
            times = time_both(fused, device, clock or GpuClock(device))
            if not times:
                return None
            timings = tuple(Timing(name, "", ms) for name, ms in times.items())
            known = Measurement(gpu, target.name, " ".join(request.source.text.split()), dict(bound.sizes), timings)
            store.add(key, known)
    found = {timing.route: 1e3 * timing.ms for timing in known.timings}
    return Benefit(found[_UNFUSED], found[_FUSED], measured=True)


def _shape(fused: RegionProgram) -> str:
    """Return a key for regions of one program: their operators, and the strides of their operands."""
    nodes = [f"{node.target}{tuple(node.meta['val'].stride())}" for node in fused.nodes]
    return "|".join(nodes)


def time_both(fused: RegionProgram, device: torch.device, clock: RoundTimer) -> dict[str, float]:
    """Return the median times of a region in ms, fused and unfused; none if the host is too slow."""
    tensors: dict[Node, torch.Tensor] = {}

    def make(node: Node, where: Any) -> torch.Tensor:
        if node not in tensors:
            tensors[node] = tensor_of(node, where)
        return tensors[node]

    a, b, inputs = example(fused, device, make)
    return _timed(lambda: fused.program(a, b, **inputs), unfused(fused, lambda node: make(node, device)), clock)


def compared(fused: Call, unfused: Call, device: torch.device) -> Benefit | None:
    """Return the times of two calls that compute a region on a GPU; None if the host is too slow.

    The L2 cache has the operands, as after the operator that makes them.
    """
    times = _timed(fused, unfused, GpuClock(device, warm=True))
    return Benefit(1e3 * times[_UNFUSED], 1e3 * times[_FUSED], measured=True) if times else None


def _timed(fused: Call, unfused: Call, clock: RoundTimer) -> dict[str, float]:
    """Return the median times of two calls in ms; none if the host is too slow."""
    calls = {_FUSED: fused, _UNFUSED: unfused}
    for call in calls.values():
        call()
    interleave(calls, 2, clock)
    samples, _ = interleave(calls, ROUNDS, clock)
    return {name: statistics.median(taken) for name, taken in samples.items()} if all(samples.values()) else {}


def unfused(fused: RegionProgram, make: Callable[[Node], torch.Tensor]) -> Callable[[], object]:
    """Return a call of a region's operators as Inductor compiles them without evt."""
    graph = Graph()
    places: dict[Node, Node] = {}
    given: list[torch.Tensor] = []

    def placed(node: Node) -> Node:
        if node not in places:
            places[node] = graph.placeholder(node.name)
            given.append(make(node))
        return places[node]

    split = backward_of(fused.region.product.node)
    computed = [*([split[0]] if split is not None else []), *fused.nodes]
    outside = dict.fromkeys(each for node in computed for each in node.all_input_nodes if each not in computed)
    for node in outside:
        placed(node)
    if split is not None:
        places[split[0]] = copy_alone(graph, *split, placed)
    for node in fused.nodes:
        places[node] = graph.node_copy(node, placed)
    graph.output(tuple(places[each.node] for each in fused.results))
    with torch._guards.tracing(None):
        from torch._inductor.compile_fx import compile_fx

        patches = {"post_grad_custom_pre_pass": None, "triton.cudagraphs": False}
        compiled: Any = compile_fx(GraphModule(torch.nn.Module(), graph), given, config_patches=patches)
    return lambda: compiled(*given)
