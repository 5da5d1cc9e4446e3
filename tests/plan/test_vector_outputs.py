"""Outputs of values that vary over rows, columns or batches only: stored once, in every family."""

from __future__ import annotations

import pytest
import torch

import evt
from evt.plan.epilogue.values import ResultShape
from evt.plan.epilogue.writes import VectorStore

TEXT = """\
in x: f32[m], v: f16[l], b: f32[n]
out D: f16[m, n], s: f32[m], t: f16[n], a: f32, r: f32[l], both: f32[l, m], wide: f32[n]
D  = relu(acc + b)*x
s  = sqrt(x)
t  = b*2
a  = alpha*2
r  = v + 1
both = x*v
wide = b*v
"""
PLAIN = """\
in x: f32[m], b: f32[n]
out D: f16[m, n], s: f32[m], t: f16[n], a: f32
D = acc; s = sqrt(x); t = b*2; a = alpha*2
"""


def stores(plan) -> dict[str, VectorStore]:
    return {node.pointer.tensor: node for node in plan.steps if isinstance(node, VectorStore)}


@pytest.mark.parametrize("arch", ["sm80", "sm89", "sm90", "sm100", "sm120"])
def test_every_target_stores_them(arch: str) -> None:
    op = evt.gemm(TEXT)
    found = stores(op.plan(arch))
    shapes = {name: node.shape for name, node in found.items()}
    column, row, scalar = ResultShape.COLUMN, ResultShape.ROW, ResultShape.SCALAR
    assert shapes == {"s": column, "t": row, "a": scalar, "r": scalar, "both": column, "wide": row}
    assert [name for name, node in found.items() if node.batch] == ["r", "both", "wide"]
    assert "store of a row, once" in op.explain(arch).details()
    assert "VectorStore" in op.emit(arch)


@pytest.mark.parametrize("make", [evt.conv1d, evt.conv2d, evt.conv3d, evt.conv2d_wgrad, evt.linear])
@pytest.mark.parametrize("arch", ["sm80", "sm90"])
def test_every_operation_stores_them(make, arch: str) -> None:
    keywords = {"kernel_size": 3} if make is evt.conv2d_wgrad else {}
    assert set(stores(make(PLAIN, **keywords).plan(arch))) == {"s", "t", "a"}


def test_a_transposed_problem_swaps_them() -> None:
    made = evt.gemm(PLAIN.replace("D: f16[m, n]", "D: f16[n, m]")).plan("sm80")
    assert made.transposed
    assert {name: node.shape for name, node in stores(made).items()} == {
        "s": ResultShape.ROW,
        "t": ResultShape.COLUMN,
        "a": ResultShape.SCALAR,
    }


def test_the_reference_stores_each_once() -> None:
    a, b = torch.randn(3, 20, 16).half(), torch.randn(3, 16, 24).half()
    x, v, bias = torch.rand(20), torch.randn(3).half(), torch.randn(24)
    found = evt.gemm(TEXT)(a, b, x=x, v=v, b=bias, alpha=1.5)
    assert [tuple(each.shape) for each in found[1:]] == [(20,), (24,), (), (3,), (3, 20), (3, 24)]
    assert torch.equal(found.s, x.double().sqrt().float())
    assert torch.equal(found.t, (bias * 2).half())
    assert found.a == 3
    assert torch.equal(found.r, v.float() + 1)
    assert torch.equal(found.both, v.float()[:, None] * x)
    assert torch.equal(found.wide, v.float()[:, None] * bias)
    alone = evt.gemm(PLAIN)(a[0], b[0], x=x, b=bias, alpha=1.5)
    assert torch.equal(alone.s, found.s)
    buffer = torch.full((20,), float("nan"))
    evt.gemm(PLAIN)(a[0], b[0], x=x, b=bias, alpha=1.5, s=buffer)
    assert torch.equal(buffer, found.s)


def test_a_launch_is_given_their_strides(launches, monkeypatch) -> None:
    a, b = torch.randn(3, 16, 16).half(), torch.randn(3, 16, 24).half()
    evt.gemm(TEXT)(a, b, x=torch.rand(16), v=torch.randn(3).half(), b=torch.randn(24), alpha=1.5)
    (found,) = launches
    assert (found["stride_m_of_out_s"], found["stride_n_of_out_t"]) == (1, 1)
    assert (found["stride_l_of_out_r"], found["stride_l_of_out_both"], found["stride_l_of_out_wide"]) == (1, 16, 24)
    assert "stride_l_of_out_s" not in found


def test_a_buffer_that_the_kernel_reads_is_refused() -> None:
    a, b, x = torch.randn(20, 16).half(), torch.randn(16, 24).half(), torch.rand(20)
    op = evt.gemm("in x: f32[m]; out D, s: f32[m]; D = acc*x; s = sqrt(x)")
    with pytest.raises(evt.ArgumentError, match="E0609"):
        op(a, b, x=x, s=x)


def test_groups_store_them_in_a_loop_only() -> None:
    with pytest.raises(evt.TargetError, match="a vector or scalar that is stored has no place in a grouped kernel"):
        evt.grouped_gemm(PLAIN).plan("sm90")
    a, b = [torch.randn(5, 8).half()], [torch.randn(8, 16).half()]
    found = evt.grouped_gemm(PLAIN, route="loop")(a, b, x=[torch.ones(5)], b=[torch.ones(16)], alpha=1.0)
    assert found.s[0].tolist() == [1.0] * 5
