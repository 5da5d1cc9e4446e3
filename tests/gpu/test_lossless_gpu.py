"""``rule="lossless"`` on a GPU: every bit of a model's results is eager's, for inputs that were never compared."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

import evt
from evt.fx.module import dispatch_of

pytestmark = pytest.mark.gpu


class Block(torch.nn.Module):
    """A gated layer with a bias and a residual, as in transformers."""

    def __init__(self, size: int, wide: int, bias: bool) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(size)
        self.gate, self.up = torch.nn.Linear(size, wide, bias=bias), torch.nn.Linear(size, wide, bias=bias)
        self.down = torch.nn.Linear(wide, size, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        return x + self.down(functional.silu(self.gate(h)) * functional.gelu(self.up(h)))


class Images(torch.nn.Module):
    """Convolutions with batch norms and a residual, as in ResNet."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.one = torch.nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.two = torch.nn.Conv2d(channels, channels, 1, bias=True)
        self.first, self.second = torch.nn.BatchNorm2d(channels), torch.nn.BatchNorm2d(channels)
        for norm in (self.first, self.second):
            torch.nn.init.normal_(norm.running_mean, 0, 0.1)
            torch.nn.init.uniform_(norm.running_var, 0.5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.second(self.two(torch.relu(self.first(self.one(x))))) + x)


class Added(torch.nn.Module):
    """A matrix that ``addmm`` adds: cuBLAS rounds the product first, or does not, with its version."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(size, size) * size**-0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.addmm(x, x, self.weight))


def compiled(module: torch.nn.Module, _: torch.Tensor) -> Any:
    torch._dynamo.reset()
    return torch.compile(module, backend="evt", options={"evt.rule": "lossless"})


def fused(module: torch.nn.Module, x: torch.Tensor) -> torch.nn.Module:
    return evt.fuse(module, (x,), rule="lossless")


@pytest.mark.parametrize("make", [fused, compiled])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", [16, 512, 2048])
def test_transformer(make, dtype, rows) -> None:
    module = Block(768, 3072, rows == 512).to("cuda", dtype).eval()
    made = make(module, torch.zeros(rows, 768, device="cuda", dtype=dtype))
    with torch.no_grad():
        for _ in range(20):
            x = torch.randn(rows, 768, device="cuda", dtype=dtype)
            assert torch.equal(made(x), module(x))
    print(evt.report(made))  # the share of regions is measured, not promised


class Strided(torch.nn.Module):
    """A layer of batches that are not contiguous, as before attention in torchvision."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(768, 768)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layer(x.transpose(0, 1)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_linear_of_strided_batches(dtype) -> None:
    module = Strided().to("cuda", dtype).eval()
    made = fused(module, torch.zeros(32, 197, 768, device="cuda", dtype=dtype))
    with torch.no_grad():
        for _ in range(5):
            x = torch.randn(32, 197, 768, device="cuda", dtype=dtype)
            assert torch.equal(made(x), module(x))
    print(evt.report(made))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_addmm_with_a_matrix(dtype) -> None:
    module = Added(1024).to("cuda", dtype).eval()
    made = fused(module, torch.zeros(1024, 1024, device="cuda", dtype=dtype))
    with torch.no_grad():
        for _ in range(5):
            x = torch.randn(1024, 1024, device="cuda", dtype=dtype)
            assert torch.equal(made(x), module(x))


@pytest.mark.parametrize("make", [fused, compiled])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_images(make, dtype) -> None:
    module = Images(64).to("cuda", dtype).to(memory_format=torch.channels_last).eval()
    size = (8, 64, 56, 56)
    given = torch.zeros(size, device="cuda", dtype=dtype).to(memory_format=torch.channels_last)
    made = make(module, given)
    with torch.no_grad():
        for _ in range(20):
            x = torch.randn(size, device="cuda", dtype=dtype).to(memory_format=torch.channels_last)
            assert torch.equal(made(x), module(x))
    print(evt.report(made))
    if make is fused:
        (plan,) = {id(each): each for each in dispatch_of(made).plans.values()}.values()
        assert "copy_strided" not in plan.graph.code  # results lie as PyTorch's, channels last


class Rotated(torch.nn.Module):
    """A norm in f32 and rotary embeddings, as in Llama."""

    angles: torch.Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(size))
        self.layer = torch.nn.Linear(size, size, bias=False)
        self.register_buffer("angles", torch.rand(1, 64, 1, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        heads = self.layer(self.weight * wide.to(x.dtype)).unflatten(-1, (-1, 64))
        cos, sin = (torch.cat([each, each], -1) for each in (self.angles.cos(), self.angles.sin()))
        turned = torch.cat([-heads[..., 32:], heads[..., :32]], -1)
        return (heads * cos + turned * sin).transpose(1, 2).contiguous()


def check_replay(made: Any, module: torch.nn.Module, x: torch.Tensor) -> None:
    """Capture a call in a CUDA graph, and compare a replay with other numbers with the module."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = made(x)
    x.copy_(torch.randn_like(x))
    graph.replay()
    assert torch.equal(y, module(x))


@pytest.mark.parametrize("make", [fused, compiled])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_elementwise_operators(make, dtype) -> None:
    """Groups of elementwise operators have eager's bits, also in a CUDA graph."""
    module = Rotated(1024).to("cuda", dtype).eval()
    x = torch.zeros(8, 64, 1024, device="cuda", dtype=dtype)
    made = make(module, x)
    with torch.no_grad():
        for scale in (1e-4, 1e-2, 1.0, 30.0) * 5:
            x.copy_(torch.randn_like(x) * scale)
            assert torch.equal(made(x), module(x))
        check_replay(made, module, x)
    if make is fused:
        assert all(each.joined for each in dispatch_of(made).plans.values())


def test_some_region_is_kept() -> None:
    """The own kernel sums as cuBLAS does where cuBLAS does not split k (measured on an H100, 2026-11)."""
    layer = torch.nn.Linear(768, 3072).to("cuda", torch.bfloat16)
    module = torch.nn.Sequential(layer, torch.nn.ReLU()).eval()
    x = torch.randn(6304, 768, device="cuda", dtype=torch.bfloat16)
    made = evt.fuse(module, (x,), rule="lossless")
    with torch.no_grad():
        assert torch.equal(made(x), module(x))
    kept = [row.proof for row in evt.report(made).rows if row.fused]
    assert kept
    assert all("us fused" in proof for proof in kept)  # and it is faster than eager's operators


def test_calls_in_a_cuda_graph() -> None:
    """After a first call has compared, a call can be captured."""
    module = Block(256, 512, True).to("cuda", torch.bfloat16).eval()
    x = torch.randn(64, 256, device="cuda", dtype=torch.bfloat16)
    made = evt.fuse(module, (x,), rule="lossless")
    with torch.no_grad():
        made(x)
        check_replay(made, module, x)
