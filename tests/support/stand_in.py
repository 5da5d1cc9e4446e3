"""A stand-in for a GPU: kernels are planned, built and kept as on a GPU, and a formula gives their times."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from evt.estimate import costs_of, estimates
from evt.farm.task import Task
from evt.plan import Target, find_target
from evt.plan.cards import find_card
from evt.request import problem_sizes
from evt.tuning.clock import RoundTimer
from evt.tuning.space import Work
from evt.tuning.table import Name

DRIVER = "580.00"
#: Names of GPUs, with their target and number of SMs. Few kernels run on an A100: most tests take it.
H200, A100 = ("NVIDIA H200", "sm90", 132), ("NVIDIA A100-SXM4-80GB", "sm80", 108)
#: Environment variables of the process. LOG names a file to which each timed round is appended. KILL names a file that
#: a process removes before it kills itself in the middle of a measurement.
LOG, KILL = "EVT_TEST_LOG", "EVT_TEST_KILL"


@dataclass
class StandIn:
    """A device whose clock asks ``ms_of`` for the time of a call, None for a call that is too slow to be timed."""

    ms_of: Callable[[Any], float | None]
    gpu: tuple[str, str, int] = H200
    lock: str = "stand-in"
    driver: str = DRIVER

    @property
    def name(self) -> str:
        """The name of the GPU."""
        return self.gpu[0]

    @property
    def target(self) -> Target:
        """The target of the GPU."""
        return find_target(self.gpu[1])

    @property
    def multiprocessors(self) -> int:
        """The number of SMs."""
        return self.gpu[2]

    def clock(self, *, warm: bool = False) -> RoundTimer:
        """Return a timer of rounds; a warm launch takes nine tenths of the time."""

        def times(calls: Sequence[Any]) -> list[float | None]:
            found = [self.ms_of(call) for call in calls]
            return [None if ms is None else ms * (0.9 if warm else 1.0) for ms in found]

        return times


def race_in_order(
    calls: Mapping[str, Any], clock: RoundTimer, rounds: int, keep: Callable[[Any], object] = lambda samples: None
) -> dict[str, list[float]]:
    """Return samples as :func:`evt.tuning.race.race` does: each call is faster than the one before."""
    return {name: [1.0 / (1 + place)] * rounds for place, name in enumerate(calls)}


@dataclass(frozen=True)
class Call:
    """A call of a kernel of a task, which computes nothing."""

    name: Name
    ms: float
    title: str

    def __call__(self) -> Any:
        return _RESULT


_RESULT = torch.ones(4, 4)


@dataclass
class StandInMachine:
    """A machine whose kernels take their estimated time, give or take a tenth by a hash of their names.

    ``seconds`` is the time of a round of timing.
    """

    seconds: float = 0.0
    gpu: tuple[str, str, int] = A100

    def __post_init__(self) -> None:
        self.device = StandIn(self._timed, self.gpu, f"stand-in {os.environ.get('CUDA_VISIBLE_DEVICES', 0)}")

    def work(self, task: Task) -> Work:
        """Return a task's problem."""
        return task.work(self.gpu[1], lambda name: Call(name, true_ms(task, name, self.gpu), task.title))

    def _timed(self, call: Call) -> float:
        if path := os.environ.get(LOG):
            with open(path, "a", encoding="utf-8") as file:
                file.write(f"{os.getpid()}|{call.title}|{' '.join(call.name)}\n")
        kill = os.environ.get(KILL)
        if kill and os.path.exists(kill):
            Path(kill).unlink()
            os.kill(os.getpid(), 9)
        time.sleep(self.seconds)
        return call.ms


def machine() -> StandInMachine:
    """Return the machine of a worker; a round of timing takes a while, so that both of two workers get work."""
    return StandInMachine(0.01)


@lru_cache
def _times(task: Task, gpu: tuple[str, str, int]) -> dict[Name, float]:
    found, sizes = task.survey(gpu[1]), problem_sizes(task.request, task.shapes)
    every = estimates(found, sizes, costs_of(found.problem.dag, sizes, task.shapes), find_card(gpu[0]), wide=True)
    return {(each.route, each.config): each.us / 1e3 for each in every}


def true_ms(task: Task, name: Name, gpu: tuple[str, str, int]) -> float:
    """Return the time of a kernel in ms."""
    digest = hashlib.sha256(repr((task.title, name)).encode()).digest()[0]
    return _times(task, gpu)[name] * (0.9 + 0.2 * digest / 255)
