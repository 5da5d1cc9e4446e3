"""evt.report: of fused modules, of compiled models, and of calls that have not been made, also for a target."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

import evt
from evt.fx import kernels
from evt.fx.backend import options_of
from evt.fx.cost_model import Benefit
from evt.fx.kernels import kernel_of
from evt.fx.options import Options

pytestmark = pytest.mark.usefixtures("fresh_compiler")


class Net(torch.nn.Module):
    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(width, 2 * width), torch.nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.nn.functional.gelu(self.first(x)))


class Both(torch.nn.Module):
    """The product of two products: the multiplication is computed with one of them."""

    def forward(self, x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ v) * torch.tanh(x @ w)


def net() -> tuple[Net, torch.Tensor]:
    return Net().half().eval(), torch.randn(64, 256).half()


ALWAYS = {"evt.rule": "always"}
ON_CPU = {**ALWAYS, "evt.devices": ("cpu",)}


def test_a_fused_module_says_what_was_fused() -> None:
    model, x = net()
    fused = evt.fuse(model, (x,))
    found = evt.report(fused)
    assert [(row.node, row.operation, row.fused) for row in found.rows] == [
        ("linear", "linear", True),
        ("linear_1", "linear", True),
    ]
    assert found.rows[0].absorbed == ("gelu",)
    assert "D = gelu(acc + x0)" in str(found)
    assert "calls" not in str(found)
    fused(x)
    fused(x[:3])
    fused.train()(x)
    assert len(evt.report(fused).rows) == 4
    assert len(evt.report(fused, (x,)).rows) == 2
    assert "calls: 2 fused, 1 by the model itself (the model is in training mode)" in str(evt.report(fused))


def test_a_copy_of_a_fused_module_has_the_plan_of_its_example() -> None:
    import copy

    model, x = net()
    assert len(evt.report(copy.deepcopy(evt.fuse(model, (x,)))).rows) == 2


@pytest.mark.parametrize(
    "make", [lambda m, x: m, lambda m, x: torch.compile(m, backend="evt"), lambda m, x: evt.fuse(m, (x,))]
)
def test_a_target_is_asked_for(make: Any) -> None:
    model, x = net()
    x = torch.randn(4096, 256).half()
    found = evt.report(make(model, x), (x,), arch="h100")
    assert found.target == "sm90"
    first, second = found.rows
    assert first.fused
    assert first.gain
    assert first.kernel.startswith("gemm-own-3x ")
    assert "E1016" not in str(found)
    assert "on sm90" in str(found).splitlines()[0]
    assert second.formula.endswith("D = acc + x0")


def test_equal_layers_are_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six layers of two shapes are twelve products with two kernels, which the estimate and the report share."""
    planned: list[object] = []
    monkeypatch.setattr(
        kernels, "kernel_of", lambda *given, **named: planned.append(given) or kernel_of(*given, **named)
    )
    model = torch.nn.Sequential(*(Net() for _ in range(6))).half().eval()
    found = evt.report(model, (torch.randn(4096, 256).half(),), arch="h100")
    assert len(found.rows) == 12
    assert sum(row.kernel != "" for row in found.rows) >= 6
    assert 1 <= len(planned) <= 4


def test_other_targets_and_rules() -> None:
    model, x = net()
    (first, _) = evt.report(model, (x,), arch="sm80").rows
    assert first.reason.startswith("E1022")
    assert "erf(" in first.formula
    wrapper = torch.compile(model, backend="evt", options=ALWAYS)
    found = evt.report(wrapper, {"x": x}, arch="sm80")
    assert [row.kernel.split()[0] for row in found.rows] == ["evt-2x", "stock-2x"]


def test_a_training_step_on_a_target() -> None:
    model, x = net()
    with torch.enable_grad():
        found = evt.report(model, (x,), arch="sm90")
    graphs = [row.graph for row in found.rows]
    assert graphs == ["forward"] * 2 + ["backward"] * 3
    assert "backward: " in str(found)


def test_on_the_cpu_the_formulas_are_shown_and_the_reason_once() -> None:
    model, x = net()
    with torch.no_grad():
        found = evt.report(model, (x,))
    assert not found.fused
    assert all(row.formula for row in found.rows)
    assert str(found).count("E1016") == 1
    assert 'evt.report(model, inputs, arch="sm90")' in str(found)


def test_wrappers_have_their_own_rows() -> None:
    model, x = net()
    called, other, waiting = (
        torch.compile(model, backend="evt", options=options) for options in (None, ON_CPU, {"evt.rule": "measure"})
    )
    assert "pass the inputs of a call" in str(evt.report(called))
    called(x)
    assert [row.fused for row in evt.report(called).rows] == [False, False]
    assert evt.report(other).rows == evt.report(waiting).rows == ()
    other(x)
    assert [row.fused for row in evt.report(other).rows] == [True, True]
    assert [row.fused for row in evt.report(called).rows] == [False, False]
    assert evt.report(waiting).rows == ()
    assert len(evt.report(model).rows) == 4


def test_reports_do_not_use_up_what_is_compiled_of_a_model() -> None:
    model, x = net()
    for rows in range(2, 12):
        assert len(evt.report(model, (x[:rows],), arch="sm90").rows) == 2
    wrapper = torch.compile(model, backend="evt", options=ON_CPU)
    wrapper(x)
    assert len(evt.report(wrapper).fused) == 2


def test_the_options_of_a_wrapper() -> None:
    model = Net()
    assert options_of(torch.compile(model, backend="evt")) == Options("estimate", ("cuda",), {})
    assert options_of(torch.compile(model, backend="evt", options=ON_CPU)) == Options("always", ("cpu",), {})
    made = options_of(torch.compile(model, backend="evt", mode="reduce-overhead"))
    assert made is not None
    assert made.patches["triton.cudagraphs"] is True
    assert options_of(torch.compile(model, backend="eager")) is None
    assert options_of(model) is None


def test_what_is_fused_elsewhere_is_not_listed_as_not_fused() -> None:
    given = tuple(torch.randn(256, 256).half() for _ in range(3))
    fused = evt.fuse(Both(), given)
    found = evt.report(fused)
    absorbed = {name for row in found.rows for name in row.absorbed}
    assert {"relu", "tanh", "mul"} <= absorbed
    assert not [each for row in found.rows for each in row.behind if each.split()[1].rstrip(":") in absorbed]
    for text in (str(found), str(evt.fx.fuse.fusion(fused))):
        assert "not fused" not in text
    on_target = evt.report(torch.compile(Both(), backend="evt", options=ALWAYS), given, arch="sm90")
    assert "not fused" not in str(on_target)
    assert len(on_target.fused) == 2


def broken(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    first = torch.relu(a @ b)
    torch._dynamo.graph_break()
    return torch.tanh(first @ b)


def test_compiled_functions_have_the_rows_of_their_lines() -> None:
    model, x = net()
    a = torch.randn(16, 16)

    def step(x: torch.Tensor) -> torch.Tensor:
        return model(x).relu()

    def other(x: torch.Tensor) -> torch.Tensor:
        return x @ x

    calls = (step, (x,)), (broken, (a, a)), (partial(other), (a,)), (Both().forward, (a, a, a)), (model.forward, (x,))
    compiled = [(torch.compile(function, backend="evt", options=ON_CPU), given) for function, given in calls]
    for function, given in compiled:
        function(*given)
    assert [len(evt.report(function).rows) for function, _ in compiled] == [2, 2, 1, 2, 4]
    assert [len(evt.report(function, given, arch="sm90").rows) for function, given in compiled] == [2, 2, 1, 2, 2]
    assert "D = relu(acc)" in str(evt.report(broken))


@pytest.mark.parametrize("model", [3, torch.matmul, Net])
def test_other_objects_are_refused(model: Any) -> None:
    with pytest.raises(evt.ArgumentError, match=r"E0607.*; expected a torch.nn.Module, or a Python function"):
        evt.report(model)


def test_arguments_of_other_kinds() -> None:
    model, x = net()
    for given in ({"arch": "sm90"}, {"inputs": 3}):
        with pytest.raises(evt.ArgumentError, match="E0607"):
            evt.report(model, **given)
    with pytest.raises(evt.TargetError, match="E0501"):
        evt.report(model, (x,), arch="nope")


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (torch.nn.ReLU, (5, 16)),
        (lambda: torch.nn.LayerNorm(16), (5, 16)),
        (lambda: torch.nn.GRUCell(16, 8), (5, 16)),
    ],
    ids=["relu", "layer norm", "gru cell"],
)
def test_a_fused_graph_without_products_is_not_called_uncompiled(make: Any, shape: tuple[int, ...]) -> None:
    x = torch.zeros(shape)
    fused = evt.fuse(make().eval(), (x,))
    said = "the graph has no matrix product"
    assert str(evt.report(fused)).startswith(said)
    with torch.no_grad():
        fused(x)
    assert str(evt.report(fused)).startswith(said)
    assert str(evt.report(fused)).endswith("calls: 1 by the model itself (nothing of it is fused)")
    assert said in evt.report(fused)._repr_html_()


def test_a_loss_near_zero_has_no_sign() -> None:
    assert str(Benefit(saved=-0.01, lost=2.2, bytes=-4)) == "saves 0.00 MB, about 0.0 us; loses about 2.2 us"
