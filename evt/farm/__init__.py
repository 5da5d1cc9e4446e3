"""Tuning of workloads, on this machine or on many.

In the order of the data: :mod:`task` (a problem that pickles, and the machine that times it), :mod:`local` (tasks on
this machine), :mod:`cluster` (tasks on the workers of a Dask cluster), :mod:`summary` (the results of a workload).
"""

from evt.farm.local import run_tasks
from evt.farm.summary import Summary, summarise
from evt.farm.task import GpuMachine, Machine, Task, tasks_of

__all__ = ["GpuMachine", "Machine", "Summary", "Task", "run_tasks", "summarise", "tasks_of"]
