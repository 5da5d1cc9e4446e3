"""``rule="lossless"``: regions whose bits differ from eager's are not fused, through evt.fuse and torch.compile.

On the CPU the reference stands in for kernels. It sums exactly, so products of small whole numbers have eager's bits.
It rounds the square in a cube, as PyTorch's CUDA kernels do, and PyTorch's CPU kernel of f16 does not.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

import evt
from evt.fx import lossless
from evt.fx.aten import base_name
from evt.fx.build import RegionProgram
from evt.fx.capture import capture
from evt.fx.cost_model import Benefit
from evt.fx.fuse import fuse, fusion
from evt.fx.kernels import bound_example
from evt.fx.lossless import Comparison, Proof, cancelling
from evt.fx.module import dispatch_of
from evt.fx.operands import readable
from evt.fx.plan import plan
from evt.fx.regions import find_regions
from evt.fx.watch import Watch

from .fusing import Function, formulas

HALF = torch.float16


def whole(*shape: int) -> torch.Tensor:
    return torch.randint(-2, 3, shape).to(HALF)


class Block(torch.nn.Module):
    """Two layers with a residual; ``cubes``: bits differ from PyTorch's CPU kernel."""

    def __init__(self, cubes: bool = False) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(64, 96), torch.nn.Linear(96, 64)
        self.cubes = cubes
        for parameter in self.parameters():
            parameter.data = torch.randint(-2, 3, parameter.shape).float()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = functional.relu(self.up(x))
        y = self.down(h) + x
        return y, ((self.up(x) * 0.3) ** 3 if self.cubes else self.up(x) * 3).sum(-1)


def model(cubes: bool = False) -> torch.nn.Module:
    torch.manual_seed(0)
    return Block(cubes).to(HALF).eval()


def compiled(module: torch.nn.Module, *_: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(module, backend="evt", options={"evt.rule": "lossless"})


def fused(module: torch.nn.Module, *inputs: torch.Tensor) -> Any:
    return fuse(module, inputs, rule="lossless")


#: The rows of inputs: each number is planned.
FEW, MANY = (16, 16, 5, 1, 17), (16, 16, 5, 1, *range(2, 18))


@pytest.mark.parametrize("counts", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
@pytest.mark.parametrize("make", [fused, compiled])
def test_every_bit_of_all_inputs_is_eagers(make: Callable[..., Any], counts: tuple[int, ...]) -> None:
    module = model()
    made = make(module, whole(16, 64))
    with torch.no_grad():
        for count in counts:
            x = whole(count, 64)
            for got, want in zip(made(x), module(x), strict=True):
                assert torch.equal(got, want)
    rows = evt.report(made).rows
    assert {row.proof for row in rows if row.fused} >= {"all bits of 1024 elements are eager's"}
    assert all(row.fused for row in rows)
    left = [each for row in rows for each in row.behind]
    assert left
    assert all(each.startswith("E1023 sum") for each in left)  # the order of the sum is evt's


@pytest.mark.parametrize("make", [fused, compiled])
def test_what_differs_is_not_fused(make: Callable[..., Any]) -> None:
    module, x = model(cubes=True), whole(512, 64)
    made = make(module, x)
    with torch.no_grad():
        for got, want in zip(made(x), module(x), strict=True):
            assert torch.equal(got, want)
    rows = evt.report(made).rows
    (refused,) = [row for row in rows if not row.fused]
    assert "E1023" in refused.reason
    assert "% of 49152 elements have other bits than eager's" in refused.reason
    assert refused.formula.splitlines()[-1] == "D = (f16(acc + x0)*0.3)**3"
    assert len(rows) == 3
    with torch.no_grad():
        assert not torch.equal(fuse(module, (x,), numerics="eager")(x)[1], module(x)[1])


@pytest.mark.parametrize("make", [fused, compiled])
def test_linear_of_strided_batches_rounds_before_its_bias(make: Callable[..., Any]) -> None:
    """PyTorch calls addmm for contiguous rows, and else mm and ``add_``: vision models transpose before attention."""
    layer = torch.nn.Linear(64, 96).half().eval()
    layer.weight.data = whole(96, 64)
    layer.bias.data = torch.randn(96).half()

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: torch.Tensor) -> Any:
            return torch.relu(self.layer(x)), torch.relu(self.layer(x.transpose(0, 1)))

    module, x = Model(), whole(8, 4, 64)
    made = make(module, x)
    with torch.no_grad():
        for got, want in zip(made(x), module(x), strict=True):
            assert torch.equal(got, want)
    rows = evt.report(made).rows
    assert all(row.fused for row in rows)
    assert sorted(row.formula.splitlines()[-1] for row in rows) == [
        "D = relu(f16(acc + x0))",
        "D = relu(f16(f16(acc) + x0))",
    ]


def test_rows_that_no_stride_walks_are_copied() -> None:
    """Else each index of their outer dimension would be a launch."""
    run = Function(lambda x, w, c: functional.linear(x.transpose(0, 1), w) + c.transpose(0, 1)).eval()
    inputs = whole(8, 4, 64), whole(96, 64), whole(8, 4, 96)
    made = fuse(run, inputs, rule="lossless")
    assert torch.equal(made(*inputs), run(*inputs))
    (region,) = fusion(made).regions
    assert not bound_example(region).offsets


class Traced(torch.nn.Module):
    """A model that takes other operators when PyTorch traces it, as attention in transformers does."""

    def __init__(self) -> None:
        super().__init__()
        self.block = model()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, _ = self.block(x)
        return y * 0.3 * 0.7 if torch.compiler.is_compiling() else y * (0.3 * 0.7)


def test_a_capture_with_other_bits_is_not_fused() -> None:
    module, x = Traced().eval(), whole(16, 64)
    made = fuse(module, (x,), rule="lossless")
    with torch.no_grad():
        assert torch.equal(made(x), module(x))
        assert not torch.equal(fuse(module, (x,), numerics="eager")(x), module(x))
    rows = evt.report(made).rows
    assert not any(row.fused for row in rows)
    assert all("PyTorch's capture changes the model: " in row.reason for row in rows)


def test_a_model_that_differs_from_itself_is_fused() -> None:
    calls: list[int] = []

    class Counted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = model()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            calls.append(0)
            return self.block(x)[0] + len(calls)

    assert any(row.fused for row in evt.report(fuse(Counted().eval(), (whole(16, 64),), rule="lossless")).rows)


def test_the_comparison_undoes_what_the_model_writes() -> None:
    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = model()
            self.calls: torch.Tensor
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return self.block(x)[0] + self.calls.to(HALF)

    module, x = Counting().eval(), whole(16, 64)
    made = fuse(module, (x,), rule="lossless")
    with torch.no_grad():
        first, second = made(x), made(x)
    assert torch.equal(second - first, torch.ones_like(first))
    assert module.calls == 2
    assert any(row.fused for row in evt.report(made).rows)


def test_an_example_of_zeros_proves_nothing() -> None:
    """The first call compares on its own tensors."""
    module = model(cubes=True)
    made = fuse(module, (torch.zeros(512, 64).to(HALF),), rule="lossless")
    x = whole(512, 64)
    with torch.no_grad():
        assert torch.equal(made(x)[1], module(x)[1])
    assert any("E1023" in row.reason for row in evt.report(made).rows)
    before = list(fusion(made, (x,)).outcomes)
    with torch.no_grad():
        assert torch.equal(made(x.flip(0))[1], module(x.flip(0))[1])
    assert list(fusion(made, (x,)).outcomes) == before  # one comparison for a kind of inputs


def test_one_region_is_refused_and_another_kept() -> None:

    def sums(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> tuple[torch.Tensor, ...]:
        cubes = (a @ b * 0.3) ** 3
        return cubes, cubes + c @ d

    run, inputs = Function(sums).eval(), (whole(256, 8), whole(8, 256), whole(256, 8), whole(8, 256))
    made = fuse(run, inputs, rule="lossless")
    assert formulas(fusion(made)) == ["D = x0 + f16(acc)"]
    assert len(fusion(fuse(run, inputs, numerics="eager")).regions) == 2
    for got, want in zip(made(*inputs), run(*inputs), strict=True):
        assert torch.equal(got, want)


def test_batch_norm_is_compared_as_one_operator() -> None:
    torch.manual_seed(1)
    module = torch.nn.Sequential(torch.nn.Conv2d(8, 16, 3), torch.nn.BatchNorm2d(16), torch.nn.ReLU()).eval()
    torch.nn.init.uniform_(module[1].running_mean)
    module = module.to(HALF).to(memory_format=torch.channels_last)
    x = whole(2, 8, 20, 20).to(memory_format=torch.channels_last)
    made = fuse(module, (x,), rule="lossless")
    with torch.no_grad():
        assert torch.equal(made(x), module(x))
    (row,) = evt.report(made).rows
    assert "fma(" in row.formula
    assert "of 10368 elements" in row.said  # all 16 channels, from the results of the batch norm


def test_operands_without_contiguous_dimension() -> None:
    """Kernels read copies; the comparison, too."""
    run = Function(lambda x, w: torch.relu(x[:, ::2] @ w)).eval()
    inputs = whole(16, 32), whole(16, 24)
    made = fuse(run, inputs, rule="lossless")
    assert torch.equal(made(*inputs), run(*inputs))
    assert formulas(fusion(made)) == ["D = relu(f16(acc))"]


def test_copies_pickles_and_settings() -> None:
    module, x = model(), whole(16, 64)
    made = fuse(module, (x,), rule="lossless")
    for each in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        with torch.no_grad():
            assert torch.equal(each(x)[0], module(x)[0])
        assert "all bits" in str(evt.report(each))
    with pytest.raises(evt.ArgumentError, match='needs numerics="eager"'):
        fuse(module, (x,), rule="lossless", numerics="precise")
    with pytest.raises(evt.ArgumentError, match="there is no rule lossles"):
        fuse(module, (x,), rule="lossles")


def test_gradients_are_pytorchs() -> None:
    module, x = model(), whole(16, 64)
    made = compiled(module)
    made(x)[0].float().sum().backward()
    got = module.up.weight.grad
    module.up.weight.grad = None
    module(x)[0].float().sum().backward()
    assert torch.equal(got, module.up.weight.grad)
    told = "calls: 1 by the model itself (gradients are recorded)"
    assert str(evt.report(made)) == f'rule="lossless" has compared no graph with eager PyTorch\n{told}'
    with torch.no_grad():
        made(x)
    assert str(evt.report(made)).splitlines()[:2] == ["3 of 3 products fused, with 3 operators", f"{told}, 1 fused"]


PRODUCTS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "mm": (lambda a, b: torch.relu(a @ b), (whole(6, 9), whole(9, 8))),
    "transposed": (lambda a, b: torch.relu(a @ b.t()), (whole(6, 8), whole(10, 8))),
    "rows": (lambda a, b: torch.relu(functional.linear(a.transpose(0, 1), b)), (whole(6, 3, 8), whole(10, 8))),
    "strided": (lambda a, b: torch.relu(a[:, ::2] @ b.t()[::2, ::2]), (whole(6, 16), whole(20, 16))),
    "batches": (lambda a, b: torch.relu(a @ b), (whole(3, 6, 8), whole(3, 8, 4))),
    "convolution": (
        lambda a, b: torch.relu(functional.conv2d(a, b, padding=1)),
        (whole(2, 5, 6, 6), whole(4, 5, 3, 3)),
    ),
    "groups": (lambda a, b: torch.relu(functional.conv2d(a, b, groups=2)), (whole(2, 8, 6, 6), whole(4, 4, 3, 3))),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_operands_that_cancel(name: str) -> None:
    """Their exact products are 0, with the layouts of the call's tensors; eager computes the region from them."""
    run, inputs = PRODUCTS[name]
    captured = capture(Function(run).eval(), inputs, {}, None, True)
    comparison = Comparison(captured, inputs, {})
    graph = captured.module.graph
    fused = readable(graph, find_regions(graph, settings={"numerics": "eager"}).regions[0])
    product = fused.region.product
    every = Every(captured.whole)
    result = every.run(*inputs)[0]
    read = comparison.reader(every.seen)
    operands = cancelling(product, read)
    assert operands is not None
    for node, value in operands.items():
        assert (value.shape, value.stride(), value.dtype) == (read[node].shape, read[node].stride(), read[node].dtype)
        assert value.abs().max() > 1000
    again = comparison.again(fused, read, {node: value.double() for node, value in operands.items()})
    assert not again[product.node].any()
    assert again[fused.region.nodes[-1]].shape == result.shape
    assert torch.equal(comparison.again(fused, read, {})[fused.region.nodes[-1]], result)


@pytest.mark.parametrize("name", PRODUCTS)
def test_times_are_of_the_same_results(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A region with eager's bits is timed once against the operators of the captured graph."""
    run, inputs = PRODUCTS[name]
    captured = capture(Function(run).eval(), inputs, {}, None, True)
    comparison, timed = Comparison(captured, inputs, {}), []

    def compared(fused: Callable[[], Any], unfused: Callable[[], Any], device: torch.device) -> Benefit:
        timed.append((fused(), unfused()))
        return Benefit(2.0, 1.0, measured=True)

    monkeypatch.setattr(lossless, "compared", compared)
    graph = captured.module.graph
    fused = readable(graph, find_regions(graph, settings={"numerics": "eager"}).regions[0])
    every = Every(captured.whole)
    (result,) = every.run(*inputs)
    assert all(comparison.timed(fused, every.seen, [result]).wins for _ in range(2))
    (((got,), seen),) = timed
    assert torch.equal(got, result)
    assert got.stride() == result.stride()
    assert torch.equal(seen[comparison.known[fused.results[0].node]], result)


@pytest.mark.parametrize("make", [fused, compiled])
def test_a_region_that_eager_computes_faster_is_not_fused(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def compare(_: Comparison, fused: RegionProgram, __: object) -> Proof:
        unfused = 1.0 if fused.region.product.node.name == "linear" else 3.0
        return Proof(1, 0, benefit=Benefit(unfused, 2.0, measured=True))

    monkeypatch.setattr(Comparison, "_compare", compare)
    module, x = model(), whole(16, 64)
    made = make(module, x)
    with torch.no_grad():
        assert torch.equal(made(x)[0], module(x)[0])
        assert torch.equal(made(x)[0], module(x)[0])
    left, *kept = evt.report(made).rows
    assert "E1017" in left.reason
    assert "measured: 2.0 us fused, 1.0 us unfused" in left.reason
    assert [row.proof for row in kept] == [
        "all bits of 1 elements are eager's; measured: 2.0 us fused, 3.0 us unfused"
    ] * 2


def test_a_batch_norm_that_no_region_computes_stays_whole() -> None:
    torch.manual_seed(1)
    norms = [torch.nn.BatchNorm2d(8), torch.nn.BatchNorm2d(16)]
    module = torch.nn.Sequential(
        norms[0], torch.nn.Conv2d(8, 16, 3), norms[1], torch.nn.ReLU(), torch.nn.BatchNorm2d(16, affine=False)
    )
    for each in norms:
        torch.nn.init.uniform_(each.running_mean)
    module, x = module.half().eval(), whole(2, 8, 20, 20)
    for settings, count in (({"rule": "lossless"}, 3), ({"numerics": "eager"}, 1), ({}, 1)):  # random weights differ
        made = fuse(module, (x,), **settings)
        with torch.no_grad():
            torch.testing.assert_close(made(x), module(x), atol=4e-3, rtol=1e-3)
        names = [base_name(node) for node in dispatch_of(made).example_plan().graph.graph.nodes]
        assert names.count("_native_batch_norm_legit_no_training") == count
        assert not {"addcmul", "sub", "mul"} & {*names}


class Every(torch.fx.Interpreter):
    """An interpreter that keeps all values."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.seen: dict[torch.fx.Node, Any] = {}

    def run_node(self, n: torch.fx.Node) -> Any:
        self.seen[n] = super().run_node(n)
        return self.seen[n]


def test_no_comparison_without_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Comparison, "prove", lambda *_: pytest.fail("nothing is to be compared"))
    module, x = model(), whole(16, 64)
    assert plan(module, Watch(module), [x], {}).fusion.regions
