"""Random blocks of models in 16 bits: compiled they are as near to float64 as in eager mode."""

from __future__ import annotations

import pytest

from .random_blocks import check

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("fresh_compiler")]


@pytest.mark.parametrize(
    "seed", [*range(3, 6), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 200))]
)
def test_blocks_are_as_exact_as_eager(seed: int) -> None:
    check(seed)
