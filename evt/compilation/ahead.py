"""Builds that later calls may need: ``build_ahead(sources)`` returns at once, and a thread fills the cache.

Nothing depends on the thread. Whoever needs a library builds it, or waits for the thread that holds its lock, and
meets its failure. So the thread is silent, and builds that have not begun when the process ends are dropped.
"""

from __future__ import annotations

import atexit
import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from threading import Lock, Thread
from typing import Any

from evt.compilation.builder import build
from evt.compilation.cache import Cache
from evt.compilation.policy import granted, may_compile
from evt.compilation.pool import Cancellation
from evt.compilation.process import default_jobs
from evt.compilation.source import KernelSource
from evt.compilation.toolchain import Toolchain


class _Ahead:
    """The builds of this process, in the order of the requests, by one thread that runs while there are any."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin without builds."""
        self._lock, self._end = Lock(), Cancellation()
        self._waiting = deque[Callable[[], object]]()
        self._thread: Thread | None = None

    def add(self, task: Callable[[], object]) -> None:
        """Let the thread call a function, after the waiting ones."""
        with self._lock:
            self._waiting.append(task)
            if self._thread is None:
                self._thread = Thread(target=self._run, name="evt-ahead", daemon=True)
                self._thread.start()

    def end(self) -> None:
        """Cancel the builds, and wait for NVRTC, which cannot be interrupted: a process that ends within it crashes."""
        self._end.cancel()
        with self._lock:
            self._waiting.clear()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        with self._end.ends_this_thread():
            while task := self._next():
                with suppress(Exception):  # whoever needs the library meets it
                    task()

    def _next(self) -> Callable[[], object] | None:
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._thread = None
            return None


_AHEAD = _Ahead()
atexit.register(_AHEAD.end)
os.register_at_fork(after_in_child=_AHEAD.reset)  # a child has no thread


def build_ahead(
    sources: Sequence[KernelSource], *, cache: Cache | None = None, toolchain: Toolchain | None = None
) -> None:
    """Let a thread build sources by half of the processors, if this process may compile now; failures are silent."""
    if sources and may_compile():
        jobs = max(1, default_jobs() // 2)
        _AHEAD.add(partial(_build, sources, cache=cache or Cache(), toolchain=toolchain, jobs=jobs, silent=True))


def _build(sources: Sequence[KernelSource], **keywords: Any) -> None:
    with granted(True):
        build(sources, **keywords)
