"""Tests of a registered function: ``check(row)`` compares its C++, torch definition and derivatives on the CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from evt.functions.formula import evaluate
from evt.functions.host import NotForHostError, compiled
from evt.functions.row import Function
from evt.functions.table import TABLE

if TYPE_CHECKING:
    import torch


@contextlib.contextmanager
def temporarily() -> Iterator[None]:
    """Remove functions that were registered inside the block when it ends."""
    before = set(TABLE)
    try:
        yield
    finally:
        for name in set(TABLE) - before:
            TABLE.remove(name)


def check(row: Function, low: float = -4.0, high: float = 4.0, count: int = 4096, tolerance: float = 1e-5) -> None:
    """Compare a function's C++ with its torch definition, and its derivatives with autograd, at random points.

    Parameters without a default lie between ``low`` and ``high``. ``CXX`` or g++ compiles the C++ for the host, so it
    cannot call device-only functions. Raise AssertionError that shows the worst point.
    """
    import torch

    generator = torch.Generator().manual_seed(7)
    points = [
        torch.full((count,), parameter.default, dtype=torch.float64)
        if parameter.default is not None
        else torch.rand(count, generator=generator, dtype=torch.float64) * (high - low) + low
        for parameter in row.parameters
    ]
    single = [point.float() for point in points]
    try:
        run = compiled(row.source, row.cxx, len(row.parameters))
    except NotForHostError as error:
        raise AssertionError(f"the C++ of `{row.name}` does not compile for the host:\n{error}") from None
    found = torch.tensor(run([point.tolist() for point in single]))
    _compare(row, "C++", found, row.torch(torch, *single), single, tolerance)
    for slot, derivative in enumerate(row.derivatives):
        if not derivative:
            continue
        along = [point.clone().requires_grad_(position == slot) for position, point in enumerate(points)]
        expected = torch.autograd.grad(row.torch(torch, *along).sum(), along[slot])[0]
        values = {parameter.name: point for parameter, point in zip(row.parameters, points, strict=True)}
        found = torch.broadcast_to(evaluate(derivative, values, torch), (count,))
        what = f"derivative along `{row.parameters[slot].name}`"
        _compare(row, what, found, expected, points, tolerance)


def _compare(
    row: Function,
    what: str,
    found: torch.Tensor,
    expected: torch.Tensor,
    points: Sequence[torch.Tensor],
    tolerance: float,
) -> None:
    close = found.isclose(expected.to(found.dtype), rtol=tolerance, atol=tolerance, equal_nan=True)
    if not bool(close.all()):
        error = (found - expected).abs().nan_to_num(nan=float("inf")).masked_fill(close, -1.0)
        worst = int(error.argmax())
        named = zip(row.parameters, points, strict=True)
        where = ", ".join(f"{parameter.name}={float(point[worst]):.9g}" for parameter, point in named)
        values = f"{float(found[worst]):.9g}, expected {float(expected[worst]):.9g}"
        raise AssertionError(f"the {what} of `{row.name}` at {where} is {values}")
