"""Tasks on the workers of a Dask cluster: ``run_on_cluster(tasks, client) -> results``.

    any worker          builds kernels, and returns them as a pack
    a worker with GPU   imports the pack and times the kernels; it has the Dask resource ``GPU``
    this process        keeps the results in its database, as they come

A task that dies with its worker runs again on another one. A result is kept once it is here, so that nothing is lost,
and no kernel of a kept result is timed again.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from evt.compilation import Cache, KernelSource, pack_sources, read_pack
from evt.farm.local import Progress, Remaining
from evt.farm.task import GpuMachine, Machine, Task
from evt.measured import Measurement, Store
from evt.plan import Target, find_target
from evt.tuning.clock import RoundTimer
from evt.tuning.table import Tuning
from evt.tuning.tune import DEFAULTS, Options, failures_of, measure, pending

#: The Dask resource of workers with a GPU, and the times that a task may fail before it counts as failed.
RESOURCE, _RETRIES = "GPU", 3
#: The address of clusters of one machine: no other machine can reach it.
_LOCAL = "127.0.0.1"
#: The time to wait for a scheduler, in seconds.
PATIENCE = 10
#: The sources of one task of building.
_CHUNK = 8

#: Makes the machine of a worker.
Make = Callable[[], Machine]


@dataclass(frozen=True)
class Remote:
    """The GPU of the workers, as :class:`evt.tuning.device.Device` describes it; it has no clock here."""

    name: str
    lock: str
    driver: str
    target_name: str
    multiprocessors: int

    @property
    def target(self) -> Target:
        """The target of the GPU's kernels."""
        return find_target(self.target_name)

    def clock(self, *, warm: bool = False) -> RoundTimer:
        """Raise NotImplementedError: only workers time kernels."""
        raise NotImplementedError


def run_on_cluster(
    tasks: Sequence[Task],
    client: Any,
    options: Options = DEFAULTS,
    *,
    make: Make = GpuMachine,
    store: Store | None = None,
    progress: Progress = lambda text: None,
) -> Iterator[tuple[Task, Tuning]]:
    """Yield the result of each task as it comes.

    ``client`` is a ``distributed.Client``, and ``make`` makes the machine of a worker.

    The workers with the resource ``GPU`` have the same GPU and driver. Raise BuildError (E0704) if the database cannot
    be written, and the error of a task that fails on several workers.
    """
    from distributed import as_completed

    store = store or Store()
    store.require_replaceable()
    gpu = client.submit(_describe, make, resources={RESOURCE: 1}, pure=False, retries=_RETRIES).result()
    missing = [pending(_work(task, gpu), gpu, options, store) for task in tasks]
    progress(f"{len(tasks)} problems on {len(client.scheduler_info()['workers'])} workers")
    packs = _packs(client, [source for sources in missing for source in sources.values()])
    futures = {}
    for number, (task, sources) in enumerate(zip(tasks, missing, strict=True)):
        found = list(dict.fromkeys(packs[source] for source in sources.values()))
        known = store.find(_work(task, gpu).key) if not options.again else ()
        given = next((each for each in known if each.gpu == gpu.name), None)
        future = client.submit(
            _measure, make, task, options, given, found, resources={RESOURCE: 1}, pure=False, retries=_RETRIES
        )
        futures[future] = number
    clock = Remaining(list(map(len, missing)))
    for done, (future, result) in enumerate(as_completed(futures, with_results=True), 1):
        number, (measurement, tuning) = futures[future], result
        if measurement is not None:
            store.add(_work(tasks[number], gpu).key, measurement)
        clock.done(number)
        progress(f"[{done}/{len(tasks)}] {tasks[number].title}{clock.text()}")
        future.release()
        yield tasks[number], tuning


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """Yield a client of the scheduler at an address. Raise OSError if there is none."""
    from distributed import Client

    with Client(address, timeout=PATIENCE) as client:
        yield client


@contextmanager
def local_gpus(count: int) -> Iterator[Any]:
    """Yield a client of a cluster of processes on this machine, each with one of ``count`` GPUs."""
    from distributed import Client, Nanny, Scheduler, SpecCluster

    workers = {
        number: {
            "cls": Nanny,
            "options": {
                "nthreads": 1,
                "resources": {RESOURCE: 1},
                "env": {"CUDA_VISIBLE_DEVICES": str(number)},
                "host": _LOCAL,
                "dashboard_address": f"{_LOCAL}:0",
                "memory_limit": 0,
            },
        }
        for number in range(count)
    }
    scheduler = {"cls": Scheduler, "options": {"host": _LOCAL, "dashboard_address": f"{_LOCAL}:0"}}
    with (
        SpecCluster(workers=workers, scheduler=scheduler, silence_logs=logging.ERROR) as cluster,
        Client(cluster) as client,
    ):
        yield client


def _work(task: Task, gpu: Remote) -> Any:
    """Return a task's problem, whose kernels cannot be called here."""
    return task.work(gpu.target_name, lambda name: lambda: None)


def _packs(client: Any, sources: Sequence[KernelSource]) -> Mapping[KernelSource, Any]:
    """Return the future of a pack for each source; workers build them."""
    wanted = list(dict.fromkeys(sources))
    chunks = [wanted[at : at + _CHUNK] for at in range(0, len(wanted), _CHUNK)]
    futures = [client.submit(_build, chunk, pure=False, retries=_RETRIES) for chunk in chunks]
    return {source: future for chunk, future in zip(chunks, futures, strict=True) for source in chunk}


# On workers


def _describe(make: Make) -> Remote:
    """Return a worker's GPU."""
    device = make().device
    return Remote(device.name, device.lock, device.driver, device.target.name, device.multiprocessors)


def _build(sources: Sequence[KernelSource]) -> bytes:
    """Build kernels, and return the ones that could be built as a pack."""
    broken = failures_of(sources)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernels.pack"
        pack_sources(path, [source for source in sources if source not in broken])
        return path.read_bytes()


def _measure(
    make: Make, task: Task, options: Options, known: Measurement | None, packs: Sequence[bytes]
) -> tuple[Measurement | None, Tuning]:
    """Time the kernels of a task; return the measurement and the result. Earlier times are ``known``."""
    machine = make()
    work = machine.work(task)
    with tempfile.TemporaryDirectory() as folder:
        for pack in packs:
            path = Path(folder) / "kernels.pack"
            path.write_bytes(pack)
            read_pack(path, Cache())
        os.chmod(folder, 0o700)
        store = Store(Path(folder) / "store")
        if known is not None:
            store.add(work.key, known)
        with torch.no_grad(), Store().alone(machine.device.lock):
            tuning = measure(work, machine.device, options, store=store)
        found = next((each for each in store.find(work.key) if each.gpu == machine.device.name), None)
    return found, tuning
