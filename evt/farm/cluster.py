"""Tasks on the workers of a Dask cluster: ``run_on_cluster(tasks, client) -> results``.

    other workers       build kernels, and return them as packs; if there are none, all workers build
    a worker with GPU   imports the pack and times the kernels; it has the Dask resource ``GPU``
    this process        plans, and keeps the results in its database, as they come

Processes of this machine share its cache: this process builds then, and there are no packs. It imports no torch, which
takes seconds: it plans and builds while workers start. Workers begin while later tasks are planned. A task that dies
with its worker runs again on another one. A result is kept once it is here, so that nothing is lost, and no kernel of a
kept result is timed again.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

from evt.compilation import Cache, KernelSource, pack_sources, read_pack
from evt.farm.builders import Builders
from evt.farm.progress import Progress, Remaining
from evt.farm.task import Machine, Task
from evt.farm.workers import RESOURCE
from evt.measured import Measurement, Store
from evt.tuning.candidates import Candidates
from evt.tuning.device import GpuModel
from evt.tuning.space import DEFAULTS, Options, Space, pending, space_of
from evt.tuning.table import Tuning

#: The times that a task may fail before it counts as failed.
_RETRIES = 3
#: The sources of one task of building.
_CHUNK = 8
#: How tasks are submitted: each runs, also one that is equal to another.
_SUBMITTED: Mapping[str, Any] = {"pure": False, "retries": _RETRIES}

#: Makes the machine of a worker.
Make = Callable[[], Machine]


def gpu_machine(seed: int = 0) -> Machine:
    """Return the GPU of a worker, with random tensors of a seed."""
    from evt.farm.machine import GpuMachine  # imports torch

    return GpuMachine(seed=seed)


def run_on_cluster(
    tasks: Sequence[Task],
    client: Any,
    options: Options = DEFAULTS,
    *,
    make: Make = gpu_machine,
    store: Store | None = None,
    progress: Progress = lambda text: None,
    here: int = 0,
    gpu: GpuModel | None = None,
) -> Iterator[tuple[Task, Tuning]]:
    """Yield the result of each task as it comes.

    ``client`` is a ``distributed.Client``, and ``make`` makes the machine of a worker. ``here`` is the number of
    workers if they are processes of this machine, which time on its GPUs. The workers with the resource ``GPU`` have
    the same model and driver: ``gpu``, or if it is not given, the one that a worker names.

    Raise BuildError (E0704) if the database cannot be written, and the error of a task that fails on several workers.
    """
    store = store or Store()
    store.require_replaceable()
    progress(f"{len(tasks)} problems")
    clock = Remaining(len(tasks))
    clock.start()
    with ExitStack() as stack:
        builds = _BuildsHere(stack.enter_context(Builders(here))) if here else _Builds(client)
        begun = stack.enter_context(_Begun(tasks, client, options, make, store, builds, clock, gpu))
        for done in range(1, len(tasks) + 1):
            number, key, future = begun.next()
            measurement, tuning = future.result()
            if measurement is not None:
                store.add(key, measurement)
            clock.done(number)
            progress(f"[{done}/{len(tasks)}] {tasks[number].title}{clock.text()}")
            future.release()
            yield tasks[number], tuning


class _Begun:
    """The tasks that workers measure, or have measured: a thread plans them one by one."""

    def __init__(
        self,
        tasks: Sequence[Task],
        client: Any,
        options: Options,
        make: Make,
        store: Store,
        builds: _Builds | _BuildsHere,
        clock: Remaining,
        gpu: GpuModel | None,
    ) -> None:
        self._tasks, self._client, self._options, self._make = tasks, client, options, make
        self._store, self._builds, self._clock, self._gpu = store, builds, clock, gpu
        #: The measured tasks: the number, the key of the problem, and the future result. Or an error.
        self._ended: SimpleQueue[tuple[int, str, Any] | BaseException] = SimpleQueue()
        self._left = Event()

    def __enter__(self) -> _Begun:
        Thread(target=self._begin, name="evt-plans", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()

    def next(self) -> tuple[int, str, Any]:
        """Return the next task that is measured. Raise an error of planning or building."""
        found = self._ended.get()
        if isinstance(found, BaseException):
            raise found
        return found

    def _begin(self) -> None:
        try:
            gpu = self._gpu or self._submit(_describe, self._make).result()
            for number, task in enumerate(self._tasks):
                if self._left.is_set():
                    return
                self._begin_task(number, task, gpu)
        except BaseException as error:
            self._ended.put(error)

    def _begin_task(self, number: int, task: Task, gpu: GpuModel) -> None:
        options, work = self._options, task.work(gpu.target.name, _not_called)
        space = space_of(work, gpu, options)
        missing = pending(work, space, gpu, options, self._store)
        self._clock.expect(number, len(missing))
        known = self._store.find(work.key) if not options.again else ()
        given = next((each for each in known if each.gpu == gpu.name), None)

        def measured(packs: Sequence[Any]) -> None:
            future = self._submit(_measure, self._make, task, options, given, packs, space.chosen, priority=1)
            future.add_done_callback(lambda done: self._ended.put((number, work.key, done)))

        self._builds.build(list(missing.values()), measured, self._ended.put)

    def _submit(self, function: Callable[..., Any], *arguments: object, **how: object) -> Any:
        """Submit a task for workers with a GPU."""
        return self._client.submit(function, *arguments, resources={RESOURCE: 1}, **_SUBMITTED, **how)


def _not_called(name: object) -> Any:
    """Stand for the call of a kernel, which only workers call."""
    raise NotImplementedError


#: Gets the packs of built kernels, or their futures.
_Built = Callable[[Sequence[Any]], object]


class _BuildsHere:
    """Builds in this process, into the cache that it shares with the workers."""

    def __init__(self, builders: Builders) -> None:
        self._builders = builders

    def build(self, sources: Sequence[KernelSource], built: _Built, failed: Callable[[BaseException], object]) -> None:
        """Build sources, then call a function in another thread; there are no packs."""

        def then(error: BaseException | None) -> None:
            try:
                built(()) if error is None else failed(error)
            except BaseException as problem:  # of the client
                failed(problem)

        self._builders.build(sources, then)


class _Builds:
    """Builds on the workers without a GPU; if there are none, on all workers. They never delay a measurement."""

    def __init__(self, client: Any) -> None:
        workers = client.scheduler_info()["workers"].items()
        builders = [address for address, each in workers if RESOURCE not in each["resources"]]
        place = {"workers": builders, "allow_other_workers": True} if builders else {}
        self._submit = partial(client.submit, _build, **place, **_SUBMITTED)
        self._packs: dict[KernelSource, Any] = {}

    def build(self, sources: Sequence[KernelSource], built: _Built, failed: Callable[[BaseException], object]) -> None:
        """Call a function with the futures of the packs that have some sources. A failed one fails the task."""
        built(self.packs(sources))

    def packs(self, sources: Iterable[KernelSource]) -> list[Any]:
        """Return the futures of the packs that have some sources; build the new ones."""
        wanted = list(dict.fromkeys(sources))
        new = [source for source in wanted if source not in self._packs]
        for at in range(0, len(new), _CHUNK):
            chunk = new[at : at + _CHUNK]
            self._packs |= dict.fromkeys(chunk, self._submit(chunk))
        return list(dict.fromkeys(self._packs[source] for source in wanted))


# On workers, which import torch


def _describe(make: Make) -> GpuModel:
    """Return the model of a worker's GPU."""
    device = make().device
    return GpuModel(device.name, device.driver, device.target, device.multiprocessors)


def _build(sources: Sequence[KernelSource]) -> bytes:
    """Build kernels, and return the ones that could be built as a pack."""
    from evt.tuning.tune import failures_of

    broken = failures_of(sources)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernels.pack"
        pack_sources(path, [source for source in sources if source not in broken])
        return path.read_bytes()


def _measure(
    make: Make,
    task: Task,
    options: Options,
    known: Measurement | None,
    packs: Sequence[bytes],
    chosen: Candidates,
) -> tuple[Measurement | None, Tuning]:
    """Time the kernels of a task; return the measurement and the result. Earlier times are ``known``."""
    import torch

    from evt.tuning.tune import measure

    machine = make()
    work = machine.work(task)
    with tempfile.TemporaryDirectory() as folder:
        for pack in packs:
            _import(pack, Path(folder) / "kernels.pack")
        os.chmod(folder, 0o700)
        store = Store(Path(folder) / "store", durable=False)
        if known is not None:
            store.add(work.key, known)
        with torch.no_grad(), Store().alone(machine.device.lock):
            tuning = measure(work, machine.device, options, store=store, space=Space.of(chosen))
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
