"""Integers, casts, special values and malformed-looking graphs of fused models, beside eager mode on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import evt

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]
DEVICE = "cuda"

#: Functions of an i32 product: eager mode is exact.
INTEGERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "int8": lambda x: x.to(torch.int8),
    "uint8": lambda x: x.to(torch.uint8),
    "int8 abs neg": lambda x: x.to(torch.int8).abs().neg(),
    "float to uint8": lambda x: (x.float() * 0.01).to(torch.uint8),
    "remainder": lambda x: x % 7,
    "fmod": lambda x: torch.fmod(x, 1000003),
    "square": lambda x: x**2,
    "floor division": lambda x: x // -7,
    "large factor": lambda x: x * 16777619,
    "hardtanh": lambda x: torch.nn.functional.hardtanh(x, -1000, 1000),
    "threshold": lambda x: torch.nn.functional.threshold(x, 5, 16777217),
    "half": lambda x: x.half(),
}


def both(function: Callable[..., Any], *inputs: torch.Tensor) -> list[Any]:
    """Return the results by evt.fuse and by torch.compile."""
    model: Any = type("Model", (torch.nn.Module,), {"forward": lambda self, *args: function(*args)})().eval()
    torch._dynamo.reset()
    options: Any = {"evt.rule": "always", "evt.devices": (DEVICE,)}
    compiled: Any = torch.compile(model, backend="evt", options=options)
    with torch.no_grad():
        return [evt.fuse(model, inputs)(*inputs), compiled(*inputs)]


def integers(rows: int, columns: int) -> torch.Tensor:
    return torch.randint(-128, 128, (rows, columns), device=DEVICE, dtype=torch.int8)


def halves(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE, dtype=torch.float16)


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_are_eager_s_to_the_bit(name: str) -> None:
    a, b = integers(48, 64), integers(80, 64).t()
    want = INTEGERS[name](torch._int_mm(a, b))
    for found in both(lambda a, b: INTEGERS[name](torch._int_mm(a, b)), a, b):
        assert found.dtype == want.dtype
        assert torch.equal(found, want)


def test_roots_and_zeros() -> None:
    """Roots of infinities, and the sign of a zero after relu."""

    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x @ w
        infinite = torch.where(y > 0, -torch.inf, y)
        return infinite**0.5, infinite**-0.5, 1 / torch.relu(y * 0.0)

    x, w = torch.ones(32, 64, device=DEVICE).half(), halves(64, 48)
    want = function(x, w)
    for found in both(function, x, w):
        for one, two in zip(found, want, strict=True):
            torch.testing.assert_close(one, two, equal_nan=True)


def test_dynamic_quantisation() -> None:
    """A region reads the scale that another region stores."""

    def function(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x @ v)
        scale = y.abs().amax(-1, keepdim=True).float() / 127
        rounded = (y / scale).round().clamp(-128, 127).to(torch.int8)
        return torch._int_mm(rounded, w).float() * scale

    x, v, w = halves(48, 64), halves(64, 64), integers(80, 64).t()
    want = function(x, v, w)
    for found in both(function, x, v, w):
        assert float((found - want).norm() / want.norm()) < 2e-2


def test_a_product_that_nothing_reads() -> None:
    def function(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ w) + 0 * (x @ v + b).sum()

    inputs = halves(32, 64), halves(64, 48), halves(64, 48), halves(48)
    for found in both(function, *inputs):
        torch.testing.assert_close(found, function(*inputs), atol=3e-2, rtol=3e-2)


@pytest.mark.parametrize("results", [1, 2])
def test_cpp_wrapper(results: int) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.relu(x @ w)
        return (y, y.sum(-1))[:results]

    torch._dynamo.reset()
    options = {"evt.rule": "always", "evt.devices": (DEVICE,), "cpp_wrapper": True}
    x, w = halves(32, 64), halves(64, 48)
    with torch.no_grad():
        found = torch.compile(function, backend="evt", options=options)(x, w)
    for one, two in zip(found, function(x, w), strict=True):
        torch.testing.assert_close(one, two, atol=1e-1, rtol=3e-2)
