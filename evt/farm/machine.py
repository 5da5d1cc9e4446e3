"""The machine that times kernels on a CUDA device of this process: ``GpuMachine().work(task)``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from evt.bench.calls import call_sizes, held_buffers, random_call
from evt.farm.task import Task
from evt.request import typed_graph
from evt.runtime.call import Caller
from evt.tuning.device import Device
from evt.tuning.gpu import Gpu
from evt.tuning.space import Work
from evt.tuning.table import Name


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
