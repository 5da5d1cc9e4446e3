"""Changes of a model's attributes: a fused module sees them at its next call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import evt
from evt.fx.fuse import fuse

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # torch's own


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def test_attributes_that_change_as_the_model_runs() -> None:
    class Keeping(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin, self.count = torch.nn.Linear(4, 4), 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            return torch.relu(self.lin(x)) * self.count

    model = Keeping().eval()
    fused: Any = fuse(model, (torch.ones(2, 4),))
    before = model.count
    first, second = (fused(torch.ones(2, 4)) for _ in range(2))
    assert model.count == before + 2
    torch.testing.assert_close(first / (before + 1), second / (before + 2))


def test_contents_of_attributes_are_seen() -> None:
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin, self.scales, self.config = torch.nn.Linear(4, 4), [1.0, 2.0], {"inner": {"shift": 1.0}}
            self.settings = SimpleNamespace(factor=3.0, dtype=torch.float32, nested=[SimpleNamespace(steps=[1.0])])
            self.settings.own = self.settings
            self.opaque = SimpleNamespace(lock=threading.Lock(), calls=0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            factor = self.settings.factor * self.settings.nested[0].steps[0]
            return torch.relu(self.lin(x)) * self.scales[1] * factor + self.config["inner"]["shift"]

    model, x = Scaled().eval(), torch.ones(2, 4)
    fused: Any = fuse(model, (x,))
    fused(x)
    model.scales[1] = 5.0
    torch.testing.assert_close(fused(x), model(x))
    model.config["inner"]["shift"] = -3.0
    torch.testing.assert_close(fused(x), model(x))
    model.settings.factor = 4.0
    torch.testing.assert_close(fused(x), model(x))
    model.settings.nested[0].steps[0] = 2.0
    torch.testing.assert_close(fused(x), model(x))
    plans = fused._evt.plans
    model.opaque.calls += 1  # an object that is no data is not compared
    torch.testing.assert_close(fused(x), model(x))
    assert fused._evt.plans is plans


@pytest.mark.parametrize(
    "change",
    [
        lambda kept, y: kept["list"].append(y),
        lambda kept, y: kept["list"].__setitem__(0, y),
        lambda kept, y: kept.update(last=y),
        lambda kept, y: kept.pop("list"),
    ],
)
def test_arguments_that_change_as_the_model_runs(change: Callable[[dict[str, Any], torch.Tensor], Any]) -> None:
    """A graph cannot append to a cache among the arguments, so the model itself runs."""

    class Caching(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, kept: dict[str, Any] | None = None) -> torch.Tensor:
            y = torch.relu(self.lin(x))
            if kept is not None:
                change(kept, y)
            return y

    model, x = Caching().eval(), torch.ones(2, 4)
    fused: Any = fuse(model, (x,))
    for _ in range(2):
        found, wanted = ({"list": [x]} for _ in range(2))
        fused(x, found)
        model(x, wanted)
        torch.testing.assert_close(found, wanted)
    assert "fused" not in fused._evt.answers
    with pytest.raises(evt.ArgumentError, match="list or mapping among its arguments"):
        fuse(model, (x, {"list": [x]}))


_OUTSIDE: dict[str, torch.Tensor] = {}


@pytest.mark.parametrize("shape", [(), (4,)])
@pytest.mark.parametrize("read", [lambda t: t, lambda t: t.sum().item(), lambda t: t.flatten()[0].item() + 1])
@pytest.mark.parametrize(
    "held",
    [
        lambda model: model.tensor,
        lambda model: model.tensors[0],
        lambda model: model.settings.tensor,
        lambda model: _OUTSIDE["tensor"],
    ],
)
def test_tensors_that_are_no_buffers_are_read_again(
    held: Callable[[Any], torch.Tensor], read: Callable[[torch.Tensor], Any], shape: tuple[int, ...]
) -> None:
    """Each call reads the values of tensors that the model holds; tensors that its code makes are constants."""

    class Holding(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin, self.tensor, self.tensors = torch.nn.Linear(4, 4), torch.ones(shape), [torch.ones(shape)]
            self.settings = SimpleNamespace(tensor=torch.ones(shape))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.lin(x)) * torch.tensor(2.0) * read(held(self))

    _OUTSIDE["tensor"] = torch.ones(shape)
    model, x = Holding().eval(), torch.ones(2, 4)
    fused: Any = fuse(model, (x,))
    torch.testing.assert_close(fused(x), model(x))
    held(model).mul_(3)
    torch.testing.assert_close(fused(x), model(x))
    assert "*2" in str(evt.report(fused))
