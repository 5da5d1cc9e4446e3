"""Operations of epilogues on the lanes of every family, on the host: `lanes.cpp` runs the threads of a block."""

from __future__ import annotations

from pathlib import Path

from tests.cxx.gxx import HOST, MARKS, check

pytestmark = MARKS


def test_operations_on_lanes(tmp_path: Path) -> None:
    check("lanes", tmp_path, HOST)
