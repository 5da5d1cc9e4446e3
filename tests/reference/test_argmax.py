"""``argmax`` and ``argmin``: where an extreme value of a row or a column is, the first of equal ones."""

from __future__ import annotations

import pytest
import torch

import evt
from evt.plan.epilogue.computes import PlaceKeys
from evt.plan.epilogue.writes import Reduction
from evt.request import typed_graph

TEXT = "out D, i: i32[m], best: f32[m], j: i32[n]; D = acc; i = argmax[n](acc); best = max[n](acc); j = argmin[m](acc)"


def product(acc: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return acc, torch.eye(acc.shape[-1])


def test_the_first_of_equal_values() -> None:
    acc = torch.tensor([[1.0, 3.0, 3.0, 0.0], [-2.0, -2.0, -5.0, -9.0], [0.0, 0.0, -0.0, 0.0]])
    found = evt.gemm(TEXT)(*product(acc))
    assert found.i.tolist() == [1, 0, 0]
    assert found.i.dtype == torch.int32
    assert found.best.tolist() == [3.0, -2.0, 0.0]
    assert found.j.tolist() == [1, 1, 1, 1]


def test_a_nan_wins_as_in_pytorch() -> None:
    acc = torch.tensor([[1.0, torch.nan, torch.inf], [-torch.inf, 2.0, torch.nan]])
    op = evt.gemm("in C: f32[m, n]; out D: f32[m, n], i, j; D = acc*0 + C; i = argmax[n](D); j = argmin[n](D)")
    found = op(torch.ones(2, 4), torch.ones(4, 3), C=acc)
    assert found.i.tolist() == acc.argmax(1).tolist() == [1, 2]
    assert found.j.tolist() == acc.argmin(1).tolist() == [1, 2]


def test_integers_and_conditions_and_batches() -> None:
    a = torch.randint(-9, 10, (2, 5, 8), dtype=torch.int8)
    b = torch.randint(-9, 10, (8, 12), dtype=torch.int8)
    op = evt.gemm("out D: i32[m, n], i, c: i32[n]; D = acc; i = argmax[n](acc) + 1; c = argmax[m](acc > 0)")
    found, acc = op(a, b), a.long() @ b.long()
    first = (acc == acc.amax(-1, keepdim=True)).int().argmax(-1)
    assert torch.equal(found.i, first.int() + 1)
    assert torch.equal(found.c, (acc > 0).int().argmax(-2).int())


REFUSED = {
    "D = acc; i = argmax[m, n](acc)": ("E0301", "`argmax` is along one mode"),
    "D = acc; i = argmin[n%32](acc)": ("E0301", "`argmin` is along one mode"),
    "D = acc; i = argmax(acc)": ("E0203", "`argmax` needs the modes"),
    "D = even(acc); i = argmax[n](D)": ("E0307", "takes all columns"),
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_has_no_place(text) -> None:
    code, words = REFUSED[text]
    with pytest.raises(evt.ProgramError, match=code) as caught:
        evt.gemm(text).emit("sm90", "f16", "f16")
    assert words in str(caught.value)


def test_f64_values_have_no_key() -> None:
    with pytest.raises(evt.ProgramError, match=r"E0308[^$]*does not support f64[^$]*`argmax\[n\]\(f32\(x\)\)`"):
        evt.gemm("D = acc; i = argmax[n](acc)").emit("sm80", "f64", "f64")
    assert evt.gemm("D = acc; i = argmax[n](f32(acc))").emit("sm80", "f64", "f64")


def test_of_a_constant_it_is_the_first() -> None:
    """Also of a program whose operands have no types yet."""
    op = evt.gemm("D = acc; i = argmax[n](2) + argmin[n](1/3)")
    assert op.reference(torch.ones(3, 2), torch.ones(2, 4)).i.tolist() == [0, 0, 0]


def test_the_names_are_free() -> None:
    assert evt.gemm("D = acc; argmax = argmax[n](acc)").outputs == ("D", "argmax")


@pytest.mark.parametrize(
    ("arch", "keys_of"),
    [
        ("sm80", "evt::epilogue::PlaceKeys<1, false>"),
        ("sm90", "evt::epilogue::PlaceKeys<1, false>"),
        ("sm100", "evt::epilogue::PlaceKeys<1, false>"),
    ],
)
def test_kernels_reduce_keys(arch, keys_of) -> None:
    made = evt.gemm(TEXT, deterministic=False).plan(arch, "f16", "f16")
    keys = [node for node in made.steps if isinstance(node, PlaceKeys)]
    assert [(node.axis, node.least) for node in keys] == [("column", False), ("row", True)]
    atomic = {node.kind: bool(node.atomic) for node in made.steps if isinstance(node, Reduction)}
    assert atomic == {"argmax": False, "max": True, "argmin": False}
    text = evt.gemm(TEXT).emit(arch, "f16", "f16")
    assert keys_of in text
    assert "evt::MaxKey, int64_t, evt::Partial" in text
    assert "evt::CombinedPlace<0>{{parts<int64_t>(arguments, workspace.reduction_" in text


def test_a_transposed_kernel_takes_rows_for_columns() -> None:
    text = "out D[n, m], i: i32[m]; D = acc; i = argmax[n](acc)"
    made = evt.gemm(text).plan("sm80", "f16", "f16")
    assert made.transposed
    assert [node.axis for node in made.steps if isinstance(node, PlaceKeys)] == ["row"]


def test_the_graph_reads_back() -> None:
    dag = typed_graph(evt.gemm(TEXT).request, "f16", "f16")
    assert evt.ir.parse_dag(str(dag)) == dag
