"""The kernel of group norms on the host: vectors of two groups, pixels apart, and CTAs without pixels."""

from __future__ import annotations

from pathlib import Path

from tests.cxx.gxx import HOST, MARKS, check

pytestmark = MARKS


def test_results_of_group_norms(tmp_path: Path) -> None:
    check("group_norm", tmp_path, HOST)
