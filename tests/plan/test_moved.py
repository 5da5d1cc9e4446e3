"""The matrices of an epilogue that the GEMM kernel of evt moves by TMA."""

from __future__ import annotations

import evt
from evt.ir.dtype import BY_NAME
from evt.plan import survey
from evt.plan.epilogue.loads import AuxLoad
from evt.plan.epilogue.values import Access
from evt.plan.epilogue.writes import AuxStore
from evt.plan.moved import moved, moved_bytes
from evt.plan.plan import Plan
from evt.plan.staged import MOST_STAGED, staged_bytes
from evt.request import packed_problem


def planned(text: str) -> Plan:
    return evt.linear(text, route="gemm-own-3x").plan("sm90", "bf16", "bf16")


def accesses(made: Plan) -> list[Access]:
    return [step.access for step in made.steps if isinstance(step, AuxLoad | AuxStore)]


def test_tma_moves_all_matrices() -> None:
    """Each stored matrix has the memory of a loaded one with elements of its size, if there is one."""
    text = (
        "in c: i8[m, n], x: f32[m, n], y: f32[m, n]; out D: e4m3, E: f32, F: bf16\n"
        "E = x + acc; F = y + acc; D = acc + c"
    )
    made = planned(text)
    assert accesses(made) == [Access.TILE] * 5  # C has no such step
    loads, stores = moved(made)
    assert sorted(each.dtype.name for each in loads) == ["f32", "f32", "i8"]
    assert [each.dtype.name for each in stores] == ["e4m3", "f32", "bf16"]
    assert moved_bytes(made) == 1 + 4 + 4 + 2


def test_stored_matrices_share_memory_with_loaded_ones() -> None:
    f32, bf16, i8 = (BY_NAME[name] for name in ("f32", "bf16", "i8"))
    assert staged_bytes([], [bf16]) == 2
    assert staged_bytes([f32, f32, f32], [f32, f32, f32, bf16]) == 14
    assert staged_bytes([bf16, f32], [bf16, bf16, i8]) == 9


def test_buffers_have_room_for_the_first_matrices() -> None:
    """Threads move the others, if a route is asked for."""
    made = planned(
        "out D: f32, "
        + ", ".join(f"x{i}: f32" for i in range(5))
        + "; D = acc"
        + "".join(f"; x{i} = {i}*acc" for i in range(5))
    )
    assert accesses(made).count(Access.TILE) == 4
    assert accesses(made).count(Access.DIRECT) == 2
    assert moved_bytes(made) == MOST_STAGED


def test_an_update_takes_the_kernel_of_evt() -> None:
    """Weights, moments and their squares are read and written."""
    text = (
        "in w: f32[m, n], r: f32[m, n], v: f32[m, n]; out W: f32[m, n], R: f32[m, n], V: f32[m, n]\n"
        "R = 0.9*r + 0.1*acc; V = 0.99*v + 0.01*acc*acc; W = w - R/(sqrt(V) + 0.1)"
    )
    made = survey(packed_problem(evt.linear(text).request, "sm90", "bf16", "bf16")).plan
    assert made.route == "gemm-own-3x"
    assert moved_bytes(made) == 12
