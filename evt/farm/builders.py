"""Builds in threads, a few tasks at a time, while this process plans the next: ``with Builders() as builders``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Event, Thread
from types import TracebackType

from evt.compilation import KernelSource
from evt.compilation.process import default_jobs
from evt.tuning.tune import failures_of

#: The compilers for each thread: a task keeps some busy.
_COMPILERS = 4
#: Gets None after a build, or an error that is not about a source.
Then = Callable[[BaseException | None], object]


class Builders:
    """Threads that build the sources of tasks in their order. Leaving the context starts no further task.

    A source that several tasks have is built once: the others wait for its lock.
    """

    def __init__(self) -> None:
        self._waiting: SimpleQueue[tuple[Sequence[KernelSource], Then] | None] = SimpleQueue()
        self._left = Event()

    def __enter__(self) -> Builders:
        for _ in range(max(1, default_jobs() // _COMPILERS)):
            # After a Ctrl-C the interpreter does not wait for daemons, and compilers end with this process.
            Thread(target=self._work, name="evt-builds", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._left.set()
        self._waiting.put(None)

    def build(self, sources: Sequence[KernelSource], then: Then) -> None:
        """Build sources, and then call a function in another thread."""
        self._waiting.put((sources, then))

    def _work(self) -> None:
        while (found := self._waiting.get()) is not None and not self._left.is_set():
            sources, then = found
            error: BaseException | None = None
            try:
                failures_of(sources)
            except BaseException as problem:
                error = problem
            then(error)
        self._waiting.put(None)  # for the next thread
