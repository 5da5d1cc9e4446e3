"""Random graphs around products: fused equals eager."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from .random_graphs import check  # noqa: E402

#: How many are checked here; ``python -m tests.models.random_graphs`` checks more.
COUNT = 60


@pytest.mark.parametrize("seed", range(COUNT))
def test_fused_is_eager(seed: int) -> None:
    check(seed)
