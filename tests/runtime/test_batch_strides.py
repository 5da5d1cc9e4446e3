"""Batches of several dimensions: dimensions that one stride walks, and dimensions with a launch for each index."""

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
    inputs = {name: value for name, value in values.items() if name in op.request.dag.input}
    buffers = {name: value for name, value in values.items() if name not in inputs}
    return max(map(len, bind(op.request, a, b, inputs, buffers).offsets.values()), default=1)


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
    for text in (
        "D = acc + iota(l)",
        "D = acc/size(l)",
        "D = acc*rand(1, 2)",
        "out D, s: f32[m]\nD = acc\ns = sum[n, l](acc)",
    ):
        with pytest.raises(evt.ArgumentError, match="no single stride"):
            evt.gemm(text)(X, Y)
        packed = X.contiguous(), Y.mT.contiguous().mT
        assert evt.gemm(text)(*packed) is not None


def test_a_count_that_the_passes_remove_does_not_hold_batches_together(launches: list[dict[str, Any]]) -> None:
    """The kernel computes the optimised program, as `evt explain` and the tuner judge it."""
    op = evt.gemm("D = acc + where(isnan(3), iota(l), 0)", route="gemm-own-3x")
    op(torch.zeros(2, 16, 32).half(), torch.zeros(2, 32, 24).half())
    assert [members["l"] for members in launches] == [1, 1]


def test_rows_of_several_launches_are_not_counted() -> None:
    x, weight = torch.randn(4, 6, 5, 8).half().transpose(1, 2), torch.randn(7, 8).half()
    with pytest.raises(evt.ArgumentError, match="E0606"):
        bind(evt.linear("D = acc/size(m)").request, x, weight, {}, {})
    bind(evt.linear("D = acc/size(n)").request, x, weight, {}, {})


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
    assert bind(op.request, a, Y, {}, {}).tensors["A"].layout.alignment == 4
    assert bind(op.request, X, Y, {}, {}).tensors["A"].layout.alignment == 8


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
    bound = bind(op.request, X, Y, {"b": b}, {"D": buffer})
    assert bound.offsets["b"] == (0, 3 * 40 * 4)
    assert bound.offsets["D"] == (0, 3 * 24 * 40 * 2)


def test_rows_of_linear_that_no_stride_walks() -> None:
    x, weight = torch.randn(4, 9, 16).half()[:, :5], torch.randn(40, 16).half()
    op = evt.linear("in s: f32[m], b: f32[n], C: f32[m, n]\nD = s*acc + b + C")
    s, b, c = torch.randn(4, 5), torch.randn(40), torch.randn(20, 40)
    expected = s.unsqueeze(2) * (x.double() @ weight.double().T) + b + c.view(4, 5, 40)
    assert close(op(x, weight, s=s, b=b, C=c), expected)
    bound = bind(op.request, x, weight, {"s": s, "b": b, "C": c}, {})
    assert (bound.sizes["m"], bound.sizes["l"]) == (5, 1)
    assert bound.offsets["A"] == tuple(9 * 16 * 2 * i for i in range(4))
    assert bound.offsets["C"] == tuple(5 * 40 * 4 * i for i in range(4))
    assert bound.offsets["b"] == (0,) * 4
    assert not bind(op.request, x.contiguous(), weight, {"s": s, "b": b, "C": c}, {}).offsets
    with pytest.raises(evt.ArgumentError, match="no single stride"):
        evt.linear("out D, s: f32[n]\nD = acc; s = sum[m](acc)")(x, weight)


def test_too_many_launches_are_refused() -> None:
    weight = torch.randn(40, 16).half()
    op = evt.linear("D = acc")
    rows = torch.zeros(300, 260, 16).half()
    assert len(bind(op.request, rows[:, :7], weight, {}, {}).offsets["A"]) == 7  # of 300 rows each
    assert len(bind(op.request, rows[:, :256], weight, {}, {}).offsets["A"]) == 256
    with pytest.raises(evt.ArgumentError, match="no single stride"):
        op(rows[:, :257], weight)


# More batches than a launch takes


def many(launches: list[dict[str, Any]], op: Any, count: int, *rest: Any, **inputs: Any) -> list[dict[str, Any]]:
    """Return the launches of a call of many batches after one of two, whose kernels it takes."""
    for batches in (2, count):
        launches.clear()
        a, b = torch.zeros(batches, 3, 2).half(), torch.zeros(batches, 2, 5).half()
        op(a, b, **{name: make(batches) for name, make in inputs.items()})
    return list(launches)


@pytest.mark.parametrize("count", [65535, 65536, 65537, 70000, 131071, 200003])
def test_batches_are_divided_among_launches(launches: list[dict[str, Any]], count: int) -> None:
    op = evt.gemm("out D, r: f32[l, m]; D = alpha*acc + C + b; r = sum[n](acc)" + "; in b: f32[l, n], C: f16[l, m, n]")
    found = many(
        launches,
        op,
        count,
        alpha=lambda size: 0.5,
        b=lambda size: torch.zeros(size, 5),
        C=lambda size: torch.zeros(size, 3, 5).half(),
    )
    parts = -(-count // 65535)
    assert len(found) == parts
    assert sum(each["l"] for each in found) == count
    first = 0
    for each in found:
        assert 0 < each["l"] <= 65535
        for name, step in (("A", 12), ("B", 20), ("in_C", 30), ("in_b", 20), ("out_D", 30), ("out_r", 12)):
            assert each[name] - found[0][name] == first * step, name
        assert each["value_of_in_alpha"] == 0.5
        first += int(each["l"])


def test_batches_that_tensors_share_stay_where_they_are(launches: list[dict[str, Any]]) -> None:
    op = evt.gemm("in C: f16[m, n], s: f32[m]; D = acc + C*s")
    shared = torch.zeros(2, 5).half()
    a, c, s = torch.zeros(70000, 3, 2).half(), torch.zeros(3, 5).half(), torch.zeros(3)
    d = op(a, shared, C=c, s=s)
    assert [each["l"] for each in launches] == [35000, 35000]
    assert [each["A"] for each in launches] == [a.data_ptr(), a[35000].data_ptr()]
    assert [each["out_D"] for each in launches] == [d.data_ptr(), d[35000].data_ptr()]
    for name, tensor in (("B", shared), ("in_C", c), ("in_s", s)):
        assert [each[name] for each in launches] == [tensor.data_ptr()] * 2


def test_strides_and_bits_and_buffers_of_many_batches(launches: list[dict[str, Any]]) -> None:
    op = evt.gemm("out D, positive: b1[m, n]; D = acc; positive = acc > 0")
    a = torch.zeros(70000, 2, 3).half().mT
    buffer, bits = torch.zeros(3, 70000, 8).half().transpose(0, 1)[..., :5], torch.zeros(70000, 3, 1, dtype=torch.uint8)
    op(a, torch.zeros(70000, 2, 5).half(), D=buffer, positive=bits)
    assert [each["A"] for each in launches] == [a.data_ptr(), a[35000].data_ptr()]
    assert [each["out_D"] for each in launches] == [buffer.data_ptr(), buffer[35000].data_ptr()]
    assert [each["out_positive"] for each in launches] == [bits.data_ptr(), bits[35000].data_ptr()]


def test_outer_batches_of_many_batches(launches: list[dict[str, Any]]) -> None:
    """A batch of two dimensions that no stride walks has launches for one of them, and these are divided."""
    a = torch.zeros(66000, 3, 2, 2).half().transpose(1, 2)[:, :, :2]
    op, b = evt.gemm("D = acc"), torch.zeros(2, 2, 5).half()
    d = op(a, b)
    starts = [(i, j) for i in range(2) for j in (0, 33000)]
    assert sorted(each["A"] for each in launches) == sorted(a[j, i].data_ptr() for i, j in starts)
    assert sorted(each["out_D"] for each in launches) == sorted(d[j, i].data_ptr() for i, j in starts)
    assert {each["l"] for each in launches} == {33000}


@pytest.mark.parametrize(
    "text",
    [
        "D = acc + iota(l)",
        "D = acc/size(l)",
        "D = acc*rand(1, 2)",
        "D = dropout(acc, 0.5, 1, 2)",
        "out D, s: f32[m]; D = acc; s = sum[n, l](acc)",
    ],
)
def test_what_counts_all_batches_is_refused_before_a_launch(launches: list[dict[str, Any]], text: str) -> None:
    op = evt.gemm(text)
    assert len(many(launches, op, 65535)) == 1
    with pytest.raises(evt.LaunchError, match=r"E0804(.|\n)*there are 70000, and the program counts all batches"):
        many(launches, op, 70000)
    assert not launches


def test_a_kernel_of_one_batch_is_launched_for_each(launches: list[dict[str, Any]]) -> None:
    op = evt.gemm("D = relu(acc)", route="gemm-own-3x")
    a, b = torch.zeros(5, 16, 64).half(), torch.zeros(5, 64, 32).half()
    op(a[:1], b[:1])
    launches.clear()
    d = op(a, b)
    assert [each["A"] for each in launches] == [each.data_ptr() for each in a]
    assert [each["out_D"] for each in launches] == [each.data_ptr() for each in d]
    with pytest.raises(evt.LaunchError, match="launches of at most 256"):
        op(torch.zeros(257, 16, 64).half(), torch.zeros(257, 64, 32).half())
