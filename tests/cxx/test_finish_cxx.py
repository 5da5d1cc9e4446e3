"""Arithmetic in the kernel that combines the parts of reductions, on the host: `finish.cpp` has places and values."""

from __future__ import annotations

from pathlib import Path

from tests.cxx.gxx import HOST, MARKS, check

pytestmark = MARKS


def test_results_and_places(tmp_path: Path) -> None:
    check("finish", tmp_path, HOST)
