"""More batches than a launch of a kernel takes: every route, epilogue and way to call it."""

from __future__ import annotations

import pytest
import torch

import evt

pytestmark = pytest.mark.gpu
#: A prime number of batches, and one that is even.
COUNTS = (65537, 70000)
M, N, K = 9, 16, 8


def tensors(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(count)
    a = torch.randn(count, M, K, device="cuda", generator=generator).half()
    return a, torch.randn(count, K, N, device="cuda", generator=generator).half()


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    assert float((got.double() - want).norm() / want.norm()) < 2e-3


@pytest.mark.parametrize("route", ["stock-2x", "evt-2x", "stock-3x", "evt-3x", "mainloop-2x"])
@pytest.mark.parametrize("count", COUNTS)
def test_routes(route: str, count: int) -> None:
    text = "in s: f32[k]; A = A*s; D = acc" if route.startswith("mainloop") else "D = acc"
    inputs = {"s": torch.rand(K, device="cuda")} if route.startswith("mainloop") else {}
    op, (a, b) = evt.gemm(text, route=route), tensors(count)
    op(a[:2], b[:2], **inputs)  # the kernel is a small call's
    scaled = a.double() * inputs["s"].double() if inputs else a.double()
    close(op(a, b, **inputs), scaled @ b.double())


@pytest.mark.parametrize("route", ["evt-2x", "evt-3x"])
def test_epilogues(route: str) -> None:
    text = """
    in b: f32[l, n], s: f32[m], C: f16[l, m, n], w: f32[l]
    out D, rows: f32[l, m], total: f32[l]
    z = w*acc + C*s + b
    D = relu(z); rows = max[n](z); total = sum[m, n](z)/size(n)
    """
    op, (a, b) = evt.gemm(text, route=route), tensors(70000)
    given = {
        "b": torch.randn(70000, N, device="cuda"),
        "s": torch.randn(M, device="cuda"),
        "C": torch.randn(70000, N, M, device="cuda").half().mT.contiguous(),
        "w": torch.randn(70000, device="cuda"),
    }
    op(a[:2], b[:2], **{name: each if name == "s" else each[:2] for name, each in given.items()})
    found = op(a, b, **given)
    z = given["w"].double().view(-1, 1, 1) * (a.double() @ b.double())
    z = z + given["C"].double() * given["s"].double().view(-1, 1) + given["b"].double().unsqueeze(1)
    close(found.D, z.relu())
    close(found.rows, z.amax(-1))
    close(found.total, z.sum((1, 2)) / N)


def test_strides_shared_operands_and_buffers() -> None:
    op, (a, b) = evt.gemm("D = acc + C", route="evt-2x"), tensors(70000)
    c = torch.randn(M, 70000, N, device="cuda").half().transpose(0, 1)
    around = torch.full((70000, M + 2, N), float("nan"), device="cuda").half()
    op(a, b[:1].expand(70000, -1, -1), C=c, out=around[:, 1:-1])
    close(around[:, 1:-1], a.double() @ b[0].double() + c.double())
    assert bool(around[:, 0].isnan().all() and around[:, -1].isnan().all())


def test_compiled_and_fused_models() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ w + 1)

    a, b = tensors(70000)
    compiled = torch.compile(function, backend="evt", options={"evt.rule": "always"}, dynamic=True)
    with torch.no_grad():
        for count in (4, 70000):
            close(compiled(a[:count], b[:count]), function(a[:count].double(), b[:count].double()))


@pytest.mark.parametrize(
    "text", ["D = acc + iota(l)", "D = dropout(acc, 0.5, 1, 2)", "out D, s: f32; D = acc; s = sum[l, m, n](acc)"]
)
def test_what_counts_all_batches_is_refused(text: str) -> None:
    op, (a, b) = evt.gemm(text, route="evt-2x"), tensors(70000)
    op(a[:2], b[:2])
    with pytest.raises(evt.LaunchError, match="E0804"):
        op(a, b)
