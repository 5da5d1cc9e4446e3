"""A measure of work that does not depend on the machine."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def count_calls() -> Iterator[list[int]]:
    """Count calls of Python functions."""
    calls = [0]

    def hook(frame: FrameType, event: str, argument: object) -> None:
        calls[0] += event == "call"

    gc.disable()
    sys.setprofile(hook)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        gc.enable()


@contextmanager
def little_stack(frames: int) -> Iterator[None]:
    """Allow this number of frames beyond the current one."""
    limit, depth = sys.getrecursionlimit(), 0
    frame: FrameType | None = sys._getframe()
    while frame:
        depth, frame = depth + 1, frame.f_back
    sys.setrecursionlimit(depth + frames)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)
