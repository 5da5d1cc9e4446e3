"""The value that a call returns: ``gather(outputs)(values)``."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Sequence
from functools import cache
from operator import itemgetter
from typing import Any

#: Makes a call's result from the values of the outputs.
Gathering = Callable[[Sequence[Any]], Any]


@cache
def gather(outputs: tuple[str, ...]) -> Gathering:
    """Return a function that returns one value as it is, and several as a namedtuple in the outputs' order."""
    if len(outputs) == 1:
        return itemgetter(0)
    names: Any = outputs
    made: Any = namedtuple("Outputs", names, rename=True)  # type: ignore[misc]
    making: Gathering = made._make
    return making
