"""``evt.tune`` without a GPU: the regions of a model, each once, and the arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import evt
from evt.errors import ArgumentError
from evt.fx import tune as tune_module
from tests.support.stub_device import plan_for_h200

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # PyTorch's warning about a future removal
    pytest.mark.usefixtures("fresh_compiler", "own_cache"),
]


class Blocks(torch.nn.Module):
    """Three equal layers, and one of another size."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (256, 256, 256, 512)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(256, size).half() for size in sizes)

    def forward(self, x: torch.Tensor) -> Any:
        for layer in list(self.layers)[:3]:
            x = torch.tanh(layer(x))
        return torch.relu(self.layers[3](x))


def test_equal_layers_are_tuned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tuned: list[tuple[str, dict[str, int], bool]] = []

    def call(request: Any, a: torch.Tensor, b: torch.Tensor, inputs: dict[str, Any], *, options: Any) -> Any:
        assert a.shape[-1] == 256
        assert inputs.keys() == set(request.inputs)
        tuned.append((str(request.source.text), {"n": b.shape[-1]}, options.again))
        return len(tuned)

    plan_for_h200(monkeypatch.setattr)
    monkeypatch.setattr(tune_module, "tune_call", call)
    monkeypatch.setattr(tune_module, "build_all", lambda sources: None)
    said: list[str] = []
    options = {"evt.devices": ("cpu",), "evt.rule": "always"}
    with torch.no_grad():
        found: Any = evt.tune(Blocks(), (torch.zeros(64, 256).half(),), options=options, progress=said.append)
    assert found == (1, 2)
    assert ["tanh" in text for text, *_ in tuned] == [True, False]
    assert not any(again for *_, again in tuned)
    assert said[0].startswith("[1/2] ")


def test_a_model_on_the_cpu_is_not_tuned_in_silence() -> None:
    if torch.cuda.is_available():
        pytest.skip("the message is about machines without a GPU")
    with torch.no_grad(), pytest.raises(evt.LaunchError, match="E0801"):
        evt.tune(Blocks(), (torch.zeros(64, 256).half(),))


def test_arguments() -> None:
    for keywords in ({"rounds": 0}, {"wide": 3}, {"rounds": "many"}):
        with pytest.raises(ArgumentError, match="E0607"):
            evt.tune(Blocks(), (torch.zeros(64, 256).half(),), **keywords)
    with pytest.raises(ArgumentError, match="E0607"):
        evt.tune(Blocks(), 3)
