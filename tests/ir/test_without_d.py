"""Programs whose outputs have other names than D: statistics only, or a matrix of another name."""

from __future__ import annotations

import re

import pytest
import torch

import evt
from evt.ir.interface import format_interface
from evt.plan.epilogue.writes import AuxStore, Reduction
from evt.request import typed_graph

AMAX = "out amax: f32; amax = max[m, n](abs(acc))"
ROWS = "out rows: f32[m]; rows = sum[n](acc*acc)"
TILE = "out E: f16[m, n]; E = relu(acc) + C"
MANY = "E = acc*2; F = acc + bias; s = sum[m](acc)"
BITS = "out positive: b1[m, n], kept: f16[m, n]; positive = acc > 0; kept = acc"
HALVES = "h = silu(even(acc)) * odd(acc)"
PROGRAMS = (AMAX, ROWS, TILE, MANY, BITS, HALVES)


@pytest.mark.parametrize("make", [evt.gemm, evt.linear, evt.conv2d])
@pytest.mark.parametrize("arch", ["sm80", "sm90", "sm100"])
@pytest.mark.parametrize("text", PROGRAMS)
def test_every_family_takes_them(text: str, arch: str, make) -> None:
    op = make(text)
    assert "_run(" in op.emit(arch)
    assert "out " in op.explain(arch).details()


@pytest.mark.parametrize("arch", ["sm80", "sm90", "sm100"])
@pytest.mark.parametrize(
    "text", ["out D: f16[m, n]; D = relu(acc)", "out D: bf16[n, m]; D = acc*alpha + C", "D = even(acc)*odd(acc)"]
)
def test_a_matrix_of_another_name_has_the_kernel_of_d(text: str, arch: str) -> None:
    named, renamed = (evt.gemm(each).emit(arch, name="same") for each in (text, text.replace("D", "E")))
    code = [re.sub(r" *//.*", "", each) for each in (named, renamed)]
    assert code[0].replace("out_D", "out_E").replace("_of_D", "_of_E") == code[1]


def test_the_first_whole_matrix_is_what_a_collective_stores() -> None:
    made = evt.gemm(
        "out amax: f32, positive: b1[m, n], E, F; E = acc; F = acc*2; amax = max[m, n](E); positive = E > 0"
    )
    plan = made.plan("sm90")
    assert plan.destination is not None
    assert plan.destination.pointer.tensor == "E"
    assert [node.name for node in plan.steps if isinstance(node, AuxStore)] == ["out_F"]
    for text in (AMAX, ROWS):
        plan = evt.gemm(text).plan("sm90")
        assert plan.destination is None
        assert isinstance(plan.steps[-1], Reduction)


def test_undeclared_types_follow_the_first_matrix_or_a() -> None:
    def inputs(text: str, dtype: str = "f16") -> list[str]:
        return [line for line in format_interface(typed_graph(evt.gemm(text).request, dtype)) if line.startswith("in ")]

    assert inputs("out s: f32[m], E: bf16[m, n]; E = acc + C; s = sum[n](E)") == ["in  C: bf16*[m, n]*"]
    assert inputs("out amax: f32; amax = max[m, n](acc + C)") == ["in  C: f16*[m, n]*"]
    assert inputs("out amax: f32; amax = max[m, n](acc + C)", "e4m3") == ["in  C: bf16*[m, n]*"]


def test_calls() -> None:
    a, b, c = torch.randn(20, 16).half(), torch.randn(16, 24).half(), torch.randn(20, 24).half()
    acc = a.double() @ b.double()
    assert torch.allclose(evt.gemm(AMAX)(a, b).double(), acc.abs().max())
    rows = torch.full((20,), float("nan"))
    assert evt.gemm(ROWS)(a, b, out=rows) is rows
    assert torch.allclose(rows.double(), (acc * acc).sum(1))
    e = torch.empty(20, 24).half()
    assert evt.gemm(TILE)(a, b, C=c, E=e) is e
    assert torch.allclose(e.double(), acc.relu() + c.double(), atol=0.02)
    found = evt.gemm(MANY)(a, b, bias=c[0])
    assert found._fields == ("E", "F", "s")
    assert [each.dtype for each in found] == [torch.float16, torch.float16, torch.float32]
    pitched = torch.empty(20, 48).half()[:, ::2]
    assert torch.equal(evt.gemm(TILE)(a, b, C=c, E=pitched), e)


def test_groups() -> None:
    a, b = [torch.randn(m, 8).half() for m in (5, 9)], [torch.randn(8, 16).half() for _ in range(2)]
    found = evt.grouped_gemm("E = relu(acc)")(a, b)
    assert [each.shape for each in found] == [(5, 16), (9, 16)]
    assert "PtrArray" in evt.grouped_gemm("E = relu(acc)").emit("sm90", "f16")
    with pytest.raises(evt.TargetError, match="E0503"):
        evt.grouped_gemm(AMAX).emit("sm90")
    assert len(evt.grouped_gemm(AMAX, route="loop")(a, b)) == 2
