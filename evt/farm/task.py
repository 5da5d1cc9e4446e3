"""A problem of a workload, and the machine that times its kernels: ``tasks_of(workload)``, ``machine.work(task)``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch

from evt.bench.calls import call_sizes, held_buffers, random_call
from evt.plan import Survey, survey
from evt.request import Request, Shapes, packed_problem, problem_sizes, read_request, typed_graph
from evt.runtime.call import Caller
from evt.runtime.operator import write_program
from evt.tuning.device import Device, Gpu
from evt.tuning.table import Name
from evt.tuning.tune import Work
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
        given = {"program": write_program(self.request), "a": self.a, "b": self.b, "shapes": self.shapes}
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


class GpuMachine:
    """A CUDA device of this process, with random tensors."""

    def __init__(self, index: int = 0, seed: int = 0) -> None:
        self.device: Device = Gpu(index)
        self._place, self._seed = torch.device("cuda", index), seed

    def work(self, task: Task) -> Work:
        """Return a task's problem; its tensors are made for the first call of a kernel."""
        return task.work(self.device.target.name, Calls(task, self._place, self._seed))


@dataclass
class Calls:
    """The calls of a task's kernels on random tensors."""

    task: Task
    place: torch.device
    seed: int
    buffers: list[Any] = field(default_factory=list)

    @cached_property
    def tensors(self) -> tuple[Sequence[torch.Tensor], Mapping[str, Any], Mapping[str, torch.Tensor]]:
        """A and B, the other inputs, and the buffers of scattered outputs."""
        task, dag = self.task, typed_graph(self.task.request, self.task.a, self.task.b)
        generator = torch.Generator(self.place).manual_seed(self.seed)
        operands, inputs = random_call(task.request, dag, task.shapes, generator)
        return operands, inputs, held_buffers(dag, call_sizes(task.request, task.shapes), self.place)

    def __call__(self, name: Name) -> Callable[[], Any]:
        (a, b), inputs, held = self.tensors
        call, buffers = Caller(self.task.request.forced(*name)), {each: held[each].clone() for each in held}
        return lambda: call(a, b, inputs, buffers or None)


def tasks_of(workload: Workload) -> list[Task]:
    """Return the tasks of a workload."""
    return [
        Task(each.title, each.program.request, each.dtype, each.dtype, each.shapes, each.weight)
        for each in workload.entries
    ]
