"""The oracle where a value varies over less than its place: reductions, blocks, pairs, inputs that are left out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import evt
from evt.ir import verify
from evt.reference import evaluate, reference
from evt.request import optimised_for, typed_graph
from evt.runtime.arguments import bind
from tests.programs import same, typed
from tests.support.matrices import K, L, M, N, make

# Reductions, blocks, pairs, coordinates, random numbers


@pytest.mark.parametrize("batch", [(), (L,)])
def test_reductions(batch: tuple[int, ...]) -> None:
    acc = make(*batch, M, N).float()
    text = (
        "D = acc; r = sum[n](acc); c = max[m](acc); a = min[m, n](acc); b = max[m, n](abs(acc)); t = sum[l, m, n](acc)"
    )
    found = evaluate(typed(text, "f32"), acc, {})
    torch.testing.assert_close(found["r"], acc.sum(-1))
    assert same(found["c"], acc.amax(-2))
    assert same(found["a"], acc.amin((-1, -2)))
    assert same(found["b"], acc.abs().amax((-1, -2)))
    torch.testing.assert_close(found["t"].flatten()[0], acc.sum())


def test_a_reduction_runs_over_what_is_broadcast() -> None:
    found = evaluate(
        typed("D = acc; r = sum[n](row[m] * 2); s = sum[m, n](1 + 1)", "f32"), make(M, N), {"row": make(M)}
    )
    assert same(found["r"], make(M).float() * 2 * N)
    assert found["s"].item() == 2 * M * N


def test_nan_wins_in_reductions() -> None:
    acc = torch.tensor([[1.0, float("nan"), 3.0]])
    found = evaluate(typed("D = acc; a = max[n](acc); b = min[n](acc); c = sum[n](acc)", "f32"), acc, {})
    assert all(found[name].isnan().all() for name in "abc")


def test_counting() -> None:
    dag = typed("D = acc; count = sum[m, n](acc > 0); wide = sum[n](i8(acc) * 1000000)", "f32")
    acc = make(M, N).float() * 30
    found = evaluate(dag, acc, {})
    assert found["count"].dtype == torch.int32
    assert found["count"].item() == (acc > 0).sum().item()
    assert same(found["wide"], (acc.round() * 1e6).sum(-1).to(torch.int32))


def test_blocks_of_columns() -> None:
    acc = make(M, 64).float()
    found = evaluate(
        typed("s = max[n%32](abs(acc)); D = acc / s; out D, s: f32, h: f32; h = sum[n%16](acc)", "f32"), acc, {}
    )
    scale = acc.abs().reshape(M, 2, 32).amax(-1)
    assert same(found["s"], scale)
    assert same(found["D"], acc / scale.repeat_interleave(32, -1))
    torch.testing.assert_close(found["h"], acc.reshape(M, 4, 16).sum(-1))
    with pytest.raises(ValueError, match="do not divide into blocks of 32"):
        evaluate(typed("D = max[n%32](acc)", "f32"), make(M, 33), {})


@pytest.mark.parametrize("distance", [1, 8, 16, 32])
def test_pairs_of_columns(distance: int) -> None:
    acc = make(M, 128).float()
    found = evaluate(typed(f"D = relu(even(acc, {distance})) * odd(acc, {distance})", "f32"), acc, {})["D"]
    pairs = acc.reshape(M, -1, 2, distance)
    expected = torch.relu(pairs[:, :, 0]) * pairs[:, :, 1]
    assert same(found, expected.reshape(M, 64))


def test_coordinates() -> None:
    acc = make(L, M, N).float()
    found = evaluate(typed("D = where(iota(n) <= iota(m), acc, 0) + iota(l)", "f32"), acc, {})["D"]
    assert same(found, acc.tril() + torch.arange(L)[:, None, None])


def test_random_numbers() -> None:
    acc = torch.ones(3, 64, 100)
    dag = typed("D = rand(seed, offset); E = dropout(acc, 0.25, seed, offset)", "f32")
    first, again, other = (
        evaluate(dag, acc, {"seed": seed, "offset": offset}) for seed, offset in ((7, 0), (7, 0), (7, 1))
    )
    assert same(first["D"], again["D"])
    assert not same(first["D"], other["D"])
    assert first["D"].min() >= 0
    assert first["D"].max() < 1
    assert abs(first["D"].mean() - 0.5) < 0.01
    assert abs(first["D"].std() - 12**-0.5) < 0.01
    assert same(first["E"], torch.where(first["D"] >= 0.25, acc / (1 - torch.tensor(0.25)), 0))


# Inputs of the new kinds


@pytest.mark.parametrize("value", [2.5, torch.tensor(2.5), torch.tensor([2.5]), "vector"])
def test_a_vector_or_a_single_value(value: Any) -> None:
    vector = make(M).float()
    found = evaluate(
        typed("in x: f32[m?]; D = acc * x", "f32"), make(M, N), {"x": vector if value == "vector" else value}
    )
    expected = make(M, N).float() * (vector[:, None] if isinstance(value, str) else 2.5)
    assert same(found["D"], expected)


def test_tensors_with_defaults() -> None:
    dag = typed("in bias: f32[n] = 0.5, C: i8[m, n] = 2; D = acc * C + bias", "f32")
    acc = make(M, N).float()
    assert same(evaluate(dag, acc, {})["D"], acc * 2 + 0.5)
    c = torch.arange(M * N, dtype=torch.int8).reshape(M, N)
    assert same(evaluate(dag, acc, {"C": c})["D"], acc * c + 0.5)


def forms() -> dict[str, tuple[str, str, dict[str, Any], Tensor]]:
    """Return a value by the modes it varies over: its declaration, its use, a call's argument, and all its elements."""
    row, column, batch = make(64).float(), make(M).float(), make(L).float()
    full, single = torch.full((L, M, 64), 0.1), torch.full((L, M, 64), 2.5)
    rows, columns, batches = (
        row.expand(L, M, 64),
        column[:, None].expand(L, M, 64),
        batch[:, None, None].expand(L, M, 64),
    )
    one = torch.tensor([2.5])
    return {
        "a constant": ("", "0.1", {}, full),
        "constants": ("", "(1/0)", {}, full / 0),
        "a truth value": ("", "(1 < 2)", {}, torch.ones(L, M, 64)),
        "a scalar": ("in x: f32[]", "x", {"x": 2.5}, single),
        "a scalar tensor": ("in x: f32[]", "x", {"x": one}, single),
        "one value a batch": ("in x: f32[l]", "x", {"x": batch}, batches),
        "a row": ("in x: f32[n]", "x", {"x": row}, rows),
        "a column": ("in x: f32[m]", "x", {"x": column}, columns),
        "a row or a number: number": ("in x: f32[n?]", "x", {"x": 2.5}, single),
        "a row or a number: tensor": ("in x: f32[n?]", "x", {"x": one}, single),
        "a row or a number: row": ("in x: f32[n?]", "x", {"x": row}, rows),
        "a row or a number: left out": ("in x: f32[n?] = 2.5", "x", {}, single),
        "a column or a number: number": ("in x: f32[m?]", "x", {"x": 2.5}, single),
        "a column or a number: column": ("in x: f32[m?]", "x", {"x": column}, columns),
        "rows or a number: number": ("in x: f32[l, n?]", "x", {"x": 2.5}, single),
        "rows or a number: rows": ("in x: f32[l, n?]", "x", {"x": row.expand(L, 64).contiguous()}, rows),
        "a row that is left out": ("in x: f32[n] = 2.5", "x", {}, single),
        "a matrix that is left out": ("in x: f32[m, n] = 2.5", "x", {}, single),
        "integers that are left out": ("in x: i8[m, n] = 2", "f32(x)", {}, torch.full((L, M, 64), 2.0)),
        "bits that are left out": ("in x: b1[m, n] = 1", "where(x, 2.5, 0)", {}, single),
        "made of two": ("in x: f32[n?], y: f32[m?]", "(x*y)", {"x": 2.5, "y": column}, columns * 2.5),
    }


#: Operations on a value, and their outputs.
USES = (
    *(f"D = acc*{kind}[n%{width}]({{x}})" for kind in ("max", "min", "sum") for width in (16, 32)),
    "out D, s: f32; D = acc; s = sum[n%32]({x} + 0*acc)",
    *(f"D = even({{x}}, {distance})*odd(acc, {distance})" for distance in (1, 8, 16, 32)),
    "D = odd({x}) + even({x}) + even(acc)",
    "out D, s: f32[m]; D = acc; s = sum[n]({x})",
    "out D, s: f32[n], t: f32; D = acc; s = max[m]({x}); t = sum[m, n]({x})",
    "out D, t: f32; D = acc; t = min[l, m, n]({x})",
    "out D, E: f32[m, n]; D = acc; E = {x}",
    "D = where(acc > {x}, {x}, max[n%16]({x} - 1))",
)


@pytest.mark.parametrize("use", USES)
def test_what_does_not_vary_is_as_if_it_did(use: str) -> None:
    """Under reductions, blocks and pairs a value means the tensor of all of its elements."""
    a, b = make(L, M, K).float(), make(K, 64).float()
    acc = plain_product(a, b)
    plain = evt.gemm("\n".join(["in X: f32[l, m, n]", use.format(x="X")]))
    for name, (declaration, value, given, everywhere) in forms().items():
        op = evt.gemm("\n".join([declaration, use.format(x=value)]))
        expected = plain(a, b, X=everywhere.contiguous())
        unspecialised = evaluate(typed_graph(op.request, "f32"), acc, given)
        for found in (op(a, b, **given), tuple(unspecialised.values())):
            pairs = zip(
                *((each,) if isinstance(each, Tensor) else tuple(each) for each in (found, expected)), strict=True
            )
            assert all(same(left, right) for left, right in pairs), name


#: Whole columns that meet a value of each block, so the result is whole; ``x`` may be omitted.
MEETINGS = (
    *("D = max[n%16](acc) + x", "D = where(x, max[n%16](acc), 0)", "D = max(0*acc, max[n%16](acc)*x)"),
    *("out D, s: f32[m]; D = acc; s = sum[n](max[n%16](acc) + x)", "D = even(max[n%16](acc) + x)"),
    *("out D, E: f32[m, n/2]; D = acc; E = even(x)", "out D, E: f32[m, n/16]; D = acc; E = min[n%16](2*x)"),
    "D = where(acc > 0, where(acc > 0, max[n%16](acc), x), 2)",
)


@pytest.mark.parametrize("settings", [{}, {"relaxed": True}, {"numerics": "eager"}], ids=str)
@pytest.mark.parametrize("formula", MEETINGS)
def test_whole_columns_stay_whole_where_blocks_meet_them(formula: str, settings: dict[str, Any]) -> None:
    """A value that is omitted, cancels out or is constant still has all columns, optimised or not."""
    op = evt.gemm(f"in x: f32[n] = 1; {formula}", **settings)
    integer = evt.gemm(f"in x: i32[n] = 1; {formula}", **settings)
    whole = torch.ones(M, K, dtype=torch.int8), torch.ones(K, 32, dtype=torch.int8)
    for program, (a, b), x in (
        (op, (make(M, K).float(), make(K, 32).float()), torch.ones(32)),
        (integer, whole, torch.ones(32, dtype=torch.int32)),
    ):
        expected, left_out = program(a, b, x=x), program(a, b)
        bound = bind(program.request, a, b, {}, {})
        dag = optimised_for(program.request, bound.dag.operands, bound.absent)
        verify(dag)
        optimised = tuple(reference(dag, a, b, {}).values())
        expected, left_out = (each if isinstance(each, tuple) else (each,) for each in (expected, left_out))
        assert all(map(same, expected, left_out))
        assert all(map(same, expected, optimised))


def plain_product(a: Tensor, b: Tensor) -> Tensor:
    return (a.double() @ b.double()).float()


@pytest.mark.parametrize("pair", ["even(s)", "even(s, 8)", "odd(alpha)"])
def test_pairs_of_what_is_the_same_in_all_columns_are_half_as_many(pair: str) -> None:
    values: dict[str, Any] = {"s": torch.randn(3), "alpha": torch.tensor(0.5)}
    text = f"in s: f32[m]\nD = acc; w = max[n%8]({pair}); t = sum[n]({pair}); u = sum[n](max[n%16](s)); x = s[m]*alpha"
    found = evaluate(typed(text, "f32"), torch.zeros(3, 32), values)
    rows = values["s"] if "s" in pair else torch.full((3,), 0.5)
    assert same(found["w"], rows.unsqueeze(1).expand(3, 2))
    torch.testing.assert_close(found["t"], 16 * rows)
    torch.testing.assert_close(found["u"], 2 * values["s"])
