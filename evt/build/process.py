"""Child processes that end when the build ends."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

#: Peak memory of a device pass of a CUTLASS 3.x kernel.
_BYTES_PER_JOB = 4_500_000_000


@dataclass(frozen=True, slots=True)
class Finished:
    returncode: int
    output: str
    seconds: float


class Children:
    """Runs commands, each in a process group of its own; ``kill`` ends them all and refuses new ones."""

    def __init__(self) -> None:
        self._killed = False
        self._mutex = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()

    def run(self, argv: Sequence[str], cwd: Path, env: Mapping[str, str]) -> Finished:
        """Run to the end, output and errors together. Raises OSError when the program cannot be started."""
        started = time.monotonic()
        with self._mutex:
            if self._killed:
                return Finished(-signal.SIGKILL, "", 0.0)
            child = subprocess.Popen(
                argv,
                cwd=cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,
            )
            self._running.add(child)
        try:
            output, _ = child.communicate()
        finally:
            with self._mutex:
                self._running.discard(child)
        return Finished(child.returncode, output, time.monotonic() - started)

    def killed(self) -> bool:
        """Whether ``kill`` was called; a failure after that means nothing."""
        return self._killed

    def kill(self) -> None:
        with self._mutex:
            self._killed = True
            for child in self._running:
                if child.returncode is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(child.pid, signal.SIGKILL)


def default_jobs() -> int:
    """As many passes at a time as there are processors and memory for their compilers; at least one."""
    return max(1, min(len(os.sched_getaffinity(0)), available_bytes() // _BYTES_PER_JOB))


def available_bytes() -> int:
    limits = []
    with contextlib.suppress(OSError):
        if found := re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text()):
            limits.append(int(found[1]) * 1024)
    with contextlib.suppress(OSError, ValueError):  # a container's limit; "max" where there is none
        limits.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(limits, default=0)
