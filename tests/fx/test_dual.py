"""Two products of one operand, or the halves of one product, in one kernel, as in gated units."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import evt
import evt.fx.backend  # registers the backend
from evt.fx.aten import base_name
from evt.fx.dual import pair_products, part
from evt.fx.halves import divide, join
from evt.fx.regions import find_regions
from tests.fx.compiling import traced
from tests.fx.costs import rows_of
from tests.fx.training import fused

OPTIONS = {"evt.rule": "always", "evt.devices": ("cpu",)}


class Gated(nn.Module):
    """A gated unit of transformers: ``down(activation(gate(x)) * up(x))`` after a norm, with a residual."""

    def __init__(self, width: int, hidden: int, activation: Any, norm: bool = True, bias: bool = False) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width, eps=1e-6) if norm else nn.Identity()
        self.gate, self.up = (nn.Linear(width, hidden, bias) for _ in range(2))
        self.down, self.activation = nn.Linear(hidden, width, bias), activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        result: torch.Tensor = x + self.down(self.activation(self.gate(h)) * self.up(h))
        return result


class Halved(Gated):
    """A gated unit whose gate and other factor are the halves of one product's columns."""

    def __init__(self, width: int, hidden: int, activation: Any, norm: bool = True, bias: bool = False) -> None:
        super().__init__(width, hidden, activation, norm, bias)
        self.both = nn.Linear(width, 2 * hidden, bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        up, gate = self.both(self.norm(x)).chunk(2, -1)
        result: torch.Tensor = x + self.down(self.activation(gate) * up)
        return result


def compiled(model: nn.Module, *inputs: torch.Tensor) -> tuple[torch.Tensor, str]:
    torch._dynamo.reset()
    made = torch.compile(model, backend="evt", options=OPTIONS)
    with torch.no_grad():
        found = made(*inputs)
    return found, str(evt.report(made))


@pytest.mark.parametrize(
    ("unit", "activation", "norm", "bias"),
    [
        (Gated, nn.functional.silu, True, False),
        (Gated, nn.GELU(approximate="tanh"), False, True),
        (Halved, nn.functional.silu, False, False),
        (Halved, nn.GELU(), False, True),
    ],
)
def test_gated_units(unit: type[Gated], activation: Any, norm: bool, bias: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(unit(64, 96, activation, norm, bias) for _ in range(2))).bfloat16().eval()
    x = torch.randn(2, 5, 64, dtype=torch.bfloat16)
    found, report = compiled(model, x)
    assert report.count("matmul(A, ") == 2
    with torch.no_grad():
        eager = model(x)
        want = model.double()(x.double())
    errors = [(each.double() - want).norm() / want.norm() for each in (found, eager)]
    assert errors[0] <= 1.1 * errors[1]


@pytest.mark.parametrize("norm", ["none", "rms", "layer"])
@pytest.mark.parametrize("biases", [(False, False), (True, False), (False, True), (True, True)])
def test_biases_beside_norms(norm: str, biases: tuple[bool, bool]) -> None:
    torch.manual_seed(0)
    unit = Gated(32, 24, torch.tanh, norm=False)
    unit.gate, unit.up = (nn.Linear(32, 24, bias) for bias in biases)
    norms = {"none": nn.Identity, "rms": nn.RMSNorm, "layer": nn.LayerNorm}
    model = nn.Sequential(norms[norm](32), unit).bfloat16()
    x = of(5, 32)
    with torch.no_grad():
        found, want = fused(model)(x), copy.deepcopy(model).double()(x.double())
    torch.testing.assert_close(found.double(), want, rtol=0.02, atol=0.02)


def product_pair(first: torch.Tensor, second: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.relu(first @ v.mT) * (second @ w.mT)


def biased_pair(
    a: torch.Tensor, v: torch.Tensor, w: torch.Tensor, one: torch.Tensor, other: torch.Tensor, beta: float = 1
) -> torch.Tensor:
    return torch.relu(torch.addmm(one, a, v.mT)) * torch.addmm(other, a, w.mT, beta=beta)


def of(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype)


torch.manual_seed(0)
A, W = of(16, 32), of(24, 32)
GRAPHS: dict[str, tuple[Any, ...]] = {
    "pair": (product_pair, (A, A, W, of(24, 32)), 1),
    "other operands": (product_pair, (A, of(16, 32), W, of(24, 32)), 0),
    "other rows of one tensor": (lambda a, v, w: product_pair(a[:16], a[16:], v, w), (of(32, 32), W, of(24, 32)), 0),
    "turned operand": (lambda a, v, w: product_pair(a, a.mT, v, w), (of(32, 32), W, of(24, 32)), 0),
    "f32": (product_pair, tuple(each.float() for each in (A, A, W, W + 1)), 0),
    "odd columns": (product_pair, (A, A, of(20, 32), of(20, 32)), 0),
    "along n": (lambda a, v, w: torch.relu(a @ v) * (a @ w), (A, of(32, 24), of(32, 24)), 0),
    "two sums": (lambda a, v, w: a @ v.mT + a @ w.mT, (A, W, of(24, 32)), 0),
    "three": (lambda a, v, w, u: (a @ v.mT) * (a @ w.mT) * (a @ u.mT), (A, W, of(24, 32), of(24, 32)), 1),
    "biases": (biased_pair, (A, W, of(24, 32), of(24), of(24)), 1),
    "one bias": (lambda a, v, w, b: torch.relu(torch.addmm(b, a, v.mT)) * (a @ w.mT), (A, W, of(24, 32), of(24)), 1),
    "the other bias": (lambda a, v, w, b: (a @ v.mT) * torch.addmm(b, a, w.mT), (A, W, of(24, 32), of(24)), 1),
    "half of a bias": (partial(biased_pair, beta=0.5), (A, W, of(24, 32), of(24), of(24)), 0),
    "a bias for each row": (biased_pair, (A, W, of(24, 32), of(24), of(16, 1)), 0),
    "a residual": (biased_pair, (A, W, of(24, 32), of(24), of(16, 24)), 0),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_pairs(name: str) -> None:
    function, inputs, count = GRAPHS[name]

    class Model(nn.Module):
        def forward(self, *given: torch.Tensor) -> torch.Tensor:
            return function(*given)

    assert len(pair_products(traced(Model(), *inputs).graph, ("cpu",))) == count
    if count:
        found, _ = compiled(Model(), *inputs)
        want = function(*(each.double() for each in inputs))
        torch.testing.assert_close(found.double(), want, rtol=0.03, atol=0.3)


def halves(a: torch.Tensor, v: torch.Tensor, columns: slice = slice(0, 16), rows: int = 16) -> torch.Tensor:
    """Return the gated halves of a product; with other columns, a gate that is not the first half."""
    y = (a @ v.mT).view(-1, rows, 32)
    return torch.relu(y[..., columns]) * y[..., 16:]


V = of(32, 32)
HALVES: dict[str, tuple[Any, int, int]] = {
    "slices": (halves, 1, 1),
    "chunks": (lambda a, v: torch.mul(*(a @ v.mT).chunk(2, -1)), 1, 1),
    "sizes": (lambda a, v: torch.mul(*(a @ v.mT).split([16, 16], -1)), 1, 1),
    "two products": (lambda a, v: halves(a, v) + torch.mul(*(a @ v.mT).chunk(2, -1)), 2, 2),
    "other columns": (lambda a, v: halves(a, v, slice(8, 24)), 0, 0),
    "steps": (lambda a, v: (lambda y: y[:, ::2] * y[:, 1::2])(a @ v.mT), 0, 0),
    "rows": (lambda a, v: torch.mul(*(a @ v.mT).chunk(2)), 0, 0),
    "rows as columns": (lambda a, v: torch.mul(*(a @ v.mT).view(-1, 16).chunk(2)), 0, 0),
    "thirds": (lambda a, v: torch.mul(*(a @ v.mT)[:, :24].chunk(2, -1)), 0, 0),
    "turned": (lambda a, v: torch.mul(*(a @ v.mT).view(4, -1, 32).mT.chunk(2, 1)), 0, 0),
    "whole": (lambda a, v: (lambda y: y[:, 8:24] + torch.mul(*y.chunk(2, -1)))(a @ v.mT), 0, 0),
    "one half": (lambda a, v: torch.relu((a @ v.mT)[:, :16]), 0, 0),
    "sum": (lambda a, v: torch.add(*(a @ v.mT).chunk(2, -1)), 0, 0),
    "heads": (lambda a, v: (lambda x, y: x @ (y.mT * 0.01))(*(a @ v.mT).chunk(2, -1)), 0, 0),
    "odd columns": (lambda a, v: torch.mul(*(a @ v[:24].mT).chunk(2, -1)), 1, 0),
    "bias": (lambda a, v: torch.mul(*torch.addmm(v[0], a, v.mT).chunk(2, -1)), 1, 1),
    "strided bias": (lambda a, v: torch.mul(*torch.addmm(v[:, 3], a, v.mT).view(4, 4, 32).chunk(2, -1)), 1, 1),
    "odd columns and a bias": (lambda a, v: torch.mul(*torch.addmm(v[0, :24], a, v[:24].mT).chunk(2, -1)), 1, 0),
    "one number": (lambda a, v: torch.mul(*torch.addmm(v[0, :1], a, v.mT).chunk(2, -1)), 0, 0),
    "residual": (lambda a, v: torch.mul(*torch.addmm(v[:16], a, v.mT).chunk(2, -1)), 0, 0),
    "half of a bias": (lambda a, v: torch.mul(*torch.addmm(v[0], a, v.mT, beta=0.5).chunk(2, -1)), 0, 0),
}


def products_of(graph: torch.fx.Graph) -> list[str]:
    return sorted(name for each in graph.nodes if (name := base_name(each)) in ("mm", "addmm"))


@pytest.mark.parametrize("name", HALVES)
def test_halves(name: str) -> None:
    """Halves that no kernel computes together become one product again. The results do not change."""
    function, divided, paired = HALVES[name]

    class Model(nn.Module):
        def forward(self, *given: torch.Tensor) -> torch.Tensor:
            return function(*given)

    made = traced(Model(), A, V)
    want, products = made(A, V), products_of(made.graph)
    for take, undone, count in ((divide, join, divided), (pair_products, part, paired)):
        seconds = take(made.graph, ("cpu",))
        assert len(seconds) == count
        for each in seconds:
            undone(each)
        assert products_of(made.graph) == products
        made.graph.lint()
        made.recompile()
        assert torch.equal(made(A, V), want)
    found, _ = compiled(Model(), A, V)
    torch.testing.assert_close(found.double(), function(A.double(), V.double()), rtol=0.03, atol=0.3)


UNITS: dict[str, tuple[Any, int]] = {
    "columns": (lambda y: y, 1),
    "rows": (lambda y: y.mT, 0),
    "functions": (torch.relu, 0),
}


@pytest.mark.parametrize("name", UNITS)
def test_gated_linear_units(name: str) -> None:
    """``glu`` is one operator of PyTorch's."""
    of_products, count = UNITS[name]

    class Model(nn.Module):
        def forward(self, a: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return nn.functional.glu(of_products(nn.functional.linear(a, v, v[0]).view(2, 8, 32)))

    graph = traced(Model(), A, V).graph
    assert len(pair_products(graph, ("cpu",))) == count
    # A unit that no product's kernel can compute stays one operator.
    assert len(graph.find_nodes(op="call_function", target=torch.ops.aten.glu.default)) == (name == "functions")
    found, _ = compiled(Model(), A, V)
    torch.testing.assert_close(found.double(), Model()(A.double(), V.double()), rtol=0.03, atol=0.3)


@pytest.mark.parametrize("gated", [torch.mul, torch.add])
def test_halves_of_symbolic_rows(gated: Any) -> None:
    """Views of other rows and columns have symbolic sizes among their operands."""

    def function(a: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        y = (a @ v.mT).view(a.shape[0] // 2, -1, 32)
        heads = (a @ v.mT).view(a.shape[0] // 2, -1, 4, 8).transpose(1, 2)[:, :, : a.shape[0] // 8]
        return gated(*y.chunk(2, -1)).sum(1) + heads.sum((1, 2)).repeat(1, 2)

    made = fused(function, dynamic=True)
    with torch.no_grad():
        for rows in (16, 24):
            a = of(rows, 32)
            torch.testing.assert_close(made(a, V), function(a, V), rtol=0.05, atol=2.0)


def test_gradients_keep_both_products() -> None:
    torch.manual_seed(0)
    model = Gated(32, 48, nn.functional.silu).bfloat16()
    torch._dynamo.reset()
    made = torch.compile(model, backend="evt", options=OPTIONS)
    x = torch.randn(7, 32, dtype=torch.bfloat16)
    made(x).float().sum().backward()
    assert "matmul(A, " not in str(evt.report(made))
    want = model.gate.weight.grad.clone()
    model.zero_grad()
    model(x).float().sum().backward()
    torch.testing.assert_close(model.gate.weight.grad, want, rtol=0.05, atol=0.05)


def test_a_gate_with_another_reader() -> None:
    def function(a: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> Any:
        gate = a @ v.mT
        return torch.relu(gate) * (a @ w.mT), gate.float().amax()

    class Model(nn.Module):
        def forward(self, *given: torch.Tensor) -> Any:
            return function(*given)

    inputs = A, W, of(24, 32)
    found, _ = compiled(Model(), *inputs)
    for each, want in zip(found, function(*(one.double() for one in inputs)), strict=True):
        torch.testing.assert_close(each.double(), want.double(), rtol=0.03, atol=0.3)


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize(("rows", "count", "bias"), [(1, 1, False), (1, 2, True), (2048, 1, True), (2048, 2, False)])
def test_the_estimate_takes_a_gated_unit(rows: int, count: int, bias: bool) -> None:
    """One kernel of 2 x 5,632 columns reads the rows once, and neither product is written."""
    given = torch.zeros(rows, 2048).half(), *(torch.zeros(2 // count * 5632, 2048).half() for _ in range(count))

    def gated(a: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        products = [nn.functional.linear(a, each, each[:, 0] if bias else None) for each in weights]
        gate, up = products if len(products) == 2 else products[0].chunk(2, -1)
        return nn.functional.silu(gate) * up

    (row,) = rows_of(gated, *given)
    assert row.fused
    assert "matmul(A, " in row.formula


def test_a_gpu_plans_a_gated_unit_with_its_layouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights are contiguous along k, as nn.Linear has them; a program alone would mean rows of n."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    with FakeTensorMode() as mode:
        given = (mode.from_tensor(torch.empty(64, 64).half()) for _ in range(3))
        graph = make_fx(lambda a, v, w: torch.relu(a @ v.mT) * (a @ w.mT))(*given).graph
        for node in graph.nodes:
            if "val" in node.meta:
                node.meta["val"].fake_device = torch.device("cuda", 0)
        assert len(pair_products(graph, ("cuda",))) == 1
        (region,) = find_regions(graph, ("cuda",)).regions
    assert "matmul(A, " in str(region.program)
