"""Operands of permuted products: fused equals eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from .fusing import fused
from .random_broadcasts import check, check_gradients, check_ones, check_square
from .seeds import Value

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("fresh_compiler")]
#: Seeds whose vectors lie in another order than rows or columns, or whose batches are permuted.
PERMUTED = (5, 9, 10, 12, 13, 14, 34, 35, 36, 41, 48, 264, 268, 272)


@pytest.mark.parametrize(
    "seed",
    [*PERMUTED[::2], *(pytest.param(each, marks=pytest.mark.slow) for each in (*PERMUTED[1::2], *range(400, 700)))],
)
def test_broadcasts_are_eager(seed: int) -> None:
    check(seed)


@pytest.mark.parametrize("seed", [*range(12), *(pytest.param(each, marks=pytest.mark.slow) for each in range(12, 200))])
def test_vectors_along_rows_and_columns_are_eager(seed: int) -> None:
    check_square(seed)


@pytest.mark.parametrize("seed", [13, *(pytest.param(each, marks=pytest.mark.slow) for each in range(14, 100))])
def test_dimensions_of_one_element_are_eager(seed: int) -> None:
    check_ones(seed)


@pytest.mark.parametrize("seed", [5, 12, *(pytest.param(each, marks=pytest.mark.slow) for each in range(700, 800))])
def test_gradients_of_broadcasts_are_eager(seed: int) -> None:
    check_gradients(seed)


#: Parts of a vector that have one element.
PARTS: dict[str, Callable[[Value], Value]] = {
    "select": lambda v: v[0], "slice": lambda v: v[:1], "last": lambda v: v[-1], "narrow": lambda v: v.narrow(0, 2, 1),
    "split": lambda v: v.split(1)[2], "unbind": lambda v: v.unbind()[3], "diagonal": lambda v: v[None].diagonal(),
    "view": lambda v: v.view(-1, 2)[1:2, 1].view(()), "index": lambda v: v[[4]],
}  # fmt: skip


@pytest.mark.parametrize(
    ("part", "rows"),
    [
        pytest.param(
            part,
            rows,
            marks=() if (part, rows) in (("select", 8), ("last", 1), ("view", 3), ("index", 1)) else pytest.mark.slow,
        )
        for part in PARTS
        for rows in (1, 3, 8)
    ],
)
def test_one_element_of_a_vector_is_not_the_vector(part: str, rows: int) -> None:
    """The kernel computes functions of vectors, and an element may be of the vector itself, at any place."""
    x, weight, of_columns, of_rows = torch.randn(rows, 8), torch.randn(8, 8), torch.randn(8), torch.randn(8, 1)[:rows]
    take = PARTS[part]
    fused(lambda x, w, v: functional.linear(x, w) * (v * take(v) + 1), x, weight, of_columns)
    fused(lambda x, w, v: functional.linear(x, w) + torch.tanh(v - take(v)) * take(v), x, weight, of_columns)
    if rows == len(of_columns):
        fused(lambda x, w, v: functional.linear(x, w) * (v * take(v[:, 0])), x, weight, of_rows)
    if rows == 1:  # the row of A is a vector of columns
        fused(lambda x, w: functional.linear(x, w) + x * take(x[0]), x, weight)


@pytest.mark.parametrize(
    "size", [(1, 6, 1), *(pytest.param(each, marks=pytest.mark.slow) for each in ((1, 6, 5), (1, 1, 1), (2, 3, 4)))]
)
def test_sums_of_small_images(size: tuple[int, int, int]) -> None:
    """A sum over channels is stored as [N, P, Q], also where N or Q is 1."""
    images, height, width = size
    x, weight = torch.randn(images, 4, height, width), torch.randn(6, 4, 1, 1)
    for dims in ([1], [0, 1], [1, 2], [1, 3], [0, 1, 3], [0, 2, 3]):
        for order in ([0, 1, 2, 3], [3, 2, 1, 0]):
            places = [order.index(dim) for dim in dims]
            fused(lambda x, w: torch.relu(functional.conv2d(x, w)).permute(order).sum(places), x, weight)  # noqa: B023


def test_rows_that_are_permuted_read_their_own_factors() -> None:
    """Sequence and batch change places, as in attention; then each row has a factor."""
    x, weight, factor = torch.randn(5, 2, 8), torch.randn(6, 8), torch.randn(2, 5, 1)
    found = fused(lambda x, w, f: functional.linear(x, w).transpose(0, 1) * f, x, weight, factor)
    assert len(found.regions) == 1


def test_a_permuted_vector_is_read_in_its_new_order() -> None:
    bias = torch.randn(3, 2)
    x, weight = torch.randn(5, 8), torch.randn(6, 8)
    found = fused(lambda x, w, b: functional.linear(x, w) + b.t().reshape(6), x, weight, bias)
    assert len(found.regions) == 1


def test_batches_are_split_as_the_operands_lie() -> None:
    a, b, factor = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 8, 6), torch.randn(3, 1, 1, 1)
    found = fused(lambda a, b, f: (a @ b).transpose(0, 1) * f, a, b, factor)
    assert len(found.regions) == 1
