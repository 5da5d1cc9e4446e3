"""Models live as their eager twins: parameters, modes, layers and copies change between calls."""

from __future__ import annotations

import pytest

from .random_lives import check, check_compiled

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("fresh_compiler")]


@pytest.mark.parametrize("seed", [20, 30, *(pytest.param(each, marks=pytest.mark.slow) for each in range(31, 60))])
def test_fused_lives_are_eager(seed: int) -> None:
    check(seed)


@pytest.mark.parametrize("seed", [5, *(pytest.param(each, marks=pytest.mark.slow) for each in range(6, 40))])
def test_compiled_lives_are_eager(seed: int) -> None:
    check_compiled(seed)
