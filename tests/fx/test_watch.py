"""Changes of a model's attributes: a fused module sees them at its next call."""

from __future__ import annotations

import threading
from array import array
from collections import Counter, OrderedDict, UserList, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
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


@dataclass(slots=True)
class _Slotted:
    scale: float = 2.0
    inner: list[float] = field(default_factory=lambda: [2.0])


class _PartlySlotted(_Slotted):
    def __init__(self) -> None:
        super().__init__()
        self.other = 2.0


class _Pair(NamedTuple):
    a: list[float]
    b: int


def _set(key: Any) -> Callable[[Any], None]:
    def change(value: Any) -> None:
        value[key] = 5

    return change


#: By name: a value of an attribute, a change of its contents, and the reads of a number from it.
CONTENTS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Sequence[Callable[[Any], Any]]]] = {
    "array": (
        lambda: np.array([2.0, np.nan]),
        _set(0),
        (lambda v: v[0], lambda v: float(v[0]), lambda v: v.tolist()[0], lambda v: torch.from_numpy(v)[0].float()),
    ),
    "array of objects": (lambda: np.array([[2.0]], dtype=object), _set((0, 0)), (lambda v: v[0, 0],)),
    "list of arrays": (lambda: [np.array([2.0])], lambda v: _set(0)(v[0]), (lambda v: float(v[0][0]),)),
    "object with an array": (
        lambda: SimpleNamespace(at=np.array([2.0]), of=np.float64(1.0), places=range(2)),
        lambda v: _set(0)(v.at),
        (lambda v: float(v.at[0]),),
    ),
    "ordered": (lambda: OrderedDict(a=2.0), _set("a"), (lambda v: v["a"],)),
    "default": (lambda: defaultdict(float, a=2.0), _set("a"), (lambda v: v["a"],)),
    "counter": (lambda: Counter(a=2), lambda v: v.update(a=4), (lambda v: v["a"],)),
    "deque": (lambda: deque([2.0], 3), lambda v: v.appendleft(5.0), (lambda v: v[0],)),
    "bytes": (lambda: bytearray(b"\2"), _set(0), (lambda v: v[0],)),
    "packed": (lambda: array("d", [2.0]), _set(0), (lambda v: v[0],)),
    "named tuple": (lambda: _Pair([2.0], 1), lambda v: _set(0)(v.a), (lambda v: v.a[0],)),
    "user's list": (lambda: UserList([2.0]), _set(0), (lambda v: v[0],)),
    "slots": (_Slotted, lambda v: setattr(v, "scale", 5.0), (lambda v: v.scale,)),
    "list in a slot": (_Slotted, lambda v: _set(0)(v.inner), (lambda v: v.inner[0],)),
    "slots and others": (_PartlySlotted, lambda v: setattr(v, "scale", 5.0), (lambda v: v.scale * v.other,)),
    "others and slots": (_PartlySlotted, lambda v: setattr(v, "other", 5.0), (lambda v: v.scale * v.other,)),
}


@pytest.mark.parametrize(("kind", "read"), [(kind, read) for kind, (_, _, reads) in CONTENTS.items() for read in reads])
def test_contents_that_change_in_place_are_seen(kind: str, read: Callable[[Any], Any]) -> None:
    make, change, _ = CONTENTS[kind]

    class Reading(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin, self.value = torch.nn.Linear(4, 4), make()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.lin(x)) * read(self.value)

    model, x = Reading().eval(), torch.ones(2, 4)
    fused: Any = fuse(model, (x,))
    before, plans = fused(x), fused._evt.plans
    torch.testing.assert_close(fused(x), model(x))
    assert fused._evt.plans is plans  # nothing has changed
    change(model.value)
    torch.testing.assert_close(fused(x), model(x))
    assert not torch.equal(fused(x), before)
    assert fused._evt.answers.keys() == {"fused"}


@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize(
    "read",
    [
        *(int, float, bool, complex, lambda t: f"{t.squeeze():.1f}", lambda t: float(str(t).strip("tensor([.])"))),
        *(lambda t: [1, 2, 3, 4][t.long()], lambda t: len(range(t.int())), lambda t: 2.0 in t),
        *(lambda t: t.is_nonzero(), lambda t: torch.equal(t, torch.full_like(t, 2)), lambda t: 1 if t == 2 else 3),
        *(lambda t: t.numpy().sum(), lambda t: torch.allclose(t, torch.full_like(t, 2)), torch.Tensor.__array__),
    ],
)
def test_numbers_of_tensors_that_decide_about_code_are_refused(read: Callable[[Any], Any], shape: Any) -> None:
    """A graph cannot follow these numbers. PyTorch would keep the numbers of the capture."""

    class Deciding(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin, self.outside = torch.nn.Linear(4, 4), torch.full(shape, 2.0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.lin(x)) * hash(str(read(self.outside)))

    model, x = Deciding().eval(), torch.ones(2, 4)
    model(x)
    with pytest.raises(evt.ArgumentError, match="E1020"):
        fuse(model, (x,))
    assert model.outside == 2


def test_long_lists_of_tensors_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Listing(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin, self.many = torch.nn.Linear(4, 4), torch.ones(300)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.lin(x)) * self.many.tolist()[7]

    def patched(tensor: torch.Tensor) -> Any:
        return torch._C.TensorBase.tolist(tensor)

    for own in (None, patched):
        if own is not None:
            monkeypatch.setattr(torch.Tensor, "tolist", own)
        with pytest.raises(evt.ArgumentError, match="it makes a list of 300 elements of a tensor"):
            fuse(Listing().eval(), (torch.ones(2, 4),))
        assert vars(torch.Tensor).get("tolist") is own


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
@pytest.mark.parametrize(
    "read",
    [
        lambda t: t,
        lambda t: t.sum().item(),
        lambda t: t.flatten()[0].item() + 1,
        lambda t: t.flatten().tolist()[0],
        lambda t: t.tolist()[3] if t.dim() else t.tolist(),
        lambda t: t.expand(2, 4).tolist()[1][2],
        lambda t: t.detach().tolist()[0] if t.dim() else t.detach().tolist(),
        lambda t: t.item() if not t.dim() else t[0].item(),
        lambda t: t.to(torch.float64).item() if not t.dim() else t.double()[1].item(),
        lambda t: round(t.item()) if not t.dim() else t.max().item(),
    ],
)
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
