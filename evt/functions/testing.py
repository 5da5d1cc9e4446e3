"""Tests of a registered function: ``check(row)`` compares its C++, torch meaning and derivatives on the CPU."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from evt import resources
from evt.functions.formula import evaluate
from evt.functions.row import Function
from evt.functions.table import TABLE

if TYPE_CHECKING:
    import torch


@contextlib.contextmanager
def temporarily() -> Iterator[None]:
    """Remove functions registered inside the block when it ends."""
    before = set(TABLE)
    try:
        yield
    finally:
        for name in set(TABLE) - before:
            TABLE.remove(name)


def check(row: Function, low: float = -4.0, high: float = 4.0, count: int = 4096, tolerance: float = 1e-5) -> None:
    """Compare a function's C++ with its torch meaning, and its derivatives with autograd, at random points.

    Parameters without a default lie between ``low`` and ``high``. The C++ is compiled for the host by ``CXX`` or g++,
    so it must not use device-only functions. Raise AssertionError that shows the worst point.
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
    with tempfile.TemporaryDirectory() as folder:
        _compare(row, "C++", _on_host(row, single, Path(folder)), row.torch(torch, *single), single, tolerance)
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


def _on_host(row: Function, points: Sequence[torch.Tensor], folder: Path) -> torch.Tensor:
    """Return the values of the C++ at the points, compiled for the host."""
    import torch

    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        raise RuntimeError("there is no C++ compiler: set CXX, or install g++")
    values = [f"x[{slot} * n + i]" for slot in range(len(points))]
    loop = f"for (int i = 0; i < n; ++i) y[i] = {row.cxx.format(*values)};"
    header = resources.text("codegen", "include/evt/functions.hpp")
    code = f'{header}\n{row.source}\nextern "C" void run(float const* x, float* y, int n) {{ {loop} }}\n'
    source, library = folder / "function.cpp", folder / "function.so"
    source.write_text(code, encoding="utf-8")
    command = [compiler, "-std=c++17", "-O1", "-ffp-contract=off", "-shared", "-fPIC", str(source), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"the C++ of `{row.name}` does not compile for the host:\n{done.stderr}")
    inputs = torch.stack(list(points)).contiguous()
    result = torch.empty(inputs.shape[1])
    run = ctypes.CDLL(str(library)).run
    run(ctypes.c_void_p(inputs.data_ptr()), ctypes.c_void_p(result.data_ptr()), ctypes.c_int(inputs.shape[1]))
    return result
