"""Training: gradients are eager's, forward and backward are fused and reported, losses fall as eager's do."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

import evt
from evt.fx import kernels
from evt.fx.backend import backend
from evt.fx.measure import unfused
from evt.fx.records import RECORDS, ProductReport
from evt.fx.regions import find_regions
from evt.fx.report import Report

from . import training
from .training import TOLERANCE, TOLERANCE_16, Network, Transformer, gradients, images, sentences, worst
from .transformers_models import language_model

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # PyTorch's warning about a future removal
    pytest.mark.usefixtures("fresh_compiler"),
]


@pytest.fixture(autouse=True)
def _gradients(fresh_compiler: None) -> Iterator[None]:
    with torch.enable_grad():
        yield


def compiled(function: Callable[..., Any]) -> Any:
    """Compile by Inductor, with every region that a kernel of an H200 computes."""
    options = {"evt.rule": "always", "evt.devices": ("cpu",)}
    return torch.compile(function, backend=partial(backend, options=options), dynamic=False)


@pytest.fixture
def asked(planned: None, monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """Return the sources that are built, by call."""
    found: list[list[Any]] = []

    def build(sources: Sequence[Any], **others: Any) -> list[Path]:
        found.append(list(sources))
        return [Path("no such library")] * len(sources)

    monkeypatch.setattr(kernels, "build", build)
    return found


def counts(found: Report) -> dict[str, tuple[int, int]]:
    """Return how many products of each graph are fused, and of how many."""
    return {
        graph: (sum(row.fused for row in found.rows if row.graph == graph), count)
        for graph, count in Counter(row.graph for row in found.rows).items()
    }


def formula(row: ProductReport) -> str:
    """Return the statements of a row's program."""
    return "; ".join(line for line in row.formula.splitlines() if not line.startswith(("in ", "out ")))


@pytest.mark.slow
@pytest.mark.usefixtures("h200")
def test_residual_network() -> None:
    """Products compute statistics of batch norms, gradients of filters, and gradients of inputs without a stride."""
    torch.manual_seed(0)
    model = Network().to(memory_format=torch.channels_last)
    eager = copy.deepcopy(model)
    want = gradients(eager, *images())
    assert worst(gradients(model, *images(), compiled(model)), want) < TOLERANCE
    torch.testing.assert_close(dict(model.named_buffers()), dict(eager.named_buffers()), rtol=1e-5, atol=1e-6)
    found = evt.report(model)
    assert counts(found) == {"forward": (7, 7), "backward": (9, 13)}
    assert "\nforward: 7 of 7 products fused\n" in str(found)
    assert "\nbackward: 9 of 13 products fused\n" in str(found)
    assert "<td>backward</td>" in found._repr_html_()
    forward, *_ = found.rows
    assert formula(forward).startswith("v1 = mean[m](acc); v2 = var[m](acc); D = acc; D1 = v1; D2 = rsqrt(v2 + 1e-05)")
    backward = [row for row in found.rows if row.graph == "backward"]
    codes = Counter((row.operation, row.reason[:5]) for row in backward if not row.fused)
    assert codes == {("gemm", "E1014"): 2, ("conv2d_dgrad", "E1018"): 2}
    assert all("a dgrad with a stride" in row.reason for row in backward if row.reason.startswith("E1018"))
    fused = Counter(row.operation for row in backward if row.fused)
    assert fused == {"conv2d_wgrad": 6, "conv2d_dgrad": 3}
    first, *_ = [row for row in backward if row.fused and row.operation == "conv2d_dgrad"]
    assert formula(first).startswith("v1 = where(x0 <= 0, 0, acc); v2 = sum[m](v1)")


@pytest.mark.slow
@pytest.mark.usefixtures("h200")
def test_transformer() -> None:
    """Pre-activations are saved by the product's kernel, and the gradient behind them is its transpose's epilogue."""
    torch.manual_seed(0)
    model = Transformer()
    want = gradients(copy.deepcopy(model), *sentences())
    assert worst(gradients(model, *sentences(), compiled(model)), want) < TOLERANCE
    found = evt.report(model)
    assert counts(found) == {"forward": (5, 5), "backward": (3, 10)}
    saved = "v1 = acc + x0; D = v1*0.5*(erf(v1*0.7071067811865476) + 1); D1 = v1"
    assert saved in map(formula, found.fused)
    behind = "v1 = acc*((erf(x0*0.7071067811865476) + 1)*0.5 + x0*(exp(x0*x0*-0.5)*0.3989422804014327))"
    assert f"{behind}; D = v1; D1 = sum[m](v1)" in map(formula, found.fused)


@pytest.mark.slow
@pytest.mark.usefixtures("h200")
@pytest.mark.parametrize(("dtype", "autocast"), [(torch.float16, True), (torch.bfloat16, False)])
def test_types(dtype: torch.dtype, autocast: bool) -> None:
    """In 16 bits the errors against float64 do not exceed eager's or Inductor's."""
    torch.manual_seed(0)
    model = Transformer(layers=2) if autocast else Transformer(layers=2).to(dtype)
    exact = training.exact_gradients(model, *sentences())

    def step(call: Any, mine: torch.nn.Module) -> float:
        with torch.autocast("cpu", dtype=dtype, enabled=autocast):
            return worst(gradients(mine, *sentences(), call), exact)

    eager, other = copy.deepcopy(model), copy.deepcopy(model)
    least = max(step(eager, eager), step(torch.compile(other, dynamic=False), other))
    torch._dynamo.reset()
    assert step(compiled(model), model) < max(TOLERANCE_16, 1.5 * least)
    assert counts(evt.report(model))["forward"] == (9, 9)


@pytest.mark.slow
@pytest.mark.usefixtures("h200")
@pytest.mark.parametrize(("name", "dropout"), [("gpt2", 0.0), ("llama", 0.0), ("t5", 0.0), ("bert", 0.1)])
def test_language(name: str, dropout: float) -> None:
    """With dropout the masks are Inductor's own. Both steps round in float32: each may err by the tolerance."""
    pytest.importorskip("transformers")
    rates = {
        "bert": ("hidden_dropout_prob", "attention_probs_dropout_prob"),
        "gpt2": ("resid_pdrop", "embd_pdrop", "attn_pdrop"),
        "llama": ("attention_dropout",),
        "t5": ("dropout_rate",),
    }
    model, inputs = language_model(name, **dict.fromkeys(rates[name], dropout))
    model.train()
    results = []
    by = partial(torch.compile, backend="inductor" if dropout else "aot_eager")
    for mine, call in ((copy.deepcopy(model), by), (model, compiled)):
        torch._dynamo.reset()
        function = call(mine)
        torch.manual_seed(1)
        function(**inputs)[0].square().mean().backward()
        known = ((key, each.grad) for key, each in mine.named_parameters())
        results.append({key: each.double() for key, each in known if each is not None})
    assert worst(results[1], results[0]) < 2 * TOLERANCE
    found = counts(evt.report(model))
    assert min(fused for fused, _ in found.values()) > 0


CONVOLUTIONS: dict[str, tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...]]] = {
    "1d": (functional.conv1d, (2, 4, 9), (6, 4, 3)),
    "2d": (partial(functional.conv2d, padding=1), (2, 4, 6, 5), (6, 4, 3, 3)),
    "3d": (functional.conv3d, (2, 4, 5, 4, 5), (6, 4, 3, 3, 3)),
    "dilation": (partial(functional.conv2d, padding=2, dilation=2), (2, 4, 6, 5), (6, 4, 3, 3)),
    "groups": (partial(functional.conv2d, groups=2), (2, 4, 6, 5), (6, 2, 3, 3)),
    "stride": (partial(functional.conv2d, stride=2, padding=1), (2, 4, 6, 5), (6, 4, 3, 3)),
    "stride-3": (partial(functional.conv2d, stride=3), (2, 4, 8, 9), (6, 4, 3, 2)),
    "transposed": (partial(functional.conv_transpose2d, stride=2, output_padding=1), (2, 4, 5, 6), (4, 6, 3, 3)),
    "contiguous": (functional.conv2d, (2, 4, 6, 5), (6, 4, 1, 1)),
}


@pytest.mark.parametrize("bias", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_gradient_of_the_input(name: str, bias: bool) -> None:
    """It is a product, and so is the gradient of the filters; both are split from the gradient of the bias."""
    function, size, filters = CONVOLUTIONS[name]
    torch.manual_seed(0)
    given = [torch.randn(each) for each in (size, filters, filters[1:2] if name == "transposed" else filters[:1])]
    if name not in ("contiguous", "1d"):
        formats = torch.channels_last_3d if name == "3d" else torch.channels_last
        given[:2] = [each.to(memory_format=formats) for each in given[:2]]

    def run(x: torch.Tensor, w: torch.Tensor, *b: torch.Tensor) -> torch.Tensor:
        return function(torch.relu(x), w, *b)

    results = []
    for each in (run, training.fused(run)):
        inputs = [tensor.clone().requires_grad_() for tensor in given[: 3 if bias else 2]]
        y = each(*inputs)
        (y * torch.linspace(-1, 1, y.numel()).view(y.shape)).sum().backward()
        results.append({str(place): tensor.grad.double() for place, tensor in enumerate(inputs)})
    assert worst(results[1], results[0]) < TOLERANCE
    rows = {row.operation: row for record in RECORDS for row in record.rows if row.graph == "backward"}
    kind = f"conv{len(size) - 2}d"
    of_input, of_filters = kind if name == "transposed" else f"{kind}_dgrad", f"{kind}_wgrad"
    assert {*rows} == {of_input, of_filters, *(["convolution_backward"] * bias)}
    assert formula(rows[of_input]) == "D = where(x0 <= 0, 0, acc)"
    assert formula(rows[of_filters]) == "D = acc"
    assert not bias or "E1021" in rows["convolution_backward"].reason


def test_what_a_gradient_is_measured_against() -> None:
    """Without its region it is the operator with the gradient of the input alone, and the operators after it."""

    def run(gradient: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mask = [True, True, False]
        dx, dw, _ = torch.ops.aten.convolution_backward(
            gradient, x, w, [0], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, mask
        )
        return torch.where(x <= 0, 0.0, dx), dw

    torch.manual_seed(0)
    given = [torch.randn(2, 6, 5, 5), torch.randn(2, 4, 5, 5), torch.randn(6, 4, 3, 3)]
    graph = make_fx(run, tracing_mode="fake")(*given).graph
    regions = find_regions(graph).regions
    tensors = dict(zip((node.name for node in graph.nodes), given, strict=False))
    for region, wanted in zip(regions, run(*given), strict=True):
        compute: Any = unfused(region, lambda node: tensors.get(node.name, torch.zeros(())))
        (got,) = compute()
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


class Branches(torch.nn.Module):
    """A path without a stride, and one with it: their gradients of the input are added."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.path = torch.nn.Sequential(
            torch.nn.Conv2d(8, 8, 1), torch.nn.ReLU(), torch.nn.Conv2d(8, 16, 3, 2, 1, bias=False)
        )
        self.shortcut = torch.nn.Conv2d(8, 16, 1, 2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        return (self.path(x) + self.shortcut(x)).mean((2, 3))


@pytest.mark.usefixtures("planned")
def test_what_a_product_without_a_kernel_was_given_goes_to_another() -> None:
    torch.manual_seed(0)
    model = Branches().to(memory_format=torch.channels_last)
    want = gradients(copy.deepcopy(model), *images())
    assert worst(gradients(model, *images(), training.fused(model)), want) < TOLERANCE
    rows = [row for row in evt.report(model).rows if row.operation == "conv2d_dgrad"]
    assert [row.reason[:5] for row in rows] == ["E1018", "E1018", ""]
    assert [formula(row) for row in rows if row.fused] == ["D = where(x0 <= 0, 0, x1 + acc)"]


def test_gradients_of_filters_alone() -> None:
    """Images need no gradient: the gradient of the filters is a region, that of the bias is left."""
    model = torch.nn.Conv2d(3, 4, 3)
    x = torch.randn(2, 3, 8, 8)
    want = gradients(copy.deepcopy(model), x, torch.zeros(2, 6, 6).long())
    assert worst(gradients(model, x, torch.zeros(2, 6, 6).long(), training.fused(model)), want) < TOLERANCE
    assert [row.reason[:5] for row in evt.report(model).rows if row.graph == "backward"] == ["E1021", ""]


class Halves(torch.nn.Module):
    """Two graphs of Dynamo's; the second has the gradients of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU()) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        torch._dynamo.graph_break()
        return self.second(torch.relu(y) * 2)


@pytest.mark.parametrize(
    ("make", "given", "dynamic"),
    [
        pytest.param(Network, images, False, marks=pytest.mark.slow),
        pytest.param(Transformer, sentences, True, marks=pytest.mark.slow),
        (Halves, lambda: (torch.ones(8, 16), torch.zeros(8).long()), False),
    ],
)
def test_prebuild_takes_the_kernels_of_a_training_step(make: Any, given: Any, dynamic: bool, asked: list[Any]) -> None:
    """They are built together, and a step asks for no others; without gradients there are fewer."""
    options = {"evt.rule": "always", "evt.devices": ("cpu",)}
    model, batch = make().to(memory_format=torch.channels_last), given()
    count = evt.prebuild(model, batch[:1], options=options, dynamic=dynamic)
    assert [len(each) for each in asked] == [count]
    assert not RECORDS
    assert all(parameter.grad is None for parameter in model.parameters())
    function = torch.compile(model, backend=partial(backend, options=options), dynamic=dynamic)
    training.loss(function, *batch).backward()
    step = asked[1:]
    assert {source for each in step for source in each} == set(asked[0])
    assert set(counts(evt.report(model))) == {"forward", "backward"}
    with torch.no_grad():
        inference = evt.prebuild(model, batch[:1], options=options, dynamic=dynamic)
    assert 0 < inference < count


@pytest.mark.parametrize("make", [Network, Transformer])
@pytest.mark.parametrize("steps", [12, pytest.param(200, marks=pytest.mark.slow)])
def test_losses_fall_as_those_of_eager(make: Any, steps: int) -> None:
    torch.manual_seed(0)
    model = make()
    batch = images(8, 8) if make is Network else sentences(8)
    want = training.curve(copy.deepcopy(model), batch, steps)
    got = training.curve(model, batch, steps, training.fused(model))
    assert max(abs(x - y) for x, y in zip(got, want, strict=True)) < 1e-2
    assert want[-1] < want[0] / 2
