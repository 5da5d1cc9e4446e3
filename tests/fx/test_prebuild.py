"""evt.prebuild: the kernels that a compiled model needs, built before its first call."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import evt
from evt.compilation import KernelSource
from evt.errors import ArgumentError
from evt.fx import kernels
from evt.fx.backend import backend
from evt.fx.records import RECORDS
from tests.support.entries import put

from .compiling import ALWAYS, Net, compiled, inputs, seen_on_a_gpu

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # PyTorch's warning about a future removal
    pytest.mark.usefixtures("fresh_compiler"),
]


@pytest.fixture
def model() -> Net:
    torch.manual_seed(0)
    return Net().half().eval()


def test_prebuild_collects_the_kernels_of_all_graphs(model: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = seen_on_a_gpu(monkeypatch)

    class Broken(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = model, torch.nn.Linear(16, 24).half()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.first(x)
            torch._dynamo.graph_break()
            return torch.relu(self.second(y))

    both = Broken().eval()
    count = evt.prebuild(both, (inputs(),), options=ALWAYS)
    assert [len(each) for each in asked] == [count]
    assert not RECORDS
    compiled(both)(inputs())
    assert {source for each in asked[1:] for source in each} == set(asked[0])


@pytest.mark.parametrize(
    ("how", "called"),
    [
        pytest.param(how, called, marks=() if called == (how in ("itself", "a part in place")) else pytest.mark.slow)
        for how in ("itself", "a part", "in place", "a part in place")
        for called in (False, True)
    ],
)
def test_prebuild_collects_the_kernels_of_compiled_parts(
    how: str, called: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph break inside a part does not hide the part's kernels, whether the part was compiled before or not."""
    asked = seen_on_a_gpu(monkeypatch)

    class Broken(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(16, 32), torch.nn.Linear(32, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.relu(self.first(x))
            torch._dynamo.graph_break()
            return torch.tanh(self.second(y))

    broken: Any = Broken().half().eval()
    count = evt.prebuild(broken, (inputs(),), options=ALWAYS)
    assert count > 1
    if "in place" in how:
        broken.compile(backend="evt", options=ALWAYS)
    else:
        broken = torch.compile(broken, backend="evt", options=ALWAYS)
    whole = torch.nn.Sequential(broken) if "part" in how else broken
    kept = dict(broken.__dict__), dict(whole._modules)
    if called:
        with torch.no_grad():
            whole(inputs())
    assert evt.prebuild(whole, (inputs(),), options=ALWAYS) == count
    assert asked[-1] == asked[0]
    assert (dict(broken.__dict__), dict(whole._modules)) == kept


@pytest.mark.parametrize("dynamic", [pytest.param(False, marks=pytest.mark.slow), True])
def test_prebuild_for_static_and_dynamic_shapes(model: Net, monkeypatch: pytest.MonkeyPatch, dynamic: bool) -> None:
    """PyTorch may restart a compilation by an internal exception, for example for numbers computed from sizes."""

    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = torch.nn.Conv2d(16, 32, 1, bias=False), torch.nn.BatchNorm2d(32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.norm(self.conv(x)))

    asked = seen_on_a_gpu(monkeypatch)
    x = torch.randn(4, 16, 6, 6).half().contiguous(memory_format=torch.channels_last)
    net = Scaled().eval().half().to(memory_format=torch.channels_last)
    count = evt.prebuild(net, (x,), options=ALWAYS, dynamic=dynamic)
    assert count > 0
    assert [len(each) for each in asked] == [count]
    function = torch.compile(net, backend=partial(backend, options=ALWAYS), dynamic=dynamic)
    function(x)
    assert set(asked[1]) == set(asked[0])


def test_prebuild_says_why_there_are_no_kernels(model: Net) -> None:
    with pytest.warns(evt.NoKernelWarning, match="no product of the model gets a kernel:\n.*E1016"):
        assert evt.prebuild(model, (inputs(),)) == 0


def test_prebuild_raises_what_compiling_does(model: Net) -> None:
    with pytest.raises(Exception, match="there is no rule `fastest`"):
        evt.prebuild(model, (inputs(),), options={"evt.rule": "fastest"})


@pytest.mark.parametrize(("model", "given"), [(3, ()), (Net(), inputs()), (Net(), None)])
def test_prebuild_takes_a_model_and_its_inputs(model: Any, given: Any) -> None:
    with pytest.raises(ArgumentError, match="E0607"):
        evt.prebuild(model, given)


@pytest.mark.parametrize("name", ["arch", "backend", "disable", "dynamics", "rule", "shapes"])
def test_prebuild_names_an_unknown_argument(model: Net, name: str) -> None:
    with pytest.raises(ArgumentError, match=rf"E0602.*`evt.prebuild` has no argument `{name}`"):
        evt.prebuild(model, (inputs(),), **{name: True})


@pytest.mark.parametrize("name", ["dynamic", "fullgraph", "mode", "options", "pack"])
def test_prebuild_refuses_arguments_of_other_kinds(model: Net, name: str) -> None:
    with pytest.raises(ArgumentError, match=f"E0607.*`{name}` is "):
        evt.prebuild(model, (inputs(),), **{name: 5})


def test_prebuild_packs_the_kernels_of_the_model(model: Net, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen_on_a_gpu(monkeypatch)
    monkeypatch.setenv("EVT_CACHE_DIR", str(tmp_path / "cache"))
    tmp_path.chmod(0o700)
    built: list[Path] = []

    def build(sources: list[KernelSource], **_: Any) -> list[Path]:
        built[:] = [put(evt.compilation.Cache(), source) for source in sources]
        return built

    monkeypatch.setattr(kernels, "build", build)
    monkeypatch.setattr("evt.compilation.pack.build", build)
    put(evt.compilation.Cache())  # another program's kernel
    count = evt.prebuild(model, (inputs(),), options=ALWAYS, pack=tmp_path / "model.pack")
    found = evt.compilation.read_pack(tmp_path / "model.pack", evt.compilation.Cache(tmp_path / "fleet"))
    assert len(found) == count == len(built) > 0
    assert {each.outcome for each in found} == {"imported"}
    with pytest.raises(evt.ArgumentError, match="E0607"):
        evt.prebuild(model, (inputs(),), options=ALWAYS, pack=3)
