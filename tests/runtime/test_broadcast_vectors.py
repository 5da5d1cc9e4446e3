"""Vectors as broadcasting writes them, [m, 1] and [1, n]: the same results, and gradients in the shapes given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import evt
from tests.support.depth import in_depth

F32 = torch.float32
M, N, K, L = 6, 10, 8, 3


def shapes(*sizes: int) -> tuple[int, ...]:
    return sizes


#: A program; the operation; the shapes of A and B; and the own shape of its input `v`, with others that stand for it.
CASES: list[tuple[str, str, tuple[int, ...], tuple[int, ...], tuple[int, ...], list[tuple[int, ...]]]] = [
    ("D = relu(acc*v[m])", "gemm", (M, K), (K, N), (M,), [(M, 1)]),
    ("D = relu(acc*v[n])", "gemm", (M, K), (K, N), (N,), [(1, N)]),
    ("D = relu(acc*v[m?])", "gemm", (M, K), (K, N), (M,), [(M, 1), (1, 1)]),
    ("D = relu(acc*v[n?])", "gemm", (M, K), (K, N), (N,), [(1, N), (1,)]),
    ("D = acc*v[]", "gemm", (M, K), (K, N), (), [(1,), (1, 1), (1, 1, 1)]),
    ("D = acc*v[m]", "gemm", (L, M, K), (K, N), (M,), [(M, 1), (1, M, 1)]),
    ("D = acc + v[n]", "gemm", (L, M, K), (K, N), (N,), [(1, N), (1, 1, N)]),
    ("D = acc*v[l, m]", "gemm", (L, M, K), (K, N), (L, M), [(L, M, 1), (1, M, 1), (1, M)]),
    ("D = acc*v[l, n]", "gemm", (L, M, K), (L, K, N), (L, N), [(L, 1, N), (1, 1, N)]),
    ("D = acc*v[l]", "gemm", (L, M, K), (K, N), (L,), [(L, 1, 1)]),
    ("D = acc*v[l, m]", "gemm", (2, L, M, K), (K, N), (2, L, M), [(2, L, M, 1), (1, L, M, 1)]),
    ("D = acc*v[m]", "linear", (L, M, K), (N, K), (L, M), [(L, M, 1), (L * M, 1)]),
    ("D = acc*v[n]", "linear", (L, M, K), (N, K), (N,), [(1, N), (1, 1, N)]),
    ("A = A*v[k]; D = acc", "gemm", (M, K), (K, N), (K,), [(1, K), (K, 1)]),
    ("A = A*v[m]; D = acc", "gemm", (M, K), (K, N), (M,), [(M, 1)]),
    ("B = B*v[n]; D = acc", "gemm", (M, K), (K, N), (N,), [(1, N)]),
    ("D = relu(acc*v[n])", "conv2d", (2, 4, 7, 5), (N, 4, 1, 1), (N,), [(1, N, 1, 1), (N, 1, 1)]),
    ("D = relu(acc*v[m])", "conv2d", (2, 4, 7, 5), (N, 4, 1, 1), (2, 7, 5), [(2, 1, 7, 5)]),
]
GIVEN = [(*case[:5], shape) for case in CASES for shape in case[5]]


def of_case(text: str, operation: str, shape_a: tuple[int, ...], shape_b: tuple[int, ...]) -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    return getattr(evt, operation)(text), torch.randn(shape_a), torch.randn(shape_b)


def own_values(own: tuple[int, ...], shape: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return an input in a shape that stands for its own, and in its own, batches that are shared repeated."""
    given = torch.randn(shape)
    if given.numel() == 1:
        return given, given.reshape(()).expand(own)
    missing = [1] * (len(own) - len([size for size in shape if size > 1]))
    packed = given.reshape(*missing, *(size for size in shape if size > 1)) if given.numel() < _count(own) else given
    return given, (packed.expand(own) if given.numel() < _count(own) else given.reshape(own))


def _count(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()


@pytest.mark.parametrize(("text", "operation", "shape_a", "shape_b", "own", "shape"), GIVEN)
def test_a_vector_with_dimensions_of_one_element_is_that_vector(
    text: str, operation: str, shape_a: Any, shape_b: Any, own: Any, shape: Any
) -> None:
    op, a, b = of_case(text, operation, shape_a, shape_b)
    given, vector = own_values(own, shape)
    expected = op(a, b, v=vector.contiguous())
    assert torch.equal(op(a, b, v=given), expected)
    assert torch.equal(op.reference(a, b, v=given), op.reference(a, b, v=vector.contiguous()))
    strided = torch.stack([given, given], -1)[..., 0]
    if "?" not in text and not op.request.dag.feeds:
        assert torch.equal(op(a, b, v=strided), expected)


@pytest.mark.parametrize(("text", "operation", "shape_a", "shape_b", "own", "shape"), GIVEN)
def test_its_gradient_has_the_shape_that_was_given(
    text: str, operation: str, shape_a: Any, shape_b: Any, own: Any, shape: Any
) -> None:
    op, a, b = of_case(text, operation, shape_a, shape_b)
    given, vector = own_values(own, shape)
    given.requires_grad_()
    a.requires_grad_()
    op(a, b, v=given).square().sum().backward()
    assert given.grad is not None
    assert given.grad.shape == given.shape
    leaf = vector.detach().contiguous().requires_grad_()
    op(a, b, v=leaf).square().sum().backward()
    assert leaf.grad is not None
    assert torch.allclose(given.grad.sum(), leaf.grad.sum(), rtol=1e-4)
    if given.numel() == leaf.numel():
        assert torch.equal(given.grad.reshape(own), leaf.grad)


@pytest.mark.parametrize("case", in_depth(CASES, quick=(CASES[0], CASES[8], CASES[14])))
def test_torch_compile_takes_it(case: Any) -> None:
    text, operation, shape_a, shape_b, _, (shape, *_) = case
    op, a, b = of_case(text, operation, shape_a, shape_b)
    given = torch.randn(shape)

    def call(a: torch.Tensor, b: torch.Tensor, v: torch.Tensor) -> Any:
        return op(a, b, v=v) * 2

    compiled: Callable[..., Any] = torch.compile(call, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(a, b, given), call(a, b, given))
    exported = torch.export.export(torch.nn.Module.__new__(_Calling).of(op), (a, b, given)).module()
    assert torch.equal(exported(a, b, given), op(a, b, v=given))


class _Calling(torch.nn.Module):
    def of(self, op: Any) -> _Calling:
        torch.nn.Module.__init__(self)
        self.op = op
        return self

    def forward(self, a: torch.Tensor, b: torch.Tensor, v: torch.Tensor) -> Any:
        return self.op(a, b, v=v)


@pytest.mark.parametrize(
    ("text", "shape"),
    [("D = acc*v[m]", (1, M)), ("D = acc*v[n]", (N, 1)), ("D = acc*v[m]", (M, 2)), ("D = acc + v[m, n]", (M, 1))],
)
def test_other_shapes_stay_refused(text: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(evt.ArgumentError, match="E0604"):
        evt.gemm(text)(torch.zeros(M, K), torch.zeros(K, N), v=torch.zeros(shape))
