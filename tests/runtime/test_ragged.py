"""Grouped calls with offsets: ends of groups, on the host and, up to the launch, on the GPU."""

from __future__ import annotations

import pickle
import random
import warnings
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

import evt
from evt.errors import ArgumentError, EvtError, TargetError
from evt.launch.gemm import shape
from evt.plan import Plan, find_target
from evt.plan.gemm import MAX_GROUPS, Tile
from evt.plan.gemm_speed import Size, microseconds, waves
from evt.plan.plan import OwnProduct
from evt.request import Request, read_request
from evt.request.ragged import ragged_request
from evt.runtime.arguments import bind
from evt.runtime.bound import Bound
from evt.runtime.call import Caller
from evt.runtime.kernels import plan_kernels
from evt.runtime.operator import write_program

HEADER = "gemm(A: bf16[m, k], B: bf16[n, k])\n"
EXPERTS = HEADER + "in bias: f32[n], w: f32[m], t: f32[n?], alpha = 1.0\nD = alpha*w*silu(acc + bias) + t + residual"
GROUPS, ROWS, COLUMNS, DEPTH = 4, 30, 64, 32


def given(**change: Any) -> dict[str, Any]:
    """Return the arguments of EXPERTS by name."""
    generator = torch.Generator().manual_seed(0)
    found: dict[str, Any] = {
        "A": torch.randn(ROWS, DEPTH, generator=generator).bfloat16(),
        "B": torch.randn(GROUPS, COLUMNS, DEPTH, generator=generator).bfloat16(),
        "offsets": torch.tensor([7, 7, 20, 28], dtype=torch.int32),
        "bias": torch.randn(GROUPS, COLUMNS, generator=generator),
        "w": torch.randn(ROWS, generator=generator),
        "t": torch.randn(COLUMNS, generator=generator),
        "residual": torch.randn(ROWS, COLUMNS, generator=generator).bfloat16(),
    }
    return {**found, **change}


def bound_of(request: Request, values: dict[str, Any]) -> Bound:
    """Return a checked call of a program of groups of rows."""
    a, b, *others = values.values()
    named = dict(zip(list(values)[2:], others, strict=True))
    buffers = {name: named.pop(name) for name in request.outputs if name in named}
    return bind(request, a, b, named, buffers)


def planned(text: str = EXPERTS, **change: Any) -> tuple[Plan, ...]:
    """Return the plans of a call for sm90."""
    request = ragged_request(evt.grouped_gemm(text).request)
    values = {name: value for name, value in given(**change).items() if value is not None}
    return plan_kernels(request, bound_of(request, values), find_target("sm90"))


# Ends on the host


@pytest.mark.parametrize("text", ["D = acc", "in w: f32[m]; out D, E: f32[m, n]; D = acc; E = w*acc"])
@pytest.mark.parametrize("offsets", [[], [0], torch.empty(0, dtype=torch.int32)], ids=str)
def test_results_without_groups_are_tensors(text: str, offsets: Any) -> None:
    op, rows = evt.grouped_gemm(text), ROWS if len(offsets) == 0 else 0
    a, b = torch.ones(rows, DEPTH).half(), torch.ones(0, DEPTH, COLUMNS).half()
    inputs = {name: torch.ones(rows) for name in op.inputs}
    found = op(a, b, offsets=offsets, **inputs)
    results = found if isinstance(found, tuple) else (found,)
    assert [each.shape for each in results] == [(rows, COLUMNS)] * len(op.outputs)
    buffers = [torch.full_like(each, 3) for each in results]
    op(a, b, offsets=offsets, out=buffers if len(buffers) > 1 else buffers[0], **inputs)
    assert all(bool((each == 3).all()) for each in buffers)
    with pytest.raises(ArgumentError, match="E0607"):
        op(a, [], offsets=offsets, **inputs)


@pytest.mark.parametrize("kind", [list, lambda x: x, lambda x: x.long()])
def test_ends_of_groups(kind) -> None:
    op, (a, b, offsets, *_) = evt.grouped_gemm(EXPERTS), given().values()
    inputs = {name: value for name, value in given().items() if name not in ("A", "B", "offsets")}
    got = op(a, b, offsets=kind(offsets), **inputs)
    assert got.shape == (ROWS, COLUMNS)
    begun = {name: value[:28] if name in ("w", "residual") else value for name, value in inputs.items()}
    assert torch.equal(got[:28], op(a[:28], b, offsets=[0, 7, 7, 20, 28], **begun))
    buffer = torch.full((ROWS, COLUMNS), 3.0).bfloat16()
    op(a, b, offsets=kind(offsets), out=buffer, **inputs)
    assert torch.equal(buffer[:28], got[:28])
    assert bool((buffer[28:] == 3).all())


@pytest.mark.parametrize("in_graphs", [False, True])
def test_the_program_of_all_groups_on_the_cpu(in_graphs) -> None:
    """Graphs call it with the ends as an input: torch.ops.evt.run, and its reference."""
    request, values = ragged_request(evt.grouped_gemm(EXPERTS).request), given(alpha=torch.arange(1.0, GROUPS + 1))
    a, b, *_ = values.values()
    inputs = {name: value for name, value in values.items() if name not in ("A", "B")}
    op = evt.grouped_gemm(EXPERTS)
    wanted = op(a, b, **inputs)
    if in_graphs:
        names = list(inputs)
        (got,) = torch.ops.evt.run(a, b, [inputs[name] for name in names], write_program(request), names)
        fake = FakeTensorMode()
        with fake:
            shown = [fake.from_tensor(each) for each in (a, b, *inputs.values())]
            (empty,) = torch.ops.evt.run(shown[0], shown[1], shown[2:], write_program(request), names)
        assert empty.shape == got.shape
    else:
        got = Caller(request)(a, b, inputs)
    assert torch.equal(got[:28], wanted[:28])
    buffer = torch.full((ROWS, COLUMNS), 3.0).bfloat16()
    Caller(request)(a, b, inputs, buffer)
    assert torch.equal(buffer[:28], wanted[:28])
    assert bool((buffer[28:] == 3).all())


@pytest.mark.parametrize("seed", range(12))
def test_random_groups(seed: int) -> None:
    """The program of all groups gives the results of each group's call, for any groups, inputs and outputs."""
    draw = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    groups, n, k = draw.randint(1, 9), 8 * draw.randint(1, 6), 8 * draw.randint(1, 5)
    rows = [draw.choice((0, 0, 1, draw.randint(1, 40))) for _ in range(groups)]
    total = sum(rows) + draw.randint(0, 5)
    terms = {"w": "w*", "alpha": "alpha*", "bias": "(acc + bias)", "t": " + t", "C": " + C"}
    terms = {name: draw.choice((text, "")) for name, text in terms.items()}
    inputs = {"w": "f32[m]", "alpha": "f32", "bias": "f32[n]", "t": "f32[n?]", "C": "bf16[m, n]"}
    declared = "".join(f"in {name}: {inputs[name]}\n" for name, text in terms.items() if text)
    formula = f"{terms['w']}{terms['alpha']}{terms['bias'] or 'acc'}{terms['t']}{terms['C']}"
    gated = draw.random() < 0.5
    outputs = "out D: bf16[m, n], gate: bf16[m, n/2]\n" if gated else ""
    text = f"{HEADER}{declared}{outputs}D = {formula}" + "\ngate = silu(even(acc))*odd(acc)" * gated
    op = evt.grouped_gemm(text)

    def made(name: str) -> torch.Tensor:
        own = () if draw.random() < 0.5 else (groups,)
        shape = {"w": (total,), "alpha": own, "bias": (*own, n), "t": draw.choice(((), (*own, n))), "C": (total, n)}
        found = torch.randn(shape[name], generator=generator)
        return found.bfloat16() if name == "C" else found

    given = {name: made(name) for name, text in terms.items() if text}
    a, b = (
        torch.randn(total, k, generator=generator).bfloat16(),
        torch.randn(groups, n, k, generator=generator).bfloat16(),
    )
    ends = torch.tensor(rows).cumsum(0).to(torch.int32)
    got = Caller(ragged_request(op.request))(a, b, {**given, "offsets": ends})
    first = 0
    for group, count in enumerate(rows):
        part = slice(first, first + count)
        first += count
        if not count:
            continue
        mine = {name: value[part] if name in ("w", "C") else value for name, value in given.items()}
        mine = {
            name: value[group] if name not in ("w", "C") and value.dim() > (name in ("bias", "t")) else value
            for name, value in mine.items()
        }
        wanted = op._member(a[part], b[group], **mine)
        pairs = zip(got, wanted, strict=True) if gated else [(got, wanted)]
        assert all(torch.equal(whole[part], each) for whole, each in pairs)


def test_rows_of_d_named_by_an_index() -> None:
    op = evt.grouped_gemm(HEADER + "in place: i32[m], w: f32[m]; out D: bf16[place[m], n]; D = w*acc")
    a, b, offsets, *_ = given().values()
    place, w = torch.randperm(2 * ROWS)[:ROWS].to(torch.int32), given()["w"]
    plain = evt.grouped_gemm(HEADER + "in w: f32[m]; D = w*acc")(a, b, offsets=offsets, w=w)
    wanted = torch.full((2 * ROWS, COLUMNS), 3.0).bfloat16()
    wanted[place[:28].long()] = plain[:28]
    request, inputs = ragged_request(op.request), {"place": place, "w": w, "offsets": offsets}
    for call in (partial(op, a, b, **inputs), lambda out: Caller(request)(a, b, inputs, out)):
        buffer = torch.full((2 * ROWS, COLUMNS), 3.0).bfloat16()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", evt.NoKernelWarning)
            call(out=buffer)
        assert torch.equal(buffer, wanted)
    assert planned(op.request.source.text, place=place, D=wanted, bias=None, t=None, residual=None)


def test_gradients_are_refused() -> None:
    request, values = ragged_request(evt.grouped_gemm(EXPERTS).request), given()
    a, b, *_ = values.values()
    inputs = {name: value for name, value in values.items() if name not in ("A", "B")}
    with pytest.raises(ArgumentError, match="autograd does not record grouped products"):
        Caller(request)(a.requires_grad_(), b, inputs)


def test_a_program_of_all_groups_is_a_value() -> None:
    request = ragged_request(evt.grouped_gemm(EXPERTS).request)
    assert pickle.loads(pickle.dumps(request)) == request
    assert read_request(write_program(request)) == request
    assert read_request(write_program(replace(request, ragged=False))) != request
    with pytest.raises(ArgumentError, match="has the name of an argument"):
        ragged_request(evt.grouped_gemm("in offsets: f32[n]; D = acc + offsets").request)


# Ends on the GPU, up to the launch


def test_tensors_without_rows_have_a_stride_from_group_to_group() -> None:
    request = ragged_request(evt.grouped_gemm(EXPERTS).request)
    bound = bound_of(request, given(alpha=torch.ones(GROUPS)))
    assert bound.sizes == {"m": ROWS, "n": COLUMNS, "k": DEPTH, "l": GROUPS}
    steps = {name: argument.strides.get("l", 0) for name, argument in bound.tensors.items()}
    own = {"B": COLUMNS * DEPTH, "bias": COLUMNS, "alpha": 1, "offsets": 1}
    assert {name: step for name, step in steps.items() if step} == own
    one = bound_of(request, given(t=2.0, bias=torch.randn(COLUMNS), alpha=torch.ones(1)))
    assert {one.tensors[name].strides["l"] for name in ("bias", "alpha")} == {0}
    assert "t" not in one.tensors


def test_the_kernel_reads_the_ends() -> None:
    plans = planned()
    made = plans[0]
    assert (made.route, made.template) == ("gemm-own-ragged", "own_sm90")
    assert isinstance(made.mainloop, OwnProduct)
    assert made.mainloop.ends is not None
    members = {field.name for field in made.fields}
    assert {"ends", "l", "stride_l_of_B", "stride_l_of_in_bias", "stride_l_of_in_alpha", "stride_l_of_in_t"} <= members
    assert not {"stride_l_of_A", "stride_l_of_out_D", "stride_l_of_in_w", "stride_l_of_in_residual"} & members
    text = evt.grouped_gemm(EXPERTS, route="gemm-own-ragged").emit()
    assert ", false, true>>;" in text
    assert all(plan.config.cluster[2] == 1 for plan in plans)


def test_b_may_be_along_n() -> None:
    b = torch.randn(GROUPS, DEPTH, COLUMNS).bfloat16()
    (loop, *_) = (
        each.mainloop for each in planned("in bias: f32[n]\nD = acc + bias", B=b, w=None, t=None, residual=None)
    )
    assert isinstance(loop, OwnProduct)
    assert loop.transposes_filters


def test_descriptors() -> None:
    """B has the groups as a third dimension. A part of D ends with any row: its rows are two dimensions of one step."""
    made = planned()[0]
    sizes = {"m": ROWS, "n": COLUMNS, "k": DEPTH, "l": GROUPS}
    steps = {"stride_m_of_A": DEPTH, "stride_n_of_B": DEPTH, "stride_l_of_B": COLUMNS * DEPTH}
    steps |= {"stride_m_of_out_D": COLUMNS, "stride_m_of_in_residual": COLUMNS}
    found = shape(made, {**sizes, **steps}, 132)
    maps = {each.member: each for each in found.maps}
    assert maps["b"].extents == (DEPTH, COLUMNS, GROUPS)
    assert maps["loads[0]"].extents == (COLUMNS, ROWS)
    d, part = maps["stores[0]"], maps["loads[0]"].box[1]
    assert (d.extents, d.box) == ((COLUMNS, part, ROWS + 1), (64, part, 1))
    assert d.strides == (2 * COLUMNS, 2 * COLUMNS)
    assert d.before == 2 * COLUMNS * part
    for end in range(1, ROWS + 1):  # the address of the first row that is stored, and the number of rows
        for first in range(end):
            rows = min(end - first, part)
            inner, outer = part - rows, first + rows
            assert -d.before + d.strides[0] * inner + d.strides[1] * outer == 2 * COLUMNS * first
            assert d.extents[1] - inner == rows
            assert outer < d.extents[2]
    assert found.values["row_clusters"] == ROWS // made.config.tile[0] + GROUPS
    assert found.values["groups"] == GROUPS


def test_small_groups_take_small_tiles() -> None:
    """A tile has rows of one group only."""
    size = Size(64 * 8, 4096, 4096, 4.0, 132, groups=64)
    few, many = Tile(16, 1, True), Tile(128, 2, True)
    assert microseconds(few, size) < microseconds(many, size)
    assert waves(many, size) == 64 * 4096 / 128 / 132
    large = size._replace(rows=64 * 512)
    assert microseconds(few, large) > microseconds(many, large)


#: Changes of a call, and a part of its error.
WRONG = {
    "int64": ({"offsets": torch.zeros(GROUPS, dtype=torch.int64)}, "expected torch.int32"),
    "count": ({"offsets": torch.zeros(GROUPS + 1, dtype=torch.int32)}, "`offsets` has shape [5]; expected [4]"),
    "strided": ({"offsets": torch.zeros(2 * GROUPS, dtype=torch.int32)[::2]}, "packed"),
    "number": ({"offsets": 3}, "`offsets` is a number"),
    "none": ({"offsets": None}, "the input `offsets` is missing"),
    "2-d": ({"B": torch.randn(COLUMNS, DEPTH).bfloat16()}, "`B` has 2 dimensions"),
    "3-d": ({"A": torch.randn(GROUPS, ROWS, DEPTH).bfloat16()}, "`A` has 3 dimensions"),
    "expanded": ({"B": torch.randn(COLUMNS, DEPTH).bfloat16().expand(GROUPS, -1, -1)}, "`B` is expanded"),
    "list": ({"B": [torch.randn(COLUMNS, DEPTH)]}, "`B` is of type list"),
    "groups": ({"bias": torch.randn(GROUPS + 1, COLUMNS)}, "`bias` has shape [5, 64]"),
    "columns": ({"bias": torch.randn(GROUPS, COLUMNS + 1)}, "`bias`"),
    "rows": ({"w": torch.randn(ROWS - 2)}, "`w`"),
    "depth": ({"B": torch.randn(GROUPS, COLUMNS, DEPTH + 8).bfloat16()}, "k is 32 in A and 40 in B"),
    "type": ({"A": torch.randn(ROWS, DEPTH)}, "`A` is torch.float32"),
    "many": (
        {
            "B": torch.empty(MAX_GROUPS + 1, COLUMNS, DEPTH, dtype=torch.bfloat16),
            "offsets": torch.zeros(MAX_GROUPS + 1, dtype=torch.int32),
        },
        f"at most {MAX_GROUPS}",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls(name) -> None:
    change, said = WRONG[name]
    with pytest.raises(ArgumentError) as caught:
        planned(**change)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("out s: f32[n]; s = sum[m](acc)", "a reduction over rows"),
        ("out D: bf16[m, n], s: f32; D = acc; s = max[m, n](acc)", "a reduction over rows"),
        ("out D: bf16[m, n], s: f32[m]; D = acc; s = sum[n](acc)", "rows of no group"),
        ("in w: f32[m]; out D: bf16[m, n], s: f32[m]; D = acc; s = 2*w", "the first group alone"),
        ("D = where(iota(n) <= iota(m), acc, 0)", "the kernel knows neither the rows of a group nor their number"),
        ("D = acc/size(m)", "the kernel knows neither the rows of a group nor their number"),
        ("D = dropout(acc, 0.1, 1, 2)", "random numbers"),
        ("out D: f64[m, n]; D = acc", "f64"),
    ],
)
def test_refusals(text, reason) -> None:
    with pytest.raises(TargetError) as caught:
        planned(HEADER + text, bias=None, w=given()["w"] if "in w" in text else None, t=None, residual=None)
    assert reason in str(caught.value)


def test_other_targets_refuse() -> None:
    request = ragged_request(evt.grouped_gemm(EXPERTS).request)
    with pytest.raises(TargetError, match="the target is sm80"):
        plan_kernels(request, bound_of(request, given()), find_target("sm80"))


def test_routes_by_name() -> None:
    op = evt.grouped_gemm("D = acc", route="gemm-own-ragged")
    assert evt.supports(op, "sm90").route == "gemm-own-ragged"
    with pytest.raises(EvtError, match="gemm-own-ragged, evt-3x-grouped, loop"):
        evt.grouped_gemm("D = acc", route="gemm-own-3x")
