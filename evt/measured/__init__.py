"""Measurements of a problem's kernels, which decide the kernel of a call.

In the order of the data: :mod:`key` (the identity of a problem), :mod:`measurement` (the times), :mod:`schema` and
:mod:`store` (the database), :mod:`shipped` (tables of evt), :mod:`choice` (the kernel that a call takes),
:mod:`fitted` (constants of this machine's cards).
:mod:`evt.tuning` takes the measurements.
"""

from evt.measured.choice import applicable, is_measured, may_be_measured, measurements
from evt.measured.fitted import fitted, keep_fit, named_card
from evt.measured.key import groups_key, problem_key, size_class
from evt.measured.measurement import Measurement, Origin, Timing, keyed
from evt.measured.store import Store

__all__ = [
    "Measurement",
    "Origin",
    "Store",
    "Timing",
    "applicable",
    "fitted",
    "groups_key",
    "is_measured",
    "keep_fit",
    "keyed",
    "may_be_measured",
    "measurements",
    "named_card",
    "problem_key",
    "size_class",
]
