"""Kernels that are built while Inductor compiles the rest of a graph: ``with Background() as background``."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event, Thread
from types import TracebackType

from evt.compilation import Cancellation, KernelSource
from evt.fx.kernels import Builds, built


class Background:
    """The builds of a graph's kernels, in a thread. Leaving the context ends the builds that still run.

    The thread ends within the context, so the process has no other thread afterwards: neither at its exit nor at a
    fork.
    """

    def __init__(self) -> None:
        self._cancellation, self._ended = Cancellation(), Event()
        self._builds = Builds()
        self._error: BaseException | None = None
        self._ended.set()

    def __enter__(self) -> Background:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._cancellation.cancel()
        self._ended.wait()

    def start(self, sources: Sequence[KernelSource]) -> None:
        """Start to build sources, in parallel."""
        if sources:
            self._ended.wait()
            self._ended.clear()
            # After a Ctrl-C, Thread.join mistakes a running thread for one that has ended: an event tells the end.
            Thread(target=self._work, args=(sources,), name="evt-builds", daemon=True).start()

    def wait(self) -> Builds:
        """Wait for the builds, and return them. Raise any error that is not about a source."""
        self._ended.wait()
        if self._error is not None:
            raise self._error
        return self._builds

    def _work(self, sources: Sequence[KernelSource]) -> None:
        try:
            with self._cancellation.ends_this_thread():
                made, before = built(sources), self._builds
            # One compilation may have several graphs: the branches of a condition.
            self._builds = Builds({**before.libraries, **made.libraries}, {**before.failures, **made.failures})
        except BaseException as error:
            self._error = error
        finally:
            self._ended.set()
