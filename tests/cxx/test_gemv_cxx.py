"""The kernel of products of few rows on the host: offsets within chunks, ends of rows, and splits of k."""

from __future__ import annotations

from pathlib import Path

from tests.cxx.gxx import HOST, MARKS, check

pytestmark = MARKS


def test_results_of_products_of_few_rows(tmp_path: Path) -> None:
    check("gemv", tmp_path, HOST)
