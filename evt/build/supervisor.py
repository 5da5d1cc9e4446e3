"""The process that runs the compilers of one build, and ends them when the build is over, however it ends.

A program of its own, ``python supervisor.py PARENT``, using the standard library alone; :mod:`evt.build.process`
starts it and talks to it. Its standard input is a socket. Each message is a request and brings its descriptors: a
command to run, with the socket for its answer and the file for its output, or a lock to keep. Closing the socket of an
answer kills its command; the parent's death ends everything.

The parent's death is found by polling, because nothing reports it reliably: the signal at a parent's death comes when
its *thread* ends, and a pipe stays open as long as a process that the parent forked holds its other end. Nor does
anything end grandchildren, so this process adopts them (it is their subreaper), finds them in /proc, and kills until
there are none. Only then does it release the locks, so that nobody builds while an old compiler still runs.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import select
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

#: How often to look for the parent, in seconds.
INTERVAL = 0.1
#: The longest request: a command and its environment.
MOST_BYTES = 1 << 18
#: What a builder sends when it is done; a builder that closes its socket without it was killed.
FAREWELL = b"farewell"

_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36


class Charges:
    """The running commands, by their process, and the locks held."""

    def __init__(self) -> None:
        self._answers: dict[int, socket.socket] = {}
        self._killed: set[int] = set()
        self._locks: list[tuple[int, str]] = []

    def waiting(self) -> dict[socket.socket, int]:
        """Return the running commands, by the sockets of their answers."""
        return {answer: pid for pid, answer in self._answers.items() if pid not in self._killed}

    def take(self, request: dict[str, Any], descriptors: list[int]) -> None:
        """Handle a request."""
        if "lock" in request:
            self._locks.append((descriptors[0], request["lock"]))
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
            _send(answer, {"error": error.strerror or str(error)})
            answer.close()
        else:
            child.returncode = 0  # it is reaped below, whatever this object thinks
            self._answers[child.pid] = answer
            _send(answer, {"pid": child.pid})
        finally:
            os.close(output)

    def kill(self, pids: Iterable[int]) -> None:
        """Kill commands with all that they started; they are reaped and answered like others."""
        for pid in pids:
            self._killed.add(pid)
            end(partial(members, pid))

    def reap(self) -> None:
        """Send the answers of commands that have ended."""
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = found
                self._killed.discard(pid)
                if answer := self._answers.pop(pid, None):
                    _send(answer, {"returncode": os.waitstatus_to_exitcode(status)})
                    answer.close()

    def clear(self) -> None:
        """Clean up for a builder that is gone: end everything, and release the locks."""
        end(partial(descendants, os.getpid()))
        for descriptor, path in self._locks:
            with contextlib.suppress(OSError):
                if os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(descriptor)):
                    for work in glob.glob(f"{glob.escape(path.removesuffix('.lock'))}-*"):
                        shutil.rmtree(work, ignore_errors=True)
                    os.unlink(path)
            # Explicitly: a process that the builder forked may hold the descriptor too.
            fcntl.flock(descriptor, fcntl.LOCK_UN)


def end(find: Callable[[], list[int]]) -> None:
    """Kill the processes that ``find`` finds, and what they start meanwhile.

    They are stopped first, because nothing records which processes a dead one started.
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
    builder, charges = socket.socket(fileno=os.dup(0)), Charges()
    builder.send(b"ready")
    while os.getppid() == parent:
        waiting = charges.waiting()
        ready = select.select([builder, woken, *waiting], [], [], INTERVAL)[0]
        with contextlib.suppress(BlockingIOError):
            woken.recv(4096)
        if builder in ready:
            message, descriptors, _, _ = socket.recv_fds(builder, MOST_BYTES, 2)
            if message == FAREWELL:
                return
            if not message:
                break
            charges.take(json.loads(message), descriptors)
        charges.kill(waiting[answer] for answer in ready if answer in waiting)
        charges.reap()
    charges.clear()


if __name__ == "__main__":
    main(int(sys.argv[1]))
    os._exit(0)
