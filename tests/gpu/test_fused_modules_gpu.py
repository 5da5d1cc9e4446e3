"""Fused modules on a GPU: layouts, changes of parameters, written buffers and CUDA graphs, beside eager mode."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from evt.fx.fuse import fuse, fusion
from evt.fx.module import dispatch_of

pytestmark = pytest.mark.gpu


class Function(torch.nn.Module):
    """A product of two arguments, and relu."""

    def __init__(self, product: Any) -> None:
        super().__init__()
        self.product = product

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.product(a, b))


class Keeping(torch.nn.Module):
    """A convolution with a batch norm, which counts its calls and keeps its last result."""

    step: torch.Tensor
    last: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(16, 32, 3, padding=1), torch.nn.BatchNorm2d(32)
        self.register_buffer("step", torch.zeros(()))
        self.register_buffer("last", torch.zeros(4, 32, 8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.step.add_(1)
        y = torch.relu(self.norm(self.conv(x))) + self.step
        self.last.copy_(y)
        return y


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    assert got.stride() == want.stride()
    torch.testing.assert_close(got, want, atol=3e-2, rtol=3e-2)


def test_layouts() -> None:
    """Operands that a kernel reads are fused, operands that PyTorch copies are copied, and the rest stays PyTorch's."""
    a, b = (torch.randint(-8, 8, (64, 64), device="cuda").to(torch.int8) for _ in range(2))
    run: Any = Function(torch._int_mm).eval()
    fused: Any = fuse(run, (a, b.t()))
    with torch.no_grad():
        for right in (b.t(), b):
            assert torch.equal(fused(a, right), run(a, right))
        x, w = (torch.randn(128, 128, device="cuda", dtype=torch.float16) for _ in range(2))
        run = Function(torch.mm).eval()
        fused = fuse(run, (x, w))
        for given in (x, x.t(), x[:, ::2].expand(2, -1, -1)[1], x[:1].expand(128, -1), x[1:], x[:, 1:65]):
            right = w[: given.shape[1]]
            close(fused(given, right), run(given, right))


def test_changes_and_writes() -> None:
    model: Any = Keeping().half().cuda().to(memory_format=torch.channels_last).eval()
    eager = copy.deepcopy(model)
    x = torch.randn(4, 16, 8, 8, device="cuda", dtype=torch.float16).contiguous(memory_format=torch.channels_last)
    fused: Any = fuse(model, (x,))
    assert len(fusion(fused).regions) == 1
    with torch.no_grad():
        for change in (0.0, 0.7, 0.7):
            for each in (model, eager):
                each.norm.running_mean += change
                each.conv.weight *= 1 + change
            close(fused(x), eager(x))
            close(model.last, eager.last)
            assert model.step == eager.step
    dispatch = dispatch_of(fused)
    assert dispatch is not None
    assert dispatch.answers == {"fused": 3}


def test_cuda_graphs() -> None:
    run: Any = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()).half().cuda().eval()
    x = torch.randn(32, 64, device="cuda", dtype=torch.float16)
    fused: Any = fuse(run, (x,))
    with torch.no_grad():
        fused(x)
        torch.cuda.synchronize()
        recorded = torch.cuda.CUDAGraph()
        with torch.cuda.graph(recorded):
            y = fused(x)
        x.mul_(0.5)
        recorded.replay()
        close(y, run(x))
