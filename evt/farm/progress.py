"""The progress of a run, in words."""

from __future__ import annotations

import time
from collections.abc import Callable

Progress = Callable[[str], object]


class Remaining:
    """The time left: kernels that are not measured yet, at the speed of the measured ones.

    It is unknown before the kernels of all ``tasks`` are counted, and before the first one is measured.
    """

    def __init__(self, tasks: int) -> None:
        self._tasks, self._counted, self._measured = tasks, 0, 0
        self._left: dict[int, int] = {}
        self._started: float | None = None

    def expect(self, number: int, kernels: int) -> None:
        """Count the kernels of a problem that are to be measured."""
        self._left[number] = kernels
        self._counted += 1

    def start(self) -> None:
        """Begin to count the time, unless it has begun."""
        self._started = time.monotonic() if self._started is None else self._started

    def done(self, number: int) -> None:
        """Count the kernels of a problem as measured."""
        self._measured += self._left.pop(number, 0)

    def seconds(self) -> float | None:
        """Return the seconds left; None if they are unknown."""
        if self._started is None or not self._measured or self._counted < self._tasks:
            return None
        return (time.monotonic() - self._started) / self._measured * sum([*self._left.values()])

    def text(self) -> str:
        """Return the time left in words, or ""."""
        seconds = self.seconds()
        if seconds is None or seconds < 1:
            return ""
        return f"; about {seconds / 60:.0f} min left" if seconds >= 90 else f"; about {seconds:.0f} s left"
