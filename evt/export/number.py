"""Numbers as C++: ``cxx_number(value, integer) -> str``."""

from __future__ import annotations

import math


def cxx_number(value: float, integer: bool) -> str:
    """Return a number as an int64_t or a double of C++, to the bit."""
    if integer:
        return "INT64_MIN" if value == -(2**63) else f"INT64_C({int(value)})"
    return repr(float(value)) if math.isfinite(value) else f"{'-' if value < 0 else ''}INFINITY"
