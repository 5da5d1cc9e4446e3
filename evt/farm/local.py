"""Tasks on this machine: ``run_tasks(tasks, machine) -> results``, one after the other as they are measured."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import torch

from evt.farm.task import Machine, Task
from evt.measured import Store
from evt.tuning.table import Tuning
from evt.tuning.tune import DEFAULTS, Options, failures_of, measure, pending, space_of

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

    The kernels of all tasks are built first, side by side. An interrupted run goes on where it ended, unless
    ``options.again``: measured kernels are in the database. Raise BuildError (E0704) if it cannot be written.
    """
    store = store or Store()
    store.require_replaceable()
    device, works = machine.device, deque(map(machine.work, tasks))
    spaces = deque(space_of(work, device, options) for work in works)
    missing = [pending(work, space, device, options, store) for work, space in zip(works, spaces, strict=True)]
    left = list(map(len, missing))
    progress(f"{len(tasks)} problems; building the kernels of {sum(map(bool, left))}")
    failures_of([source for sources in missing for source in sources.values()])
    clock = Remaining(left)
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
    """The time left: kernels that are not measured yet, at the speed of the measured ones."""

    def __init__(self, kernels: Sequence[int]) -> None:
        self._left, self._measured, self._started = dict(enumerate(kernels)), 0, time.monotonic()

    def done(self, number: int) -> None:
        """Count the kernels of a problem as measured."""
        self._measured += self._left.pop(number, 0)

    def seconds(self) -> float | None:
        """Return the seconds left; None before the first kernel is measured."""
        if not self._measured:
            return None
        return (time.monotonic() - self._started) / self._measured * sum(self._left.values())

    def text(self) -> str:
        """Return the time left in words, or ""."""
        seconds = self.seconds()
        if seconds is None or seconds < 1:
            return ""
        return f"; about {seconds / 60:.0f} min left" if seconds >= 90 else f"; about {seconds:.0f} s left"
