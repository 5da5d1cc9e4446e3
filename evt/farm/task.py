"""A problem of a workload, and the interface of the machine that times its kernels. The module imports no torch."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from evt.plan import Survey, survey
from evt.request import Request, Shapes, packed_problem, problem_sizes, read_request, traced
from evt.tuning.device import Device
from evt.tuning.space import Work
from evt.tuning.table import Name
from evt.workload import Workload


@dataclass(frozen=True)
class Task:
    """One problem to tune: a program, the types of A and B, and their shapes. It pickles."""

    title: str
    request: Request
    a: str | None
    b: str | None
    shapes: Shapes
    weight: float = 1.0

    @property
    def call(self) -> str:
        """The call as text, which the database keeps."""
        given = {"program": traced(self.request).text, "a": self.a, "b": self.b, "shapes": self.shapes}
        return json.dumps(given)

    @staticmethod
    def read(text: str, title: str = "") -> Task:
        """Return the task of a :attr:`call`. Raise ArgumentError (E0613, E0657), ValueError, LookupError."""
        given = json.loads(text)
        a, b = (tuple(map(int, shape)) for shape in given["shapes"])
        return Task(title, read_request(given["program"]), given["a"], given["b"], (a, b))

    def survey(self, target: str) -> Survey:
        """Return the task's kernels for a target."""
        return survey(packed_problem(self.request, target, self.a, self.b, self.shapes))

    def work(self, target: str, call_of: Callable[[Name], Callable[[], Any]]) -> Work:
        """Return the problem for a target, with a function that calls its kernels."""
        return Work(
            self.request, self.survey(target), problem_sizes(self.request, self.shapes), call_of, call=self.call
        )


class Machine(Protocol):
    """A machine that times kernels: its device, and the calls of a task's kernels on it."""

    @property
    def device(self) -> Device:
        """The GPU."""

    def work(self, task: Task) -> Work:
        """Return a task's problem on the GPU."""


def tasks_of(workload: Workload) -> list[Task]:
    """Return the tasks of a workload."""
    return [
        Task(each.title, each.program.request, each.dtype, each.dtype, each.shapes, each.weight)
        for each in workload.entries
    ]
