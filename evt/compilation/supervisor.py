"""The process that runs the compilers of one build, and ends them when the build ends, for any reason.

It is a separate program, ``python supervisor.py PARENT``, that uses the standard library only.
:mod:`evt.compilation.process` starts it and talks to it. Its standard input is a socket. Each message is a request: to
run a command, to expect a lock that the builder will take, to keep it, or to drop it. It carries descriptors: the
socket for a command's answer and the file for its output, or the lock. Closing the socket of an answer kills its
command; the parent's death ends everything.

The parent's death is found by polling, because nothing reports it reliably: the signal at a parent's death comes when
its *thread* ends. A pipe stays open as long as a process that the parent forked holds its other end. Nothing ends
grandchildren either, so this process adopts them (it is their subreaper), finds them in /proc, and kills until there
are none. It releases the locks last, so that no other process builds while an old compiler still runs.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

#: The interval of looking for the parent, in seconds.
INTERVAL = 0.1
#: The longest request: a command and its environment.
MOST_BYTES = 1 << 18
#: The builder's message when it is done; a builder that closes its socket without it was killed.
FAREWELL = b"farewell"

_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36


class Charges:
    """The running commands, by their process, and the held locks. ``answers`` become readable when a command must
    end.
    """

    def __init__(self, answers: selectors.BaseSelector) -> None:
        self._selector = answers
        self._answers: dict[int, socket.socket] = {}
        #: The descriptors of held locks, by path; None for a lock that the builder is about to take.
        self._locks: dict[str, int | None] = {}

    def take(self, request: dict[str, Any], descriptors: list[int]) -> None:
        """Handle a request."""
        if "expect" in request:
            self._locks[request["expect"]] = None
        elif "keep" in request:
            self._locks[request["keep"]] = descriptors[0]
        elif "drop" in request:
            if (descriptor := self._locks.pop(request["drop"])) is not None:
                os.close(descriptor)
        else:
            self._start(request, socket.socket(fileno=descriptors[0]), descriptors[1])

    def _start(self, request: dict[str, Any], answer: socket.socket, output: int) -> None:
        try:
            child = subprocess.Popen(
                request["argv"],
                cwd=request["cwd"],
                env=request["env"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=lambda: prctl(_SET_PDEATHSIG, signal.SIGKILL),
            )
        except OSError as error:
            _send(answer, {"error": error.errno})
            answer.close()
        else:
            child.returncode = 0  # it is reaped below, regardless of this object's state
            self._answers[child.pid] = answer
            self._selector.register(answer, selectors.EVENT_READ, child.pid)
            _send(answer, {"pid": child.pid})
        finally:
            os.close(output)

    def kill(self, pid: int) -> None:
        """Kill a command and its descendants; it is reaped and answered like others."""
        self._selector.unregister(self._answers[pid])
        end(partial(members, pid))

    def reap(self) -> None:
        """Send the answers of commands that have ended."""
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = found
                if answer := self._answers.pop(pid, None):
                    with contextlib.suppress(KeyError):  # it was killed
                        self._selector.unregister(answer)
                    _send(answer, {"returncode": os.waitstatus_to_exitcode(status)})
                    answer.close()

    def clear(self) -> None:
        """Clean up after a builder that is gone: end everything, and release the locks."""
        end(partial(descendants, os.getpid()))
        for path, descriptor in self._locks.items():
            with contextlib.suppress(OSError):
                _remove(path, _take(path) if descriptor is None else descriptor)


def _take(path: str) -> int:
    """Take a lock if its file exists. Raise OSError if it does not, or if another process holds the lock."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


def _remove(path: str, descriptor: int) -> None:
    """Remove the files of a held lock, and release it. Raise OSError if the builder has removed them."""
    try:
        if os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(descriptor)):
            for work in glob.glob(f"{glob.escape(path.removesuffix('.lock'))}-*"):
                shutil.rmtree(work, ignore_errors=True)
            os.unlink(path)
    finally:
        # Explicitly: a process that the builder forked may hold the descriptor too.
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def end(find: Callable[[], list[int]]) -> None:
    """Kill the processes that ``find`` finds, and the processes that they start meanwhile.

    They are stopped first, because nothing records the children of a dead process.
    """
    stopped = set[int]()
    while new := set(find()) - stopped:
        _signal(new, signal.SIGSTOP)
        stopped |= new
    while left := find():
        _signal(left, signal.SIGKILL)
        time.sleep(0.001)


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def members(leader: int) -> list[int]:
    """Return the processes of a session, and the descendants of its leader that have left it."""
    return [*{*descendants(leader), *(pid for pid, (_, session) in _processes().items() if session == leader)}]


def descendants(ancestor: int) -> list[int]:
    """Return the children of a process, their children, and so on, without the process itself."""
    processes = _processes()
    found, new = set[int](), {ancestor}
    while new:
        new = {pid for pid, (parent, _) in processes.items() if parent in new} - found
        found |= new
    return sorted(found)


def _processes() -> dict[int, tuple[int, int]]:
    """Return the parent and the session of every living process."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                fields = Path("/proc", name, "stat").read_bytes().rpartition(b")")[2].split()
                if fields[0] not in b"ZX":
                    found[int(name)] = int(fields[1]), int(fields[3])
    return found


def prctl(option: int, value: int) -> None:
    """Call Linux's prctl; do nothing in a Python without ctypes."""
    with contextlib.suppress(ImportError):
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _send(answer: socket.socket, value: dict[str, object]) -> None:
    with contextlib.suppress(OSError):  # nobody waits for it any more
        answer.send(json.dumps(value).encode())


def main(parent: int) -> None:
    """Serve until the builder is done or gone."""
    prctl(_SET_CHILD_SUBREAPER, 1)
    woken, waker = socket.socketpair()
    woken.setblocking(False)
    waker.setblocking(False)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    builder, selector = socket.socket(fileno=os.dup(0)), selectors.DefaultSelector()
    selector.register(builder, selectors.EVENT_READ)
    selector.register(woken, selectors.EVENT_READ)
    charges = Charges(selector)
    builder.send(b"ready")
    while os.getppid() == parent:
        ready = {key.fileobj: key.data for key, _ in selector.select(INTERVAL)}
        with contextlib.suppress(BlockingIOError):
            woken.recv(4096)
        if builder in ready:
            message, descriptors, _, _ = socket.recv_fds(builder, MOST_BYTES, 2)
            if message == FAREWELL:
                return
            if not message:
                break
            charges.take(json.loads(message), descriptors)
        for pid in filter(None, ready.values()):
            charges.kill(pid)
        charges.reap()
    builder.setblocking(False)
    with contextlib.suppress(BlockingIOError):  # locks that the builder took just before it died
        while (received := socket.recv_fds(builder, MOST_BYTES, 2))[0] not in (b"", FAREWELL):
            if "argv" not in (request := json.loads(received[0])):
                charges.take(request, received[1])
    charges.clear()


if __name__ == "__main__":
    main(int(sys.argv[1]))
    os._exit(0)
