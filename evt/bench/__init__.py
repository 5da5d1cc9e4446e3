"""Benchmarks: evt against PyTorch, side by side in one run on one GPU.

In the order of the data: :mod:`case` (a program at one size), :mod:`suites` (cases by name), :mod:`layers` (of
networks), :mod:`tensors` (random tensors of every type), :mod:`cudnn` (cuDNN's fused convolution), :mod:`versions` (the
timed functions), :mod:`answer` (the expected results), :mod:`host` (the host time of a call), :mod:`calls` (random
calls, for `evt run`), :mod:`run` (the whole benchmark), :mod:`kernel` (the kernel of a case), :mod:`epilogue`
(epilogues side by side), :mod:`result` (the numbers), :mod:`document` (the numbers as JSON), :mod:`report` (the numbers
as tables), :mod:`machine` (the machine). Whole models: :mod:`models` (by name), :mod:`unet` and :mod:`vae` (models of
evt), :mod:`compiled` (their measurement), :mod:`first_call` (their first calls). Files of results: :mod:`changes` (two
files compared) and :mod:`plot` (pictures), which need no torch. Every timing needs a CUDA GPU; the CPU is never timed
instead.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evt.bench.case import Case, convolution_case
    from evt.bench.document import to_json, write_json
    from evt.bench.epilogue import bench_epilogues
    from evt.bench.host import bench_host
    from evt.bench.machine import describe_machine, require_gpu
    from evt.bench.result import CaseResult, EpilogueResult, HostResult, Summary, VersionResult, summarise
    from evt.bench.run import bench
    from evt.bench.suites import SUITES, suite
    from evt.bench.versions import BASELINES

__all__ = [
    "BASELINES",
    "SUITES",
    "Case",
    "CaseResult",
    "EpilogueResult",
    "HostResult",
    "Summary",
    "VersionResult",
    "bench",
    "bench_epilogues",
    "bench_host",
    "convolution_case",
    "describe_machine",
    "require_gpu",
    "suite",
    "summarise",
    "to_json",
    "write_json",
]

_HOME = {
    "BASELINES": "versions",
    "bench": "run",
    "bench_epilogues": "epilogue",
    "bench_host": "host",
    **dict.fromkeys(("Case", "convolution_case"), "case"),
    **dict.fromkeys(("CaseResult", "EpilogueResult", "HostResult", "Summary", "VersionResult", "summarise"), "result"),
    **dict.fromkeys(("SUITES", "suite"), "suites"),
    **dict.fromkeys(("describe_machine", "require_gpu"), "machine"),
    **dict.fromkeys(("to_json", "write_json"), "document"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'evt.bench' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"evt.bench.{_HOME[name]}"), name)
    return value
