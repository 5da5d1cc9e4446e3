"""Models through the sites of Inductor's code, whose launches compute the reference where their addresses point."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from evt.fx.backend import backend
from evt.fx.records import RECORDS
from tests.fx import vision
from tests.fx.training import Network
from tests.fx.transformers_models import NAMES, language_model
from tests.support.stub_device import compute_launches

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # PyTorch's warning about a future removal
    pytest.mark.usefixtures("fresh_compiler"),
]


@pytest.fixture(autouse=True)
def _device(monkeypatch: pytest.MonkeyPatch) -> None:
    compute_launches(monkeypatch.setattr)


def compiled(function: Callable[..., Any], dynamic: bool = False) -> Any:
    options = {"evt.rule": "always", "evt.devices": ("cpu",)}
    return torch.compile(function, backend=partial(backend, options=options), dynamic=dynamic)


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    """Compare sums in f32 of models in 16 bits, whose rounding differs from layer to layer."""
    error = (got.float() - want.float()).norm() / want.float().norm()
    assert error < 2e-2


@pytest.mark.parametrize(
    "memory_format", [torch.channels_last, pytest.param(torch.contiguous_format, marks=pytest.mark.slow)]
)
def test_residual_network(memory_format: torch.memory_format) -> None:
    """Layers share programs, and differ in their channels and pixels; a second call finds other addresses."""
    model = vision.ResNet(vision.BasicBlock, (1, 1, 1, 1)).eval().half().to(memory_format=memory_format)
    function = compiled(model)
    kept = []
    for _ in range(2):
        x = torch.randn(2, 3, 32, 32).half().to(memory_format=memory_format)
        kept.append(function(x))
        close(kept[-1], model(x))
    assert sum(row.fused for row in RECORDS[-1].rows) == 13


@pytest.mark.slow
def test_batches_of_several_sizes() -> None:
    model = Network(16).eval().half().to(memory_format=torch.channels_last)
    function = compiled(model, dynamic=True)
    for count in (2, 3, 5):
        x = torch.randn(count, 3, 32, 32).half().to(memory_format=torch.channels_last)
        close(function(x), model(x))


@pytest.mark.slow
def test_vision_transformer() -> None:
    model = vision.vit().eval().half()
    function = compiled(model)
    for _ in range(2):
        x = torch.randn(2, 3, 32, 32).half()
        close(function(x), model(x))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_language(name: str) -> None:
    pytest.importorskip("transformers")
    model, inputs = language_model(name, torch.bfloat16)
    function = compiled(model)
    for _ in range(2):
        close(function(**inputs)[0], model(**inputs)[0])


def test_more_batches_than_a_launch_takes() -> None:
    """A launch prepared for a few batches splits any number of them into several launches."""

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ w + 1)

    found = compiled(function, dynamic=True)
    for count in (4, 66000):
        x, w = torch.randn(count, 2, 3).half(), torch.randn(count, 3, 5).half()
        close(found(x, w), function(x, w))
    assert len(RECORDS) == 1
