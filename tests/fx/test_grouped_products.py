"""``aten._grouped_mm`` in graphs: products of groups of rows, whose ends are on the device."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import silu

import evt
from evt.fx.kernels import kernel_of, program_text
from evt.fx.regions import find_regions
from tests.fx.compiling import ALWAYS, compiled, seen_on_a_gpu

pytestmark = pytest.mark.skipif(not hasattr(torch, "_grouped_mm"), reason="this PyTorch has no _grouped_mm")

ROWS, DEPTH, WIDTH, EXPERTS = 40, 16, 32, 4
ENDS = torch.tensor([9, 9, 30, 40], dtype=torch.int32)


class Experts(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.up = torch.nn.Parameter(torch.randn(EXPERTS, WIDTH, DEPTH, generator=generator).bfloat16() / 4)
        self.down = torch.nn.Parameter(torch.randn(EXPERTS, DEPTH, WIDTH, generator=generator).bfloat16() / 4)

    def forward(self, x: torch.Tensor, ends: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        hidden = silu(torch._grouped_mm(x, self.up.mT, offs=ends))
        return x + (torch._grouped_mm(hidden, self.down.mT, offs=ends) * weights[:, None]).to(x.dtype)


def inputs(ends: torch.Tensor = ENDS) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(ROWS, DEPTH, generator=generator).bfloat16(),
        ends,
        torch.rand(ROWS, generator=generator),
    )


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    """Compare with eager PyTorch, which rounds each operator's result to bfloat16."""
    torch.testing.assert_close(got.float(), want.float(), rtol=0.03, atol=0.05)


def test_compiled() -> None:
    model = Experts().eval()
    made = compiled(model, ALWAYS)
    with torch.no_grad():
        for ends in (ENDS, torch.tensor([0, 40, 40, 40], dtype=torch.int32)):
            close(made(*inputs(ends)), model(*inputs(ends)))
    said = str(evt.report(made))
    print(said)
    assert "2 of 2" in said


def test_fused() -> None:
    model = Experts().eval()
    made = evt.fuse(model, inputs())
    with torch.no_grad():
        close(made(*inputs()), model(*inputs()))


def test_kernels(monkeypatch) -> None:
    """On an H200 a region takes the kernel for groups of rows; the host reads no ends."""
    built = seen_on_a_gpu(monkeypatch)
    model = Experts().eval()
    made = compiled(model, ALWAYS)
    with torch.no_grad():
        made(*inputs())
    assert sum(map(len, built)) >= 1


def test_training() -> None:
    model, other = Experts(), Experts()
    made = compiled(other, ALWAYS)
    model(*inputs()).float().square().sum().backward()
    made(*inputs()).float().square().sum().backward()
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        close(theirs.grad / mine.grad.abs().max(), mine.grad / mine.grad.abs().max())


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda x, w, ends: torch._grouped_mm(x[None].expand(EXPERTS, -1, -1), w.mT), "not consecutive rows"),
        (lambda x, w, ends: torch._grouped_mm(x.mT, x, offs=ends), "not consecutive rows"),
    ],
)
def test_other_groups_stay_with_pytorch(call, reason) -> None:
    graph = torch.fx.experimental.proxy_tensor.make_fx(lambda *given: torch.relu(call(*given)), tracing_mode="fake")(
        inputs()[0], Experts().up.detach(), ENDS
    ).graph
    (outcome,) = find_regions(graph).outcomes
    assert outcome.fused is None
    assert reason in str(outcome.reason)


def test_scales_of_rows_and_columns() -> None:
    def call(x, weight, scale_x, scale_w, ends):
        found = torch._scaled_grouped_mm(x, weight.mT, scale_x, scale_w, offs=ends, out_dtype=torch.bfloat16)
        return silu(found)

    x, _, weights = inputs()
    weight = Experts().up.detach()
    eight = torch.float8_e4m3fn
    given = (x.to(eight), weight.to(eight), weights, torch.rand(EXPERTS, WIDTH), ENDS)
    graph = torch.fx.experimental.proxy_tensor.make_fx(call, tracing_mode="fake")(*given).graph
    (region,) = find_regions(graph).regions
    assert [each.modes for each in region.program.request.dag.inputs] == [("m",), ("l", "n"), ("l",)]
    assert kernel_of(region, "sm90", 132).route == "gemm-own-ragged"
    a, b, scale_x, scale_w, ends = given
    (got,) = torch.ops.evt.run(a, b.mT, [scale_x, scale_w, ends], program_text(region))
    for first, end, group in ((0, 9, 0), (9, 30, 2), (30, 40, 3)):
        product = a[first:end].float() @ b[group].float().mT
        close(got[first:end], silu(product * scale_x[first:end, None] * scale_w[group]))


def test_plan() -> None:
    def call(x, ends, weights, weight):
        return torch.relu(torch._grouped_mm(x, weight.mT, offs=ends)) * weights[:, None]

    given = (*inputs(), Experts().up.detach())
    graph = torch.fx.experimental.proxy_tensor.make_fx(call, tracing_mode="fake")(*given).graph
    (region,) = find_regions(graph).regions
    assert region.program.request.ragged
    assert [each.name for each in region.arguments] == ["x0", "offsets"]
    assert kernel_of(region, "sm90", 132).route == "gemm-own-ragged"
