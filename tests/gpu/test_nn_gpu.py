"""evt.nn's modules on a GPU: results and gradients beside torch.nn's in float64, autocast, and replicas on two GPUs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from evt import nn
from tests.support.replicas import images, make_model, train, train_replicas

pytestmark = pytest.mark.gpu

F = torch.nn.functional
#: A layer, torch's layer and the operators after it, the shapes of x and of a residual, and the type.
LAYERS: dict[str, tuple[Any, Any, Callable[..., Any], list[tuple[int, ...]], torch.dtype]] = {
    "linear": (
        lambda: nn.Linear(200, 168, epilogue="gelu(acc + bias)"),
        lambda: torch.nn.Linear(200, 168),
        F.gelu,
        [(3, 77, 200)],
        torch.bfloat16,
    ),
    "conv": (
        lambda: nn.Conv2d(64, 96, 3, padding=1, epilogue="relu(acc + bias + r)"),
        lambda: torch.nn.Conv2d(64, 96, 3, padding=1),
        lambda y, r: F.relu(y + r),
        [(3, 64, 19, 13), (3, 96, 19, 13)],
        torch.float16,
    ),
}


class Case:
    """A layer on the GPU, and the same in float64."""

    def __init__(self, name: str) -> None:
        make, make_plain, self.after, shapes, dtype = LAYERS[name]
        torch.manual_seed(0)
        self.layer = make().to("cuda", dtype)
        self.values = [torch.randn(shape).to("cuda", dtype) for shape in shapes]
        if name == "conv":
            self.layer.to(memory_format=torch.channels_last)
            self.values = [each.to(memory_format=torch.channels_last) for each in self.values]
        self.plain = make_plain().to("cuda", dtype)
        self.plain.load_state_dict(self.layer.state_dict())
        self.exact = copy.deepcopy(self.plain).double()

    def call(self, x: torch.Tensor, *rest: torch.Tensor, **others: Any) -> torch.Tensor:
        return self.layer(x, **({"r": rest[0]} if rest else {}), **others)

    def call_plain(self, module: torch.nn.Module, x: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        return self.after(module(x), *rest)


@pytest.fixture(scope="module")
def cases() -> dict[str, Case]:
    """Return the cases after a call of each, with and without gradients: their kernels are built at once."""
    made = {name: Case(name) for name in LAYERS}

    def call(case: Case, grad: bool) -> None:
        with torch.set_grad_enabled(grad):
            case.call(*case.values)

    with ThreadPoolExecutor() as pool:
        list(pool.map(call, [*made.values()] * 2, [False, False, True, True]))
    return made


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    assert torch.isfinite(got).all()
    return float((got.double() - want).norm() / want.norm())


@pytest.mark.parametrize("name", LAYERS)
def test_results(name: str, cases: dict[str, Case]) -> None:
    case = cases[name]
    with torch.no_grad():
        want = case.call_plain(case.exact, *(each.double() for each in case.values))
        buffer = torch.full_like(case.call_plain(case.plain, *case.values), torch.nan)
        for _ in range(2):
            assert case.call(*case.values, out=buffer) is buffer
            assert error(buffer, want) < (1e-3 if buffer.dtype == torch.float16 else 6e-3)


def gradients(module: torch.nn.Module, call: Callable[..., torch.Tensor], values: list[torch.Tensor]) -> Any:
    module.zero_grad()
    given = [each.detach().requires_grad_() for each in values]
    result = call(*given)
    result.backward(torch.full_like(result, 0.5))
    return [*(each.grad for each in given), *(each.grad for each in module.parameters())]


@pytest.mark.parametrize("name", LAYERS)
def test_gradients(name: str, cases: dict[str, Case]) -> None:
    case = cases[name]
    mine = gradients(case.layer, case.call, case.values)
    eager = gradients(case.plain, lambda *given: case.call_plain(case.plain, *given), case.values)
    doubles = [each.double() for each in case.values]
    exact = gradients(case.exact, lambda *given: case.call_plain(case.exact, *given), doubles)
    for got, theirs, want in zip(mine, eager, exact, strict=True):
        assert got.dtype == case.values[0].dtype
        assert error(got, want) < 1.5 * error(theirs, want) + 1e-3


def test_autocast(cases: dict[str, Case]) -> None:
    case = cases["linear"]
    layer, x = copy.deepcopy(case.layer).float(), case.values[0].float()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        result = layer(x)
    assert torch.equal(result, case.layer(case.values[0]))
    result.float().square().sum().backward()
    assert layer.weight.grad.dtype == torch.float32
    assert torch.isfinite(layer.weight.grad).all()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_replicas(tmp_path: Path) -> None:
    one = make_model().to("cuda", torch.float16)
    train(one, images(8).to("cuda", torch.float16))  # builds the kernels
    first, second = train_replicas(tmp_path, "nccl", torch.float16)
    for name, value in one.state_dict().items():
        assert torch.equal(first[name], second[name])
        torch.testing.assert_close(first[name], value.cpu(), rtol=2e-2, atol=2e-3)
