"""Grouped products: the division of a call, plans and refusals, and the table of a launch."""

from __future__ import annotations

import ctypes
import json
import random
import struct
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import evt
from evt.emission import emit
from evt.emission.kernel import spell
from evt.grouped import GroupedProgram, grouped_gemm
from evt.ir import TypedDag
from evt.plan import LayoutClass, Problem, Signature, find_target, natural_signature, plan, survey
from evt.request import optimised_for, optimised_graph
from evt.runtime import grouped as grouped_module
from evt.runtime.groups import split
from evt.runtime.library import Library

TEXT = "in s: f32[m], bias: bf16[n], beta = 0.5; D = relu(alpha*acc + bias)*s + beta*C"
ROWS, COLUMNS, DEPTHS = [3, 0, 40, 8], [16, 16, 24, 8], [8, 8, 32, 0]


def tensors(rows=ROWS, columns=COLUMNS, depths=DEPTHS, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(7)

    def random(*shape, dtype=dtype):
        return torch.randn(shape, generator=generator).to(dtype)

    a = [random(m, k) for m, k in zip(rows, depths, strict=True)]
    b = [random(k, n) for k, n in zip(depths, columns, strict=True)]
    inputs = {
        "s": [random(m, dtype=torch.float32) for m in rows],
        "bias": [random(n) for n in columns],
        "C": [random(m, n) for m, n in zip(rows, columns, strict=True)],
    }
    return a, b, inputs


def alike(groups=4, m=5, n=16, k=8):
    return tensors([m] * groups, [n] * groups, [k] * groups)


def problem_of(dag: TypedDag, signature: Signature | None = None) -> Problem:
    return Problem(dag, signature or natural_signature(dag), find_target("sm90"), grouped=True)


def check(got, want) -> None:
    assert len(got) == len(want)
    assert all(torch.equal(*pair) for pair in zip(got, want, strict=True))


# How a call divides


@pytest.mark.parametrize("alpha", [1.5, [1.0, 2.0, 3.0, 4.0], torch.arange(4.0), torch.tensor(2.0), torch.ones(1)])
def test_every_group_is_a_call_of_its_own(alpha) -> None:
    a, b, inputs = tensors()
    op = grouped_gemm(TEXT)
    values = torch.as_tensor(alpha).expand(4).tolist()
    one = evt.gemm(TEXT)
    each = [one(a[i], b[i], alpha=values[i], **{name: given[i] for name, given in inputs.items()}) for i in range(4)]
    check(op(a, b, alpha=alpha, **inputs), each)
    check(op.reference(a, b, alpha=alpha, **inputs), each)


def test_stacked_and_shared_tensors() -> None:
    a, b, inputs = alike()
    op = grouped_gemm(TEXT)
    lists = op(a, b, alpha=1.0, **inputs)
    stacked = {name: torch.stack(given) for name, given in inputs.items()}
    check(op(torch.stack(a), torch.stack(b), alpha=1.0, **stacked), lists)
    shared = {name: given[0] for name, given in inputs.items()}
    check(op(a, b, alpha=1.0, **shared), op(a, b, alpha=1.0, **{name: [x] * 4 for name, x in shared.items()}))


def test_offsets_divide_rows() -> None:
    rows = [3, 0, 40, 8]
    a, b, inputs = tensors(rows, [16] * 4, [8] * 4)
    op = grouped_gemm("in s: f32[m], bias: bf16[n]; out D, z: f32[m, n]; z = acc + bias; D = z*s + C")
    offsets = [0, 3, 3, 43, 51]
    given = {"s": torch.cat(inputs["s"]), "C": torch.cat(inputs["C"]), "bias": torch.stack(inputs["bias"])}
    want = op(a, b, **inputs)
    buffers = torch.zeros(51, 16, dtype=torch.bfloat16), torch.zeros(51, 16)
    for where in (offsets, torch.tensor(offsets), torch.tensor(offsets, dtype=torch.int32)):
        got = op(torch.cat(a), torch.stack(b), offsets=where, out=buffers, **given)
        assert torch.equal(got.D, torch.cat(want.D))
        assert torch.equal(got.z, torch.cat(want.z))
        assert torch.equal(got.D, buffers[0])
        assert torch.equal(op(torch.cat(a), b, offsets=where, **given).z, got.z)


def test_outputs_and_buffers() -> None:
    a, b, _ = tensors()
    op = grouped_gemm("out D, E: f32[m, n]; D = acc; E = 2*acc")
    want = op(a, b)
    assert want._fields == ("D", "E")
    for out in (
        tuple([torch.zeros_like(x) for x in part] for part in want),
        {"E": [torch.zeros_like(x) for x in want.E]},
    ):
        got = op(a, b, out=out)
        check(got.D, want.D)
        check(got.E, want.E)
    buffers = [torch.zeros_like(x) for x in want.D]
    assert all(x is y for x, y in zip(op(a, b, D=buffers).D, buffers, strict=True))
    assert grouped_gemm("D = acc")([], []) == []


def test_a_loop_takes_what_a_grouped_kernel_does_not() -> None:
    a, b, _ = tensors()
    text = "out D, r: f32[m]; D = acc; r = sum[n](acc)"
    got = grouped_gemm(text, route="loop")(a, b)
    check(got.r, [evt.gemm(text)(*pair).r for pair in zip(a, b, strict=True)])
    with pytest.raises(evt.TargetError, match=r'E0503[^$]*reduction[^$]*help: route="loop"'):
        grouped_gemm(text).emit("sm90", "bf16", "bf16")


A, B, INPUTS = tensors()
WRONG = {
    "few": (lambda op: op(A, B[:2], alpha=1.0, **INPUTS), "`B` is given for 2 groups; there are 4"),
    "few-values": (lambda op: op(A, B, alpha=[1.0], **INPUTS), "`alpha` is given for 1 groups"),
    "missing": (lambda op: op(A, B, **INPUTS), "group 0: the input `alpha` is missing"),
    "unknown": (lambda op: op(A, B, alpha=1.0, gamma=2.0, **INPUTS), "E0602"),
    "one-shape": (
        lambda op: op(A, B, alpha=1.0, **{**INPUTS, "C": [*INPUTS["C"][:2], INPUTS["C"][0], INPUTS["C"][3]]}),
        r"group 2: `C` has shape \[3, 16\]",
    ),
    "neither": (lambda op: op(A[0], B[0], alpha=1.0, **INPUTS), "E0607"),
    "one-type": (
        lambda op: op([*A[:3], A[3].half()], [*B[:3], B[3].half()], alpha=1.0, **INPUTS),
        "group 3",
    ),
    "offsets-end": (lambda op: op(A[2], B, offsets=[0, 1, 2, 3, 9], alpha=1.0, **INPUTS), "`offsets` end at 9"),
    "offsets-order": (lambda op: op(A[2], B, offsets=[0, 5, 2], alpha=1.0, **INPUTS), "ascend"),
    "offsets-float": (lambda op: op(A[2], B, offsets=[0, 2.5], alpha=1.0, **INPUTS), "whole numbers"),
    "out": (lambda op: op(A, B, alpha=1.0, out=[1, 2, 3, 4], **INPUTS), "E0607"),
    "overlap": (
        lambda op: op(A, B, alpha=1.0, out=[x.clone() for x in INPUTS["C"][:3]] + [INPUTS["C"][2][:8, :8]], **INPUTS),
        "`D` of group 3 shares memory with `C` of group 2|`C` of group 2 shares memory with `D` of group 3",
    ),
    "batched": (lambda op: op([x.expand(2, *x.shape) for x in A], B, alpha=1.0, **INPUTS), "group 0: .*batched"),
    "grad": (lambda op: op([x.clone().requires_grad_() for x in A], B, alpha=1.0, **INPUTS), "E0610"),
}


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_descending_offsets_are_named(seed: int, ends: bool) -> None:
    """A caller who gives the ends of groups does not read about first rows."""
    draw = random.Random(seed)
    offsets = sorted(draw.sample(range(1, 40), 4))
    fall = draw.randrange(4)
    before = offsets[fall - 1] if fall > 0 else 0
    offsets[fall] = before - draw.randint(1, before + 1)
    given = offsets if ends else [0, *offsets]
    with pytest.raises(evt.ArgumentError, match=f"{offsets[fall]} follows {before}") as caught:
        grouped_gemm(TEXT)(A[2], B, offsets=given, alpha=1.0, **INPUTS)
    assert ("first row" in str(caught.value)) is not ends


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls_name_the_group(name) -> None:
    call, message = WRONG[name]
    with pytest.raises(evt.ArgumentError, match=message):
        call(grouped_gemm(TEXT))


def test_in_place_is_fine_within_a_group() -> None:
    a, b, inputs = tensors()
    op = grouped_gemm(TEXT)
    want = op(a, b, alpha=1.0, **inputs)
    check(op(a, b, alpha=1.0, out=inputs["C"], **inputs), want)


# Plans and refusals


def test_every_tensor_is_an_array_of_pointers() -> None:
    text = grouped_gemm(TEXT).emit("sm90", "bf16", "bf16")
    for part in (
        "KernelPtrArrayTmaWarpSpecializedPingpong",
        "Sm90RowBroadcast<0, TileShape, cutlass::bfloat16_t*, float",
        "Sm90ColBroadcast<0, TileShape, float*, float",
        "using in_alpha = evt::sm90::Visitor<TileShape, EpilogueTile, evt::epilogue::GroupScalar<float>>;",
        "result.epilogue.ptr_C = row<ElementC const*>(arguments, row_in_C);",
        "ElementA, LayoutA*",
    ):
        assert part in text
    assert text == grouped_gemm(TEXT).emit("sm90", "bf16", "bf16")


def test_other_tiles_and_narrow_outputs_go_through_our_nodes() -> None:
    text = grouped_gemm("in g: bf16[m, n]; D = silu(even(acc + g))*odd(acc)").emit("sm90", "bf16", "bf16")
    assert (
        "GroupTensor<evt::sm90::Visitor<TileShape, EpilogueTile, evt::epilogue::HalfStore<cutlass::bfloat16_t, 1>>>"
        in text
    )
    assert "GroupTensor<fusion::Sm90AuxLoad<0, void, cutlass::bfloat16_t" in text
    assert "struct HalfStore" in text


@pytest.mark.parametrize("text", ["D = acc + C", "in C: bf16[m, n]; D = acc + C"])
def test_a_tile_is_the_source_declared_or_not(text) -> None:
    assert "Sm90SrcFetch<cutlass::bfloat16_t>" in grouped_gemm(text).emit("sm90", "bf16", "bf16")


def test_the_schema_lists_the_rows() -> None:
    made: Any = grouped_gemm(TEXT).plan("sm90", "bf16", "bf16")
    schema = json.loads(made.schema)
    assert [row[0] for row in schema["rows"]] == [field.name for field in made.group_fields]
    assert [field.name for field in made.fields][:3] == ["table", "workspace", "groups"]
    assert {value.number for value in spell(made).group_values} == {"value_of_in_alpha", "value_of_in_beta"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("in b: f32[l, n]; D = acc + b", "no batches"),
        ("D = acc + iota(l)", "no batches"),
        ("D = dropout(acc, 0.5, seed, offset)", "random"),
        ("in w: f32[n]; D = sum[n](acc*w)", "reduction"),
    ],
)
def test_what_a_grouped_kernel_cannot_do(text, reason) -> None:
    with pytest.raises(evt.TargetError, match=f"E0503[^$]*{reason}"):
        grouped_gemm(text).emit("sm90", "f16", "f16")


@pytest.mark.parametrize("arch", ["sm80", "sm89"])
def test_other_targets_are_told_of_the_loop(arch) -> None:
    with pytest.raises(evt.TargetError, match=r'E0503[^$]*route="loop"'):
        grouped_gemm(TEXT).emit(arch)
    assert "int mine_run(" in grouped_gemm(TEXT, route="loop").emit(arch, name="mine")


def test_layouts_that_tma_cannot_move() -> None:
    dag = optimised_graph(evt.gemm(TEXT).request, "bf16")
    signature = replace(natural_signature(dag), a=LayoutClass("k", 4))
    with pytest.raises(evt.TargetError, match="aligned to 8 bytes"):
        plan(problem_of(dag, signature))
    wide = optimised_graph(evt.gemm("D = acc").request, "f32")
    with pytest.raises(evt.TargetError, match="contiguous along k, and `B`"):
        plan(problem_of(wide))


def test_configurations() -> None:
    dag = optimised_graph(evt.gemm("D = acc").request, "f16")
    names = [config.name for config in survey(problem_of(dag)).chosen.configs]
    assert len(set(names)) == len(names)
    for name in names:
        made = grouped_gemm("D = acc", config=name).plan("sm90", "f16", "f16")
        assert made.config.name == name
        assert "PtrArray" in emit(made)
    with pytest.raises(evt.TargetError, match="E0501"):
        grouped_gemm("D = acc", config="pingpong_1x1x1").plan("sm90")
    with pytest.raises(evt.TargetError, match="E0501"):
        grouped_gemm("D = acc", route="evt-2x")


# The table that a launch is given


def launched(op: GroupedProgram, a, b, monkeypatch, **inputs):
    """Return the members and rows, by name, of a launch for these tensors; only of groups with work."""
    recorded = []
    caller = op._caller
    groups = split(op.request, a, b, inputs, None, None)
    known = [caller._bind(index, group) for index, group in enumerate(groups.members)]
    caller._check_alike(known)
    caller._allocate(groups, known)
    busy = [index for index, each in enumerate(known) if not each.empty]
    members, checked = [groups.members[i] for i in busy], [known[i] for i in busy]
    dag = optimised_for(caller.request, checked[0].bound.dag.operands, checked[0].bound.absent)
    made: Any = plan(problem_of(dag, caller._signature(busy, checked)))

    def run(arguments: bytes, size: int, stream: int) -> int:
        words = struct.unpack(f"={'QQ' + 'q' * (len(made.fields) - 2)}", arguments)
        assert size == 8 * len(made.fields)
        values = dict(zip((field.name for field in made.fields), words, strict=True))
        count = values["groups"]
        table = ctypes.string_at(values["table"], 8 * count * len(made.group_fields))
        for index, field in enumerate(made.group_fields):
            form = {"size": "q", "pointer": "Q", "number": "d"}[field.kind]
            values[field.name] = struct.unpack_from(f"={count}{form}", table, 8 * count * index)
        recorded.append(values)
        return 0

    form = "QQ" + "q" * (len(made.fields) - 2)
    library = Library(None, run, form, lambda arguments: 64)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    varies = grouped_module._flexible(busy, checked)
    table = grouped_module.make_table(made, members, checked)  # type: ignore[attr-defined]
    grouped_module.launch(made, library, table, len(members), varies, torch.device("cpu"))  # type: ignore[attr-defined]
    return recorded[0], members


def test_every_row_gets_its_words(monkeypatch) -> None:
    a, b, inputs = tensors()
    beta = [0.25, torch.tensor(3.0), 0.75, 1.0]
    values, members = launched(grouped_gemm(TEXT), a, b, monkeypatch, alpha=1.5, beta=beta, **inputs)
    assert values["groups"] == 2  # one group has no rows, one no depth
    assert (values["m"], values["n"], values["k"]) == ((3, 40), (16, 24), (8, 32))
    assert values["A"] == (a[0].data_ptr(), a[2].data_ptr())
    assert values["stride_m_of_A"] == (8, 32)
    assert values["stride_k_of_B"] == (16, 24)
    assert values["in_bias"] == (inputs["bias"][0].data_ptr(), inputs["bias"][2].data_ptr())
    assert values["value_of_in_alpha"] == (1.5, 1.5)
    assert values["in_alpha"] == (0, 0)
    assert values["value_of_in_beta"] == (0.25, 0.75)
    assert values["out_D"] == tuple(group.buffers["D"].data_ptr() for group in members)
    assert values["stride_m_of_out_D"] == (16, 24)


def test_device_values_come_by_address_and_defaults_by_number(monkeypatch) -> None:
    a, b, inputs = alike(2)
    alpha = torch.tensor([2.0, 3.0])
    values, _ = launched(grouped_gemm(TEXT), a, b, monkeypatch, alpha=alpha, **inputs)
    assert values["in_alpha"] == (alpha.data_ptr(), alpha.data_ptr() + 4)
    assert values["value_of_in_beta"] == (0.5, 0.5)
    assert values["in_beta"] == (0, 0)


def test_flexible_vectors_are_vectors_in_all_groups_or_in_none(monkeypatch) -> None:
    op = grouped_gemm("in s: f32[m?]; D = s*acc")
    a, b, inputs = tensors([1, 40], [16, 16], [8, 8])
    values, _ = launched(op, a, b, monkeypatch, s=inputs["s"])
    assert values["in_s_varies"] == 1
    values, _ = launched(op, a, b, monkeypatch, s=2.0)
    assert values["in_s_varies"] == 0
    assert values["value_of_in_s"] == (2.0, 2.0)
    a, b, inputs = alike(2)
    with pytest.raises(evt.ArgumentError, match="a vector in group 0 and a single value in group 1"):
        launched(op, a, b, monkeypatch, s=[inputs["s"][0], 1.0])


def test_groups_have_one_majorness_and_the_least_alignment(monkeypatch) -> None:
    a, b, _ = alike(2)
    op = grouped_gemm("D = acc + C")
    with pytest.raises(evt.ArgumentError, match="`B` is contiguous along k in group 1, n in group 0"):
        launched(op, a, [b[0], b[1].mT.contiguous().mT], monkeypatch, C=[x @ y for x, y in zip(a, b, strict=True)])
    narrow = torch.zeros(5, 17, dtype=torch.bfloat16)[:, :16]
    values, _ = launched(op, a, b, monkeypatch, C=[torch.zeros(5, 16, dtype=torch.bfloat16), narrow])
    assert values["stride_m_of_in_C"] == (16, 17)
    assert values["groups"] == 2


def test_what_is_known_of_a_group_is_found_again() -> None:
    a, b, inputs = tensors()
    op = grouped_gemm(TEXT)
    op(a, b, alpha=1.0, **inputs)
    count = len(op._caller._known)
    op(a, b, alpha=2.0, **inputs)
    assert len(op._caller._known) == count
