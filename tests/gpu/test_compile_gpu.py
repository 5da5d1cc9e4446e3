"""torch.compile(backend="evt") on a GPU: our kernels run, for any batch, in CUDA graphs, and where they win."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

import evt
from evt.compilation import Cache
from evt.fx.backend import backend
from evt.fx.records import RECORDS

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]


class ConvNet(torch.nn.Module):
    """Two convolutions with batch norm, ReLU and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = torch.nn.Conv2d(64, 64, 3, padding=1, bias=False)
        self.conv2 = torch.nn.Conv2d(64, 64, 1, bias=False)
        self.bn1, self.bn2 = torch.nn.BatchNorm2d(64), torch.nn.BatchNorm2d(64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + x)


class Block(torch.nn.Module):
    """A transformer's block."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv = torch.nn.Linear(width, 3 * width, bias=False)
        self.out = torch.nn.Linear(width, width, bias=False)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (each.unflatten(-1, (4, -1)).transpose(1, 2) for each in self.qkv(self.norm1(x)).chunk(3, -1))
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.out(y)
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm2(x))))


def conv_inputs(count: int) -> torch.Tensor:
    x = torch.randn(count, 64, 14, 14, device="cuda", generator=torch.Generator("cuda").manual_seed(count))
    return x.contiguous(memory_format=torch.channels_last)


def block_inputs(count: int) -> torch.Tensor:
    return torch.randn(count, 24, 128, device="cuda", generator=torch.Generator("cuda").manual_seed(count))


MODELS: dict[str, tuple[Callable[[], torch.nn.Module], Callable[[int], torch.Tensor], int]] = {
    "conv": (ConvNet, conv_inputs, 2),
    "block": (Block, block_inputs, 3),
}
ALWAYS: dict[str, Any] = {"evt.rule": "always"}


@pytest.fixture(params=MODELS)
def case(request: pytest.FixtureRequest):
    """Return a model in f16, the same in f32, its inputs, and how many products are fused at least."""
    torch._dynamo.reset()
    RECORDS.clear()
    torch.manual_seed(0)
    make, inputs, fused = MODELS[request.param]
    model = make().cuda().eval()
    for each in model.modules():
        if isinstance(each, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(each.running_mean, -0.5, 0.5)
            torch.nn.init.uniform_(each.running_var, 0.5, 1.5)
    exact = make().cuda().eval()
    exact.load_state_dict(model.state_dict())
    model = model.half().to(memory_format=torch.channels_last) if request.param == "conv" else model.half()
    with torch.no_grad():
        yield model, exact, inputs, fused
    torch._dynamo.reset()


def check(got: torch.Tensor, model: torch.nn.Module, exact: torch.nn.Module, x: torch.Tensor) -> None:
    want = exact(x)
    mine, eager = ((each.float() - want).norm() / want.norm() for each in (got, model(x.half())))
    assert torch.isfinite(got).all()
    assert mine <= 1.2 * eager + 2e-4


def kernels() -> int:
    return len(Cache().entries())


@pytest.mark.usefixtures("own_cache")
def test_any_batch_by_the_same_kernels(case) -> None:
    model, exact, inputs, fused = case
    assert evt.prebuild(model, (inputs(8).half(),), options=ALWAYS, dynamic=True) >= fused
    before = kernels()
    compiled = torch.compile(model, backend=partial(backend, options=ALWAYS), dynamic=True)
    for count in (8, 2, 3, 64, 33, 1):
        x = inputs(count)
        check(compiled(x.half()), model, exact, x)
    assert kernels() == before
    found = evt.report(model)
    assert len(found.fused) >= fused
    assert not [row.reason for row in found.rows if "E1018" in row.reason or "E1019" in row.reason]


def test_our_kernels_run(case) -> None:
    """Not the reference, and not PyTorch's: the profiler sees CUTLASS kernels by our namespace."""
    model, _, inputs, fused = case
    compiled = torch.compile(model, backend=partial(backend, options=ALWAYS))
    x = inputs(8).half()
    compiled(x)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        compiled(x)
        torch.cuda.synchronize()
    names = [event.name for event in profile.events()]
    assert sum("evt" in name for name in names) >= fused, names


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_cuda_graphs(case, mode: str) -> None:
    model, exact, inputs, _ = case
    options = {"evt.rule": "always"}
    compiled = torch.compile(model, backend=partial(backend, mode=mode, options=options))
    for seed in range(5):  # warms up, captures, replays
        x = inputs(8) + seed
        torch.compiler.cudagraph_mark_step_begin()
        check(compiled(x.half()).clone(), model, exact, x)
    from torch._inductor.cudagraph_trees import get_manager

    manager = get_manager(0, create_if_none_exists=False)
    assert manager is not None
    assert manager.current_node is not None or manager.roots


def test_measured_regions_win(case) -> None:
    model, exact, inputs, _ = case
    compiled = torch.compile(model, backend=partial(backend, options={"evt.tune": True}))
    x = inputs(64)
    check(compiled(x.half()), model, exact, x)
    rows = evt.report(model).rows
    timed = [row for row in rows if row.benefit is not None]
    assert timed
    for row in timed:
        assert row.benefit.measured
        assert row.fused == row.benefit.wins
