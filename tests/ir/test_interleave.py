"""``interleave``: the inverse of even and odd."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import evt
from evt.ir.text import format_dag, parse_dag

A, B = torch.randn(5, 16).half(), torch.randn(16, 128).half()
ACC = A.double() @ B.double()
DISTANCES = (1, 8, 16, 32)


def run(text: str, **inputs: Any) -> Any:
    return evt.gemm(text).reference(A, B, **inputs)


def halves(x: torch.Tensor, distance: int) -> tuple[torch.Tensor, torch.Tensor]:
    pairs = x.unflatten(-1, (-1, 2, distance))
    return pairs[..., 0, :].flatten(-2), pairs[..., 1, :].flatten(-2)


def together(x: torch.Tensor, y: torch.Tensor, distance: int) -> torch.Tensor:
    return torch.stack([each.unflatten(-1, (-1, distance)) for each in (x, y)], -2).flatten(-3)


@pytest.mark.parametrize("distance", DISTANCES)
def test_it_is_the_inverse_of_even_and_odd(distance: int) -> None:
    found = run(f"out D: f32[m, n]\nD = interleave(even(acc, {distance}), odd(acc, {distance}), {distance})")
    assert found.equal(ACC.float())


@pytest.mark.parametrize("distance", DISTANCES)
def test_a_rotated_pair(distance: int) -> None:
    c, s = torch.randn(5, 64), torch.randn(5, 64)
    text = f"""in c: f32[m, n/2], s: f32[m, n/2]
        out D: f32[m, n], sums: f32[m], h: f32[m, n/2]
        x = even(acc, {distance}); y = odd(acc, {distance})
        h = x*c - y*s
        turned = interleave(h, x*s + y*c, {distance})
        D = turned + acc; sums = sum[n](turned)"""
    found = run(text, c=c, s=s)
    x, y = halves(ACC, distance)
    turned = together(x * c - y * s, x * s + y * c, distance)
    for out, expected in ((found.D, turned + ACC), (found.sums, turned.sum(1)), (found.h, x * c - y * s)):
        assert (out.double() - expected).norm() / expected.norm() < 1e-5


def test_values_of_other_modes_and_types() -> None:
    """One of the two may be the same in all columns; integers stay integers, truth values become numbers."""
    rows = torch.randn(5)
    found = run("in r: f32[m]\nout D: f32[m, n]\nD = interleave(even(acc), r)", r=rows)
    assert found.equal(together(ACC[:, ::2].float(), rows.unsqueeze(1).expand(5, 64), 1))
    text = "in t: i32[m, n/2]\nout D: i32[m, n]\nD = interleave(t, 7) + 0*i32(acc)"
    whole = run(text, t=torch.full((5, 64), 2**30 + 1).int())
    assert whole[0].tolist() == [2**30 + 1, 7] * 64
    truth = run("out D: f32[m, n]\nD = interleave(even(acc) > 0, odd(acc))")
    assert truth.equal(together((ACC[:, ::2] > 0).float(), ACC[:, 1::2].float(), 1))


@pytest.mark.parametrize(("rows", "columns"), [(0, 32), (5, 0), (0, 0)])
def test_nothing_is_interleaved(rows: int, columns: int) -> None:
    text = "out D: f32[m, n]\nD = acc + interleave(alpha, even(acc, 16), 16)"
    found = evt.gemm(text).reference(A[:rows], B[:, :columns], alpha=2.0)
    assert found.shape == (rows, columns)


def test_pairs_of_it_at_another_distance() -> None:
    text = "out D: f32[m, n/2]\nD = even(interleave(even(acc), 2*odd(acc)), 32)"
    assert run(text).equal(halves(together(ACC[:, ::2], 2 * ACC[:, 1::2], 1), 32)[0].float())


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("D = interleave(acc, acc)", "E0307", "a value of [n]"),
        ("D = acc + interleave(1, 2)", "E0307", "neither"),
        ("D = interleave(even(acc), odd(acc, 8))", "E0307", "at a distance of 8"),
        ("D = interleave(even(acc, 8), odd(acc, 8))", "E0307", "at a distance of 8"),
        ("D = interleave(even(acc))", "E0203", "interleave(x, y, distance)"),
        ("D = interleave(even(acc), odd(acc), 5)", "E0203", "1, 8, 16, 32"),
        ("D = interleave(x=even(acc), y=odd(acc))", "E0204", "by position"),
        ("A = interleave(A, A); D = acc", "E0411", "pair"),
    ],
)
def test_what_is_no_pair_is_refused(text: str, code: str, said: str) -> None:
    with pytest.raises(evt.EvtError) as caught:
        evt.gemm(text).reference(A, B)
    assert code in str(caught.value)
    assert said in str(caught.value)


def test_columns_that_do_not_divide_are_refused() -> None:
    text = "in c: f32[m, n/2]\nD = interleave(c, c, 32) + acc"
    with pytest.raises(evt.EvtError, match="multiple of 64"):
        evt.gemm(text)(A, B[:, :96], c=torch.randn(5, 48))


@pytest.mark.parametrize("arch", ["sm80", "sm90", "sm100"])
@pytest.mark.parametrize("distance", DISTANCES)
def test_a_tensor_meets_the_pairs_of_its_distance(arch: str, distance: int) -> None:
    text = f"in c: f32[m, n/2]\nD = acc + interleave(c, 2*c, {distance})"
    cpp = evt.gemm(text).emit(arch, a="f16", b="f16")
    assert f"Interleave<{distance}, float>" in cpp
    assert f"HalfLoad<float, {distance}>" in cpp


def test_the_optimiser_keeps_its_type() -> None:
    """A half that becomes a constant does not make an f32 of the other one."""
    text = "in t: i32[m, n/2]\nout D: f32[m, n]\nD = interleave(0.5*(t - t), t) * 0.1 + 0*acc"
    values = torch.arange(320, dtype=torch.int32).reshape(5, 64)
    found = run(text, t=values)
    assert found.equal(together(torch.zeros(5, 64), values * torch.tensor(0.1), 1))


def test_graphs_of_it_read_back() -> None:
    dag = evt.gemm("D = interleave(even(acc, 16), odd(acc, 16), 16)").request.dag
    assert "interleave 16 %1 %2" in format_dag(dag)
    assert parse_dag(format_dag(dag)) == dag
