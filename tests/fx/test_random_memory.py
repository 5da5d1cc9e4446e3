"""Random functions whose values share memory: fused equals eager."""

from __future__ import annotations

import pytest

from .random_memory import check, check_compiled

pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch's, of operators that are drawn


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 200))])
def test_fused_is_eager(seed: int) -> None:
    check(seed)


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 100))])
def test_compiled_is_eager(seed: int) -> None:
    check_compiled(seed)
