"""evt.nn among PyTorch's own machinery: autocast, copies, parametrizations, torch.compile, torch.export, meta."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

import evt
from evt import nn

F = torch.nn.functional
X, IMAGES = torch.randn(5, 6), torch.randn(2, 6, 7, 5)
#: Modules, and calls of them.
LAYERS: dict[str, tuple[Callable[..., torch.nn.Module], Callable[[Any], Any]]] = {
    "linear": (lambda **keys: nn.Linear(6, 8, epilogue="gelu(acc + bias)", **keys), lambda layer: layer(X)),
    "residual": (lambda **keys: nn.Linear(6, 6, epilogue="acc + bias + r", **keys), lambda layer: layer(X, r=X)),
    "scalar": (
        lambda **keys: nn.Linear(6, 8, epilogue="in alpha, beta: f32 = 1; alpha*acc + beta*bias", **keys),
        lambda layer: layer(X, alpha=0.5),
    ),
    "several": (
        lambda **keys: nn.Linear(6, 8, epilogue="out D, z; z = acc + bias; D = relu(z)", **keys),
        lambda layer: layer(X)[0],
    ),
    "conv": (
        lambda **keys: nn.Conv2d(6, 8, 3, 2, 1, padding_mode="reflect", epilogue="relu(acc + bias)", **keys),
        lambda layer: layer(IMAGES),
    ),
    "gated": (lambda **keys: nn.GatedMLP(6, 16, **keys), lambda layer: layer(X)),
    "fused gate": (lambda **keys: nn.GatedMLP(6, 16, fused=True, **keys), lambda layer: layer(X)),
}


@pytest.fixture(autouse=True)
def _inference():
    torch._dynamo.reset()
    with torch.no_grad():
        yield


@pytest.fixture(params=LAYERS)
def case(request: pytest.FixtureRequest):
    make, call = LAYERS[request.param]
    return make(), call


def test_copies(case) -> None:
    layer, call = case
    saved = io.BytesIO()
    torch.save(layer, saved)
    saved.seek(0)
    copies = copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), torch.load(saved, weights_only=False)
    for each in copies:
        assert torch.equal(call(each), call(layer))
        assert repr(each) == repr(layer)
    for parameter in copies[0].parameters():
        parameter.zero_()
    assert not torch.equal(call(copies[0]), call(layer))


def test_compiled_in_one_graph(case) -> None:
    layer, call = case
    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(layer), call(layer))
    assert torch.equal(call(torch.compile(layer, backend="aot_eager", fullgraph=True)), call(layer))


def test_any_batch_in_the_same_graph() -> None:
    layer = nn.Linear(6, 8, epilogue="gelu(acc + bias)")
    graphs = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(layer, backend=graphs, fullgraph=True, dynamic=True)
    for rows in (4, 5, 9):
        x = torch.randn(rows, 6)
        assert torch.equal(compiled(x), layer(x))
    assert graphs.frame_count == 1


class Residual(torch.nn.Module):
    """A layer with a residual in a model."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6, epilogue="gelu(acc + bias) + r")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x, r=x)


def test_exported() -> None:
    model, x = Residual(), torch.randn(9, 6)
    program = torch.export.export(model, (X,), dynamic_shapes={"x": {0: torch.export.Dim("rows")}})
    assert torch.equal(program.module()(x), model(x))
    assert torch.equal(torch.export.export(model.layer, (X,), {"r": X}).module()(X, r=X), model(X))
    conv = nn.Conv2d(6, 8, 3, epilogue="relu(acc + bias)")
    assert torch.equal(torch.export.export(conv, (IMAGES,)).module()(IMAGES), conv(IMAGES))


def test_meta(case, request: pytest.FixtureRequest) -> None:
    layer, call = case
    made = LAYERS[request.node.callspec.params["case"]][0](device="meta")
    made = made.to_empty(device="cpu")
    made.load_state_dict(layer.state_dict())
    assert torch.equal(call(made), call(layer))
    hollow = nn.Linear(6, 8, epilogue="gelu(acc + bias)", device="meta")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert hollow(X.to("meta")).shape == (5, 8)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_converted(case, dtype: torch.dtype) -> None:
    layer = case[0].to(dtype)
    if isinstance(layer, nn.Linear) and layer.epilogue == "gelu(acc + bias)":
        want = F.gelu(F.linear(X.to(dtype).double(), layer.weight.double(), layer.bias.double()))
        torch.testing.assert_close(layer(X.to(dtype)).double(), want, atol=1e-2, rtol=1e-2)
    assert {value.dtype for value in layer.parameters()} == {dtype}
    with pytest.raises(evt.ArgumentError, match="E0603"):
        case[1](layer)  # the inputs are f32


@pytest.mark.parametrize("make", [nn.Linear, nn.Conv2d])
def test_parametrized(make: Any) -> None:
    arguments, x = ((6, 8), X) if make is nn.Linear else ((6, 8, 3), IMAGES)
    layer = make(*arguments, epilogue="relu(acc + bias)")
    plain = make.base(*arguments)
    plain.load_state_dict(layer.state_dict())
    for each in (layer, plain):
        torch.nn.utils.parametrizations.weight_norm(each)
        each.parametrizations.weight.original0.mul_(3)
    torch.testing.assert_close(layer(x), F.relu(plain(x)), atol=1e-5, rtol=1e-4)
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))
    assert "epilogue='relu(acc + bias)'" in repr(layer)
    with pytest.raises(evt.ArgumentError, match="E0607"):
        make.from_torch(plain)


def test_other_parameters_by_functional_call() -> None:
    layer = nn.Linear(6, 8, epilogue="relu(acc + bias)")
    given = {"weight": torch.randn(8, 6), "bias": torch.randn(8)}
    want = F.relu(F.linear(X, given["weight"], given["bias"]))
    torch.testing.assert_close(torch.func.functional_call(layer, given, (X,)), want, atol=1e-5, rtol=1e-4)


def test_beside_fused_models() -> None:
    model = torch.nn.Sequential(nn.Linear(6, 8, epilogue="gelu(acc + bias)"), torch.nn.Linear(8, 4), torch.nn.ReLU())
    fused = evt.fuse(model.eval(), (X,))
    torch.testing.assert_close(fused(X), model(X), atol=1e-5, rtol=1e-4)


# Autocast


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_casts_as_torchs_module(dtype: torch.dtype) -> None:
    for layer, x in ((nn.Linear(6, 8), X), (nn.Conv2d(6, 8, 3), IMAGES)):
        plain = layer.base(*((6, 8) if x is X else (6, 8, 3)))
        plain.load_state_dict(layer.state_dict())
        with torch.autocast("cpu", dtype=dtype):
            got, want = layer(x), plain(x)
            compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
            assert torch.equal(compiled(x), got)
        assert got.dtype == want.dtype == dtype
        torch.testing.assert_close(got, want, atol=1e-2, rtol=1e-2)
        assert layer(x).dtype == compiled(x).dtype == torch.float32


def test_autocast_casts_what_follows_the_operands() -> None:
    text = "in s: f32[n], a: f32; out D, z: f32; z = acc + bias; D = a*s*z + residual"
    layer, s, residual = nn.Linear(6, 8, epilogue=text), torch.rand(8) + 1e-4, torch.randn(5, 8)
    assert layer._epilogue.following == ("bias", "residual")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = layer(X, s=s, residual=residual, a=torch.tensor(2.0))
    assert (got.D.dtype, got.z.dtype) == (torch.bfloat16, torch.float32)
    x, weight, bias, cast = (each.bfloat16() for each in (X, layer.weight, layer.bias, residual))
    assert torch.equal(got.D, layer.program(x, weight, bias=bias, residual=cast, s=s, a=2).D)


def test_autocast_leaves_float64_and_other_devices() -> None:
    layer = nn.Linear(6, 8, epilogue="relu(acc + bias)", dtype=torch.float64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(X.double()).dtype == torch.float64
        with torch.autocast("cpu", enabled=False):
            assert layer.float()(X).dtype == torch.float32
