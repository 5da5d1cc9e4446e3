"""Tasks on this machine: ``run_tasks(tasks, machine) -> results``, one after the other as they are measured."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue

import torch

from evt.farm.builders import Builders
from evt.farm.task import Machine, Task
from evt.measured import Store
from evt.tuning.table import Tuning
from evt.tuning.tune import DEFAULTS, Options, Space, Work, measure, pending, space_of

Progress = Callable[[str], object]


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


class Remaining:
    """The time left: kernels that are not measured yet, at the speed of the measured ones.

    It is unknown before the kernels of all ``tasks`` are counted, and before the first one is measured.
    """

    def __init__(self, tasks: int) -> None:
        self._tasks, self._counted, self._measured = tasks, 0, 0
        self._left: dict[int, int] = {}
        self._started: float | None = None

    def expect(self, number: int, kernels: int) -> None:
        """Count the kernels of a problem that are to be measured."""
        self._left[number] = kernels
        self._counted += 1

    def start(self) -> None:
        """Begin to count the time, unless it has begun."""
        self._started = time.monotonic() if self._started is None else self._started

    def done(self, number: int) -> None:
        """Count the kernels of a problem as measured."""
        self._measured += self._left.pop(number, 0)

    def seconds(self) -> float | None:
        """Return the seconds left; None if they are unknown."""
        if self._started is None or not self._measured or self._counted < self._tasks:
            return None
        return (time.monotonic() - self._started) / self._measured * sum([*self._left.values()])

    def text(self) -> str:
        """Return the time left in words, or ""."""
        seconds = self.seconds()
        if seconds is None or seconds < 1:
            return ""
        return f"; about {seconds / 60:.0f} min left" if seconds >= 90 else f"; about {seconds:.0f} s left"
