"""Norms inside the products that read them on a GPU: errors, and parameters that change between calls and replays."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import evt.fx.backend  # noqa: F401  registers the backend
from evt.fx import choose, group_norms
from evt.runtime import fold_kernel
from evt.runtime.folded import folded

pytestmark = pytest.mark.gpu

ROWS, WIDTH = 1000, 256
ALWAYS = {"evt.rule": "always"}


class Block(nn.Module):
    """A block of a transformer; with ``post`` the residual is the norm."""

    def __init__(self, norm: Callable[[int], nn.Module], post: bool) -> None:
        super().__init__()
        self.norm, self.up, self.down = norm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.post = post

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        return (h if self.post else x) + self.down(nn.functional.gelu(self.up(h)))


def model_of(norm: Callable[[int], nn.Module], post: bool, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    made = nn.Sequential(*(Block(norm, post) for _ in range(3))).cuda().to(dtype).eval()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "norm" in name:
                parameter.add_(torch.randn_like(parameter) / 5)
    return made


def distance(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("side", [(9, 7), (37, 41), (130, 60)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_errors_of_group_norms_beside_eagers(dtype, side, whole, record, monkeypatch) -> None:
    """Each norm is one kernel, or Inductor computes the statistics of the first one, and the convolution computes
    the statistics of the second one. Memory that nobody wrote is NaN.
    """
    monkeypatch.setattr(group_norms, "COPIED_ELEMENTS", 0)
    if not whole:
        monkeypatch.setattr(choose, "fuse_group_norms", lambda *_: None)
    torch._dynamo.reset()
    torch.manual_seed(0)
    first = nn.GroupNorm(4, 48, eps=1e-6)
    second = nn.Sequential(nn.Conv2d(48, 40, 3, padding=1), nn.GroupNorm(5, 40, eps=1e-6))
    model = (
        nn.Sequential(first, nn.SiLU(), second, nn.SiLU()).cuda().to(dtype).eval().to(memory_format=torch.channels_last)
    )
    run, exact, ratios = torch.compile(model, backend="evt", options=ALWAYS), copy.deepcopy(model).double(), []
    with torch.no_grad():
        for mean in (0, 1, 30, 1000):
            x = (torch.randn(3, 48, *side, device="cuda") + mean).to(dtype).to(memory_format=torch.channels_last)
            want = exact(x.double())
            poisoned = torch.full((64 << 20,), torch.nan, device="cuda")  # memory that the allocator returns next
            del poisoned
            ratios.append(distance(run(x), want) / distance(model(x), want))
    record((str(dtype), "GroupNorm", f"{side}", "whole" * whole, " ".join(f"{each:.2f}" for each in ratios)))
    assert sorted(ratios)[1] <= 1.05
    assert max(ratios) < 1.5


def change(model: nn.Module) -> None:
    """Change all parameters in place."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.25)


@pytest.mark.parametrize("post", [False, True], ids=["pre", "post"])
@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm], ids=["layer", "rms"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_errors_beside_eagers(dtype, norm, post, record) -> None:
    model = model_of(norm, post, dtype)
    run, exact, ratios = torch.compile(model, backend="evt", options=ALWAYS), copy.deepcopy(model).double(), []
    torch._dynamo.reset()
    with torch.no_grad():
        for mean in (0, 1, 30, 1000):
            x = torch.randn(ROWS, WIDTH, device="cuda")
            x[:, 3] *= 100 if mean == 30 else 1
            x = (x + mean).to(dtype)
            want = exact(x.double())
            ratios.append(distance(run(x), want) / distance(model(x), want))
    record((str(dtype), norm.__name__, f"post {post}", "", " ".join(f"{each:.2f}" for each in ratios)))
    assert sorted(ratios)[1] <= 1.05
    assert max(ratios) < 1.5


@pytest.mark.parametrize("frozen", [False, True], ids=["parameters", "frozen"])
def test_a_captured_graph_reads_the_parameters_of_its_time(frozen) -> None:
    torch._dynamo.reset()
    model = model_of(nn.LayerNorm, False, torch.bfloat16)
    run = torch.compile(model, backend="evt", options={**ALWAYS, "evt.frozen": frozen})
    x = torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        for _ in range(2):
            before = run(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = run(x)
        graph.replay()
        assert torch.equal(result, before)
        change(model)
        graph.replay()
        if frozen:
            run(x)  # folds again, into the same memory
            graph.replay()
        torch.testing.assert_close(result, model(x), rtol=5e-2, atol=5e-2)


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")  # Inductor keeps its pool by one
def test_graphs_of_inductor_are_refreshed() -> None:
    torch._dynamo.reset()
    model = model_of(nn.LayerNorm, False, torch.bfloat16)
    run: Any = torch.compile(model, backend="evt", options={**ALWAYS, "triton.cudagraphs": True})
    x = torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        for _ in range(3):
            for _ in range(3):
                found = run(x).clone()
            torch.testing.assert_close(found, model(x), rtol=5e-2, atol=5e-2)
            change(model)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("sizes", [(1, 1), (7, 33), (70, 1200), (130, 4100)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_the_kernel_folds_as_pytorch_does(dtype, sizes, dim) -> None:
    assert fold_kernel.is_available()
    n, k = sizes
    generator = torch.Generator("cuda").manual_seed(n)
    for case in range(8):
        weight, gain, shift, bias = (
            torch.randn(shape, device="cuda", generator=generator).to(dtype)
            for shape in ((n, k) if dim else (k, n), (k,), (k,), (n,))
        )
        given = [each if case & bit else None for bit, each in ((1, gain), (2, shift), (2, bias))]
        kind = (1.0 if case & 1 else 0.0, dim, bool(case & 4))
        found = folded(weight, given[0], given[1], given[2], *kind)
        on_cpu = [each if each is None else each.cpu() for each in given]
        wanted = folded(weight.cpu(), on_cpu[0], on_cpu[1], on_cpu[2], *kind)
        torch.testing.assert_close(found[0].cpu(), wanted[0], rtol=2e-2, atol=1e-6)
        exact = wanted[0].double()
        assert float((found[0].cpu().double() - exact).norm()) <= 1e-3 * float(exact.norm()) + 1e-6
        torch.testing.assert_close(found[1], found[0].float().sum(dim), rtol=1e-4, atol=2e-3)
        torch.testing.assert_close(found[2].cpu(), wanted[2], rtol=1e-4, atol=1e-3)
