"""The limit of open files: the number of nvcc passes that it allows, and the diagnostic at the limit."""

from __future__ import annotations

import errno
import os
import resource

from evt.diagnostics import Diagnostic
from evt.errors import BuildError

#: Open files of this process and the supervisor for one pass: the lock, the log, and the sockets of the answer.
_FILES_PER_PASS = 8


def affordable(passes: int) -> int:
    """Return how many of these passes can run at a time within the limit of open files, at least one."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return passes
    return max(1, min(passes, (limit - len(os.listdir("/proc/self/fd"))) // _FILES_PER_PASS))


def require_files(error: OSError) -> None:
    """Raise BuildError (E0708) for an error that reports too many open files; return for any other."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if error.errno == errno.EMFILE:
        message = f"too many files are open: the limit of this process is {limit}"
        mend = "raise the limit, as `ulimit -n 4096` does, or close files"
        raise BuildError(Diagnostic("E0708", message, help=mend)) from error
    if error.errno == errno.ENFILE:
        message, mend = "too many files are open on this machine", "end programs that hold files open"
        raise BuildError(Diagnostic("E0708", message, help=mend)) from error
