"""Benchmarks: evt against PyTorch, side by side in one run on one GPU.

In the order of the data: :mod:`case` (a program at one size), :mod:`suites` (cases by name), :mod:`layers` (of
networks), :mod:`tensors` (random tensors of every type), :mod:`straight` (the formula as a PyTorch user writes it),
:mod:`idiom` (its operations) and :mod:`convolution` (its product), :mod:`cudnn` (cuDNN's fused convolution),
:mod:`versions` (the timed functions), :mod:`answer` (the expected results), :mod:`host` (the host time of a call),
:mod:`run` (the whole benchmark), :mod:`kernel` (the kernel of a case), :mod:`epilogue` (epilogues side by side),
:mod:`result` (the numbers), :mod:`document` (the numbers as JSON), :mod:`report` (the numbers as tables),
:mod:`machine` (the machine). Whole models: :mod:`models` (by name), :mod:`unet` (a model of evt), :mod:`compiled`
(their measurement), :mod:`first_call` (their first calls). The package needs torch. Every timing needs a CUDA GPU; the
CPU is never timed instead.
"""

from evt.bench.case import Case, convolution_case
from evt.bench.document import to_json, write_json
from evt.bench.epilogue import bench_epilogues
from evt.bench.host import bench_host
from evt.bench.machine import describe_machine, require_gpu
from evt.bench.result import CaseResult, EpilogueResult, HostResult, Summary, VersionResult, summarise
from evt.bench.run import bench
from evt.bench.suites import SUITES, suite
from evt.bench.versions import BASELINES
from evt.eager.straight import straight_line

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
    "straight_line",
    "suite",
    "summarise",
    "to_json",
    "write_json",
]
