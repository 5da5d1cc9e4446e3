"""Views that a compiled graph returns have the strides and offsets of eager mode, and share memory as there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch.nn import functional

from tests.fx.compiling import compiled

Value = torch.Tensor

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # PyTorch's warning about a future removal
    pytest.mark.usefixtures("fresh_compiler"),
]
_PRODUCTS: dict[str, tuple[tuple[int, ...], tuple[int, ...], Callable[[Value, Value], Value]]] = {
    "conv1d": ((2, 8, 6), (8, 8, 3), lambda x, w: functional.conv1d(x, w, padding=1)),
    "depthwise": ((2, 8, 6), (8, 1, 3), lambda x, w: functional.conv1d(x, w, padding=1, groups=8)),
    "conv2d": ((2, 8, 6, 5), (8, 8, 3, 3), lambda x, w: functional.conv2d(x, w, padding=1)),
    "transposed": ((2, 8, 6, 5), (8, 8, 3, 3), lambda x, w: functional.conv_transpose2d(x, w, padding=1)),
    "conv3d": ((2, 8, 3, 6, 5), (8, 8, 3, 3, 3), lambda x, w: functional.conv3d(x, w, padding=1)),
    "mm": ((6, 8), (8, 10), torch.mm),
    "bmm": ((2, 6, 8), (2, 8, 10), torch.bmm),
    "rows": ((6, 2, 8), (10, 8), lambda x, w: functional.linear(x.transpose(0, 1), w)),
}
_VIEWS: Sequence[Callable[[Value], Value]] = (
    lambda y: y[:, ::2],
    lambda y: y.unfold(-1, 2, 1),
    lambda y: y[None].expand(3, *y.shape),
    lambda y: y.diagonal(),
    lambda y: y[1:],
    lambda y: y[..., 1:3],
    lambda y: y[:, 1],
    lambda y: y.chunk(2, 1)[1],
    lambda y: y.transpose(0, 1)[::2],
    lambda y: y[:, ::2].as_strided((2, 2), (1, 4), 1),
)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in ("conv1d", "conv3d") else ()) for name in _PRODUCTS]
)
def test_views_with_gaps(name: str) -> None:
    """Each view is of another product: PyTorch makes several views of one tensor from it, outside of the graph."""
    x_shape, w_shape, product = _PRODUCTS[name]
    generator = torch.Generator().manual_seed(0)
    x, *weights = (torch.randn(shape, generator=generator) for shape in (x_shape, *[w_shape] * len(_VIEWS)))

    def function(x: Value, *weights: Value) -> list[Value]:
        results = [view(torch.relu(product(x, w))) for view, w in zip(_VIEWS, weights, strict=True)]
        return [*results, torch.tanh(product(x, weights[0])).flip(0)[:, ::2]]

    wanted, found = function(x, *weights), compiled(function)(x, *weights)
    for place, (want, got) in enumerate(zip(wanted, found, strict=True)):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
        assert (got.stride(), got.storage_offset()) == (want.stride(), want.storage_offset()), place


#: Views of all elements.
_WHOLE: Sequence[Callable[[Value], Value]] = (
    lambda y: y.reshape(-1, *y.shape[2:]) if y.is_contiguous() else y.mT,
    lambda y: y.transpose(0, 1),
    lambda y: y[None],
    lambda y: y.as_strided(y.shape[::-1], torch.empty(y.shape).stride()[::-1]),
)


def _shared(tensors: Sequence[Value]) -> list[tuple[int, int, int]]:
    """Return the pairs of tensors that share memory, with the distances of their first elements."""
    pairs = ((i, j) for j in range(len(tensors)) for i in range(j))
    memory = [each.untyped_storage().data_ptr() for each in tensors]
    return [(i, j, tensors[j].data_ptr() - tensors[i].data_ptr()) for i, j in pairs if memory[i] == memory[j]]


@pytest.mark.parametrize(
    ("name", "is_later"),
    [("conv2d", True), *(pytest.param(name, False, marks=pytest.mark.slow) for name in _PRODUCTS)],
)
def test_results_share_memory_as_in_eager_mode(name: str, is_later: bool) -> None:
    """Products, views and copies are results; copies are written to. ``is_later`` adds an operator of Inductor's."""
    x_shape, w_shape, product = _PRODUCTS[name]
    views = [*_WHOLE, *_VIEWS]
    generator = torch.Generator().manual_seed(0)
    x, *weights = (torch.randn(shape, generator=generator) for shape in (x_shape, *[w_shape] * len(views)))

    def function(x: Value, *weights: Value) -> list[Value]:
        found = []
        for place, (view, w) in enumerate(zip(views, weights, strict=True)):
            y = torch.relu(product(x, w))
            y = y.flip(0) if is_later else y
            copy = view(y).clone()
            if place % 2:
                copy[[0]] = 7
            results = [y, copy, view(y), views[place - 1](y)]
            found += [results[:2], results[1:], results][place % 3]
        return found

    wanted, found = function(x, *weights), compiled(function)(x, *weights)
    for want, got in zip(wanted, found, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    assert [each.stride() for each in found] == [each.stride() for each in wanted]
    assert _shared(found) == _shared(wanted)


def test_writes_to_memory_as_it_lies() -> None:
    """``as_strided`` reads and writes the elements that it has in eager mode, before and after other operators."""
    x, w = torch.randn(2, 8, 6, 5), torch.randn(8, 8, 3, 3)

    def function(x: Value, w: Value) -> list[Value]:
        found = []
        for y in (torch.relu(functional.conv2d(x, w, padding=1)), torch.tanh(functional.conv2d(x, w)).flip(0)):
            y.as_strided((y.numel() // 2,), (1,)).add_(1)
            found += [y.sum(1), y.as_strided((y.numel(),), (1,)) * 2]
        return found

    torch.testing.assert_close(compiled(function)(x, w), function(x, w), rtol=1e-4, atol=1e-4)


def test_a_result_and_its_view_share_memory() -> None:
    x, w = torch.randn(2, 8, 6, 5), torch.randn(8, 8, 3, 3)

    def function(x: Value, w: Value) -> tuple[Value, Value]:
        y = torch.relu(functional.conv2d(x, w, padding=1))
        part = y[:, ::2]
        part.add_(1)
        return y, part

    (whole, part), (want, _) = compiled(function)(x, w), function(x, w)
    part.zero_()
    want[:, ::2] = 0
    torch.testing.assert_close(whole, want, rtol=1e-4, atol=1e-4)
    assert whole.stride() == want.stride()
