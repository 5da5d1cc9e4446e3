"""Captures of a model, and its runs in other threads: ``with run(): ...``, ``with capture(): ...``.

A capture replaces the parameters of the model with fake tensors while it traces, and torch.fx replaces the call of all
modules. A run in another thread would meet both. So runs wait for a capture, and a capture waits for the runs of other
threads.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

#: The longest time in seconds that a capture waits for runs. A run may itself wait for the thread that captures.
LONGEST = 30.0

_changed = threading.Condition()
_running: Counter[int] = Counter()
#: The threads that wait for a lock or to capture. Their runs stand still.
_parked: set[int] = set()
#: The threads that wait to capture.
_waiting: set[int] = set()
_capturing: Counter[int] = Counter()


@contextmanager
def run() -> Iterator[None]:
    """Run a model, or read its tensors, while no other thread captures."""
    own = threading.get_ident()
    with _changed:
        if own not in _running and own not in _capturing:
            _changed.wait_for(lambda: not _capturing and not _waiting)
        _running[own] += 1
    try:
        yield
    finally:
        _leave(_running, own)


@contextmanager
def hold(lock: threading._RLock) -> Iterator[None]:
    """Hold a lock. Other threads may capture while this thread waits for it."""
    own = threading.get_ident()
    with _changed:
        _parked.add(own)
        _changed.notify_all()
    try:
        lock.acquire()
    finally:
        with _changed:
            _parked.discard(own)
    try:
        with _changed:
            _changed.wait_for(lambda: _capturing.keys() <= {own})
        yield
    finally:
        lock.release()


@contextmanager
def capture() -> Iterator[None]:
    """Capture a model while no other thread runs or captures one. Raise TimeoutError if runs take too long."""
    own = threading.get_ident()
    with _changed:
        _waiting.add(own)
        _changed.notify_all()
        try:
            free = _changed.wait_for(
                lambda: _capturing.keys() <= {own} and _running.keys() <= _parked | _waiting, LONGEST
            )
        finally:
            _waiting.discard(own)
            _changed.notify_all()
        if not free:
            raise TimeoutError(f"other threads have been running models for {LONGEST:g} s")
        _capturing[own] += 1
    try:
        yield
    finally:
        _leave(_capturing, own)


def _leave(threads: Counter[int], own: int) -> None:
    with _changed:
        threads[own] -= 1
        if threads[own] <= 0:
            del threads[own]
        _changed.notify_all()


def _forget() -> None:
    """Forget the threads of the parent process."""
    global _changed
    _changed = threading.Condition()
    for each in (_running, _parked, _waiting, _capturing):
        each.clear()


os.register_at_fork(after_in_child=_forget)
