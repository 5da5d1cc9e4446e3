"""Helpers for tests of the cost model: the outcomes of a function's products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from evt.fx.backend import backend
from evt.fx.records import RECORDS, ProductReport


class CompiledError(Exception):
    """The graph is compiled; the CPU would take seconds to run some of them."""


def rows_of(function: Callable[..., Any], *given: torch.Tensor, **options: Any) -> tuple[ProductReport, ...]:
    """Return the outcomes of a function's products, compiled for the CPU as if it were a GPU, and not run."""
    options = {"evt.devices": ("cpu",), **options}

    def compiling(*graph: Any) -> Callable[..., Any]:
        backend(*graph, options=options)

        def run(*_: torch.Tensor) -> None:
            raise CompiledError

        return run

    with pytest.raises(CompiledError):
        torch.compile(function, backend=compiling, dynamic=False)(*given)
    return RECORDS[-1].rows


def row_of(function: Callable[..., Any], *given: torch.Tensor, **options: Any) -> ProductReport:
    """Return the outcome of a function's only product."""
    (row,) = rows_of(function, *given, **options)
    return row
