"""The result of evt.fuse stands in for the model: names, modes, changes, copies, other calls, graphs."""

from __future__ import annotations

import copy
import inspect
import logging
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

import evt
from evt.diagnostics import Diagnostic
from evt.fx.capture import frozen
from evt.fx.fuse import fuse, fusion, graph
from evt.fx.module import dispatch_of

from .fusing import Function, compare

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # torch's own


class Net(torch.nn.Module):
    """A convolution with a batch norm, and a product that scales by an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3)
        self.norm = torch.nn.BatchNorm2d(8)
        self.last = torch.nn.Linear(8, 5)
        torch.nn.init.uniform_(self.norm.running_var, 0.5, 2)

    def forward(self, x: torch.Tensor, *, scale: float = 1.0, bias: torch.Tensor | None = None) -> dict[str, Any]:
        y = functional.relu(self.norm(self.conv(x))).mean((2, 3))
        z = self.last(y) * scale
        return {"y": y, "z": z if bias is None else z + bias}


X = (2, 3, 6, 7)


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def pair(*shape: int) -> tuple[Net, Any, torch.Tensor]:
    x = torch.randn(shape or X)
    model = Net().eval()
    return model, fuse(model, (x,)), x


def answers(fused: Any) -> dict[str, int]:
    dispatch = dispatch_of(fused)
    assert dispatch is not None
    return dict(dispatch.answers)


def agree(model: Any, fused: Any, *args: Any, **keywords: Any) -> None:
    wanted, found = model(*args, **keywords), fused(*args, **keywords)
    assert wanted.keys() == found.keys()
    compare(tuple(wanted.values()), tuple(found.values()), model.last.weight.dtype)


def test_names_are_the_models() -> None:
    model, fused, _ = pair()
    assert [*fused.state_dict()] == [*model.state_dict()]
    assert dict(fused.named_parameters()).keys() == dict(model.named_parameters()).keys()
    assert all(x is y for x, y in zip(fused.parameters(), model.parameters(), strict=True))
    assert fused.conv is model.conv
    assert isinstance(fused, Net)
    assert inspect.signature(fused.forward) == inspect.signature(model.forward)
    assert "Conv2d" in repr(fused)
    fused.added = torch.nn.Parameter(torch.ones(1))
    assert "added" in dict(model.named_parameters())
    fused.note = 3  # type: ignore[assignment]
    assert model.note == 3
    del fused.note
    assert not hasattr(model, "note")


CHANGES: dict[str, Callable[[Any], Any]] = {
    "in place": lambda s: s.norm.running_mean.add_(0.7),
    "load": lambda s: s.load_state_dict({name: value * 1.5 for name, value in s.state_dict().items()}),
    "assign": lambda s: s.load_state_dict({k: v * 1.5 for k, v in s.state_dict().items()}, assign=True),
    "replaced": lambda s: setattr(s.norm, "weight", torch.nn.Parameter(torch.rand(8))),
    "data": lambda s: setattr(s.norm.weight, "data", torch.rand(8)),
    "attribute": lambda s: setattr(s.norm, "eps", 0.5),
    "submodule": lambda s: setattr(s, "norm", torch.nn.Identity().eval()),
    "filters": lambda s: s.conv.weight.mul_(2),
    "types": lambda s: s.double().float(),
}


#: Changes that are made to the fused module, which shares its submodules with the model.
OF_FUSED = ("load", "assign", "submodule", "types")
CHANGED = [
    pytest.param(of, change, marks=() if (of == "fused") == (change in OF_FUSED) else pytest.mark.slow)
    for of in ("model", "fused")
    for change in CHANGES
]


@pytest.mark.parametrize(("of", "change"), CHANGED)
def test_changes_are_seen(of: str, change: str) -> None:
    model, fused, x = pair()
    agree(model, fused, x)
    for _ in range(2):
        CHANGES[change](model if of == "model" else fused)
        agree(model, fused, x)
    assert answers(fused) == {"fused": 3}


def test_an_optimizer_step_is_seen() -> None:
    model, fused, x = pair()
    fused(x)
    with torch.enable_grad():
        optimizer = torch.optim.SGD(fused.train().parameters(), 0.1)
        fused(x)["z"].sum().backward()
        optimizer.step()
    agree(model, fused.eval(), x)
    assert answers(fused) == {"fused": 2, "the model is in training mode": 1}


def test_modes_and_gradients() -> None:
    model, fused, x = pair()
    assert fused.train() is fused
    assert (fused.training, model.training, model.norm.training) == (True, True, True)
    fused(x)
    assert int(model.norm.num_batches_tracked) == 1
    assert fused.eval() is fused
    assert (fused.training, model.norm.training) == (False, False)
    agree(model, fused, x)
    with torch.enable_grad():
        assert fused(x)["z"].requires_grad
        model.requires_grad_(False)
        assert fused(x)["z"].grad_fn is None
        assert fused(x.clone().requires_grad_())["z"].requires_grad
    assert answers(fused) == {"the model is in training mode": 1, "gradients are recorded": 2, "fused": 2}


def test_calls_of_other_kinds() -> None:
    model, fused, x = pair()
    for given in (x[:1], x.transpose(2, 3), x[..., ::2], x[:, :1].expand(X), torch.randn(5, 3, 9, 4)):
        agree(model, fused, given)
    agree(model, fused, x=x)
    agree(model, fused, x, scale=0.5)
    agree(model, fused, bias=torch.ones(5), x=x)
    for dtype in (torch.bfloat16, torch.float32):
        agree(model, fused.to(dtype), x.to(dtype))
    assert answers(fused).keys() == {"fused"}
    with pytest.raises(RuntimeError, match="channels"):
        fused(x[:, :2])


@pytest.mark.parametrize("route", ["nonsense", "gemm-own-3y", "", "OWN"])
def test_an_unknown_route_is_refused(route: str) -> None:
    with pytest.raises(evt.TargetError, match="E0501"):
        fuse(torch.nn.Linear(4, 4), (torch.ones(3, 4),), route=route)


def test_what_cannot_be_captured_runs_the_model() -> None:
    def run(x: torch.Tensor, w: torch.Tensor, decide: bool = False) -> torch.Tensor:
        return functional.relu(x @ w) + (1 if decide and x.sum() > 0 else 0)

    class Deciding(torch.nn.Module):
        forward = staticmethod(run)

    x, w = torch.ones(3, 4), torch.ones(4, 5)
    fused = fuse(Deciding().eval(), (x, w))
    assert torch.equal(fused(x, w, True), run(x, w, True))
    assert torch.equal(fused(-x, w, True), run(-x, w, True))
    assert torch.equal(fused(-x, w), run(-x, w))
    assert sorted(answers(fused).values()) == [1, 2]
    with pytest.raises(evt.ArgumentError, match="E1020"):
        fuse(Deciding().eval(), (x, w, True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted = torch.nn.Sequential(torch.jit.script(torch.nn.Linear(4, 5)))
    with pytest.raises(evt.ArgumentError, match="is TorchScript"):
        fuse(scripted, (x,))


def test_kinds_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evt.fx.dispatch.MOST_PLANS", 2)
    model, fused, x = pair()
    for count in (2, 1, 3, 4, 3):
        agree(model, fused, x[:1].expand(count, -1, -1, -1).contiguous())
    assert answers(fused) == {"fused": 2, "it was called with more than 2 kinds of inputs": 3}


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, lambda each: pickle.loads(pickle.dumps(each))])
def test_copies(copied: Callable[[Any], Any]) -> None:
    model, fused, x = pair()
    other = copied(fused)
    agree(model, other, x)
    assert answers(other) == {"fused": 1}
    assert str(fusion(other)) == str(fusion(fused))
    assert (other.conv is model.conv) == (copied is copy.copy)
    other.norm.bias.add_(1)
    agree(other, fused if copied is copy.copy else other, x)


def test_hooks() -> None:
    _, fused, x = pair()
    seen: list[str] = []
    outer = fused.register_forward_hook(lambda *_: seen.append("outer"))
    fused(x)
    inner = fused.conv.register_forward_hook(lambda *_: seen.append("inner"))
    fused(x)
    inner.remove()
    outer.remove()
    fused(x)
    assert seen == ["outer", "inner", "outer"]
    assert answers(fused) == {"fused": 2, "a module within has hooks": 1}


def test_buffers_are_written() -> None:
    class Counting(torch.nn.Module):
        step: torch.Tensor
        cache: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.lin = torch.nn.Linear(4, 4)
            self.register_buffer("step", torch.zeros(()))
            self.register_buffer("cache", torch.zeros(3, 2, 4))

        def forward(self, x: torch.Tensor, place: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            self.step.add_(1)
            self.cache.index_copy_(0, place, torch.relu(self.lin(x))[None])
            return self.lin(x) + self.step, self.cache[1:]

    model = Counting().eval()
    eager, x = copy.deepcopy(model), torch.randn(2, 4)
    fused: Any = fuse(model, (x, torch.tensor([0])))
    assert int(model.step) == 0
    assert "index_copy_.default(b_cache" in graph(fused).code
    for count in range(1, 4):
        given = x * count, torch.tensor([count - 1])
        got, view = fused(*given)
        compare(eager(*given), (got, view))
        assert int(model.step) == count
        assert view.data_ptr() == model.cache[1].data_ptr()
    compare(eager.cache, model.cache)
    assert answers(fused) == {"fused": 3}


def test_a_call_that_the_model_refuses(caplog: pytest.LogCaptureFixture) -> None:
    """The call raises the exception of the model; PyTorch logs no warning about the capture."""
    model = torch.nn.Linear(4, 4).eval()
    fused: Any = fuse(model, (torch.ones(2, 4),))
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        fused(torch.ones(2, 5))
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


def test_a_call_that_no_graph_computes(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    """The model runs where a branch depends on data; PyTorch prints no part of a graph, and logs no warning."""

    class Branching(torch.nn.Linear):
        def forward(self, x: torch.Tensor, branches: bool = False) -> torch.Tensor:
            y = super().forward(x)
            return y * 2 if branches and y.sum() > 0 else y

    model, x = Branching(4, 4).eval(), torch.ones(2, 4)
    fused: Any = fuse(model, (x,))
    with torch.no_grad():
        torch.testing.assert_close(fused(x, True), model(x, True))
    with pytest.raises(evt.ArgumentError, match="E1020"):
        fuse(model, (x, True))
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []
    assert tuple(capfd.readouterr()) == ("", "")


def test_graphs_inside() -> None:
    class Branches(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = torch.nn.Linear(4, 5), torch.nn.Linear(4, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, lambda x: self.a(x).relu(), lambda x: self.b(x).tanh(), (x,))

    model, x = Branches().eval(), torch.rand(3, 4)
    fused = fuse(model, (x,))
    assert len(fusion(fused).regions) == 2
    compare((model(x), model(-x)), (fused(x), fused(-x)))


def test_export() -> None:
    model, fused, x = pair()
    exported = torch.export.export(fused, (x,))
    assert "torch.ops.evt.run" in exported.graph_module.code
    assert exported.state_dict.keys() == model.state_dict().keys()
    agree(model, exported.module(), x)
    assert "evt.run" in graph(fused).code
    other = torch.randn(4, 3, 5, 5)
    assert graph(fused, (other,)) is not graph(fused)
    assert len(fusion(fused, (other,)).regions) == len(fusion(fused).regions)


def test_export_of_many_sizes() -> None:
    run = Function(lambda x, w: functional.relu(x @ w)).eval()
    shapes = ({0: torch.export.Dim("rows", min=2, max=64)}, None)
    w = torch.randn(4, 5)
    fused = fuse(run, (torch.randn(3, 4), w), dynamic_shapes=(shapes,))
    for rows in (3, 9, 64):
        compare(run(torch.ones(rows, 4), w), fused(torch.ones(rows, 4), w))
    dispatch = dispatch_of(fused)
    assert dispatch is not None
    assert len({id(each) for each in dispatch.plans.values()}) == 1
    exported = torch.export.export(fused, (torch.randn(3, 4), w), dynamic_shapes=(shapes,))
    assert "torch.ops.evt.run" in exported.graph_module.code
    compare(run(torch.ones(7, 4), w), exported.module()(torch.ones(7, 4), w))


def test_other_transforms_run_the_model() -> None:
    model, fused, x = pair()
    compare(model(x[:1])["z"], torch.vmap(fused)(x[:1, None])["z"][0])
    compile_ = torch.compile(fused, backend="eager", fullgraph=True)
    compare(model(x)["z"], compile_(x)["z"])
    changed = {"last.weight": model.last.weight * 2}
    compare(
        torch.func.functional_call(model, changed, (x,))["z"], torch.func.functional_call(fused, changed, (x,))["z"]
    )
    layers = torch.nn.Sequential(torch.nn.Linear(7, 8), torch.nn.ReLU()).eval()
    made = fuse(layers, (x,))
    for root in (made, torch.nn.Sequential(made)):
        compare(layers(x), torch.fx.symbolic_trace(root)(x))
    with torch.inference_mode():
        agree(model, fused, x)


def test_tensors_without_versions() -> None:
    with torch.inference_mode():
        model, fused, x = pair()
        agree(model, fused, x)
        model.norm.running_mean.add_(1)
        agree(model, fused, x)
    assert answers(fused) == {"fused": 2}


def test_autocast() -> None:
    model, fused, x = pair()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        wanted, found = model(x)["z"], fused(x)["z"]
    assert wanted.dtype == found.dtype == torch.bfloat16
    compare(wanted, found)
    agree(model, fused, x)


def test_operands_that_no_kernel_reads_are_copied() -> None:
    run = Function(lambda x, w: functional.relu(x[:, ::2] @ w[::2, ::3])).eval()
    x, w = torch.randn(4, 10), torch.randn(10, 18)
    fused = fuse(run, (x, w))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compare(run(x, w), fused(x, w))
    assert answers(fused) == {"fused": 1}


def test_memory_that_is_shared_with_what_is_written() -> None:
    def run(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return functional.relu(y @ w)

    x, y, w = torch.randn(3, 4), torch.randn(3, 4), torch.randn(4, 5)
    fused = fuse(Function(run).eval(), (x, y, w))
    compare(run(x.clone(), y, w), fused(x.clone(), y, w))
    mine, its = x.clone(), x.clone()
    compare(run(mine, mine, w), fused(its, its, w))
    # PyTorch fills expanded tensors, but copies nothing to them
    filling = Function(lambda x, w: functional.relu(x @ w) + x.fill_(2).sum()).eval()
    row = torch.randn(4)
    compare(filling(row.clone().expand(3, 4), w), fuse(filling, (x, w))(row.expand(3, 4), w))
    assert torch.equal(row, torch.full((4,), 2.0))
    assert answers(fused) == {"fused": 1, "the model writes to memory that several tensors or elements share": 1}


@pytest.mark.usefixtures("planned")
def test_strides_that_no_kernel_takes_are_left() -> None:
    """Products of int8 need contiguous columns of B."""
    run = Function(lambda a, b: functional.relu(torch._int_mm(a, b))).eval()
    a, b = (torch.randint(-8, 8, (64, 64)).to(torch.int8) for _ in range(2))
    fused = fuse(run, (a, b.t()))
    assert len(fusion(fused).regions) == 1
    assert [each.code for each in fusion(fused, (a, b)).reasons] == ["E1018"]
    for given in (b.t(), b, b.t()):
        assert torch.equal(fused(a, given), run(a, given))
    assert answers(fused) == {"fused": 2, "nothing of it is fused": 1}


def test_a_kernel_that_fails_leaves_the_call_to_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model, fused, x = pair()
    agree(model, fused, x)

    def fail(*_: Any) -> Any:
        raise evt.LaunchError(Diagnostic("E0803", "it fails"))

    (plan,) = fused._evt.plans.values()
    monkeypatch.setattr(plan.graph, "forward", fail)
    with pytest.warns(evt.NoKernelWarning, match="it fails"):
        agree(model, fused, x)
    agree(model, fused, x)
    assert answers(fused) == {"fused": 1, "a kernel does not run: it fails": 2}


def test_packages_take_the_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A package has other operators, so the operators that evt.fuse put into a graph are not in it."""
    seen: list[Any] = []
    monkeypatch.setattr("evt.fx.package.check_standard_library", lambda: None)
    monkeypatch.setattr("evt.fx.package._compile", lambda exported, *_: seen.append(exported))
    model, fused, x = pair()
    evt.package(fused, (x,), tmp_path / "model")
    assert "evt.run" not in seen[0].graph_module.code
    agree(model, seen[0].module(), x)


def test_packages_update_buffers() -> None:
    class Counting(torch.nn.Module):
        step: torch.Tensor
        cache: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("step", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.step.add_(1)
            return x + self.step

    made = frozen(Counting().eval(), (torch.zeros(2),))
    assert [float(made(torch.zeros(2))[0]) for _ in range(3)] == [1, 2, 3]
