"""evt.nn: torch.nn's modules with an epilogue. Their results, their state shared with torch's, their refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import evt
from evt import nn

F = torch.nn.functional
PAIRS = [
    (nn.Linear, torch.nn.Linear, (6, 4), (3, 6)),
    (nn.Conv1d, torch.nn.Conv1d, (6, 4, 3), (3, 6, 9)),
    (nn.Conv2d, torch.nn.Conv2d, (6, 4, 3), (3, 6, 9, 8)),
    (nn.Conv3d, torch.nn.Conv3d, (6, 4, 3), (3, 6, 5, 4, 3)),
]


@pytest.fixture(autouse=True)
def _inference():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def tensor(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


# Results

#: The epilogue of a linear map from 6 to 8 features, its inputs, and its results of acc, bias and the inputs.
LINEAR: dict[str, tuple[str, dict[str, Any], Callable[..., Any]]] = {
    "expression": ("gelu(acc + bias)", {}, lambda acc, bias: F.gelu(acc + bias)),
    "assignment": ("D = relu(acc + bias)", {}, lambda acc, bias: F.relu(acc + bias)),
    "residual": ("silu(acc + bias) + r", {"r": tensor(5, 3, 8)}, lambda acc, bias, r: F.silu(acc + bias) + r),
    "scalar": ("alpha*acc + bias", {"alpha": 0.5}, lambda acc, bias, alpha: 0.5 * acc + bias),
    "declared": ("in s: f64[m]\ns*acc + bias", {"s": tensor(5, 3)}, lambda acc, bias, s: s[..., None] * acc + bias),
    "default": ("in s: f64[n] = 2; s*acc + bias", {}, lambda acc, bias: 2 * acc + bias),
    "argument": ("leaky_relu(acc + bias, negative_slope=0.2)", {}, lambda acc, bias: F.leaky_relu(acc + bias, 0.2)),
    "definition": ("def f(x) = x*x; z = acc + bias; f(z)", {}, lambda acc, bias: (acc + bias) ** 2),
    "pairs": ("z = acc + bias; silu(even(z))*odd(z)", {}, lambda acc, bias: gated(acc + bias)),
    "several": ("out D, z; z = acc + bias; D = relu(z)", {}, lambda acc, bias: (F.relu(acc + bias), acc + bias)),
    "statistics": ("z = acc + bias; D = z; s = sum[n](z)", {}, lambda acc, bias: (acc + bias, (acc + bias).sum(-1))),
}


def gated(z: torch.Tensor) -> torch.Tensor:
    return F.silu(z[..., 0::2]) * z[..., 1::2]


@pytest.mark.parametrize("name", LINEAR)
def test_a_linear_map_computes_its_epilogue(name: str) -> None:
    text, inputs, expected = LINEAR[name]
    layer, x = nn.Linear(6, 8, epilogue=text, dtype=torch.float64), tensor(5, 3, 6)
    got, want = layer(x, **inputs), expected(F.linear(x, layer.weight), layer.bias, **inputs)
    torch.testing.assert_close(tuple(got) if isinstance(got, tuple) else got, want)
    if name == "several":
        assert got._fields == ("D", "z")


def test_an_operand_may_be_worked_on() -> None:
    layer, x = nn.Linear(6, 8, epilogue="A = relu(A); acc + bias"), torch.randn(5, 6)
    torch.testing.assert_close(layer(x), F.linear(F.relu(x), layer.weight, layer.bias))


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("padding", [1, (2, 0), "same", "valid"])
def test_a_convolution_pads_as_torch_does(mode: str, padding: Any) -> None:
    common: dict[str, Any] = {"padding": padding, "padding_mode": mode, "dilation": (1, 2), "dtype": torch.float64}
    layer = nn.Conv2d(4, 6, (3, 5), groups=2, epilogue="relu(acc + bias)", **common)
    plain, x = torch.nn.Conv2d(4, 6, (3, 5), groups=2, **common), tensor(2, 4, 11, 10)
    plain.load_state_dict(layer.state_dict())
    torch.testing.assert_close(layer(x), F.relu(plain(x)))


def test_a_convolution_takes_a_residual_and_a_stride() -> None:
    layer = nn.Conv2d(4, 6, 3, 2, 1, bias=False, epilogue="relu(acc + residual)", dtype=torch.float64)
    x, residual = tensor(2, 4, 9, 7), tensor(2, 6, 5, 4)
    want = F.relu(F.conv2d(x, layer.weight, stride=2, padding=1) + residual)
    torch.testing.assert_close(layer(x, residual=residual), want)


def test_the_result_is_channels_last_where_the_weight_is() -> None:
    layer = nn.Conv2d(4, 6, 3, epilogue="relu(acc + bias)").to(memory_format=torch.channels_last)
    plain, x = torch.nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last), torch.randn(2, 4, 9, 7)
    assert layer.weight.is_contiguous(memory_format=torch.channels_last)
    assert layer(x).stride() == plain(x).stride()
    layer.load_state_dict(torch.nn.Conv2d(4, 6, 3).state_dict())
    assert layer.weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("name", "value"), [("stride", (2, 2)), ("padding", (1, 0)), ("dilation", (2, 2)), ("padding_mode", "circular")]
)
def test_a_geometry_that_is_set_later_counts(name: str, value: Any) -> None:
    layer, plain, x = (
        nn.Conv2d(4, 6, 3, epilogue="2*acc + bias", relaxed=True),
        torch.nn.Conv2d(4, 6, 3),
        tensor(1, 4, 9, 8),
    )
    plain.load_state_dict(layer.state_dict())
    for each in (layer, plain):
        setattr(each, name, value)
    assert plain.bias is not None
    torch.testing.assert_close(layer.double()(x), 2 * plain.double()(x) - plain.bias[:, None, None])
    assert layer.program.request.settings.relaxed
    assert layer.epilogue == "2*acc + bias"


def test_buffers_are_written() -> None:
    layer, x, buffer = nn.Linear(6, 8, epilogue="relu(acc + bias)"), torch.randn(5, 6), torch.full((5, 8), torch.nan)
    assert layer(x, out=buffer) is buffer
    assert torch.equal(buffer, layer(x))


# State shared with torch's


@pytest.mark.parametrize(("fused", "plain", "arguments", "shape"), PAIRS)
@pytest.mark.parametrize("bias", [True, False])
def test_they_are_torchs_modules(fused: Any, plain: Any, arguments: Any, shape: Any, bias: bool) -> None:
    torch.manual_seed(1)
    mine = fused(*arguments, bias=bias)
    torch.manual_seed(1)
    theirs = plain(*arguments, bias=bias)
    assert isinstance(mine, plain)
    assert mine.epilogue == ("acc + bias" if bias else "acc")
    x = torch.randn(shape)
    for name, value in theirs.state_dict().items():
        assert torch.equal(value, mine.state_dict()[name])
    torch.testing.assert_close(mine(x), theirs(x), atol=1e-5, rtol=1e-4)
    other = plain(*arguments, bias=bias)
    mine.load_state_dict(other.state_dict())
    torch.testing.assert_close(mine(x), other(x), atol=1e-5, rtol=1e-4)
    theirs.load_state_dict(mine.state_dict())
    assert torch.equal(theirs(x), other(x))


@pytest.mark.parametrize(("fused", "plain", "arguments", "shape"), PAIRS)
def test_from_torch_shares_everything(fused: Any, plain: Any, arguments: Any, shape: Any) -> None:
    module, seen = plain(*arguments).eval(), []
    module.register_forward_hook(lambda *given: seen.append(given))
    made = fused.from_torch(module, epilogue="relu(acc + bias)", fast_math=True)
    assert made.weight is module.weight
    assert made.bias is module.bias
    assert not made.training
    torch.testing.assert_close(made(torch.ones(shape)), F.relu(module(torch.ones(shape))), atol=1e-5, rtol=1e-4)
    assert len(seen) == 2
    again = fused.from_torch(made)
    assert again.weight is module.weight
    assert again.epilogue == "acc + bias"
    made.weight = torch.nn.Parameter(torch.zeros_like(module.weight))
    assert module.weight.any()


def test_they_say_what_they_are() -> None:
    assert repr(nn.Linear(6, 8)) == "Linear(in_features=6, out_features=8, bias=True, epilogue='acc + bias')"
    layer = nn.Conv2d(3, 8, 3, bias=False, epilogue="D = relu(acc)", relaxed=True, deterministic=True)
    shown = "kernel_size=(3, 3), stride=(1, 1), bias=False, epilogue='D = relu(acc)', relaxed=True, deterministic=True"
    assert repr(layer) == f"Conv2d(3, 8, {shown})"
    assert str(nn.Linear(6, 8, epilogue="gelu(acc + bias)").program) == "D = gelu(acc + bias)"


def test_layers_that_are_made_alike_share_a_program() -> None:
    first, second = (nn.Linear(6, size, epilogue="gelu(acc + bias)") for size in (8, 10))
    assert first.program is second.program
    assert first.program is not nn.Linear(6, 8, epilogue="gelu(acc + bias)", fast_math=True).program


def test_there_is_no_torch_before_it_is_needed() -> None:
    assert "nn" in dir(evt)
    assert evt.nn is nn


# Blocks


class TorchMLP(torch.nn.Module):
    """The block that vision transformers have, with the names of timm's."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = torch.nn.Linear(6, 16), torch.nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


class TorchGated(torch.nn.Module):
    """Llama's block."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (torch.nn.Linear(6, 16, bias=False) for _ in range(2))
        self.down_proj = torch.nn.Linear(16, 6, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


@pytest.mark.parametrize(
    ("mine", "theirs"), [(nn.MLP(6, 16, 5, "gelu_tanh"), TorchMLP()), (nn.GatedMLP(6, 16), TorchGated())]
)
def test_blocks_load_the_usual_names(mine: torch.nn.Module, theirs: torch.nn.Module) -> None:
    mine.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 3, 6)
    torch.testing.assert_close(mine(x), theirs(x), atol=1e-5, rtol=1e-4)
    theirs.load_state_dict(mine.state_dict())


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_a_fused_gate_loads_both_weights(activation: str, bias: bool) -> None:
    """One weight has the rows of the gate and of the input in turn; the product's epilogue multiplies the pairs."""
    plain = nn.GatedMLP(6, 16, 5, activation, bias=bias)
    fused = nn.GatedMLP(6, 16, 5, activation, bias=bias, fused=True)
    state, x = plain.state_dict(), torch.randn(2, 3, 6)
    kept = {name: value.clone() for name, value in state.items()}
    assert fused.load_state_dict(state).missing_keys == []
    assert [name for name, _ in fused.named_children()] == ["gate_up_pairs", "down_proj"]
    torch.testing.assert_close(fused(x), plain(x), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(dict(state), kept)  # the checkpoint is as before

    again = nn.GatedMLP(6, 16, 5, activation, bias=bias, fused=True)
    again.load_state_dict(fused.state_dict())  # its own form
    torch.testing.assert_close(again(x), fused(x))
    back = fused.eval().unfused()
    torch.testing.assert_close(dict(back.state_dict()), kept)
    assert not back.training
    assert not back.fused
    torch.testing.assert_close(back.unfused().state_dict(), back.state_dict())


def test_a_fused_gate_within_a_model() -> None:
    """Checkpoints of a whole model have prefixes; loading may be partial or wrong, with torch's messages."""
    plain = torch.nn.ModuleDict({"mlp": nn.GatedMLP(6, 16), "other": torch.nn.Linear(2, 2)})
    fused = torch.nn.ModuleDict({"mlp": nn.GatedMLP(6, 16, fused=True), "other": torch.nn.Linear(2, 2)})
    fused.load_state_dict(plain.state_dict())
    x = torch.randn(3, 6)
    torch.testing.assert_close(fused["mlp"](x), plain["mlp"](x), atol=1e-5, rtol=1e-5)
    state = dict(plain.state_dict())
    del state["mlp.up_proj.weight"]
    with pytest.raises(RuntimeError, match="gate_up_pairs"):
        fused.load_state_dict(state)
    state["mlp.up_proj.weight"] = torch.zeros(3, 6)
    with pytest.raises(RuntimeError, match="gate_up_pairs"):
        fused.load_state_dict(state)
    layer = nn.GatedMLP(6, 16, fused=True, fast_math=True, dtype=torch.float64)
    assert layer.unfused().gate_proj.program.request.settings.fast_math
    assert layer.unfused().down_proj.weight.dtype == torch.float64
    with torch.enable_grad():
        layer(torch.randn(4, 6, dtype=torch.float64)).sum().backward()
    assert layer.gate_up_pairs.weight.grad is not None


def test_blocks_with_and_without_biases() -> None:
    x = torch.randn(3, 6)
    block = nn.MLP(6, 16, activation="relu", bias=False, fast_math=True)
    torch.testing.assert_close(block(x), F.relu(x @ block.fc1.weight.T) @ block.fc2.weight.T)
    gate, up, down = (gated := nn.GatedMLP(6, 16, 5, "gelu", bias=True)).children()
    torch.testing.assert_close(
        gated(x),
        F.linear(F.gelu(F.linear(x, gate.weight, gate.bias)) * F.linear(x, up.weight, up.bias), down.weight, down.bias),
    )
    assert block.fc2.program.request.settings.fast_math


# Refusals

#: A call, the class of the error, its code, and the place in the epilogue that it shows.
REFUSED: list[tuple[Callable[[], Any], type[evt.EvtError], str, str | None]] = [
    (lambda: nn.Linear(6, 8, epilogue="gelu(acc + biass)"), evt.ProgramError, "E0202", "biass"),
    (lambda: nn.Linear(6, 8, epilogue="gellu(acc + bias)"), evt.ProgramError, "E0201", "gellu"),
    (lambda: nn.Linear(6, 8, epilogue="gelu(acc + bias"), evt.ProgramError, "E0104", "("),
    (lambda: nn.Linear(6, 8, epilogue="z = acc; D = z +"), evt.ProgramError, "E0101", "+"),
    (lambda: nn.Linear(6, 8, epilogue=""), evt.ProgramError, "E0103", ""),
    (lambda: nn.Linear(6, 8, epilogue="gelu.evt"), evt.ProgramError, "E0101", "gelu.evt"),
    (lambda: nn.Linear(6, 8, epilogue="gelu(acc)"), evt.ProgramError, "E0404", "D = gelu(acc)"),
    (lambda: nn.Linear(6, 8, epilogue="bias = 2*acc; bias + acc"), evt.ProgramError, "E0404", "D = bias + acc"),
    (lambda: nn.Linear(6, 8, False, epilogue="gelu(acc + bias)"), evt.ProgramError, "E0202", "bias"),
    (lambda: nn.Linear(6, 8, epilogue="acc + bias[m]"), evt.ProgramError, "E0302", "bias[m]"),
    (lambda: nn.Linear(6, 8, epilogue="in bias: f16[n]; acc + bias"), evt.ProgramError, "E0603", "bias"),
    (lambda: nn.Linear(6, 8, epilogue="acc + bias + input"), evt.ProgramError, "E0108", "input"),
    (
        lambda: nn.Linear(6, 8, epilogue="gemm(A: f32[m, k], B: f32[k, n]); acc + bias"),
        evt.ProgramError,
        "E0501",
        "A: f32[m, k]",
    ),
    (lambda: nn.Linear(6, 8, epilogue="linear(A: f16, B: f16); acc + bias"), evt.TargetError, "E0305", None),
    (lambda: nn.Linear(6, 7, epilogue="even(acc + bias)"), evt.ArgumentError, "E0604", None),
    (lambda: nn.Linear(6, 8, dtype=torch.complex64), evt.TargetError, "E0303", None),
    (lambda: nn.Linear(6, 8, epilogue=8), evt.ArgumentError, "E0607", None),
    (lambda: nn.Linear(6, 8, relaxd=True), evt.ArgumentError, "E0602", None),  # type: ignore[call-arg]
    (lambda: nn.Linear(6, 8, stride=2), evt.ArgumentError, "E0602", None),  # type: ignore[call-arg]
    (lambda: nn.Conv2d(6, 8, 3, epilogue="acc + bias + r[l, n]"), evt.ProgramError, "E0301", "r[l, n]"),
    (lambda: nn.Conv2d(6, 8, 3, route=[3]), evt.ArgumentError, "E0607", None),
    (lambda: nn.MLP(6, 8, activation="gellu"), evt.ProgramError, "E0201", "gellu"),
    (lambda: nn.Linear.from_torch(torch.nn.Conv2d(3, 3, 3)), evt.ArgumentError, "E0607", None),
    (
        lambda: nn.Linear.from_torch(torch.nn.modules.linear.NonDynamicallyQuantizableLinear(3, 3)),
        evt.ArgumentError,
        "E0607",
        None,
    ),
    (lambda: nn.Linear(6, 8)(torch.ones(2, 6), bias=torch.ones(8)), evt.ArgumentError, "E0602", None),
    (lambda: nn.Linear(6, 8, epilogue="acc + bias + r")(torch.ones(2, 6)), evt.ArgumentError, "E0601", None),
]


@pytest.mark.parametrize(("call", "kind", "code", "place"), REFUSED, ids=[f"{row[2]}-{row[3]}" for row in REFUSED])
def test_what_is_wrong_is_refused(
    call: Callable[[], Any], kind: type[evt.EvtError], code: str, place: str | None
) -> None:
    with pytest.raises(kind) as caught:
        call()
    found = caught.value.diagnostics[0]
    assert found.code == code
    if place is not None:
        assert found.help
        assert found.source is not None
        assert found.span is not None
        assert found.source.text[found.span.start : found.span.end] == place


def test_an_epilogue_is_not_changed() -> None:
    layer = nn.Linear(6, 8)
    for name, value in (("epilogue", "acc"), ("program", evt.linear("D = acc"))):
        with pytest.raises(AttributeError):
            setattr(layer, name, value)
