"""Timing of kernels against each other, stopped early: ``race(calls, clock, rounds) -> samples``."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

from evt.tuning.clock import RoundTimer, interleave

#: The rounds of each stage, and the time relative to the fastest beyond which a call leaves after the stage.
_STAGES = ((4, 1.5), (8, 1.15), (16, 1.05))

Call = Callable[[], Any]
Samples = dict[str, list[float]]


def race(
    calls: Mapping[str, Call], clock: RoundTimer, rounds: int, keep: Callable[[Samples], object] = lambda samples: None
) -> Samples:
    """Return the samples of each call in ms, from interleaved rounds; slow calls leave after a few rounds.

    ``keep`` gets the samples after each stage.
    """
    samples: Samples = {name: [] for name in calls}
    running = dict(calls)
    interleave(running, 2, clock)  # lets the clock calibrate its spin, and the GPU raise its clock rates
    done = 0
    for stage, (until, slowest) in enumerate((*_STAGES, (rounds, 1.0))):
        until = min(until, rounds)
        if until > done:
            found, _ = interleave(running, until - done, clock, seed=stage)
            for name, taken in found.items():
                samples[name] += taken
            done = until
            keep(samples)
        medians = {name: statistics.median(taken) for name, taken in samples.items() if taken and name in running}
        fastest = min(medians.values(), default=0.0)
        running = {name: call for name, call in running.items() if medians.get(name, 0.0) <= slowest * fastest}
        if not running:
            break
    return samples
