"""The compilers that run at a time, in all processes of this machine: ``with places(root, jobs) as may_start``."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from evt.compilation.limits import affordable
from evt.compilation.lock import KeyLock
from evt.compilation.pool import Workers
from evt.compilation.process import default_jobs, own_places


@contextmanager
def places(root: Path, jobs: int | None) -> Iterator[Workers]:
    """Yield a function that tells whether another compiler may start beside a number of running ones.

    ``jobs`` is the user's limit for this build. By default, the processors and the memory limit the compilers of all
    builds in the cache ``root`` on this machine together: each compiler holds the lock file of a processor that its
    process may use. A build always gets one compiler, and more as soon as other builds end. The kernel drops the locks
    of a process that is killed.
    """
    limit, held = affordable(jobs or default_jobs()), list[KeyLock]()

    def may_start(running: int) -> bool:
        if running >= limit:
            return False
        if jobs or running < len(held):
            return True
        place = _free_place(root / f".places-{platform.node()}")
        if place is not None:
            held.append(place)
        return place is not None or running == 0

    try:
        yield may_start
    finally:
        for each in held:
            each.release()


def _free_place(folder: Path) -> KeyLock | None:
    """Return the lock of a free place; None if all are taken, or if the locks cannot be made."""
    with suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        for index in own_places():
            if place := KeyLock.acquire(folder / f"{index}.lock", wait=False):
                return place
    return None
