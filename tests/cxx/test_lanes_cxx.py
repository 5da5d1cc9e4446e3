"""Operations of epilogues on the lanes of every family, on the host: `lanes.cpp` runs the threads of a block."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cxx.gxx import HOST, MARKS, check

pytestmark = MARKS


@pytest.mark.parametrize("flags", [(), pytest.param(("-DEVERY_CASE",), marks=pytest.mark.slow)])
def test_operations_on_lanes(tmp_path: Path, flags: tuple[str, ...]) -> None:
    check("lanes", tmp_path, HOST, flags=flags)
