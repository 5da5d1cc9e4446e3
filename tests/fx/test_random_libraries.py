"""Operators of other libraries with the names of ATen's: fused equals eager."""

from __future__ import annotations

import pytest

from .random_libraries import check, check_compiled

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("fresh_compiler")]
#: Seeds of products, of elementwise operators, of views, and of operators with several results.
KINDS = (2, 33, 7, 4, 22, 25)


@pytest.mark.parametrize("seed", [*KINDS, *(pytest.param(each, marks=pytest.mark.slow) for each in range(50, 150))])
def test_fused_is_eager(seed: int) -> None:
    check(seed)


@pytest.mark.parametrize("seed", [2, 7, *(pytest.param(each, marks=pytest.mark.slow) for each in range(50, 150))])
def test_compiled_is_eager(seed: int) -> None:
    check_compiled(seed)
