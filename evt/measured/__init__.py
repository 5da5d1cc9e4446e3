"""Measurements of a problem's kernels: which of them a call takes.

In the order of the data: :mod:`key` (what a measurement is of), :mod:`measurement` (its result), :mod:`store`
(where it is kept), :mod:`choice` (the kernel that a call takes). :mod:`evt.tuning` does the measuring.
"""

from evt.measured.choice import applicable, is_measured, measurements
from evt.measured.key import groups_key, problem_key, size_class
from evt.measured.measurement import Measurement, Timing
from evt.measured.store import Store

__all__ = [
    "Measurement",
    "Store",
    "Timing",
    "applicable",
    "groups_key",
    "is_measured",
    "measurements",
    "problem_key",
    "size_class",
]
