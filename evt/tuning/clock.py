"""Timing on the GPU: versions interleaved in shuffled rounds, each launch after a flush of the L2 cache, or after an
equal launch.

A spin and the flush keep the GPU busy while the host enqueues a launch, so that the events enclose device work only. A
sample during which the GPU caught up with the host is discarded, and the spin grows.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

Call = Callable[[], object]
#: A function that times one round: the calls in this order, in ms; None for a discarded sample.
RoundTimer = Callable[[Sequence[Call]], Sequence[float | None]]

_FLUSH_BYTES = 256 << 20
_SPIN_US = 60.0
_MAX_SPIN_US = 20_000.0
_RETRIES = 8


def interleave(
    calls: Mapping[str, Call], rounds: int, time_round: RoundTimer, *, seed: int = 0
) -> tuple[dict[str, list[float]], int]:
    """Return samples of every call, from rounds over all of them in shuffled order, and the number of discarded
    samples.

    A discarded sample is taken again, at most a few times in a round.
    """
    order = random.Random(seed)
    samples: dict[str, list[float]] = {name: [] for name in calls}
    discarded = 0
    for _ in range(rounds):
        names = list(calls)
        order.shuffle(names)
        for _ in range(_RETRIES):
            times = time_round([calls[name] for name in names])
            again = []
            for name, time in zip(names, times, strict=True):
                if time is None:
                    discarded += 1
                    again.append(name)
                else:
                    samples[name].append(time)
            names = again
            if not names:
                break
    return samples, discarded


class GpuClock:
    """A timer of rounds on a CUDA device. ``warm`` keeps the L2 cache as the previous launch leaves it."""

    def __init__(self, device: torch.device, *, warm: bool = False) -> None:
        self.device, self.warm = device, warm
        cache = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0)
        self._flush = torch.empty(max(_FLUSH_BYTES, 4 * cache), dtype=torch.uint8, device=device)
        self._events: list[tuple[Any, Any]] = []
        self._cycles_per_us = self._calibrate()
        self._spin_us = _SPIN_US

    def __call__(self, calls: Sequence[Call]) -> list[float | None]:
        while len(self._events) < len(calls):
            self._events.append((_event(), _event()))
        hidden = []
        for call, (start, end) in zip(calls, self._events, strict=False):
            if self.warm:
                call()
            self.spin(self._spin_us)
            if not self.warm:
                self._flush.zero_()
            start.record()
            call()
            end.record()
            hidden.append(not start.query())  # the GPU has not reached it yet
        torch.cuda.synchronize(self.device)
        if not all(hidden):
            self._spin_us = min(2 * self._spin_us, _MAX_SPIN_US)
        pairs = zip(self._events, hidden, strict=False)
        return [start.elapsed_time(end) if good else None for (start, end), good in pairs]

    def spin(self, microseconds: float) -> None:
        """Keep the GPU busy."""
        _sleep(int(microseconds * self._cycles_per_us))

    def _calibrate(self) -> float:
        """Return the cycles of torch.cuda._sleep in a microsecond."""
        cycles = 2_000_000
        start, end = _event(), _event()
        for _ in range(3):  # the first calls wake the GPU up
            start.record()
            _sleep(cycles)
            end.record()
            torch.cuda.synchronize(self.device)
        return cycles / max(float(start.elapsed_time(end)) * 1e3, 1.0)


def _event() -> Any:
    event: Any = torch.cuda.Event  # has no types in some versions of torch
    return event(enable_timing=True)


def _sleep(cycles: int) -> None:
    sleep: Any = torch.cuda._sleep
    sleep(cycles)
