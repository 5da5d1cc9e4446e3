"""NVRTC and nvJitLink for several texts at a time: ``compile_text(nvrtc, ...)``, ``link_texts(linker, ...)``.

NVRTC compiles one text at a time in a process. This process compiles the first text. Another process starts
(:mod:`evt.compilation.jit_worker`) when a text has waited for longer than a start takes: few texts, or short ones,
start none. Starts compete with compilations, so the number of starts at a time never exceeds that of compilations. The
processes live while a :func:`kept` block runs, and end with this process, however it ends. A program that cannot have
such processes compiles one text after the other.
"""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Condition
from typing import TYPE_CHECKING, Any

from evt.compilation.jit import JitError, NvJitLink, Nvrtc, Output
from evt.compilation.jit_worker import READY, REFUSED, UNABLE
from evt.compilation.pool import Cancellation, CancelledError
from evt.compilation.process import default_jobs, python

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_PROGRAM = Path(__file__).with_name("jit_worker.py")
#: The seconds that a text waits before a process starts for it. A start takes 0.6 s of a processor beside an H200, and
#: a text of an own kernel 0.1 to 0.2 s (2026-11-28).
_WAIT = 1.0
#: The most seconds of a start; the seconds between two looks for a starting process, and for a silent one.
_PATIENCE, _TICK, _INTERVAL = 60.0, 0.02, 1.0
#: The function of jit.py that finds a library, the library's identity, the name of a method, and its arguments.
_Task = tuple[object, ...]


def compile_text(
    nvrtc: Nvrtc,
    text: str,
    options: Sequence[str],
    *,
    output: Output = "cubin",
    headers: Mapping[str, str],
    name: str = "kernel.cu",
    end: Cancellation | None = None,
) -> bytes:
    """Compile C++ text as :meth:`Nvrtc.compile` does, in this process or in another one.

    Raise JitError, or CancelledError if ``end`` ends the other process.
    """
    keywords: dict[str, Any] = {"output": output, "headers": dict(headers), "name": name}
    here = partial(nvrtc.compile, text, options, **keywords)
    return _POOL.run(here, ("find_nvrtc", nvrtc.identity, "compile", (text, tuple(options)), keywords), end)


def link_texts(linker: NvJitLink, inputs: Sequence[tuple[str, bytes]], options: Sequence[str]) -> bytes:
    """Link LTO-IR as :meth:`NvJitLink.link` does, in this process or in another one. Raise JitError."""
    arguments = (tuple(inputs), tuple(options))
    return _POOL.run(partial(linker.link, *arguments), ("find_nvjitlink", linker.identity, "link", arguments, {}))


@contextmanager
def kept() -> Iterator[None]:
    """Keep processes for further compilations within the ``with`` block; the last block to end ends them."""
    block = object()
    _POOL.enter(block)
    try:
        yield
    finally:
        _POOL.leave(block)


@dataclass(frozen=True, eq=False)
class _Worker:
    """A process that compiles, and the socket to it. ``since`` is the time of its start."""

    process: subprocess.Popen[bytes]
    connection: Connection
    since: float = field(default_factory=time.monotonic)

    @classmethod
    def start(cls) -> _Worker:
        """Start a process. Raise OSError."""
        from multiprocessing.connection import Connection

        import cuda

        command, silent = [python(), str(_PROGRAM), str(os.getpid())], subprocess.DEVNULL
        ours, theirs = socket.socketpair()
        with ours, theirs:
            process = subprocess.Popen(
                command, stdin=theirs.fileno(), stdout=silent, stderr=silent, start_new_session=True
            )
            worker = cls(process, Connection(ours.detach()))
        try:
            worker.connection.send([str(Path(each).parent) for each in cuda.__path__])
        except OSError:
            worker.end()
            raise
        return worker

    def is_ready(self) -> bool:
        """Return whether the process has said that it is ready. Raise EOFError or OSError if it never will be."""
        if self.connection.poll():
            return bool(self.connection.recv() == (READY,))
        if self.process.poll() is not None or time.monotonic() > self.since + _PATIENCE:
            raise EOFError
        return False

    def answer(self, task: _Task) -> tuple[Any, ...]:
        """Return the answer to a task. Raise EOFError or OSError if the process ends without one."""
        self.connection.send(task)
        while not self.connection.poll(_INTERVAL):  # a forked process may hold the other end of a process that is gone
            if self.process.poll() is not None and not self.connection.poll():
                raise EOFError
        found: tuple[Any, ...] = self.connection.recv()
        return found

    def end(self) -> int:
        """Kill the process, which keeps nothing; return its exit status."""
        self.process.kill()
        self.connection.close()
        return self.process.wait()

    def forget(self) -> None:
        """Release a process that a fork has inherited: it is not a child of the fork."""
        self.connection.close()
        self.process.returncode = 0


class _Pool:
    """The compilations in this process, and the processes for further ones.

    ``here`` counts the former. A fork inherits the count, and the lock that NVRTC holds: it never compiles itself then.
    """

    def __init__(self, here: int = 0) -> None:
        self._here, self._waiting = here, 0
        self._changed = Condition()
        self._blocks = set[object]()
        #: All processes, among them the ones that are not ready yet, and the ones without work.
        self._workers, self._starting, self._free = set[_Worker](), list[_Worker](), list[_Worker]()
        self._is_usable, self._is_closed = True, False

    def run(self, here: Callable[[], bytes], task: _Task, end: Cancellation | None = None) -> bytes:
        """Return the result of a task."""
        answer = self._ask(task, end or Cancellation())
        if answer is None:
            try:
                return here()
            finally:
                with self._changed:
                    self._here -= 1
                    self._changed.notify_all()
        kind, *values = answer
        if kind == REFUSED:
            raise JitError(*values)
        if kind == UNABLE:
            self._is_usable = False
            return self.run(here, task, end)
        made: bytes = values[0]
        return made

    def _ask(self, task: _Task, end: Cancellation) -> tuple[Any, ...] | None:
        """Return the answer of another process; None if this process has to compile, which ``here`` counts.

        A process may be killed because memory runs out: a second one tries again.
        """
        status = 0
        for is_second in (False, True):
            worker = self._take(may_be_here=not is_second)
            if worker is None:
                return None
            try:
                with end.watch(worker.process.kill):
                    answer = worker.answer(task)
            except (EOFError, OSError):
                status = self._drop(worker)
                if self._is_closed or end.is_cancelled:
                    raise CancelledError from None
            except BaseException:
                self._drop(worker)
                raise
            else:
                self._put_back(worker)
                return answer
        said = f"terminated by signal {-status}" if status < 0 else f"exit status {status}"
        raise JitError(str(task[0]).removeprefix("find_"), said, said)

    def _take(self, *, may_be_here: bool) -> _Worker | None:
        """Return a process; None if this process has to compile, which ``here`` counts."""
        due = time.monotonic() + (_WAIT if may_be_here else 0)
        most = max(1, default_jobs() - 1) if _may_have_children() else 0
        with self._changed:
            self._waiting += 1
            try:
                while not self._is_closed:
                    if not most or not self._is_usable or (may_be_here and not self._here):
                        self._here += 1
                        return None
                    self._receive_started()
                    if self._free:
                        return self._free.pop()
                    left = due - time.monotonic()
                    starting, ready = len(self._starting), len(self._workers) - len(self._starting)
                    if left <= 0 and starting < min(self._waiting, 1 + ready, most - ready):
                        self._start()
                    else:
                        self._changed.wait(_TICK if self._starting else left if left > 0 else None)
                raise CancelledError
            finally:
                self._waiting -= 1

    def _start(self) -> None:
        """Start a process; start no others if that fails."""
        try:
            worker = _Worker.start()
        except OSError:
            self._is_usable = False
        else:
            self._workers.add(worker)
            self._starting.append(worker)

    def _receive_started(self) -> None:
        """Make processes that are ready free; use none if one cannot start."""
        for worker in list(self._starting):
            try:
                if worker.is_ready():
                    self._starting.remove(worker)
                    self._free.append(worker)
            except (EOFError, OSError):  # noqa: PERF203
                self._is_usable = False
                self._starting.remove(worker)
                self._drop(worker)

    def _put_back(self, worker: _Worker) -> None:
        with self._changed:
            is_kept = (self._blocks or self._waiting) and not self._is_closed
            if is_kept:
                self._free.append(worker)
                self._changed.notify_all()
        if not is_kept:
            self._drop(worker)

    def _drop(self, worker: _Worker) -> int:
        """End a process; return its exit status."""
        with self._changed:
            self._workers.discard(worker)
            self._changed.notify_all()
        return worker.end()

    def enter(self, block: object) -> None:
        """Begin a block of :func:`kept`."""
        with self._changed:
            self._blocks.add(block)

    def leave(self, block: object) -> None:
        """End a block of :func:`kept`."""
        with self._changed:
            self._blocks.discard(block)
            if self._blocks or self._waiting:
                return
            idle = [*self._free, *self._starting]
            self._free, self._starting = [], []
        for each in idle:
            self._drop(each)

    def close(self) -> None:
        """End all processes, and start no others."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            workers = list(self._workers)
        for each in workers:
            each.process.kill()

    def reset(self) -> None:
        """Begin anew in a fork, which has no other thread."""
        for each in self._workers:
            each.forget()
        self.__init__(self._here)  # type: ignore[misc]


def _may_have_children() -> bool:
    """Return whether this program can start Python, and is no daemon of multiprocessing: it must not have children."""
    from multiprocessing.process import current_process

    return not (getattr(sys, "frozen", False) or current_process().daemon)


_POOL = _Pool()
atexit.register(_POOL.close)
os.register_at_fork(after_in_child=lambda: _POOL.reset())
