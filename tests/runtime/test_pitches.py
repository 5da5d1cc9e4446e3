"""Vectors, inputs and outputs whose elements lie apart along every mode."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import evt
from evt.emission import emit
from evt.plan import Plan, find_target
from evt.plan.epilogue.broadcasts import RowBroadcast
from evt.plan.epilogue.loads import AuxLoad
from evt.plan.epilogue.values import Access
from evt.plan.epilogue.writes import AuxStore
from evt.runtime.arguments import bind
from evt.runtime.kernels import plan_kernels

A, B = torch.randn(24, 16).half(), torch.randn(16, 40).half()
ACC = A.double() @ B.double()
TARGETS = ("sm80", "sm90", "sm100")


def plan_of(op: evt.Program, target: str, inputs: dict[str, Any], out: dict[str, torch.Tensor] | None = None) -> Plan:
    return plan_kernels(op.request, bind(op.request, A, B, inputs, out or {}), find_target(target))[0]


def close(out: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool((out.double() - expected.double()).norm() < 2e-3 * expected.double().norm())


def every_other(shape: tuple[int, int], dtype: torch.dtype = torch.float16) -> torch.Tensor:
    """Return a buffer without a stride of 1."""
    buffer = torch.full((shape[0], 2 * shape[1]), torch.nan, dtype=dtype)[:, ::2]
    assert 1 not in buffer.stride()
    return buffer


def test_a_column_of_a_matrix_is_a_vector() -> None:
    table = torch.randn(40, 3)
    op = evt.gemm("in s: f32[m], bias: f32[n]\nD = s*acc + bias")
    with warnings.catch_warnings():
        warnings.simplefilter("error", evt.NoKernelWarning)  # every target has a kernel for it
        found = op(A, B, s=table[:24, 0], bias=table[:, 1])
    assert close(found, table[:24, :1] * ACC + table[:, 1])


@pytest.mark.parametrize("target", TARGETS)
def test_a_vector_with_a_stride_is_loaded_element_by_element(target: str) -> None:
    op = evt.gemm("in bias: f32[n]\nD = relu(acc + bias)", route="evt")
    made = plan_of(op, target, {"bias": torch.randn(40, 3)[:, 1]})
    (load,) = (node for node in made.steps if isinstance(node, AuxLoad))
    assert (load.access is Access.STRIDED) is (target == "sm80")
    assert "cute::Stride<cute::_0, int64_t, cute::_0>" in emit(made)
    packed = plan_of(op, target, {"bias": torch.randn(40)})
    assert not any(isinstance(node, AuxLoad) for node in packed.steps)
    assert target == "sm80" or any(isinstance(node, RowBroadcast) for node in packed.steps) or not packed.steps


@pytest.mark.parametrize("target", TARGETS)
def test_d_without_a_stride_of_1_is_stored_by_a_visitor(target: str) -> None:
    op = evt.gemm("D = relu(alpha*acc + beta*C)")
    inputs = {"alpha": 1.0, "beta": 0.5, "C": torch.randn(24, 40).half()}
    made = plan_of(op, target, inputs, {"D": every_other((24, 40))})
    (store,) = (node for node in made.steps if isinstance(node, AuxStore))
    assert store.access is (Access.STRIDED if target == "sm80" else Access.DIRECT)
    assert made.destination is None
    assert "3x" in made.family or made.family == "sm100" or target == "sm80"
    packed = plan_of(op, target, inputs)
    assert packed.destination is not None or target == "sm80"


def test_buffers_without_a_stride_of_1() -> None:
    op = evt.gemm("out D: f16[m, n], z: f32[m, n]\nz = acc + C\nD = relu(z)")
    c = every_other((24, 40)).copy_(torch.randn(24, 40))
    d, z = every_other((24, 40)), every_other((24, 40), torch.float32)
    d_around, z_around = d._base, z._base
    found = op(A, B, C=c, out=(d, z))
    assert found.D is d
    assert close(z, ACC + c)
    assert close(d, torch.relu(ACC + c))
    assert d_around is not None
    assert z_around is not None
    assert d_around[:, 1::2].isnan().all()
    assert z_around[:, 1::2].isnan().all()


def test_what_one_kernel_reads_either_way_has_to_be_packed() -> None:
    op = evt.gemm("in s: f32[m?]\nD = s*acc")
    with pytest.raises(evt.ArgumentError, match="stride other than 1"):
        op(A, B, s=torch.randn(24, 2)[:, 0])
    worked = evt.gemm("in s: f16[k]\nA = s*A\nD = acc")
    with pytest.raises(evt.ArgumentError, match="stride other than 1"):
        worked(A, B, s=torch.randn(16, 2).half()[:, 0])


def test_what_is_read_after_reductions_has_to_be_packed() -> None:
    op = evt.gemm("in s: f32[m], t: f32[m]\nout D, r: f32[m]\nD = t*acc\nr = sum[n](acc)*s")
    given = torch.randn(24, 2)
    with pytest.raises(evt.ArgumentError, match="`s` has a stride other than 1"):
        op(A, B, s=given[:, 0], t=given[:, 1])
    assert op(A, B, s=given[:, 0].contiguous(), t=given[:, 1]) is not None


def test_stock_epilogues_take_packed_tensors() -> None:
    op = evt.gemm("D = relu(acc + bias)", route="stock")
    with pytest.raises(evt.TargetError, match="`bias` has no mode with stride 1"):
        plan_of(op, "sm90", {"bias": torch.randn(40, 2).half()[:, 0]})
    with pytest.raises(evt.TargetError, match="`D` has no mode with stride 1"):
        plan_of(op, "sm90", {"bias": torch.randn(40).half()}, {"D": every_other((24, 40))})


def test_groups_of_vectors_with_a_stride() -> None:
    op = evt.grouped_gemm("in s: f32[m]\nD = s*acc")
    s = torch.randn(24, 2)[:, 1]
    (found,) = op([A], [B], s=[s])
    assert close(found, s.unsqueeze(1) * ACC)
