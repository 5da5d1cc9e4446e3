"""Random arguments of the operators that evt knows: fused equals eager."""

from __future__ import annotations

import pytest

from .random_operators import check


@pytest.mark.parametrize("seed", [*range(10), *(pytest.param(each, marks=pytest.mark.slow) for each in range(10, 300))])
def test_fused_is_eager(seed: int) -> None:
    check(seed)
