"""Norms inside the products that read them: recognised forms, kernels beside the products, errors, folded weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._inductor import metrics
from torch._inductor.decomposition import select_decomp_table
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

import evt.fx.backend  # noqa: F401  registers the backend
from evt.fx.norms import apply_norms, normed, restore, split_moments
from evt.fx.regions import find_regions
from evt.ir import Reduce
from evt.runtime.folded import fold_norm

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
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm, self.up, self.down = norm, nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = x + self.down(nn.functional.gelu(self.up(self.norm(x))))
        return result


NORMS: dict[str, Callable[[], nn.Module]] = {
    "layer": lambda: nn.LayerNorm(WIDTH),
    "layer without parameters": lambda: nn.LayerNorm(WIDTH, elementwise_affine=False),
    "rms": lambda: nn.RMSNorm(WIDTH, eps=1e-6),
    **{form: lambda form=form: Rms(form) for form in ("llama", "gemma", "power")},  # type: ignore[misc]
}


def blocks(name: str, count: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Block(NORMS[name]()) for _ in range(count))).eval()


def traced(model: nn.Module, *inputs: torch.Tensor) -> GraphModule:
    """Return the graph of a model as Inductor has it."""
    with torch.no_grad():
        made = make_fx(model, select_decomp_table(), "fake", _allow_non_fake_inputs=True)(*inputs)
    for node in made.graph.find_nodes(op="get_attr"):
        node.meta["val"] = getattr(made, str(node.target))
    return made


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


@pytest.mark.parametrize("name", ["layer", "rms"])
def test_inductor_generates_no_kernel_for_further_blocks(name: str) -> None:
    counts = []
    for count in (1, 3):
        torch._dynamo.reset()
        metrics.reset()
        with torch.no_grad():
            compiled(blocks(name, count))(torch.randn(4, WIDTH))
        counts.append(metrics.generated_kernel_count)
    assert counts[0] == counts[1]


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

    def folded() -> tuple[torch.Tensor, ...]:
        return fold_norm(weight, gain, shift, bias, 0.0, 1, True)

    first = folded()
    assert all(one is two for one, two in zip(first, folded(), strict=True))
    scaled = weight.double() * gain.double()
    assert torch.allclose(first[0].double(), scaled - scaled.mean(1, keepdim=True), atol=1e-6)
    assert torch.allclose(first[1], first[0].sum(1), atol=1e-6)
    assert torch.allclose(first[2], weight @ shift + bias, atol=1e-5)
    gain.add_(1)
    second = folded()
    assert not torch.equal(first[0], second[0])
    weight.data = torch.zeros(8, 6)
    assert not folded()[0].any()
    with torch.inference_mode():
        gain = torch.ones(6)
        assert folded()[0] is not folded()[0]
