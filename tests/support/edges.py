"""Activations with numbers at the edges, and PyTorch's code for them: ``differences(dtype, device, **settings)``."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch

import evt

F = torch.nn.functional
INF, NAN = float("inf"), float("nan")
#: The functions by formula of C and two numbers. PyTorch's CPU kernel of threshold does not round its number.
ACTIVATIONS: dict[str, Callable[[torch.Tensor, float, float], torch.Tensor]] = {
    "leaky_relu(C, p)": lambda x, p, q: F.leaky_relu(x, p),
    "elu(C, p)": lambda x, p, q: F.elu(x, p),
    "celu(C, p)": lambda x, p, q: F.celu(x, p),
    "hardshrink(C, p)": lambda x, p, q: F.hardshrink(x, p),
    "softplus(C, p, q)": F.softplus,
    "threshold(C, p, q)": lambda x, p, q: F.threshold(x, float(torch.tensor(p, dtype=x.dtype)), q),
    "hardtanh(C, p, q)": F.hardtanh,
}
NUMBERS = (0.0, -0.0, 1e-7, 0.1, 0.5, -0.5, 1.0, -1.0, 3.0, -20.0, 70000.0, -70000.0, 1e30, INF, -INF, NAN)
ARGUMENTS = (*NUMBERS[:-4], 1.2e-7, 6e-8, -6e-8, 0.09998, 20.0, 65504.0, -65504.0, INF, -INF, NAN)


def differences(dtype: torch.dtype, device: str, **settings: Any) -> Iterator[str]:
    """Yield where evt has other bits than PyTorch, for numbers that PyTorch takes: no `alpha` of 0 in celu."""
    name = str(dtype)[6:]
    outputs = [f"D{place} = {formula}" for place, formula in enumerate(ACTIVATIONS)]
    declared = ", ".join(f"D{place}: {name}[m, n]" for place in range(len(outputs)))
    text = f"in C: {name}[m, n], p: f32, q: f32; out Z: {name}[m, n], {declared}; Z = acc; {'; '.join(outputs)}"
    op = evt.linear(text, numerics="eager", **settings)
    zeros = torch.zeros(64, 8, dtype=dtype, device=device)
    x = torch.zeros(8, 64, dtype=dtype, device=device)
    x[0, : len(ARGUMENTS)] = torch.tensor(ARGUMENTS).to(dtype)
    for p, q in itertools.product(NUMBERS, (0.0, -1.0, 20.0, INF, NAN)):
        found = op(zeros[:8], zeros, C=x, p=p, q=q)[1:]
        for (formula, function), got in zip(ACTIVATIONS.items(), found, strict=True):
            try:
                want = function(x, p, q)
            except (RuntimeError, ValueError):
                continue
            differ = (got.view(torch.int16) != want.view(torch.int16)) & ~(got.isnan() & want.isnan())
            for row, column in differ.nonzero().tolist():
                values = (float(each[row, column]) for each in (x, got, want))
                yield f"{formula}, p={p}, q={q}: C={next(values)}: {next(values)}, PyTorch has {next(values)}"
