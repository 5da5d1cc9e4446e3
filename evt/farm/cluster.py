"""Tasks on the workers of a Dask cluster: ``run_on_cluster(tasks, client) -> results``.

    other workers       build kernels, and return them as packs; if there are none, all workers build
    a worker with GPU   imports the pack and times the kernels; it has the Dask resource ``GPU``
    this process        keeps the results in its database, as they come

A task that dies with its worker runs again on another one. A result is kept once it is here, so that nothing is lost,
and no kernel of a kept result is timed again.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from evt.compilation import Cache, KernelSource, pack_sources, read_pack
from evt.compilation.process import default_jobs
from evt.farm.local import Progress, Remaining
from evt.farm.task import GpuMachine, Machine, Task
from evt.measured import Measurement, Store
from evt.plan import Target, find_target
from evt.tuning.clock import RoundTimer
from evt.tuning.table import Tuning
from evt.tuning.tune import DEFAULTS, Options, failures_of, measure, pending, space_of

#: The Dask resource of workers with a GPU, and the times that a task may fail before it counts as failed.
RESOURCE, _RETRIES = "GPU", 3
#: The address of clusters of one machine: no other machine can reach it.
_LOCAL = "127.0.0.1"
#: The environment variable with the GPUs that a process may use.
_VISIBLE = "CUDA_VISIBLE_DEVICES"
#: The time to wait for a scheduler, in seconds.
PATIENCE = 10
#: The sources of one task of building.
_CHUNK = 8
#: How tasks are submitted: each runs, also one that is equal to another.
_SUBMITTED: Mapping[str, Any] = {"pure": False, "retries": _RETRIES}

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
    gpu = client.submit(_describe, make, resources={RESOURCE: 1}, **_SUBMITTED).result()
    progress(f"{len(tasks)} problems on {len(client.scheduler_info()['workers'])} workers")
    builds, left, futures = _Builds(client), [], {}
    for number, task in enumerate(tasks):  # workers begin while later tasks are planned
        work = _work(task, gpu)
        missing = pending(work, space_of(work, gpu, options), gpu, options, store)
        known = store.find(work.key) if not options.again else ()
        given = next((each for each in known if each.gpu == gpu.name), None)
        packs = builds.packs(missing.values())
        future = client.submit(
            _measure, make, task, options, given, packs, resources={RESOURCE: 1}, priority=1, **_SUBMITTED
        )
        left.append(len(missing))
        futures[future] = number
    clock = Remaining(left)
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
    """Yield a client of a cluster of processes on this machine: each of ``count`` GPUs has one, and others build."""
    from distributed import Client, Nanny, Scheduler, SpecCluster

    at = {"host": _LOCAL, "dashboard_address": f"{_LOCAL}:0"}
    each = {"nthreads": 1, "memory_limit": 0, **at}
    gpus: list[dict[str, Any]] = [
        {"resources": {RESOURCE: 1}, "env": {_VISIBLE: name}} for name in _visible_gpus(count)
    ]
    builders: list[dict[str, Any]] = [{"env": {_VISIBLE: ""}}] * -(-default_jobs() // _CHUNK)
    workers = {number: {"cls": Nanny, "options": {**each, **more}} for number, more in enumerate((*gpus, *builders))}
    scheduler = {"cls": Scheduler, "options": at}
    with (
        SpecCluster(workers=workers, scheduler=scheduler, silence_logs=logging.ERROR) as cluster,
        Client(cluster) as client,
    ):
        yield client


def _visible_gpus(count: int) -> list[str]:
    """Return the names of the first GPUs that this process may use."""
    given = os.environ.get(_VISIBLE)
    return given.split(",")[:count] if given is not None else list(map(str, range(count)))


def _work(task: Task, gpu: Remote) -> Any:
    """Return a task's problem, whose kernels cannot be called here."""
    return task.work(gpu.target_name, lambda name: lambda: None)


class _Builds:
    """Builds on the workers without a GPU; if there are none, on all workers. They never delay a measurement."""

    def __init__(self, client: Any) -> None:
        workers = client.scheduler_info()["workers"].items()
        builders = [address for address, each in workers if RESOURCE not in each["resources"]]
        place = {"workers": builders, "allow_other_workers": True} if builders else {}
        self._submit = partial(client.submit, _build, **place, **_SUBMITTED)
        self._packs: dict[KernelSource, Any] = {}

    def packs(self, sources: Iterable[KernelSource]) -> list[Any]:
        """Return the futures of the packs that have some sources; build the new ones."""
        wanted = list(dict.fromkeys(sources))
        new = [source for source in wanted if source not in self._packs]
        for at in range(0, len(new), _CHUNK):
            chunk = new[at : at + _CHUNK]
            self._packs |= dict.fromkeys(chunk, self._submit(chunk))
        return list(dict.fromkeys(self._packs[source] for source in wanted))


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
            _import(pack, Path(folder) / "kernels.pack")
        os.chmod(folder, 0o700)
        store = Store(Path(folder) / "store")
        if known is not None:
            store.add(work.key, known)
        with torch.no_grad(), Store().alone(machine.device.lock):
            tuning = measure(work, machine.device, options, store=store)
        found = next((each for each in store.find(work.key) if each.gpu == machine.device.name), None)
    return found, tuning


#: The digests of the packs that this worker has read.
_read: set[bytes] = set()


def _import(pack: bytes, path: Path) -> None:
    """Import the kernels of a pack, once in this process, by way of a file."""
    digest = hashlib.sha256(pack).digest()
    if digest not in _read:
        path.write_bytes(pack)
        read_pack(path, Cache())
        _read.add(digest)
