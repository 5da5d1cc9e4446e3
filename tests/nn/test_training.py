"""Training of evt.nn's modules: the gradients and the steps of torch.nn's modules with their activations."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import evt
from evt import nn
from tests.support.replicas import images, make_model, train, train_replicas

F = torch.nn.functional
TOLERANCE = {torch.float32: {"atol": 2e-5, "rtol": 1e-4}, torch.float64: {"atol": 1e-10, "rtol": 1e-10}}


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


#: A layer, torch's layer with the same parameters and the operators after it, and the shapes of x and of a residual.
LAYERS: dict[str, tuple[Callable[..., torch.nn.Module], Callable[..., torch.nn.Module], Any, list[tuple[int, ...]]]] = {
    "linear": (
        lambda **keys: nn.Linear(6, 8, epilogue="gelu(acc + bias)", **keys),
        lambda **keys: torch.nn.Linear(6, 8, **keys),
        F.gelu,
        [(5, 3, 6)],
    ),
    "one row": (
        lambda **keys: nn.Linear(6, 8, epilogue="silu(acc + bias)", **keys),
        lambda **keys: torch.nn.Linear(6, 8, **keys),
        F.silu,
        [(6,)],
    ),
    "no bias": (
        lambda **keys: nn.Linear(6, 8, bias=False, epilogue="silu(even(acc)) * odd(acc)", **keys),
        lambda **keys: torch.nn.Linear(6, 8, bias=False, **keys),
        lambda y: F.silu(y[..., 0::2]) * y[..., 1::2],
        [(5, 6)],
    ),
    "residual": (
        lambda **keys: nn.Linear(6, 8, epilogue="relu(acc + bias) * r + r", **keys),
        lambda **keys: torch.nn.Linear(6, 8, **keys),
        lambda y, r: F.relu(y) * r + r,
        [(5, 6), (5, 8)],
    ),
    "recomputed": (
        lambda **keys: nn.Linear(6, 8, epilogue="mish(acc + bias)", recompute=True, **keys),
        lambda **keys: torch.nn.Linear(6, 8, **keys),
        F.mish,
        [(5, 6)],
    ),
    "conv1d": (
        lambda **keys: nn.Conv1d(6, 8, 3, dilation=2, epilogue="tanh(acc + bias)", **keys),
        lambda **keys: torch.nn.Conv1d(6, 8, 3, dilation=2, **keys),
        torch.tanh,
        [(2, 6, 9)],
    ),
    "conv2d": (
        lambda **keys: nn.Conv2d(6, 8, 3, 2, 1, groups=2, epilogue="relu(acc + bias + r)", **keys),
        lambda **keys: torch.nn.Conv2d(6, 8, 3, 2, 1, groups=2, **keys),
        lambda y, r: F.relu(y + r),
        [(2, 6, 7, 5), (2, 8, 4, 3)],
    ),
    "padded": (
        lambda **keys: nn.Conv2d(6, 8, 3, padding=1, padding_mode="circular", epilogue="elu(acc + bias)", **keys),
        lambda **keys: torch.nn.Conv2d(6, 8, 3, padding=1, padding_mode="circular", **keys),
        F.elu,
        [(2, 6, 7, 5)],
    ),
    "conv3d": (
        lambda **keys: nn.Conv3d(6, 8, (1, 2, 3), padding="same", bias=False, epilogue="softplus(acc)", **keys),
        lambda **keys: torch.nn.Conv3d(6, 8, (1, 2, 3), padding="same", bias=False, **keys),
        F.softplus,
        [(1, 6, 3, 4, 5)],
    ),
}


def gradients(module: torch.nn.Module, call: Callable[..., torch.Tensor], values: list[torch.Tensor]) -> Any:
    """Return the result of a call, and the gradients of its arguments and of the module's parameters."""
    module.zero_grad()
    given = [value.detach().requires_grad_() for value in values]
    result = call(*given)
    (result.square() / 2).sum().backward()
    return result.detach(), [each.grad for each in given], {name: each.grad for name, each in module.named_parameters()}


@pytest.mark.filterwarnings("ignore:Using padding='same' with even")
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_gradients_are_those_of_torchs_modules(name: str, dtype: torch.dtype) -> None:
    make, make_plain, after, shapes = LAYERS[name]
    layer, plain = make(dtype=dtype), make_plain(dtype=dtype)
    plain.load_state_dict(layer.state_dict())
    values = [torch.randn(shape, dtype=dtype) for shape in shapes]
    mine = gradients(layer, lambda x, *rest: layer(x, **({"r": rest[0]} if rest else {})), values)
    theirs = gradients(plain, lambda x, *rest: after(plain(x), *rest), values)
    torch.testing.assert_close(mine, theirs, **TOLERANCE[dtype])


def test_what_is_frozen_gets_no_gradient() -> None:
    layer, x = nn.Linear(6, 8, epilogue="relu(acc + bias)"), torch.randn(5, 6)
    layer.weight.requires_grad_(False)
    layer(x).sum().backward()
    assert layer.weight.grad is None
    torch.testing.assert_close(layer.bias.grad, (layer(x) > 0).float().sum(0))
    layer.requires_grad_(False)
    assert not layer(x).requires_grad
    with pytest.raises(evt.ArgumentError, match="E0610"):
        layer.requires_grad_(True)(x, out=torch.empty(5, 8))


def test_several_outputs_have_gradients() -> None:
    layer, x = nn.Linear(6, 8, epilogue="out D, z; z = acc + bias; D = silu(z)", dtype=torch.float64), torch.randn(5, 6)
    found = layer(x.double())
    (found.D.sum() + found.z.square().sum()).backward()
    mine, z = layer.weight.grad, F.linear(x.double(), layer.weight, layer.bias)
    (want,) = torch.autograd.grad(F.silu(z).sum() + z.square().sum(), layer.weight)
    torch.testing.assert_close(mine, want)


def test_a_parametrized_weight_is_trained() -> None:
    layer, plain, x = nn.Linear(6, 8, epilogue="relu(acc + bias)"), torch.nn.Linear(6, 8), torch.randn(5, 6)
    plain.load_state_dict(layer.state_dict())
    for each in (layer, plain):
        torch.nn.utils.parametrizations.weight_norm(each)
    mine, theirs = gradients(layer, layer, [x]), gradients(plain, lambda y: F.relu(plain(y)), [x])
    torch.testing.assert_close(mine, theirs, **TOLERANCE[torch.float32])


class Net(torch.nn.Module):
    """A convolution and two linear maps: evt's with their activations, or torch's before theirs."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        if fused:
            self.conv: torch.nn.Module = nn.Conv2d(3, 4, 3, padding=1, epilogue="relu(acc + bias)")
            self.up: torch.nn.Module = nn.Linear(4, 16, epilogue="gelu(acc + bias)")
            self.down: torch.nn.Module = nn.Linear(16, 4, epilogue="acc + bias + residual")
        else:
            self.conv = torch.nn.Conv2d(3, 4, 3, padding=1)
            self.up, self.down = torch.nn.Linear(4, 16), torch.nn.Linear(16, 4)
        self.fused = fused

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fused:
            y = self.conv(x).mean((2, 3))
            return self.down(self.up(y), residual=y)
        y = F.relu(self.conv(x)).mean((2, 3))
        return self.down(F.gelu(self.up(y))) + y


def losses(model: torch.nn.Module, dtype: torch.dtype, autocast: bool = False, steps: int = 4) -> list[float]:
    """Return the losses of some steps of AdamW."""
    generator = torch.Generator().manual_seed(1)
    x, target = (torch.randn(shape, generator=generator).to(dtype) for shape in ((8, 3, 6, 6), (8, 4)))
    optimiser, found = torch.optim.AdamW(model.parameters(), lr=0.05), []
    for _ in range(steps):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = F.mse_loss(model(x).float() if autocast else model(x), target)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        found.append(loss.item())
    return found


@pytest.fixture
def models():
    fused, plain = Net(True), Net(False)
    plain.load_state_dict(fused.state_dict())
    return fused, plain


def test_steps_are_those_of_torchs_modules(models) -> None:
    mine, theirs = (losses(model.double(), torch.float64) for model in models)
    assert mine == pytest.approx(theirs, rel=1e-9)
    assert mine[-1] < 0.9 * mine[0]
    for name, value in models[1].state_dict().items():
        torch.testing.assert_close(models[0].state_dict()[name], value, rtol=1e-7, atol=1e-8)


def test_steps_under_autocast(models) -> None:
    mine, theirs = (losses(model, torch.float32, autocast=True) for model in models)
    assert mine == pytest.approx(theirs, rel=0.03)
    assert {each.grad.dtype for each in models[0].parameters()} == {torch.float32}


def test_a_compiled_step(models) -> None:
    eager = losses(copy.deepcopy(models[0]), torch.float32)
    compiled = torch.compile(models[0], backend="aot_eager", fullgraph=True)
    assert losses(compiled, torch.float32) == pytest.approx(eager, rel=1e-4)


@pytest.mark.slow
@pytest.mark.cxx
@pytest.mark.filterwarnings("ignore")
def test_a_step_compiled_by_inductor(models) -> None:
    eager = losses(copy.deepcopy(models[0]), torch.float32)
    for backend in ("inductor", "evt"):
        torch._dynamo.reset()
        compiled = torch.compile(copy.deepcopy(models[0]), backend=backend, fullgraph=True)
        assert losses(compiled, torch.float32) == pytest.approx(eager, rel=1e-3)


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch has no torch.distributed")
def test_replicas_train_as_one(tmp_path: Path) -> None:
    one = make_model().double()
    train(one, images(8).double())
    for found in train_replicas(tmp_path, "gloo", torch.float64):
        torch.testing.assert_close(found, dict(one.state_dict()), rtol=1e-8, atol=1e-10)
