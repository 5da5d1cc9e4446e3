"""Batches of several dimensions: those that one stride walks, and those that take a launch each."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import evt
from evt.runtime.arguments import bind

#: [batch, heads, m, k] and [batch, heads, k, n], which lie as [batch, m, heads, k] and [batch, n, heads, k].
X = torch.randn(2, 24, 3, 16).half().transpose(1, 2)
Y = torch.randn(2, 40, 3, 16).half().permute(0, 2, 3, 1)
ACC = X.double() @ Y.double()


def close(out: torch.Tensor, expected: torch.Tensor) -> bool:
    return out.shape == expected.shape and bool((out.double() - expected).norm() < 2e-3 * expected.norm())


def launches_of(text: str, a: torch.Tensor, b: torch.Tensor, **values: torch.Tensor) -> int:
    op = evt.gemm(text)
    inputs = {name: value for name, value in values.items() if name in op.spec.dag.input}
    buffers = {name: value for name, value in values.items() if name not in inputs}
    return max(map(len, bind(op.spec, a, b, inputs, buffers).offsets.values()), default=1)


@pytest.mark.parametrize(
    ("a", "b", "count"),
    [
        (torch.zeros(4, 5, 6, 8), torch.zeros(4, 5, 8, 7), 1),
        (torch.zeros(4, 5, 6, 8), torch.zeros(8, 7), 1),
        (torch.zeros(4, 5, 6, 8), torch.zeros(5, 8, 7), 4),
        (torch.zeros(4, 5, 6, 8), torch.zeros(4, 1, 8, 7), 4),
        (torch.zeros(4, 6, 5, 8).transpose(1, 2), torch.zeros(4, 5, 8, 7), 4),
        (torch.zeros(9, 6, 5, 8).transpose(1, 2), torch.zeros(8, 7), 5),
        (torch.zeros(3, 2, 4, 6, 5, 8).transpose(3, 4)[:, :, 0], torch.zeros(8, 7), 5),
        (torch.zeros(4, 1, 5, 8).transpose(1, 2), torch.zeros(8, 7), 1),
    ],
)
def test_the_fewest_launches_that_strides_allow(a: torch.Tensor, b: torch.Tensor, count: int) -> None:
    assert launches_of("D = acc", a, b) == count


def test_permuted_heads() -> None:
    assert close(evt.gemm("D = 2*acc")(X, Y), 2 * ACC)


def test_inputs_broadcast_along_any_batch() -> None:
    op = evt.gemm("in bias: f16[l, m, n], s: f32[l, n], a: f32[l], C: f32[m, n]\nD = a*acc + bias + s + C")
    values: dict[str, Any] = {"s": torch.randn(1, 3, 40), "a": torch.randn(2, 1), "C": torch.randn(24, 40)}
    for shape in ((2, 3), (2, 1), (1, 3), (3,), (1, 1), ()):
        bias = torch.randn(*shape, 24, 40).half()
        a = values["a"].double().reshape(2, 1, 1, 1)
        expected = a * ACC + bias + values["s"].unsqueeze(2) + values["C"]
        assert close(op(X, Y, bias=bias, **values), expected)


def test_the_order_of_the_modes_of_an_input_is_its_own() -> None:
    found = evt.gemm("in C: f32[m, l, n]\nD = acc + C")(X, Y, C=(c := torch.randn(24, 2, 3, 40)))
    assert close(found, ACC + c.permute(1, 2, 0, 3))


def test_a_buffer_that_is_permuted_too() -> None:
    around = torch.zeros(2, 24, 3, 40).half()
    buffer = around.transpose(1, 2)
    found = evt.gemm("out D, rows: f32[m]\nD = acc\nrows = max[n](acc)")(X, Y, D=buffer)
    assert found.D is buffer
    assert close(buffer, ACC)
    assert close(found.rows, ACC.amax(-1))


def test_what_counts_all_batches_is_computed_by_one_launch() -> None:
    for text in ("D = acc + iota(l)", "D = acc*rand(1, 2)", "out D, s: f32[m]\nD = acc\ns = sum[n, l](acc)"):
        with pytest.raises(evt.ArgumentError, match="no single stride"):
            evt.gemm(text)(X, Y)
        packed = X.contiguous(), Y.mT.contiguous().mT
        assert evt.gemm(text)(*packed) is not None


def test_shapes_that_do_not_broadcast_are_refused() -> None:
    op = evt.gemm("in bias: f32[l, m, n]\nD = acc + bias")
    for shape in ((2, 2, 24, 40), (1, 2, 3, 24, 40), (2, 3, 1, 40)):
        with pytest.raises(evt.ArgumentError, match="E0604"):
            op(X, Y, bias=torch.zeros(shape))


def test_each_launch_has_addresses_of_its_own(launches: list[dict[str, Any]]) -> None:
    op = evt.gemm("in bias: f16[l, m, n], s: f32[m]\nD = alpha*acc + bias + s")
    bias, s = torch.zeros(3, 24, 40).half(), torch.zeros(24)
    for _ in range(2):  # the second call is a remembered one
        launches.clear()
        found = op(X, Y, bias=bias, s=s, alpha=0.5)
        assert len(launches) == 2
        for index, members in enumerate(launches):
            assert (members["m"], members["n"], members["k"], members["l"]) == (24, 40, 16, 3)
            assert (members["A"], members["B"]) == (X[index].data_ptr(), Y[index].data_ptr())
            assert (members["out_D"], members["in_s"]) == (found[index].data_ptr(), s.data_ptr())
            assert (members["in_bias"], members["value_of_in_alpha"]) == (bias.data_ptr(), 0.5)
            assert (members["stride_l_of_A"], members["stride_m_of_A"]) == (16, 48)
            assert (members["stride_l_of_in_bias"], members["stride_l_of_out_D"]) == (960, 960)


def test_alignment_is_that_of_all_launches() -> None:
    storage = torch.zeros(2 * 1156).half()
    a = storage.as_strided((2, 3, 24, 16), (1156, 16, 48, 1))  # the second batch begins at a multiple of 8 bytes
    op = evt.gemm("D = acc")
    assert bind(op.spec, a, Y, {}, {}).tensors["A"].layout.alignment == 4
    assert bind(op.spec, X, Y, {}, {}).tensors["A"].layout.alignment == 8


def test_an_input_is_overwritten_only_where_each_launch_reads_what_it_writes() -> None:
    op = evt.gemm("D = acc + C")
    c = torch.randn(2, 3, 24, 40).half()
    kept = c.clone()
    assert close(op(X, Y, C=c, out=c), ACC + kept)
    with pytest.raises(evt.ArgumentError, match="E0609"):
        op(X, Y, C=c[:1].expand(2, -1, -1, -1), out=c)


def test_batches_that_come_as_one_dimension() -> None:
    """An input or a buffer of one dimension for all batches is divided among the launches as well."""
    op = evt.gemm("in b: f32[l, n]\nD = acc + b")
    b, buffer = torch.randn(6, 40), torch.zeros(6, 24, 40).half()
    found = op(X, Y, b=b, out=buffer)
    assert found is buffer
    assert close(buffer.view(2, 3, 24, 40), ACC + b.view(2, 3, 1, 40))
    bound = bind(op.spec, X, Y, {"b": b}, {"D": buffer})
    assert bound.offsets["b"] == (0, 3 * 40 * 4)
    assert bound.offsets["D"] == (0, 3 * 24 * 40 * 2)


def test_rows_of_linear_that_no_stride_walks() -> None:
    x, weight = torch.randn(4, 9, 16).half()[:, :5], torch.randn(40, 16).half()
    op = evt.linear("in s: f32[m], b: f32[n], C: f32[m, n]\nD = s*acc + b + C")
    s, b, c = torch.randn(4, 5), torch.randn(40), torch.randn(20, 40)
    expected = s.unsqueeze(2) * (x.double() @ weight.double().T) + b + c.view(4, 5, 40)
    assert close(op(x, weight, s=s, b=b, C=c), expected)
    bound = bind(op.spec, x, weight, {"s": s, "b": b, "C": c}, {})
    assert (bound.sizes["m"], bound.sizes["l"]) == (5, 1)
    assert bound.offsets["A"] == tuple(9 * 16 * 2 * i for i in range(4))
    assert bound.offsets["C"] == tuple(5 * 40 * 4 * i for i in range(4))
    assert bound.offsets["b"] == (0,) * 4
    assert not bind(op.spec, x.contiguous(), weight, {"s": s, "b": b, "C": c}, {}).offsets
    with pytest.raises(evt.ArgumentError, match="no single stride"):
        evt.linear("out D, s: f32[n]\nD = acc; s = sum[m](acc)")(x, weight)


def test_too_many_launches_are_refused() -> None:
    weight = torch.randn(40, 16).half()
    op = evt.linear("D = acc")
    rows = torch.zeros(300, 260, 16).half()
    assert len(bind(op.spec, rows[:, :7], weight, {}, {}).offsets["A"]) == 7  # of 300 rows each
    assert len(bind(op.spec, rows[:, :256], weight, {}, {}).offsets["A"]) == 256
    with pytest.raises(evt.ArgumentError, match="no single stride"):
        op(rows[:, :257], weight)
