"""torch.compile(backend="evt") on two GPUs: DDP, FSDP2, and tensor parallelism with and without sequences."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh

from tests.fx.parallel import STRATEGIES, Steps, compare, train
from tests.support.replicas import spawn

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]


def plain(steps: Steps) -> Any:
    torch._inductor.config.post_grad_custom_post_pass = steps.watch
    return "inductor"


def fusing(steps: Steps) -> Any:
    from evt.fx.backend import backend

    plain(steps)
    return partial(backend, options={"evt.rule": "always"})


def work(rank: int, folder: Path, count: int, *, strategy: str) -> None:
    """Train in one process; save the steps."""
    torch.cuda.set_device(rank)
    torch._inductor.config.force_disable_caches = True  # the pass sees each graph
    mesh = init_device_mesh("cuda", (count,))
    run = partial(train, strategy, mesh, blocks=4, width=256, dtype=torch.bfloat16)
    torch.save([run(each) for each in (plain, fusing, None)], folder / f"{rank}.pt")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_gpus(strategy: str, tmp_path: Path) -> None:
    for compiled, fused, eager in spawn(partial(work, strategy=strategy), tmp_path, "nccl"):
        print(
            f"{strategy}: {len(fused.graphs)} graphs, {fused.breaks} breaks, {fused.fused} of {fused.products} fused, "
            f"first step {compiled.seconds:.1f} s; {fused.seconds:.1f} s"
        )
        compare(compiled, fused, eager, 3e-2)
        assert (sum(map(len, fused.graphs)) > 0) == (strategy in ("tensor", "sequence"))
