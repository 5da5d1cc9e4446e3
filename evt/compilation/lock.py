"""One builder per key, across all processes of all users of the cache."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

from evt.compilation.pool import current_cancellation

#: The time between two attempts to lock, in seconds, while a cancellation may end the wait.
_POLL = 0.05


class KeyLock:
    """A held lock. The kernel drops it when all its holders have died, so a killed builder blocks no other process."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self._descriptor = path, descriptor

    @classmethod
    def acquire(cls, path: Path, *, wait: bool) -> KeyLock | None:
        """Return the lock; None if another process holds it and ``wait`` is false.

        Raise OSError if files cannot be made or locked, CancelledError if a cancellation ends this thread's work.
        """
        cancellation = current_cancellation() if wait else None
        while True:
            flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            descriptor = os.open(path, flags, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait and cancellation is None else fcntl.LOCK_NB))
                if _still_there(path, descriptor):
                    return cls(path, descriptor)
            except BlockingIOError:
                os.close(descriptor)
                if cancellation is None:
                    return None
                cancellation.check()
                time.sleep(_POLL)
                continue
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # the holder removed the file: the lock is a new file now

    def fileno(self) -> int:
        return self._descriptor

    @property
    def is_held(self) -> bool:
        """True if the lock is not released yet."""
        return self._descriptor >= 0

    def release(self) -> None:
        """Remove the file and release the lock; a second call does nothing."""
        if not self.is_held:
            return
        with contextlib.suppress(OSError):
            self.path.unlink()
        # Closing does not suffice: a process that was forked meanwhile holds the descriptor too.
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        os.close(self._descriptor)
        self._descriptor = -1


def _still_there(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False
