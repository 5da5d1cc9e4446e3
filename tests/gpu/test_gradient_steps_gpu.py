"""Gradients on a GPU where calls come again with other values, and where batches take several launches."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import evt

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
#: Text, shapes of A, B and the tensors among the inputs, orders of dimensions in memory, and whether it is recomputed.
CASES: dict[str, tuple[str, dict[str, tuple[int, ...]], dict[str, tuple[int, ...]], bool]] = {
    "numbers": (
        "in seed: i64, alpha: f32; D = dropout(gelu(alpha*acc + bias), 0.5, seed, 7)",
        {"A": (333, 264), "B": (264, 200), "bias": (200,)},
        {},
        False,
    ),
    "batches": (
        "D = tanh(acc*s[n])*t[m] + residual",
        {"A": (2, 3, 133, 72), "B": (2, 1, 72, 200), "s": (200,), "t": (133,), "residual": (3, 2, 133, 200)},
        {"A": (1, 0, 2, 3), "B": (1, 0, 2, 3)},
        True,
    ),
}


def drawn(name: str, seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    made = {
        each: (torch.rand(shape, generator=generator) - 0.5) * (0.2 if each == "B" else 1)
        for each, shape in CASES[name][1].items()
    }
    orders = CASES[name][2]
    return {
        each: value.to(DEVICE).half().permute(*orders.get(each, range(value.dim()))) for each, value in made.items()
    }


def gradients(op: evt.Program, values: dict[str, Any], numbers: dict[str, Any], packed: bool) -> list[Any]:
    leaves = {name: value.detach().requires_grad_() for name, value in values.items()}
    inputs: dict[str, Any] = {**leaves, **numbers}
    result = op(inputs.pop("A"), inputs.pop("B"), **inputs)
    arriving = torch.linspace(-1, 1, result.numel(), dtype=torch.float64).reshape(result.shape)
    arriving = arriving if packed else arriving[..., :1].expand(result.shape)
    return [result.detach(), *torch.autograd.grad(result, list(leaves.values()), arriving.to(result))]


@pytest.mark.parametrize("name", CASES)
def test_calls_that_come_again(name: str) -> None:
    """The second backward pass of a kind is recorded, and the third repeats it."""
    text, *_, recompute = CASES[name]
    op, exact = evt.gemm(text, recompute=recompute), evt.gemm(text)
    for step in range(6):
        numbers = {"seed": step + 2**40, "alpha": 1.5 - step} if name == "numbers" else {}
        values = drawn(name, step)
        poisoned = torch.full((16 << 20,), torch.nan, device=DEVICE)  # memory that the allocator returns next
        del poisoned
        got = gradients(op, values, numbers, packed=step % 2 == 0)
        wide = {each: value.cpu().double() for each, value in values.items()}
        want = gradients(exact, wide, numbers, packed=step % 2 == 0)
        for one, two in zip(got, want, strict=True):
            assert torch.isfinite(one).all()
            assert (one.cpu().double() - two).norm() <= 3e-3 * two.norm()
