"""Builds in threads, in the order of tasks, while this process plans the next: ``with Builders() as builders``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from threading import Event, Lock, Thread
from types import TracebackType

from evt.compilation import KernelSource, build, build_each
from evt.compilation.process import default_jobs

#: Builds by one compiler; the results of tasks are the progress.
_BUILD = partial(build, jobs=1, silent=True)
#: Gets None after a build, or an error that is not about a source.
Then = Callable[[BaseException | None], object]


@dataclass
class _Task:
    """A task: the number of its sources that are not built yet, and an error of another one."""

    left: int
    then: Then
    error: BaseException | None = None


class Builders:
    """Threads that build the sources of tasks in their order. Leaving the context starts no further source.

    Each thread builds one source at a time, by one compiler. There is a thread for each compiler that this process may
    run, less one for each process ``beside`` this one: they must not wait for a processor.
    """

    def __init__(self, beside: int = 0) -> None:
        self.threads = max(1, default_jobs() - beside)
        self._waiting: SimpleQueue[KernelSource | None] = SimpleQueue()
        self._tasks = dict[KernelSource, list[_Task]]()
        self._lock, self._left = Lock(), Event()

    def __enter__(self) -> Builders:
        for _ in range(self.threads):
            # After a Ctrl-C the interpreter does not wait for daemons, and compilers end with this process.
            Thread(target=self._work, name="evt-builds", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._left.set()
        self._waiting.put(None)

    def build(self, sources: Sequence[KernelSource], then: Then) -> None:
        """Build sources, and then call a function: in another thread, or at once if there are none."""
        wanted = dict.fromkeys(sources)
        task = _Task(len(wanted), then)
        if not wanted:
            then(None)
        with self._lock:
            for source in wanted:
                tasks = self._tasks.setdefault(source, [])
                if not tasks:
                    self._waiting.put(source)
                tasks.append(task)

    def _work(self) -> None:
        while (source := self._waiting.get()) is not None and not self._left.is_set():
            error: BaseException | None = None
            try:
                build_each([source], _BUILD)
            except BaseException as problem:
                error = problem
            for task in self._ended(source, error):
                task.then(task.error)
        self._waiting.put(None)  # for the next thread

    def _ended(self, source: KernelSource, error: BaseException | None) -> list[_Task]:
        """Count a source; return the tasks whose last one it was."""
        with self._lock:
            tasks = self._tasks.pop(source)
            for task in tasks:
                task.left -= 1
                task.error = task.error or error
            return [task for task in tasks if task.left == 0]
