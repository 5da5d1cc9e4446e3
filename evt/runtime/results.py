"""The value that a call returns: ``gather(outputs)(values)``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from operator import itemgetter
from typing import Any

from evt.request import result_type

#: Makes a call's result from the values of the outputs.
Gathering = Callable[[Sequence[Any]], Any]


@cache
def gather(outputs: tuple[str, ...]) -> Gathering:
    """Return a function that returns a single value unchanged, and several as a namedtuple in the outputs' order."""
    if len(outputs) == 1:
        return itemgetter(0)
    making: Gathering = result_type(outputs)._make
    return making
