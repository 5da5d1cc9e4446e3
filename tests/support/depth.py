"""Parameters in two depths: a representative few always run, the others where ``-m slow`` asks for them."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import TypeVar

import pytest
from _pytest.mark.structures import ParameterSet

Value = TypeVar("Value")


def in_depth(values: Iterable[Value], quick: Container[Value]) -> list[ParameterSet]:
    """Return a parameter for each value; the ones that are not quick are slow."""
    return [pytest.param(value, marks=[] if value in quick else pytest.mark.slow) for value in values]
