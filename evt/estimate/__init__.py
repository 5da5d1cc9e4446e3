"""Estimates without a GPU: :mod:`costs` (operations and bytes), :mod:`estimate` (microseconds, and the bound),
:mod:`call` (of a program's call).

The duration of a kernel's tiles is the one by which calls choose among kernels: see :mod:`evt.plan.speed`.
"""

from evt.estimate.call import estimate_call, estimate_kernels, plan_taken
from evt.estimate.costs import Costs, costs_of, total
from evt.estimate.estimate import Estimate, estimate, estimates

__all__ = [
    "Costs",
    "Estimate",
    "costs_of",
    "estimate",
    "estimate_call",
    "estimate_kernels",
    "estimates",
    "plan_taken",
    "total",
]
