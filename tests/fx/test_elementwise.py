"""Elementwise operators of a lossless graph in fewer kernels, with eager PyTorch in Inductor's place."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

import evt
from evt.fx import elementwise
from evt.fx.elementwise import Joined, groups_of, join
from evt.fx.module import dispatch_of
from evt.fx.views import is_view

SHAPE = (6, 8)
HAS_KERNELS = elementwise.has_kernels


def eager(group: GraphModule, _: Sequence[torch.Tensor]) -> Any:
    return lambda *given: group(*given)


@pytest.fixture(autouse=True)
def _everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elementwise, "has_kernels", lambda device: True)


def traced(function: Any, *given: torch.Tensor) -> GraphModule:
    made = make_fx(function, tracing_mode="fake")(*given)
    made.graph.eliminate_dead_code()
    made.recompile()
    return made


#: Operators that join groups, and others between them.
OPERATORS: list[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = [
    lambda x, y: x + y,
    lambda x, y: x * y,
    lambda x, y: torch.where(x > 0, x, y),
    lambda x, _: (-x).abs(),
    lambda x, _: x.pow(2).to(torch.bfloat16).to(x.dtype),
    lambda x, _: torch.cat([x[:, 4:], x[:, :4]], 1),
    lambda x, _: x.t().clone().reshape(SHAPE),
    lambda x, _: x.reshape(8, 6).t().relu().t().reshape(SHAPE),
    lambda x, _: x - x.mean(1, keepdim=True),
    lambda x, _: x.softmax(1),
    lambda x, y: x @ y.t() @ x,
    lambda x, _: x.expand(3, *SHAPE).sum(0),
]


def drawn(seed: int) -> Any:
    """Return a function of two matrices."""

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        draw = random.Random(seed)
        known = [x, y]
        for _ in range(draw.randint(6, 30)):
            one, other = draw.choice(known[-6:]), draw.choice(known)
            made = draw.choice(OPERATORS)(one, other.to(one.dtype))
            known.append(made / (1 + made.abs().amax()))
        return tuple(known[-draw.randint(1, 3) :])

    return function


@pytest.mark.parametrize("seed", [*range(20), *(pytest.param(each, marks=pytest.mark.slow) for each in range(20, 60))])
def test_graphs_keep_their_results(seed: int) -> None:
    torch.manual_seed(seed)
    given = [torch.randn(SHAPE), torch.randn(SHAPE).to(random.Random(-seed).choice([torch.float32, torch.bfloat16]))]
    module = traced(drawn(seed), *given)
    wanted = module(*given)
    strides = [each.stride() for each in wanted]
    joined = join(module, given, eager)
    found = module(*given)
    assert [each.stride() for each in found] == strides
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
    assert all(each.count > 0 for each in joined)
    calls = [node for node in module.graph.nodes if node.op == "call_module"]
    assert len(calls) == len(joined)
    computed = [node for each in joined for node in each.eager.graph.nodes if node.op == "output"]
    assert not any(is_view(each) for node in computed for each in node.all_input_nodes)


def test_the_drawn_graphs_have_groups() -> None:
    given = [torch.randn(SHAPE), torch.randn(SHAPE)]
    assert sum(len(join(traced(drawn(seed), *given), given, eager)) for seed in range(20)) > 40


def test_a_group_has_no_path_out_and_back() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * x
        return y * y.sum()  # the sum is computed between the two products

    module = traced(function, torch.randn(SHAPE))
    assert [len(group) for group in groups_of(module.graph)] == [1, 1]


def test_a_single_copy_of_strided_memory_is_a_group() -> None:
    x = torch.randn(SHAPE)
    copied = lambda x: torch.ops.prims.copy_strided(x.mean(0, keepdim=True) + x @ x.t() @ x, (1, 6))  # noqa: E731
    assert [each.count for each in join(traced(lambda x: x.t().clone().sum(0), x), [x], eager)] == [1]
    assert [each.count for each in join(traced(copied, x), [x], eager)] == [2]
    assert join(traced(lambda x: (x + 1).sum(0), x), [x], eager) == ()


def test_other_bits_and_no_kernel_stay_eager() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x + 1) * x

    x = torch.randn(SHAPE)
    for compiler in (
        lambda *_: None,
        lambda group, _: lambda *given: [torch.nextafter(each, each + 1) for each in group(*given)],
        lambda group, _: lambda *given: [each.t().contiguous().t() for each in group(*given)],
    ):
        module = traced(function, x)
        assert join(module, [x], compiler) == ()
        assert torch.equal(module(x), function(x))


def test_kernels_are_for_gpus() -> None:
    assert not HAS_KERNELS(torch.device("cpu"))


def test_the_order_of_random_numbers_stays() -> None:
    x = torch.randn(SHAPE)
    assert join(traced(lambda x: torch.rand_like(x) + x + 1, x), [x], eager) == ()


def test_tensors_of_other_kinds_are_computed_operator_by_operator() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x + 1) * x

    x, calls = torch.randn(SHAPE), []
    module = traced(function, x)
    (found,) = join(module, [x], lambda group, _: lambda *given: (calls.append(1), group(*given))[1])
    calls.clear()
    for given, count in ((x, 1), (torch.randn(8, 6).t(), 0), (x.double(), 0)):
        calls.clear()
        assert torch.equal(module(given), function(given))
        assert len(calls) == count
    assert isinstance(found, Joined)
    exported = torch.export.export(module, (x,))
    assert torch.equal(exported.module()(x), function(x))
    calls.clear()
    assert torch.equal(copy.deepcopy(module)(x), function(x))
    assert not calls  # a copy has no kernel


class Counted(torch.nn.Module):
    """A model that writes to a buffer, and reads it before."""

    kept: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(32, 32).bfloat16()
        self.register_buffer("kept", torch.zeros(5, 32).bfloat16())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x).softmax(1) * self.kept + x
        self.kept.copy_(self.kept * 2 + x)
        return y


def test_writes_happen_once_a_call() -> None:
    model, x = Counted().eval(), torch.randn(5, 32).bfloat16()
    twin = copy.deepcopy(model)
    with torch.no_grad():
        fused = evt.fuse(model, (x,), rule="lossless")
        for _ in range(3):
            assert torch.equal(fused(x), twin(x))
            assert torch.equal(model.kept, twin.kept)
        dispatch = dispatch_of(fused)
        assert dispatch is not None
        (plan,) = dispatch.plans.values()
        assert len(plan.joined) == 2


class Norm(torch.nn.Module):
    """A norm of T5's and Llama's kind, whose square, mean and products are single operators."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(32).bfloat16())
        self.layer = torch.nn.Linear(32, 32).bfloat16()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.layer(self.weight * wide.to(x.dtype))


def test_lossless_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elementwise, "compile_group", eager)
    model, x = Norm().eval(), torch.randn(5, 32).bfloat16()
    with torch.no_grad():
        fused = evt.fuse(model, (x,), rule="lossless")
        assert torch.equal(fused(x), model(x))
        dispatch = dispatch_of(fused)
        assert dispatch is not None
        (plan,) = dispatch.plans.values()
        assert sorted(each.count for each in plan.joined) == [2, 4]  # both kernels cast x
        assert "6 elementwise operators in 2 kernels" in str(evt.report(fused))
        assert dispatch.answers == {"fused": 1}  # although no product is
        exported = torch.export.export(fused, (x,))
        assert torch.equal(exported.module()(x), model(x))
        again = torch.randn(5, 32).bfloat16()
        assert torch.equal(copy.deepcopy(fused)(again), model(again))
