"""Norms inside the products that read them: recognised forms, kernels beside the products, errors, folded weights."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._inductor import metrics
from torch.fx import Graph, GraphModule

import evt.fx.backend  # registers the backend
from evt.fx import choose, covered, group_norms, norms
from evt.fx.aten import operator_name
from evt.fx.cost_model import norm_gain
from evt.fx.group_norms import apply_by_channels
from evt.fx.moments import join_moments, split_moments
from evt.fx.norms import Candidate, apply_norms, is_aside, restore
from evt.fx.options import read_options
from evt.fx.regions import find_regions
from evt.fx.stand_in import normed
from evt.ir import Reduce
from evt.runtime.folded import Fold, fold_norms, text_of
from tests.fx.compiling import traced

WIDTH = 32


class Rms(nn.Module):
    """An RMS norm as Llama and Gemma write it out; with ``centred`` a layer norm."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.weight = nn.Parameter(torch.rand(WIDTH) + 0.5)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        x = given.float()
        if self.form == "power":
            x = x - x.mean(-1, keepdim=True)
        square = x.pow(2).mean(-1, keepdim=True) + 1e-6
        x = x * (torch.pow(square, -0.5) if self.form == "power" else torch.rsqrt(square))
        if self.form == "gemma":
            return (x * (1.0 + self.weight.float())).type_as(given)
        return self.weight * x.to(given.dtype)


class Block(nn.Module):
    """A block of a transformer; with ``post`` the residual is the norm."""

    def __init__(self, norm: nn.Module, post: bool) -> None:
        super().__init__()
        self.norm, self.up, self.down = norm, nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.post = post

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normalised = self.norm(x)
        result: torch.Tensor = (normalised if self.post else x) + self.down(nn.functional.gelu(self.up(normalised)))
        return result


NORMS: dict[str, Callable[[], nn.Module]] = {
    "layer": lambda: nn.LayerNorm(WIDTH),
    "layer without parameters": lambda: nn.LayerNorm(WIDTH, elementwise_affine=False),
    "rms": lambda: nn.RMSNorm(WIDTH, eps=1e-6),
    **{form: lambda form=form: Rms(form) for form in ("llama", "gemma", "power")},  # type: ignore[misc]
}


def blocks(name: str, count: int, post: bool = False) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Block(NORMS[name](), post) for _ in range(count))).eval()


def applied(made: GraphModule) -> int:
    """Return the number of products that take a norm in."""
    split_moments(made.graph)
    apply_norms(made.graph)
    return len(made.graph.find_nodes(op="call_function", target=normed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", NORMS)
def test_forms_of_norms(name: str, dtype: torch.dtype) -> None:
    made = traced(blocks(name, 2).to(dtype), torch.randn(3, 5, WIDTH, dtype=dtype))
    assert applied(made) == 2


class Readers(nn.Module):
    """A norm with several readers: two products, and something else with ``other``."""

    def __init__(self, other: bool = False, turned: bool = False) -> None:
        super().__init__()
        self.norm, self.q, self.k = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 48, bias=False), nn.Linear(WIDTH, 16)
        self.w = nn.Parameter(torch.randn(WIDTH, 8))
        self.other, self.turned = other, turned

    def forward(self, x: torch.Tensor) -> Any:
        h = self.norm(x)
        return self.q(h), self.k(h), h @ (2 * self.w if self.turned else self.w), h.relu() if self.other else None


def test_all_products_that_read_a_norm_take_it_in() -> None:
    x = torch.randn(6, WIDTH)
    assert applied(traced(Readers(), x)) == 3
    assert applied(traced(Readers(other=True), x)) == 0  # it would be written anyway
    assert applied(traced(Readers(turned=True), x)) == 0  # the graph computes a weight
    assert applied(traced(Readers().half(), x.half())) == 3
    assert applied(traced(Readers().double(), x.double())) == 0


@pytest.mark.parametrize("name", NORMS)
def test_the_product_before_a_norm_gives_its_statistics(name: str) -> None:
    made = traced(blocks(name, 2), torch.randn(4, WIDTH))
    split_moments(made.graph)
    region = find_regions(made.graph).regions[1]
    kinds = {op.kind for op, _ in region.program.request.dag.table if isinstance(op, Reduce)}
    assert kinds == ({"var", "mean"} if name.startswith(("layer", "power")) else {"mean"})


@pytest.mark.parametrize("name", NORMS)
def test_what_no_region_takes_is_put_back(name: str) -> None:
    model, x = blocks(name, 1), torch.randn(4, WIDTH)
    made = traced(model, x)
    before = [str(node.target) for node in made.graph.nodes]
    applied(made)
    restore(made.graph)
    made.recompile()
    if name != "power":  # its variance is one operator now
        assert sorted(str(node.target) for node in made.graph.nodes) == sorted(before)
    with torch.no_grad():
        assert torch.allclose(made(x), model(x), atol=1e-6)


def compiled(model: nn.Module) -> Any:
    always: dict[str, Any] = {"evt.rule": "always", "evt.devices": ("cpu",)}
    return torch.compile(model, backend="evt", options=always, dynamic=False)


@pytest.mark.parametrize(
    ("name", "post"), [("layer", False), pytest.param("rms", False, marks=pytest.mark.slow), ("rms", True)]
)
def test_inductor_generates_no_kernel_for_further_blocks(name: str, post: bool) -> None:
    counts = []
    for count in (1, 2) if post else (1, 3):
        torch._dynamo.reset()
        metrics.reset()
        with torch.no_grad():
            compiled(blocks(name, count, post))(torch.randn(4, WIDTH))
        counts.append(metrics.generated_kernel_count)
    assert counts[0] == counts[1]


def test_graphs_may_be_deeper_than_pythons_stack() -> None:
    graph = Graph()
    node = first = graph.placeholder("x")
    for _ in range(sys.getrecursionlimit()):
        node = graph.call_function(torch.relu, (node,))
    assert is_aside(first) is False  # nothing takes a norm in
    graph.output(node)
    assert is_aside(first) is False


def distance(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize(("name", "dtype"), [("layer", torch.bfloat16), ("rms", torch.float16)], ids=str)
def test_errors_beside_eagers_where_means_are_large(name: str, dtype: torch.dtype) -> None:
    torch._dynamo.reset()
    model = blocks(name, 2).to(dtype)
    run, exact, generator = compiled(model), copy.deepcopy(model).double(), torch.Generator().manual_seed(1)
    ratios = []
    with torch.no_grad():
        for case in range(15):
            for parameter, wide in zip(model.parameters(), exact.parameters(), strict=True):
                drawn = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(drawn / WIDTH**0.5 if parameter.dim() == 2 else 1 + drawn / 5)  # folded again
                wide.copy_(parameter)
            x = torch.randn(8, WIDTH, generator=generator)
            x[:, 3] *= 100 if case % 3 == 0 else 1
            x = (x + (0, 1, 30, 1000)[case % 4]).to(dtype)
            wanted = exact(x.double())
            ratios.append(distance(run(x), wanted) / distance(model(x), wanted))
    assert sorted(ratios)[len(ratios) // 2] <= 1
    assert max(ratios) < 1.5


def test_folded_weights_are_kept_until_a_tensor_changes() -> None:
    weight, gain, shift, bias = nn.Parameter(torch.randn(8, 6)), *(torch.randn(each) for each in (6, 6, 8))

    def folded() -> list[torch.Tensor]:
        tensors = (weight, gain, shift, bias)
        return fold_norms(tensors, text_of([Fold(0, 1, 2, 3, 1, True, 0.0)], tensors), False)

    first = folded()
    assert all(one is two for one, two in zip(first, folded(), strict=True))
    scaled = weight.double() * gain.double()
    assert torch.allclose(first[0].double(), scaled - scaled.mean(1, keepdim=True), atol=1e-6)
    assert torch.allclose(first[1], first[0].sum(1), atol=1e-6)
    assert torch.allclose(first[2], weight @ shift + bias, atol=1e-5)
    before = first[0].clone()
    gain.add_(1)
    second = folded()
    assert second[0] is first[0]  # at the same address
    assert not torch.equal(before, second[0])
    weight.data = torch.zeros(8, 6)
    assert not folded()[0].any()
    with torch.inference_mode():
        gain = torch.ones(6)
        assert folded()[0] is not folded()[0]


class PostNorm(nn.Module):
    """A block of BERT's: the second product's sum reads the norm that the first product reads."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.last = nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> Any:
        h = self.norm(x)
        return self.last(h + self.down(nn.functional.gelu(self.up(h))))


def test_a_sum_computes_the_norm_that_it_reads_again() -> None:
    model, x = PostNorm().eval(), torch.randn(4, WIDTH)
    torch._dynamo.reset()
    run = compiled(model)
    with torch.no_grad():
        torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-4)
    first, second = evt.report(run).rows
    assert "x0*x1" in first.formula  # the correction
    assert "(x0 - x1)" in second.formula
    assert second.formula.count("f32[m, n]") == 2  # x, and the sum


def test_a_norm_is_part_of_all_products_that_read_it_or_of_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default rule skips the narrow product, so the wide one keeps its norm."""

    class Two(nn.Module):
        def __init__(self, narrow: int) -> None:
            super().__init__()
            self.norm, self.wide, self.narrow = nn.LayerNorm(512), nn.Linear(512, 2048), nn.Linear(512, narrow)

        def forward(self, x: torch.Tensor) -> Any:
            h = self.norm(x)
            return nn.functional.gelu(self.wide(h)), nn.functional.gelu(self.narrow(h))

    monkeypatch.setattr(covered, "NORM_ROWS", 1 << 20)
    monkeypatch.setattr(choose, "norm_gain", lambda norm, frozen: (4.0, 0.0))
    found = {}
    for narrow in (7, 2048):
        torch._dynamo.reset()
        x = torch.zeros(16384, 512, dtype=torch.bfloat16)
        with torch.no_grad():
            report = evt.report(Two(narrow).bfloat16(), (x,), arch="sm90")
        found[narrow] = [row.fused and "f32[m]" in row.formula for row in report.rows]
        assert any("E1024" in each for row in report.rows for each in row.behind) is (narrow == 7)
    assert found == {7: [False, False], 2048: [True, True]}


def test_the_gain_of_a_norm_counts_the_folds_of_captured_graphs() -> None:
    def gain(rows: int, frozen: bool, has_mean: bool = False) -> float:
        graph = torch.fx.Graph()
        x, weight, product = (graph.placeholder(name) for name in ("x", "weight", "product"))
        for node, shape in ((x, (rows, 768)), (weight, (3072, 768)), (product, (rows, 3072))):
            node.meta["val"] = torch.empty(shape, dtype=torch.bfloat16, device="meta")
        saved, folding = norm_gain(Candidate(x, x, [product], [weight], has_mean, is_made=True), frozen)
        return saved - folding

    assert gain(512, False) < 0 < gain(512, True) < gain(65536, False) < gain(65536, True)
    assert gain(512, True, has_mean=True) > 0 > gain(65536, True, has_mean=True)


def test_an_option_of_another_kind_is_refused() -> None:
    with pytest.raises(evt.ArgumentError, match=r"evt\.frozen"):
        read_options(None, {"evt.frozen": 1})
    assert read_options(None, {"evt.frozen": True}).frozen


class Residual(nn.Module):
    """A block of a VAE decoder, or of a UNet: two group norms, each with SiLU before a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.GroupNorm(4, 24, eps=1e-6), nn.GroupNorm(4, 40, eps=1e-6)
        self.up, self.down = nn.Conv2d(24, 40, 3, padding=1), nn.Conv2d(40, 24, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.up(nn.functional.silu(self.first(x)))
        result: torch.Tensor = x + self.down(nn.functional.silu(self.second(h)))
        return result


@pytest.mark.parametrize("images", [1, 3])
def test_the_convolution_before_a_group_norm_gives_its_moments(images: int) -> None:
    torch.manual_seed(0)
    model = Residual().eval().to(memory_format=torch.channels_last)
    x = torch.randn(images, 24, 9, 7).to(memory_format=torch.channels_last)
    torch._dynamo.reset()
    run = compiled(model)
    with torch.no_grad():
        torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-4)
    first, second = evt.report(run).rows
    of = "m, n/10" if images == 1 else "m/p, n/10"
    assert f"f32[{of.removeprefix('m, ')}]" in first.formula
    assert f"var[{of.replace('/', '%')}]" in first.formula
    assert "var" not in second.formula
    made = traced(model, x)
    split_moments(made.graph)
    regions = find_regions(made.graph).regions
    assert [sum(isinstance(op, Reduce) for op, _ in each.program.request.dag.table) for each in regions] == [2, 0]


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize(
    ("memory_format", "dtype", "expected"),
    [
        (torch.channels_last, torch.float16, [[3], [2]]),
        (torch.channels_last, torch.float32, [[2, 3]]),
        (torch.contiguous_format, torch.float16, [[2, 3]]),
    ],
)
def test_moments_of_groups_that_no_region_computes_are_made_of_moments_of_channels(
    memory_format: torch.memory_format, dtype: torch.dtype, expected: list[list[int]], copied: bool
) -> None:
    """Decompositions for GPUs copy the image first."""
    norm = nn.GroupNorm(4, 24, eps=1e-6).eval().to(dtype)
    x = (torch.randn(2, 24, 9, 7) + 1000).to(dtype).to(memory_format=memory_format)
    made = traced(nn.Sequential(Copied(), norm) if copied else norm, x)
    split_moments(made.graph)
    join_moments(made.graph)
    made.recompile()
    dims = [node.args[1] for node in made.graph.nodes if operator_name(node) == "var_mean.correction"]
    assert dims == expected
    exact = copy.deepcopy(norm).double()(x.double()).to(dtype)
    torch.testing.assert_close(made(x), exact, rtol=torch.finfo(dtype).eps, atol=2e-3)


class Copied(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.clone(memory_format=torch.contiguous_format)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_group_norms_are_applied_to_images_and_not_to_groups(dtype: torch.dtype) -> None:
    """The operations, their order and so the results stay the same."""
    x = torch.randn(2, 24, 9, 7).to(dtype).to(memory_format=torch.channels_last)
    made = traced(nn.Sequential(Copied(), nn.GroupNorm(4, 24, affine=False)), x)
    before, changed = made(x), [node for node in made.graph.nodes if operator_name(node) == "sub.Tensor"]
    assert [each.meta["val"].shape for each in changed] == [(2, 4, 6, 63)]
    apply_by_channels(made.graph)
    made.graph.eliminate_dead_code()
    made.recompile()
    changed = [node for node in made.graph.nodes if operator_name(node) == "sub.Tensor"]
    assert [each.meta["val"].shape for each in changed] == [x.shape]
    assert torch.equal(made(x), before)


@pytest.mark.parametrize("least", [0, 10**9])
def test_statistics_that_a_convolution_computes_are_copied_for_large_images(
    monkeypatch: pytest.MonkeyPatch, least: int
) -> None:
    """For small images the copies cost more than they save."""
    graphs = list[Graph]()

    def apply(graph: Graph) -> None:
        apply_by_channels(graph)
        graphs.append(graph)

    monkeypatch.setattr(group_norms, "COPIED_ELEMENTS", least)
    monkeypatch.setattr(norms, "apply_by_channels", apply)
    model = nn.Sequential(nn.Conv2d(24, 40, 3, padding=1), Copied(), nn.GroupNorm(4, 40, affine=False)).eval()
    model.to(memory_format=torch.channels_last)
    x = torch.randn(2, 24, 9, 7).to(memory_format=torch.channels_last)
    torch._dynamo.reset()
    with torch.no_grad():
        torch.testing.assert_close(compiled(model)(x), model(x), rtol=1e-4, atol=1e-4)
    copies = [each for each in graphs[-1].nodes if operator_name(each) == "as_strided.default"]
    assert [each.meta["val"].shape for each in copies] == [(2, 40, 1, 1)] * 2 * (least == 0)


def test_the_default_rule_takes_the_moments_of_large_group_norms() -> None:
    """No measurement says that they win for a small image."""
    model = nn.Sequential(nn.Conv2d(128, 128, 3, padding=1), nn.GroupNorm(32, 128), nn.SiLU())
    model.eval().half().to(memory_format=torch.channels_last)
    for side, takes in ((128, True), (16, False)):
        torch._dynamo.reset()
        x = torch.zeros(1, 128, side, side).half().to(memory_format=torch.channels_last)
        with torch.no_grad():
            (row,) = evt.report(model, (x,), arch="sm90").rows
        assert row.fused == takes
        assert ("var[m, n%4]" in row.formula) == takes


def test_the_default_rule_takes_the_moments_of_large_batch_norms_in_training() -> None:
    """No measurement says that they win for groups, and for few elements."""

    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wide, self.grouped, self.small = (nn.Conv2d(64, 64, 1, groups=each, bias=False) for each in (1, 4, 1))
            self.norms = nn.ModuleList(nn.BatchNorm2d(64) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.norms[0](self.wide(x)).relu()
            x = self.norms[1](self.grouped(x)).relu()
            result: torch.Tensor = self.norms[2](self.small(x[..., ::2])).relu()
            return result

    model = Layers().train().to(memory_format=torch.channels_last)
    x = torch.zeros(16, 64, 56, 56).to(memory_format=torch.channels_last)
    torch._dynamo.reset()
    with torch.enable_grad(), torch.autocast("cpu", torch.bfloat16):
        rows = evt.report(model, (x,), arch="sm90").rows
    forward = [row for row in rows if row.graph == "forward"]
    assert ["var[m]" in row.formula for row in forward] == [True, False, False]
    assert "0.9" in forward[0].formula  # of the running statistics


def test_means_of_rows_that_are_no_images_stay() -> None:
    """A product's rows in another shape are no images; a pooled vector is not a reduction of whole rows."""

    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.map = nn.Linear(WIDTH, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.map(x).relu().mean(1)

    model, x = Pooled().eval(), torch.randn(3, 5, WIDTH)
    torch._dynamo.reset()
    run = compiled(model)
    with torch.no_grad():
        torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-4)
    assert "mean" not in evt.report(run).rows[0].formula
