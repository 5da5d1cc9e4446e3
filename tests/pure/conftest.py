"""What several tests of building need."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_nvcc import Room, make_room


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    room = make_room(tmp_path)
    yield room
    for pid in room.compilers():  # of a test that failed
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
