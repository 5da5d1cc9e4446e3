"""Numbers as text: ``decimal(value) -> str``."""

from __future__ import annotations

import math


def decimal(value: float) -> str:
    """Return the shortest text that reads back as the number: an int exactly, a double to the bit."""
    if isinstance(value, int):
        return str(value)
    whole = value.is_integer() and abs(value) < 2**53 and not (value == 0 and math.copysign(1, value) < 0)
    return str(int(value)) if whole else repr(value)
