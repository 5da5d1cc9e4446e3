"""Child processes that end with the build, or with the building process."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from evt.compilation.limits import require_files
from evt.compilation.lock import KeyLock
from evt.compilation.supervisor import FAREWELL
from evt.diagnostics import Diagnostic
from evt.errors import BuildError

#: Peak memory of a device pass of a CUTLASS 3.x kernel, in bytes.
_BYTES_PER_JOB = 4_500_000_000
#: The time for the supervisor to end, in seconds; by then it has no work left.
_PATIENCE = 60
_PROGRAM = Path(__file__).with_name("supervisor.py")


@dataclass(frozen=True, slots=True)
class Finished:
    returncode: int
    output: str
    seconds: float


class Supervisor:
    """A process that briefly outlives this one: it runs commands, keeps locks, and ends both if this process is killed.

    See :mod:`evt.compilation.supervisor`. Leaving the context ends it.
    """

    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket) -> None:
        self._process, self._socket = process, connection

    @classmethod
    def start(cls) -> Supervisor:
        """Start a supervisor, and wait until it is ready. Raise BuildError if it does not start (E0701, E0708)."""
        command = [_python(), "-S", "-s", str(_PROGRAM), str(os.getpid())]
        try:
            return cls(*_start(command))
        except OSError as error:
            require_files(error)
            mend = f"make sure that {command[0]} is Python; multiprocessing.set_executable says which program is"
            message = f"the process that runs nvcc cannot be started: {error}"
            raise BuildError(Diagnostic("E0701", message, help=mend)) from error

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):  # it is gone already
            self._socket.send(FAREWELL)
        self._socket.close()
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def claim(self, path: Path, take: Callable[[], KeyLock | None]) -> KeyLock | None:
        """Take a lock and hold it until :meth:`release`; if this process is killed, until the commands have ended.

        The supervisor expects the lock before it is taken: then it finds the file, whenever this process is killed.
        """
        self._tell({"expect": str(path)})
        lock = take()
        if lock is None:
            self._tell({"drop": str(path)})
        else:
            self._tell({"keep": str(path)}, lock.fileno())
        return lock

    def release(self, lock: KeyLock) -> None:
        """Release a lock that is kept; a second call does nothing."""
        if lock.is_held:
            lock.release()
            self._tell({"drop": str(lock.path)})

    def _tell(self, request: Mapping[str, object], *descriptors: int) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # then it runs no commands either
            self.send(request, *descriptors)

    def send(self, request: Mapping[str, object], *descriptors: int) -> None:
        """Send a request. Raise OSError if the supervisor is gone."""
        socket.send_fds(self._socket, [json.dumps(request).encode()], descriptors)

    def is_gone(self) -> bool:
        return self._process.poll() is not None


class Children:
    """A runner of commands under a supervisor; ``kill`` ends them and their descendants, and refuses new ones."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._killed = False
        self._mutex = threading.Lock()
        self._answers: set[socket.socket] = set()

    def run(self, argv: Sequence[str], cwd: Path, env: Mapping[str, str], log: Path) -> Finished:
        """Run a command to its end, output and errors together in ``log``. Raise OSError if it cannot be started."""
        started = time.monotonic()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            with theirs, log.open("wb") as output, self._mutex:
                if self._killed:
                    return Finished(-signal.SIGKILL, "", 0.0)
                request = {"argv": argv, "cwd": str(cwd), "env": env}
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # then there is no answer
                    self._supervisor.send(request, theirs.fileno(), output.fileno())
                self._answers.add(ours)
            try:
                returncode = self._wait(ours)
            finally:
                with self._mutex:
                    self._answers.discard(ours)
        output_text = log.read_text(encoding="utf-8", errors="replace")
        return Finished(returncode, output_text, time.monotonic() - started)

    def _wait(self, answer: socket.socket) -> int:
        """Return the exit status; if the supervisor was killed, kill the command."""
        leader = 0
        while reply := self._receive(answer):
            if "error" in reply:
                raise OSError(int(reply["error"]), os.strerror(int(reply["error"])))
            if "returncode" in reply:
                return int(reply["returncode"])
            leader = int(reply["pid"])
        if leader:
            with contextlib.suppress(OSError):
                os.killpg(leader, signal.SIGKILL)
        return -signal.SIGKILL

    def _receive(self, answer: socket.socket) -> dict[str, str]:
        answer.settimeout(1.0)  # a process forked from this one may hold the other end of a supervisor that is gone
        while True:
            try:
                found = answer.recv(4096)
            except TimeoutError:
                if not self._supervisor.is_gone():
                    continue
                found = b""
            except ConnectionResetError:
                found = b""
            reply: dict[str, str] = json.loads(found) if found else {}
            return reply

    def killed(self) -> bool:
        """Return whether ``kill`` was called; later failures have no meaning."""
        return self._killed

    def kill(self) -> None:
        with self._mutex:
            self._killed = True
            for answer in self._answers:
                with contextlib.suppress(OSError):
                    answer.shutdown(socket.SHUT_WR)


def _start(command: Sequence[str]) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start the supervisor's program, and wait until it is ready. Raise OSError if it does not start."""
    silent = subprocess.DEVNULL
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with theirs:
            process = subprocess.Popen(
                command, stdin=theirs.fileno(), stdout=silent, stderr=silent, start_new_session=True
            )
        ours.settimeout(_PATIENCE)
        if not ours.recv(16):
            raise OSError("it ended at once")
        ours.settimeout(None)
    except BaseException:
        ours.close()
        raise
    return process, ours


def _python() -> str:
    """Return the path of this Python; a program that embeds Python registers its path with multiprocessing."""
    from multiprocessing import spawn

    return os.fsdecode(spawn.get_executable() or sys.executable or "python3")


def default_jobs() -> int:
    """Return the number of passes that the processors and the memory allow this process, at least one."""
    return min(len(os.sched_getaffinity(0)), _fit(available_bytes()))


def own_places() -> list[int]:
    """Return the numbers of this machine's places for passes that this process may take: of its processors.

    Processes with the same processors share places, and others do not. If the memory of the machine has room for fewer
    passes than processors, several processors have one place.
    """
    most = _fit(available_bytes("MemTotal"))
    return sorted({processor % most for processor in os.sched_getaffinity(0)})


def _fit(memory: int) -> int:
    """Return the number of passes that fit in memory, at least one."""
    return max(1, memory // _BYTES_PER_JOB)


def available_bytes(kind: str = "MemAvailable") -> int:
    """Return the bytes of memory of a kind that this machine and its container have."""
    limits = []
    with contextlib.suppress(OSError):
        if found := re.search(rf"{kind}:\s+(\d+) kB", Path("/proc/meminfo").read_text()):
            limits.append(int(found[1]) * 1024)
    with contextlib.suppress(OSError, ValueError):  # a container's limit; "max" if there is none
        limits.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(limits, default=0)
