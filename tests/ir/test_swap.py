"""``swap``: each column's partner in its pair, which one step exchanges."""

from __future__ import annotations

import pytest
import torch

import evt
from evt.plan.epilogue.computes import PairInterleave, PairMember, PairSwap
from evt.plan.epilogue.program import EpilogueProgram

A, B = torch.randn(5, 16).half(), torch.randn(16, 128).half()
DISTANCES = (1, 8, 16, 32)


def partners(x: torch.Tensor, distance: int) -> torch.Tensor:
    return x.unflatten(-1, (-1, 2, distance)).flip(-2).flatten(-3)


@pytest.mark.parametrize("distance", DISTANCES)
def test_the_reference_exchanges_columns(distance: int) -> None:
    found = evt.gemm(f"out D: f32[m, n]; D = swap(acc, {distance})").reference(A, B)
    assert found.equal(partners((A.double() @ B.double()).float(), distance))
    twice = evt.gemm(f"out D: f32[m, n]; D = swap(swap(acc, {distance}), {distance})").reference(A, B)
    assert twice.equal((A.double() @ B.double()).float())


def test_the_gradient_exchanges_columns() -> None:
    op = evt.gemm("in C: f32[m, n]; out D: f32[m, n]; D = acc + swap(C, 8)")
    given = torch.randn(5, 128, requires_grad=True)
    seed = torch.randn(5, 128)
    op(A, B, C=given).backward(seed)
    assert given.grad is not None
    assert given.grad.equal(partners(seed, 8))


def steps(text: str, **options: str) -> EpilogueProgram:
    made = evt.gemm(text, **options).plan("sm90", "f16", "f16").epilogue
    assert isinstance(made, EpilogueProgram)
    return made


@pytest.mark.parametrize("route", ["evt-2x", "evt-3x", "own"])
def test_one_step_exchanges_a_pair(route: str) -> None:
    program = steps("D = acc + 2*swap(acc, 8)", route=route)
    assert [step.distance for step in program.of(PairSwap)] == [8]
    assert not program.of(PairMember)
    assert not program.of(PairInterleave)
    assert len(steps("D = interleave(odd(acc), even(acc))").of(PairSwap)) == 1


def test_halves_that_others_read_keep_their_steps() -> None:
    program = steps("out D, h: f16[m, n/2]; D = swap(acc); h = even(acc)")
    assert [step.member for step in program.of(PairMember)] == [0]
    assert len(program.of(PairSwap)) == 1
    other = steps("in c: f16[m, n/2]; D = interleave(odd(acc), even(acc) + c)")
    assert not other.of(PairSwap)
    assert len(other.of(PairMember)) == 2


@pytest.mark.parametrize(
    ("formula", "code", "words"),
    [
        ("D = swap(acc, 5)", "E0203", "1, 8, 16, 32"),
        ("D = swap(acc, acc, 8)", "E0203", "swap(x, distance)"),
        ("D = swap(x=acc)", "E0204", "by position"),
    ],
)
def test_mistakes(formula: str, code: str, words: str) -> None:
    with pytest.raises(evt.EvtError) as caught:
        evt.gemm(formula).emit("sm90", "f16", "f16")
    assert caught.value.diagnostics[0].code == code
    assert words in str(caught.value)
