"""Tuning of a model's kernels: ``tune(model, inputs) -> results``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Node

from evt.diagnostics import Diagnostic
from evt.errors import ArgumentError
from evt.fx.build import RegionProgram
from evt.fx.example import example, tensor_of
from evt.fx.kernels import bound_example, build_all, program_text, region_kernels, shared_request
from evt.fx.prebuild import regions_of
from evt.request.given import check_kind
from evt.tuning.space import Options
from evt.tuning.table import Tuning
from evt.tuning.tune import need_gpu
from evt.tuning.tune import tune as tune_call

Progress = Callable[[str], object]


def tune(
    model: Callable[..., Any],
    inputs: Sequence[Any] | Mapping[str, Any],
    *,
    wide: bool = False,
    rounds: int = 31,
    progress: Progress = lambda text: None,
    **keywords: Any,
) -> tuple[Tuning, ...]:
    """Time the kernels of the regions that ``torch.compile(model, backend="evt")`` fuses, and keep the times.

    The model is called once, uncompiled, with the inputs: a sequence or keyword arguments, on a GPU. Equal layers are
    tuned once. Kernels that were measured before are not timed again. Compile the model afterwards, in this process or
    in a later one: its regions take the fastest kernels. ``wide`` searches the whole space of tiles and schedules.
    ``keywords`` are arguments of torch.compile. Raise LaunchError (E0801) without a GPU, and ArgumentError (E0607) for
    arguments of other kinds.
    """
    check_kind("wide", wide, bool, "a bool")
    check_kind("rounds", rounds, int, "a number of samples")
    if rounds < 1:
        raise ArgumentError(Diagnostic("E0607", f"`rounds` is {rounds}; expected at least 1"))
    regions = distinct(regions_of(model, inputs, **keywords))
    if not regions:
        need_gpu()  # a model on the CPU has no regions
    build_all([source for fused in regions for source in region_kernels(fused, every=True).sources])
    results = []
    for number, fused in enumerate(regions, 1):
        progress(f"[{number}/{len(regions)}] {' '.join(fused.program.request.source.text.split())}")
        results.append(_tuned(fused, Options(rounds, wide, again=False)))
    return tuple(results)


def distinct(regions: Sequence[RegionProgram]) -> list[RegionProgram]:
    """Return one region of each program, signature and sizes."""
    found: dict[object, RegionProgram] = {}
    for fused in regions:
        bound = bound_example(fused)
        found.setdefault((program_text(fused), repr(bound.signature), tuple(sorted(bound.sizes.items()))), fused)
    return list(found.values())


def _tuned(fused: RegionProgram, options: Options) -> Tuning:
    """Tune the call of a region, on random tensors."""
    device = fused.region.product.node.meta["val"].device
    tensors: dict[Node, torch.Tensor] = {}

    def make(node: Node, where: Any) -> torch.Tensor:
        if node not in tensors:
            tensors[node] = tensor_of(node, where)
        return tensors[node]

    with unset_fake_temporarily(), torch.no_grad():
        a, b, inputs = example(fused, device, make)
        return tune_call(shared_request(fused), a, b, inputs, options=options)
