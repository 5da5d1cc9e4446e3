"""Random graphs around products: fused equals eager."""

from __future__ import annotations

import pytest
import torch

from .random_graphs import check, check_gradients

#: The number of checks here; ``python -m tests.fx.random_graphs`` checks more.
COUNT = 10


@pytest.mark.parametrize(
    "seed", [*range(COUNT), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(COUNT, 200))]
)
def test_fused_is_eager(seed: int) -> None:
    check(seed)


@pytest.mark.filterwarnings("ignore")  # PyTorch's warning about a future removal
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 100))])
def test_gradients_are_eager(seed: int) -> None:
    with torch.enable_grad():
        check_gradients(seed)
