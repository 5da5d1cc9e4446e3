"""Buffers do not share memory: refusals, against the addresses of every element."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import evt
from evt.runtime.layout import repeated

M, N, K = 6, 8, 4
A, B = torch.randn(M, K), torch.randn(K, N)
OP = evt.gemm("out D, E; D = acc; E = acc + 1")
ADD = evt.gemm("out D, E; D = acc; E = acc + C")


def places(tensor: torch.Tensor) -> list[int]:
    """Return the byte at which every element begins, by its coordinates."""
    size = tensor.element_size()
    steps = tensor.stride()
    coordinates = product(*map(range, tensor.shape))
    return [tensor.data_ptr() + size * sum(x * s for x, s in zip(c, steps, strict=True)) for c in coordinates]


def bytes_of(tensor: torch.Tensor) -> set[int]:
    return {start + place for start in places(tensor) for place in range(tensor.element_size())}


def outcome(run: Any) -> str:
    try:
        run()
    except evt.ArgumentError as error:
        (found,) = error.diagnostics
        return found.code
    return ""


def view(shape: Sequence[int], strides: Sequence[int], offset: int = 0, dtype: Any = torch.float32) -> torch.Tensor:
    needed = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) + 1
    return torch.zeros(max(needed, 1), dtype=dtype).as_strided(shape, strides, offset)


STRIDES = st.one_of(st.integers(0, 12), st.integers(0, 100))


@settings(deadline=None, derandomize=True, max_examples=80)
@given(st.tuples(STRIDES, STRIDES))
def test_a_buffer_with_an_element_twice_is_refused(strides: tuple[int, int]) -> None:
    buffer = view((M, N), strides)
    own = len(set(places(buffer))) == M * N
    assert outcome(lambda: OP(A, B, out={"E": buffer})) == ("" if own else "E0608")
    if own:
        assert torch.equal(buffer, OP(A, B).E)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.tuples(STRIDES, STRIDES, STRIDES))
def test_batches_of_a_buffer_lie_apart(strides: tuple[int, int, int]) -> None:
    buffer = view((3, M, N), strides)
    own = len(set(places(buffer))) == 3 * M * N
    assert outcome(lambda: OP(A.expand(3, M, K), B, out={"E": buffer})) == ("" if own else "E0608")


#: Programs with an output of each kind, the extents of its dimensions in memory, and its type.
KINDS = {
    "transposed": ("out D, E[n, m]; D = acc; E = acc", (N, M), torch.float32),
    "half the columns": ("out D, E: f32[m, n/2]; D = acc; E = even(acc)", (M, N // 2), torch.float32),
    "bits": ("out D, E: b1[m, n]; D = acc; E = acc > 0", (M, N // 8), torch.uint8),
    "sums of rows": ("out D, E: f32[m]; D = acc; E = sum[n](acc)", (M,), torch.float32),
    "sums of columns": ("out D, E: f32[n]; D = acc; E = sum[m](acc)", (N,), torch.float32),
    "primary": ("out E, D; E = acc; D = acc", (M, N), torch.float32),
    "sums of batches": ("out D, E: f32[l, m]; D = acc; E = sum[n](acc)", (3, M), torch.float32),
}


@pytest.mark.parametrize("name", KINDS)
@settings(deadline=None, derandomize=True, max_examples=30)
@given(st.tuples(STRIDES, STRIDES))
def test_every_kind_of_output(name: str, strides: tuple[int, int]) -> None:
    text, shape, dtype = KINDS[name]
    output = "D" if name == "primary" else "E"
    buffer = view(shape, strides[-len(shape) :], dtype=dtype)
    a = A.expand(3, M, K) if "[l" in text else A
    found = outcome(lambda: evt.gemm(text)(a, B, out={output: buffer}))
    if len(set(places(buffer))) < buffer.numel():
        assert found == "E0608"
    else:
        assert found in ("", "E0608")  # for strides that no kernel takes


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.tuples(*[STRIDES] * 4), st.integers(0, 9))
def test_buffers_of_convolutions(strides: tuple[int, int, int, int], offset: int) -> None:
    x, weight = torch.randn(2, 3, 2, 4), torch.randn(5, 3, 1, 1)
    op = evt.conv2d("D = acc")
    buffer = view((2, 5, 2, 4), strides, offset)
    own = len(set(places(buffer))) == buffer.numel()
    assert outcome(lambda: op(x, weight, out=buffer)) == ("" if own else "E0608")
    if own:
        assert torch.equal(buffer, op(x, weight))


def test_what_is_not_decided_is_refused() -> None:
    """Strides of gigabytes that are no multiples of each other; strides of views always give an answer."""
    shape, strides = (36, 3, 59, 55, 20), (798981923, 169611715, 215720657, 398662295, 418941688)
    assert "was not decided" in repeated(torch.empty_strided(shape, strides, device="meta"))
    assert repeated(torch.empty_strided((7, 7, 7, 7, 7), (1, 7, 49, 343, 2401), device="meta")) == ""
    assert "share memory" in repeated(torch.empty_strided((7, 7, 7, 7, 7), (1, 7, 49, 342, 2401), device="meta"))


# Buffers and the other tensors of a call


@settings(deadline=None, derandomize=True, max_examples=80)
@given(
    st.tuples(st.integers(1, 30), st.integers(1, 30)),
    st.tuples(st.integers(0, 30), st.integers(0, 30)),
    st.tuples(st.integers(0, 60), st.integers(0, 60)),
    st.sampled_from([torch.float32, torch.float16]),
)
def test_a_buffer_and_an_input_in_one_storage(mine: Any, theirs: Any, offsets: Any, dtype: Any) -> None:
    """Shared bytes are refused, but for an input of the same elements; interleaved ones are not."""
    storage = torch.zeros(4000)
    buffer = storage.as_strided((M, N), mine, offsets[0])
    c = storage.view(dtype).as_strided((M, N), theirs, offsets[1])
    assume(len(set(places(buffer))) == M * N)
    op = evt.gemm(f"in C: {'f32' if dtype == torch.float32 else 'f16'}[m, n]; out D, E; D = acc; E = acc + C")
    in_place = dtype == torch.float32 and mine == theirs and offsets[0] == offsets[1]
    shared = bool(bytes_of(buffer) & bytes_of(c))
    assert outcome(lambda: op(A, B, C=c, out={"E": buffer})) == ("E0609" if shared and not in_place else "")


@settings(deadline=None, derandomize=True, max_examples=80)
@given(
    st.tuples(st.integers(1, 30), st.integers(1, 30)),
    st.tuples(st.integers(1, 30), st.integers(1, 30)),
    st.tuples(st.integers(0, 60), st.integers(0, 60)),
)
def test_two_buffers_in_one_storage(mine: Any, theirs: Any, offsets: Any) -> None:
    op = evt.gemm("out D, E, F; D = acc; E = acc; F = -acc")
    storage = torch.zeros(2000)
    first, second = (storage.as_strided((M, N), *pair) for pair in zip((mine, theirs), offsets, strict=True))
    assume(len(set(places(first))) == len(set(places(second))) == M * N)
    shared = bool(bytes_of(first) & bytes_of(second))
    assert outcome(lambda: op(A, B, out={"E": first, "F": second})) == ("E0609" if shared else "")


def test_operands_and_scalars_are_inputs_too() -> None:
    storage = torch.zeros(200)
    buffer = storage[:48].view(M, N)
    for name, value in (("A", storage[40:64].view(M, K)), ("B", storage[47:79].view(K, N)), ("s", storage[5:6])):
        given = {"A": A, "B": B, "s": 1.0, name: value}
        op = evt.gemm("in s: f32[]; D = s*acc")
        assert outcome(lambda given=given, op=op: op(given["A"], given["B"], s=given["s"], out=buffer)) == "E0609"


# Groups

GROUPED = evt.grouped_gemm("out D, E; D = acc; E = acc + C")


@settings(deadline=None, derandomize=True, max_examples=80)
@given(st.tuples(*[st.tuples(st.integers(1, 30), st.integers(1, 30))] * 3), st.tuples(*[st.integers(0, 90)] * 3))
def test_groups_share_nothing_that_is_written(strides: Any, offsets: Any) -> None:
    storage = torch.zeros(2000)
    one, two, c = (storage.as_strided((M, N), *pair) for pair in zip(strides, offsets, strict=True))
    assume(all(len(set(places(each))) == M * N for each in (one, two)))
    own = [torch.zeros(M, N), torch.zeros(M, N)]
    clash = bool(bytes_of(one) & bytes_of(two)) or bool(bytes_of(two) & bytes_of(c))
    in_place = strides[0] == strides[2] and offsets[0] == offsets[2]
    clash = clash or (bool(bytes_of(one) & bytes_of(c)) and not in_place)
    for route in (None, "loop"):
        op = evt.grouped_gemm("out D, E; D = acc; E = acc + C", route=route)
        found = outcome(lambda op=op: op([A, A], [B, B], C=[c, own[0]], out={"E": [one, two]}))
        assert found == ("E0609" if clash else "")


def test_stacks_and_rows_of_groups() -> None:
    c = [torch.zeros(M, N)] * 3
    stacked = view((3, M, N), (M * N, N, 1))
    assert outcome(lambda: GROUPED([A] * 3, [B] * 3, C=c, out={"E": stacked})) == ""
    columns = view((3, M, N), (N, 3 * N, 1))  # side by side
    assert outcome(lambda: GROUPED([A] * 3, [B] * 3, C=c, out={"E": columns})) == ""
    for strides in ((N, N, 1), (0, N, 1), (M * N, N // 2, 1), (M * N - 1, N, 1)):
        assert outcome(lambda strides=strides: GROUPED([A] * 3, [B] * 3, C=c, out={"E": view((3, M, N), strides)})) in (
            "E0608",
            "E0609",
        )
    rows, whole = torch.cat([A, A]), torch.zeros(2 * M, N)
    given: dict[str, Any] = {"offsets": [0, M, 2 * M], "C": whole}
    assert outcome(lambda: GROUPED(rows, [B] * 2, out={"E": view((2 * M, N), (N, 1))}, **given)) == ""
    assert outcome(lambda: GROUPED(rows, [B] * 2, out={"E": whole}, **given)) == ""
    assert outcome(lambda: GROUPED(rows, [B] * 2, out={"E": view((2 * M, N), (N - 1, 1))}, **given)) == "E0608"
    assert outcome(lambda: GROUPED(rows, [B] * 2, out={"E": view((2 * M, N), (0, 1))}, **given)) == "E0608"


def test_remembered_launches_check_memory_too(launches) -> None:
    op = evt.gemm("out D, E; D = acc; E = acc + C")
    a, b, wide = A.half(), B.half(), torch.zeros(M, 4 * N, dtype=torch.float16)
    for _ in range(2):
        op(a, b, C=wide[:, :N], out={"E": wide[:, N : 2 * N]})
    count = len(launches)
    assert outcome(lambda: op(a, b, C=wide[:, :N], out={"E": wide[:, N - 4 : 2 * N - 4]})) == "E0609"
    assert (
        outcome(lambda: op(a, b, C=wide[:, :N], out={"E": view((M, N), (N // 2, 1), dtype=torch.float16)})) == "E0608"
    )
    assert len(launches) == count
