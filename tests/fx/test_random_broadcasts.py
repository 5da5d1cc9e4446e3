"""Operands of permuted products: fused equals eager."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from .fusing import fused
from .random_broadcasts import check, check_gradients

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("fresh_compiler")]
#: Seeds whose vectors lie in another order than rows or columns, or whose batches are permuted.
PERMUTED = (5, 9, 10, 12, 13, 14, 34, 35, 36, 41, 48, 264, 268, 272)


@pytest.mark.parametrize("seed", [*PERMUTED, *(pytest.param(each, marks=pytest.mark.slow) for each in range(400, 700))])
def test_broadcasts_are_eager(seed: int) -> None:
    check(seed)


@pytest.mark.parametrize("seed", [5, 12, *(pytest.param(each, marks=pytest.mark.slow) for each in range(700, 800))])
def test_gradients_of_broadcasts_are_eager(seed: int) -> None:
    check_gradients(seed)


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
