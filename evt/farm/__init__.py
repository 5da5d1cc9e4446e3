"""Tuning of workloads, on this machine or on many.

In the order of the data: :mod:`task` (a problem that pickles), :mod:`machine` (the GPU that times it), :mod:`builders`
(builds in threads), :mod:`progress`, :mod:`local` (tasks on this machine), :mod:`workers` (the processes of Dask),
:mod:`cluster` (tasks on them, by a process that never imports torch), :mod:`summary` (the results of a workload).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evt.farm.local import run_tasks
    from evt.farm.machine import GpuMachine
    from evt.farm.summary import Summary, summarise
    from evt.farm.task import Machine, Task, tasks_of

__all__ = ["GpuMachine", "Machine", "Summary", "Task", "run_tasks", "summarise", "tasks_of"]

_HOME = dict.fromkeys(("Machine", "Task", "tasks_of"), "task")
_HOME |= {"GpuMachine": "machine", "run_tasks": "local", "Summary": "summary", "summarise": "summary"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'evt.farm' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"evt.farm.{_HOME[name]}"), name)
    return value
