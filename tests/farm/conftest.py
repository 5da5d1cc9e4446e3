"""A machine without a GPU that plans, builds and keeps kernels as on an H200."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fake_nvcc import build_by_script
from tests.support.stand_in import LOG


@pytest.fixture
def timed(tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let evt build with a script for nvcc into a cache of this test; return the log of timed rounds."""
    (tmp_path / "script").mkdir()
    build_by_script(tmp_path / "script", monkeypatch.setenv)
    path = tmp_path / "timed"
    path.touch()
    monkeypatch.setenv(LOG, str(path))
    return path
