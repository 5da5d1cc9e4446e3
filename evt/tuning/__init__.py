"""Measured routes: which kernel of a problem is fastest on a GPU, once that was measured.

In the order of the data: :mod:`key` (what a measurement is of), :mod:`measurement` (what came out), :mod:`store`
(where it is kept), :mod:`tune` (the measuring), :mod:`choice` (what a call makes of it).
"""

from evt.tuning.key import problem_key
from evt.tuning.measurement import Measurement, Timing
from evt.tuning.store import Store

__all__ = ["Measurement", "Store", "Timing", "problem_key"]
