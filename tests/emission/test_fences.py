"""Buffers that TMA overwrites: threads end their accesses before they arrive at the barrier for which TMA waits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

INCLUDE = Path(__file__).parents[2] / "codegen" / "include" / "evt"

#: An arrival that gives a buffer of the epilogue's matrices to TMA.
ARRIVAL = re.compile(r"arrive(?:_at_part)?\(storage\.(?:result_)?written\(")
ARRIVALS = [
    (path, number)
    for path in sorted(INCLUDE.rglob("*.hpp"))
    for number, line in enumerate(path.read_text().splitlines())
    if ARRIVAL.search(line)
]


@pytest.mark.parametrize(("path", "number"), ARRIVALS, ids=[f"{path.name}:{number + 1}" for path, number in ARRIVALS])
def test_accesses_end_before_tma_gets_a_buffer(path: Path, number: int) -> None:
    """An arrival does not wait for loads in flight."""
    before = path.read_text().splitlines()[number - 3 : number]
    assert any("fence_view_async_shared();" in line for line in before)


def test_there_are_arrivals() -> None:
    assert len(ARRIVALS) > 2
