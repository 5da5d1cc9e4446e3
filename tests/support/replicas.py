"""Training by torch.nn.parallel.DistributedDataParallel in separate processes: ``train_replicas(...)``."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from evt import nn

_SECONDS = 120


def make_model() -> torch.nn.Module:
    """Return a small convolutional model, the same each time."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        nn.Conv2d(8, 16, 3, padding=1, epilogue="relu(acc + bias)"),
        torch.nn.Flatten(),
        nn.Linear(16 * 6 * 5, 24, epilogue="gelu(acc + bias)"),
        nn.Linear(24, 8),
    )


def images(count: int) -> torch.Tensor:
    """Return the same images each time, on any device."""
    return torch.randn(count, 8, 6, 5, generator=torch.Generator().manual_seed(count))


def train(model: torch.nn.Module, batch: torch.Tensor, steps: int = 3) -> None:
    """Take some steps towards small outputs."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        optimiser.zero_grad()
        model(batch).square().mean().backward()
        optimiser.step()


def train_replicas(folder: Path, backend: str, dtype: torch.dtype, count: int = 2) -> list[dict[str, torch.Tensor]]:
    """Return the parameters of each of ``count`` replicas, trained on a part of 8 images each."""
    return spawn(partial(_replica, backend=backend, dtype=dtype), folder, backend, count)


def spawn(work: Callable[[int, Path, int], None], folder: Path, backend: str, count: int = 2) -> list[Any]:
    """Return the values that ``count`` processes of one group save as ``RANK.pt`` in a folder.

    They are forks of a process that has imported PyTorch and its compiler.
    """
    start: Callable[..., None] = _work
    multiprocessing.set_forkserver_preload(["torch._inductor.compile_fx"])
    context = torch.multiprocessing.start_processes(  # type: ignore[attr-defined]
        start, (work, folder, backend, count), nprocs=count, join=False, start_method="forkserver"
    )
    try:
        while not context.join(_SECONDS):
            pass
    finally:
        for process in context.processes:
            process.kill()
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(count)]


def _work(rank: int, work: Callable[[int, Path, int], None], folder: Path, backend: str, count: int) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group(backend, f"file://{folder / 'store'}", rank=rank, world_size=count)
    try:
        work(rank, folder, count)
    finally:
        torch.distributed.destroy_process_group()


def _replica(rank: int, folder: Path, count: int, *, backend: str, dtype: torch.dtype) -> None:
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    model = torch.nn.parallel.DistributedDataParallel(make_model().to(device, dtype))
    train(model, images(8).to(device, dtype).chunk(count)[rank])
    torch.save({name: value.cpu() for name, value in model.module.state_dict().items()}, folder / f"{rank}.pt")
