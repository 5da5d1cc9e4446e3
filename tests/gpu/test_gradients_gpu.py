"""Gradients of calls on a GPU: values that forward kernels save, and backward kernels that recompute the product."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

import evt

pytestmark = pytest.mark.gpu

#: Text, operation, geometry, shapes of A, B and the inputs; rows and columns are no multiples of a tile.
CASES: dict[str, tuple[str, str, dict[str, Any], dict[str, tuple[int, ...]]]] = {
    "gelu": ("D = gelu(acc + bias)", "linear", {}, {"A": (333, 264), "B": (200, 264), "bias": (200,)}),
    "mask": (
        "D = relu(acc + bias) + residual",
        "gemm",
        {},
        {"A": (333, 264), "B": (264, 200), "bias": (200,), "residual": (333, 200)},
    ),
    "gated": ("D = silu(even(acc))*odd(acc)", "linear", {}, {"A": (333, 264), "B": (400, 264)}),
    "conv": (
        "D = relu(acc + bias[n] + residual)",
        "conv2d",
        {"padding": 1},
        {"A": (3, 64, 19, 23), "B": (72, 64, 3, 3), "bias": (72,), "residual": (3, 72, 19, 23)},
    ),
}
PARAMETERS = [
    (name, dtype, recompute)
    for name in CASES
    for dtype in (torch.float16, torch.bfloat16)
    for recompute in (False, True)
    if dtype == torch.float16 or name == "gelu"
]


def call(op: evt.Program, values: dict[str, Any]) -> Any:
    inputs = dict(values)
    return op(inputs.pop("A"), inputs.pop("B"), **inputs)


def gradients(op: evt.Program, values: dict[str, Any]) -> list[Any]:
    leaves = {name: value.detach().requires_grad_() for name, value in values.items()}
    result = call(op, leaves)
    arriving = torch.linspace(-1, 1, result.numel(), device=result.device).reshape(result.shape).to(result)
    return [result.detach(), *torch.autograd.grad(result, list(leaves.values()), arriving)]


class Case:
    def __init__(self, name: str, dtype: Any, recompute: bool) -> None:
        text, operation, geometry, shapes = CASES[name]
        generator = torch.Generator().manual_seed(1)
        self.op = evt.Program(text, operation, **geometry, recompute=recompute)
        self.values = {
            each: ((torch.rand(shape, generator=generator) - 0.5) * (0.2 if each == "B" else 1)).to("cuda", dtype)
            for each, shape in shapes.items()
        }
        if operation == "conv2d":
            last = {name: value for name, value in self.values.items() if value.dim() == 4}
            self.values |= {name: evt.channels_last(value) for name, value in last.items()}


@cache
def built(name: str, dtype: Any, recompute: bool) -> Case:
    """Return a case after its first call, which builds its kernels. A process builds kernels for its tests only."""
    case = Case(name, dtype, recompute)
    gradients(case.op, case.values)
    return case


@pytest.mark.parametrize("each", PARAMETERS, ids=str)
def test_gradients(each: Any) -> None:
    case = built(*each)
    poisoned = torch.full((64 << 20,), torch.nan, device="cuda")  # memory that the allocator returns next
    del poisoned
    got = gradients(case.op, case.values)
    text, operation, geometry, _ = CASES[each[0]]
    exact = evt.Program(text, operation, **geometry)
    want = gradients(exact, {name: value.cpu().double() for name, value in case.values.items()})
    bound = 2e-3 if each[1] == torch.float16 else 1.5e-2
    for one, two, leaf in zip(got, want, [got[0], *case.values.values()], strict=True):
        assert one.dtype == leaf.dtype
        assert torch.isfinite(one).all()
        assert (one.cpu().double() - two).norm() <= bound * two.norm()


def test_compiled_by_inductor() -> None:
    case = built("gelu", torch.float16, False)
    function = torch.compile(lambda values: call(case.op, values), fullgraph=True)
    leaves = {name: value.detach().requires_grad_() for name, value in case.values.items()}
    found = function(leaves)
    arriving = torch.linspace(-1, 1, found.numel(), device="cuda").reshape(found.shape).to(found)
    compiled = torch.autograd.grad(found, list(leaves.values()), arriving)
    for one, two in zip(compiled, gradients(case.op, case.values)[1:], strict=True):
        assert (one.double() - two.double()).norm() <= 1e-3 * two.double().norm()
