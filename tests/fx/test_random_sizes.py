"""Random functions of tensors whose sizes change: compiled with symbolic sizes equals eager."""

from __future__ import annotations

import pytest

from .random_sizes import check

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # PyTorch's, of operators that are drawn
    pytest.mark.usefixtures("fresh_compiler"),
]


@pytest.mark.parametrize(
    "seed", [6, *(pytest.param(each, marks=pytest.mark.slow) for each in (240069, 500240, 4, 5, *range(7, 100)))]
)
def test_compiled_is_eager(seed: int) -> None:
    check(seed)
