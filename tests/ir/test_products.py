"""Products of A and an input: ``matmul(A, up)`` in the language, its graph, and its reference."""

from __future__ import annotations

import pickle

import pytest
import torch

import evt
from evt.ir import Acc, format_dag, parse_dag
from evt.ir.dag import factors
from evt.request import typed_graph

TEXT = "D = silu(acc)*matmul(A, up)"


def tensors(m: int = 9, n: int = 40, k: int = 24) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape, dtype=torch.float64) for shape in ((m, k), (n, k), (n, k))]


def expected(a: torch.Tensor, b: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(a @ b.mT) * (a @ up.mT)


@pytest.mark.parametrize("operation", [evt.gemm, evt.linear])
@pytest.mark.filterwarnings("ignore::evt.NoKernelWarning")
def test_results(operation) -> None:
    a, b, up = tensors()
    turned = operation is evt.gemm
    given = [each.mT.contiguous() if turned else each for each in (b, up)]
    op = operation(TEXT)
    torch.testing.assert_close(op(a, given[0], up=given[1]), expected(a, b, up))
    stored = pickle.loads(pickle.dumps(op))
    assert stored == op
    torch.testing.assert_close(stored(a, given[0], up=given[1]), expected(a, b, up))


def test_rows_of_several_dimensions() -> None:
    a, b, up = tensors()
    op = evt.linear("in s: f64[m]; D = s*acc - matmul(A, up)")
    rows = a.view(3, 3, -1)
    want = rows.sum(-1, keepdim=True) * (rows @ b.mT) - rows @ up.mT
    torch.testing.assert_close(op(rows, b, up=up, s=rows.sum(-1)), want)


@pytest.mark.parametrize("modes", ["n, k", "k, n"])
def test_modes_are_declared(modes: str) -> None:
    a, b, up = tensors()
    op = evt.linear(f"in up: f64[{modes}]; D = acc + matmul(A, up)")
    torch.testing.assert_close(op(a, b, up=up if modes == "n, k" else up.mT), a @ (b + up).mT)


def test_the_graph_reads_back() -> None:
    typed = typed_graph(evt.linear(TEXT).request, "f16", "f16")
    assert factors(typed) == ("up",)
    assert typed.input["up"].modes == ("n", "k")
    assert parse_dag(format_dag(typed)) == typed
    same = evt.gemm("D = matmul(A, B)").request.dag
    assert [op for op, _ in same.table if isinstance(op, Acc)] == [Acc()]
    assert str(evt.linear(TEXT)) == TEXT


MISTAKES = {
    "D = matmul(B, A)": ("E0203", "multiplies A with an input"),
    "D = acc*matmul(A)": ("E0203", "multiplies A with an input"),
    "D = acc*matmul(A, up, 2)": ("E0203", "multiplies A with an input"),
    "D = matmul(A, acc)": ("E0203", "no product of a computed value"),
    "x = relu(acc); D = matmul(A, x)": ("E0203", "no product of a computed value"),
    "def f(x) = matmul(A, x); D = f(acc)": ("E0203", "the body of a function has no product"),
    "in up: f16[m, n]; D = acc*matmul(A, up)": ("E0302", "is [m, n]"),
    "in up: f16[n, k] = 1; D = acc*matmul(A, up)": ("E0302", "has a default"),
    "D = acc*matmul(A, up) + up": ("E0304", "sums over k"),
    "D = matmul(A, up)": ("E0405", "does not use the accumulator"),
    "linear(A: f16[m, k], B: f16[n, k]); in up: bf16[n, k]; D = acc*matmul(A, up)": ("E0308", "multiplied with both"),
    "A = relu(A); D = mm(A, up)": ("E0201", "no function `mm`"),
}


@pytest.mark.parametrize("text", MISTAKES)
def test_mistakes(text: str) -> None:
    with pytest.raises(evt.ProgramError) as raised:
        evt.linear(text)
    code, words = MISTAKES[text]
    assert any(each.code == code and words in each.message for each in raised.value.diagnostics)


def test_convolutions_have_one_product() -> None:
    with pytest.raises(evt.ProgramError, match="a second product of conv2d"):
        evt.conv2d(TEXT)


def test_there_is_no_gradient() -> None:
    a, b, up = tensors()
    with pytest.raises(evt.ArgumentError, match=r"matmul\(A, up\)` has no gradient"):
        evt.linear(TEXT).gradient()
    with pytest.raises(evt.ArgumentError, match="E0614"):
        evt.linear(TEXT)(a.requires_grad_(), b, up=up)


def test_shapes_are_checked() -> None:
    a, b, up = tensors()
    with pytest.raises(evt.ArgumentError, match=r"pass up.mT"):
        evt.linear(TEXT)(a, b, up=up.mT)
    with pytest.raises(evt.ArgumentError, match="E0603"):
        evt.linear(TEXT)(a, b, up=up.half())


def test_transformed_calls() -> None:
    a, b, up = tensors()
    op = evt.linear(TEXT)
    found = torch.func.vmap(lambda each: op(each, b, up=up))(torch.stack([a, 2 * a]))
    torch.testing.assert_close(found, torch.stack([expected(each, b, up) for each in (a, 2 * a)]))
