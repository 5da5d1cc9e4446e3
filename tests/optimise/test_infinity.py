"""`inf` in formulas and defaults: a constant that rules, types, emission and the reference keep."""

from __future__ import annotations

import math
import pickle

import pytest
import torch

import evt
from evt.ir import format_dag, parse_dag

A, B = torch.randn(5, 8, generator=torch.Generator().manual_seed(1)), torch.eye(8)[:, :6].contiguous()
ACC = A[:, :6]
MASK = torch.arange(6) <= torch.arange(5)[:, None]

MEANT = {
    "D = where(iota(n) <= iota(m), acc, -inf)": ACC.masked_fill(~MASK, -math.inf),
    "D = clamp(acc, -inf, 0.5)": ACC.clamp(max=0.5),
    "D = min(max(acc, -inf), inf)": ACC,
    "D = acc*(1/inf)": ACC * 0,
    "D = acc + inf": torch.full((5, 6), math.inf),
    "D = acc + (inf - inf)": torch.full((5, 6), math.nan),
    "D = acc + 0*inf": torch.full((5, 6), math.nan),
    "D = acc - -inf": torch.full((5, 6), math.inf),
    "D = inf*acc": ACC.sign() * math.inf,
    "D = acc/inf + acc*sigmoid(acc)": ACC * torch.sigmoid(ACC),
    "D = acc + isinf(-inf)*isinf(acc + inf)": ACC + 1,
    "D = f16(inf)*acc": ACC.sign() * math.inf,
    "def f(x) = max(x, -inf)\nD = f'(acc)": torch.ones(5, 6),
    "out D: e4m3\nD = where(acc > 0, inf, -inf)": ACC.sign() * 448,
    "out D: i8\nD = where(acc > 0, inf, -inf)": torch.where(ACC > 0, 127.0, -128.0),
    "in C: f16[m, n] = -inf\nD = max(acc, C)": ACC,
    "in s: f32[] = inf\nD = min(acc, s)": ACC,
    "D = acc ** inf": ACC**math.inf,
}


@pytest.mark.parametrize("relaxed", [False, True])
@pytest.mark.parametrize("text", MEANT)
def test_meaning(text: str, relaxed: bool) -> None:
    if relaxed and "nan" in str(MEANT[text]):
        pytest.skip("0 times infinity is 0 where algebra is relaxed")
    op = evt.gemm(text, relaxed=relaxed)
    assert torch.allclose(op.reference(A, B).double(), MEANT[text].double(), equal_nan=True)
    assert parse_dag(format_dag(op.request.dag)) == op.request.dag
    assert pickle.loads(pickle.dumps(op)) == op


def test_a_reduction_of_masked_values() -> None:
    op = evt.gemm("out D, top: f32[m]\nD = acc\ntop = max[n](where(iota(n) <= iota(m), acc, -inf))")
    assert torch.equal(op.reference(A, B).top, ACC.masked_fill(~MASK, -math.inf).amax(1))


@pytest.mark.parametrize(
    ("arch", "dtype", "literal"),
    [
        *[("sm80", "f16", "(-INFINITY)"), ("sm90", "bf16", "(-INFINITY)"), ("sm100", "f16", "(-INFINITY)")],
        *[("sm90", "i8", "(-INFINITY)"), ("sm80", "f64", "static_cast<double>(-INFINITY)")],
    ],
)
def test_emission(arch: str, dtype: str, literal: str) -> None:
    for text in ("D = where(iota(n) <= iota(m), acc, -inf)", "in C: f16[m, n] = -inf\nD = max(acc, C)"):
        assert literal in evt.gemm(text).emit(arch, a=dtype) or "C" in text
    assert evt.gemm("D = max(acc, 2)").emit(arch, a=dtype).count("-INFINITY") == 0


def test_what_takes_no_infinity() -> None:
    for dtype in ("i32[]", "i8[m, n]", "e4m3[m, n]", "e5m2[m, n]"):
        with pytest.raises(evt.ProgramError, match="E0306"):
            evt.gemm(f"in x: {dtype} = inf\nD = acc + x")
    with pytest.raises(evt.ProgramError, match="E0308"):
        evt.gemm("D = acc*rand(inf, 1)")
