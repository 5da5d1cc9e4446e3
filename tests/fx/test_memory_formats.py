"""Convolutions of tensors that are not channels_last: the copies, their place and time."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch._inductor.utils import run_and_get_code

import evt
from evt.fx.backend import backend
from evt.fx.fuse import graph
from evt.runtime import memory_format
from tests.support.stub_device import record_launches

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # PyTorch's warning about a future removal
    pytest.mark.usefixtures("fresh_compiler"),
]
LAST = torch.channels_last


class Net(torch.nn.Module):
    """Two convolutions, the second with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(8, 16, 3, padding=1), torch.nn.Conv2d(16, 16, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(x))
        return torch.relu(self.second(y)) + y


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Return the tensors that calls have copied."""
    from evt.runtime import prepare

    made: list[torch.Tensor] = []
    real = memory_format.copied_channels_last
    monkeypatch.setattr(prepare, "copied_channels_last", lambda x: made.append(x) or real(x))
    return made


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    options = {"evt.rule": "always", "evt.devices": ("cpu",), **options}
    return torch.compile(function, backend=partial(backend, options=options), dynamic=False)


def frozen(freezing: bool = True) -> Any:
    """Freeze compiled models, but keep their convolutions from oneDNN, which takes f16 ones on some CPUs."""
    return torch._inductor.config.patch({"freezing": freezing, "cpp.weight_prepack": False})


def net() -> Net:
    return Net().half().eval()


def image() -> torch.Tensor:
    return torch.randn(2, 8, 10, 6).half()


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=5e-3, atol=5e-2)


@pytest.mark.parametrize("x_last", [False, True])
@pytest.mark.parametrize("weights_last", [False, True])
def test_copies_are_inductors(x_last: bool, weights_last: bool) -> None:
    model = net().to(memory_format=LAST) if weights_last else net()
    x = image().contiguous(memory_format=LAST) if x_last else image()
    want = model(x)
    got, (code, *_) = run_and_get_code(compiled(model), x)
    close(got, want)
    assert got.stride() == want.stride()
    assert all(row.fused for row in evt.report(model).rows)
    assert "evt_launch_" in code


def test_launches_copy_nothing(copies: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    launches = record_launches(monkeypatch.setattr)
    model, x = net(), image()
    function = compiled(model)
    for _ in range(3):
        function(x)
    assert len(launches) == 6
    assert not copies


def test_a_parameter_that_changes_is_read_again() -> None:
    """By an optimiser, by `load_state_dict`, or past PyTorch's count of versions."""
    model, x = net(), image().contiguous(memory_format=LAST)
    function = compiled(model)
    close(function(x), model(x))
    model.first.weight.data.mul_(-1)
    close(function(x), model(x))
    model.load_state_dict(net().state_dict())
    close(function(x), model(x))
    model.first.weight.data = model.first.weight.data.clone() * 2
    close(function(x), model(x))


def test_frozen_weights_are_copied_when_the_graph_is_compiled() -> None:
    x = image().contiguous(memory_format=LAST)
    model = net()
    want = model(x)
    with frozen():
        got, (code, *_) = run_and_get_code(compiled(model), x)
    close(got, want)
    assert len(re.findall(r"^ +evt_launch_\w+\[", code, re.MULTILINE)) == 2
    assert "async_compile.cpp" not in code


def test_one_dimension() -> None:
    model = torch.nn.Sequential(torch.nn.Conv1d(8, 16, 3, padding=1), torch.nn.ReLU()).half().eval()
    x = torch.randn(2, 8, 20).half()
    for freezing in (False, True):
        torch._dynamo.reset()
        with frozen(freezing):
            got = compiled(model)(x)
        close(got, model(x))
        assert got.stride() == model(x).stride()


def test_launches_write_lines_channels_last() -> None:
    """PyTorch's results are contiguous. Kernels of Inductor's read the buffers, and turn the result of the graph."""
    layers = (
        torch.nn.Conv1d(8, 16, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv1d(16, 16, 3, padding=1),
        torch.nn.SiLU(),
    )
    model = torch.nn.Sequential(*layers).half().eval()
    x = torch.randn(2, 8, 20).half()
    got, (code, *_) = run_and_get_code(compiled(model), x)
    close(got, model(x))
    assert got.stride() == model(x).stride()
    assert code.count("empty_strided_cpu((2, 16, 20), (320, 1, 16), ") == 2


@pytest.mark.parametrize(
    ("taps", "groups"),
    [(3, 16), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((1, 1), (3, 1), (3, 2), (1, 16)))],
)
def test_readers_of_lines(taps: int, groups: int) -> None:
    """Some need contiguous memory, some read the channels together."""
    torch.manual_seed(0)
    x, w, v = torch.randn(2, 16, 20), torch.randn(16, 16 // groups, taps), torch.randn(16, 1, 5)

    def function(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.relu(torch.conv1d(x, w, padding=taps // 2, groups=groups))
        heads = y.reshape(2, 4, 4, -1).softmax(-1)
        return (
            y,
            y.flatten(1),
            y.mT @ v[:, 0],
            torch.conv1d(y, v, groups=16),
            y[:, 1:, ::2] * 2,
            heads,
            y.amax(-1),
            y.mT,
        )

    wanted = function(x, w, v)
    for got, want in zip(compiled(function)(x, w, v), wanted, strict=True):
        close(got, want)
        assert got.stride() == want.stride()


def test_fused_modules_keep_copies_of_their_weights(copies: Any) -> None:
    model, x = net(), image().contiguous(memory_format=LAST)
    fused = evt.fuse(model, (x,))
    got, want = fused(x), model(x)
    close(got, want)
    assert got.stride() == want.stride()
    kept = graph(fused).graph.find_nodes(op="placeholder")
    weights = [node.meta["val"] for node in kept if node.name.startswith("evt_") and node.meta["val"].dim() > 2]
    assert [each.is_contiguous(memory_format=LAST) for each in weights] == [True, True]


def test_fused_modules_return_what_pytorch_would() -> None:
    model, x = net(), image()
    fused = evt.fuse(model, (x,))
    assert fused(x).stride() == model(x).stride()
    close(fused(x), model(x))


class Attending(torch.nn.Module):
    """Batch norm of a transposed matrix: PyTorch's fake tensors have other strides than its CPU kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.dropout = torch.nn.Linear(8, 6), torch.nn.BatchNorm1d(5), torch.nn.Dropout()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.nn.functional.scaled_dot_product_attention(x, x, x)
        return self.dropout(self.norm(torch.relu(self.linear(x)).t()))


def test_strides_are_pytorchs_also_beside_operators_that_could_draw_numbers() -> None:
    model, x = Attending().eval(), torch.randn(5, 8)
    fused = evt.fuse(model, (x,))
    assert [fused(x).stride() for _ in range(2)] == [model(x).stride()] * 2
