"""torch.compile(backend="evt") on two processes: DDP, FSDP2, and tensor parallelism with and without sequences.

Graphs are compiled up to Inductor's lowering, where evt's pass runs; the reference computes regions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.fx import GraphModule

from tests.support.replicas import spawn

from .parallel import STRATEGIES, Steps, compare, train

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="PyTorch has no gloo"
)
aten = torch.ops.aten


def lower(graph: GraphModule, inputs: Sequence[Any], *, steps: Steps, **_: Any) -> Any:
    """Stand in for Inductor's lowering: run the custom pass, and return the graph as a function."""
    from torch._functorch.aot_autograd import make_boxed_func

    steps.watch(graph.graph)
    fuse: Any = torch._inductor.config.post_grad_custom_pre_pass
    if fuse is not None:
        fuse(graph.graph)
    for node in graph.graph.find_nodes(op="call_function", target=aten.view.default):
        node.target = aten.reshape.default  # as Inductor lowers it: strides of saved values may differ
    graph.recompile()
    return make_boxed_func(graph)


def plain(steps: Steps) -> Any:
    """Return a backend like Inductor."""
    from torch._inductor.compile_fx import compile_fx

    return lambda module, inputs: compile_fx(module, list(inputs), inner_compile=partial(lower, steps=steps))


def fusing(steps: Steps) -> Any:
    """Return evt's backend, which plans regions as on an H200."""
    from evt.fx import backend

    setattr(backend, "compile_fx_inner", partial(lower, steps=steps))  # noqa: B010
    return partial(backend.backend, options={"evt.rule": "always", "evt.devices": ("cpu",)})


def work(rank: int, folder: Path, count: int, *, strategies: Sequence[str], blocks: int) -> None:
    """Train in one process; save the steps of each strategy."""
    from evt.fx.backend import FusePass
    from tests.support.stub_device import plan_for_h200

    plan_for_h200(setattr)
    FusePass.uuid = lambda self: None  # type: ignore[method-assign]
    torch._functorch.config.enable_autograd_cache = False
    torch.distributed._DEFAULT_FIRST_BUCKET_BYTES = 1024
    mesh = init_device_mesh("cpu", (count,))
    run = partial(train, mesh=mesh, blocks=blocks)
    found = {
        each: (run(each, compiler=plain), run(each, compiler=fusing), run(each, compiler=None)) for each in strategies
    }
    torch.save(found, folder / f"{rank}.pt")


def check(folder: Path, strategies: Sequence[str], blocks: int) -> None:
    for found in spawn(partial(work, strategies=strategies, blocks=blocks), folder, "gloo"):
        assert list(found) == list(strategies)
        for strategy, (compiled, fused, eager) in found.items():
            compare(compiled, fused, eager, 1e-4)
            collectives = sum(map(len, fused.graphs))
            assert (collectives > 0) == (strategy in ("tensor", "sequence"))
            assert len(fused.graphs) >= 2


def test_two_processes(tmp_path: Path) -> None:
    check(tmp_path, ("sequence",), 1)


@pytest.mark.slow
def test_all_strategies(tmp_path: Path) -> None:
    check(tmp_path, tuple(STRATEGIES), 3)
