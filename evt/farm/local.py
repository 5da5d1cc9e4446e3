"""Tasks on this machine: ``run_tasks(tasks, machine) -> results``, one after the other as they are measured."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from queue import SimpleQueue

import torch

from evt.farm.builders import Builders
from evt.farm.progress import Progress, Remaining
from evt.farm.task import Machine, Task
from evt.measured import Store
from evt.tuning.space import DEFAULTS, Options, Space, Work, pending, space_of
from evt.tuning.table import Tuning
from evt.tuning.tune import measure


def run_tasks(
    tasks: Sequence[Task],
    machine: Machine,
    options: Options = DEFAULTS,
    *,
    store: Store | None = None,
    progress: Progress = lambda text: None,
) -> Iterator[tuple[Task, Tuning]]:
    """Yield the result of each task.

    The kernels of all tasks are built first, side by side and while the next ones are planned. An interrupted run goes
    on where it ended, unless ``options.again``: measured kernels are in the database. Raise BuildError (E0704) if it
    cannot be written.
    """
    store = store or Store()
    store.require_replaceable()
    device, works, spaces = machine.device, deque[Work](), deque[Space]()
    clock, left = Remaining(len(tasks)), list[int]()
    progress(f"{len(tasks)} problems; planning and building their kernels")
    built: SimpleQueue[BaseException | None] = SimpleQueue()
    with Builders() as builders:
        for number, task in enumerate(tasks):
            works.append(machine.work(task))
            spaces.append(space_of(works[-1], device, options))
            missing = pending(works[-1], spaces[-1], device, options, store)
            left.append(len(missing))
            clock.expect(number, left[-1])
            builders.build(list(missing.values()), built.put)
        for done in range(1, len(tasks) + 1):
            if (error := built.get()) is not None:
                raise error
            progress(f"the kernels of {done} problems are built")
    clock.start()
    for number, task in enumerate(tasks):
        said = f"[{number + 1}/{len(tasks)}] {task.title}: {left[number]} kernels{clock.text()}"
        progress(said)
        with torch.no_grad():
            work, space = works.popleft(), spaces.popleft()
            found = measure(work, device, options, store=store, space=space)
            del work  # frees its tensors
        clock.done(number)
        yield task, found
