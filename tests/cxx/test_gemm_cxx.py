"""The GEMM kernel of evt on the host: clusters, both kinds of consumers, splits of k, promotion and groups of rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cxx.gxx import HOST, MARKS, check

pytestmark = MARKS


@pytest.mark.parametrize("flags", [(), pytest.param(("-DEVERY_CASE",), marks=pytest.mark.slow)])
def test_results_of_products(tmp_path: Path, flags: tuple[str, ...]) -> None:
    check("gemm", tmp_path, HOST, flags=flags)
