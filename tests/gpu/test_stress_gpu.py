"""Main loops of own products under stress on a GPU: no wrong launch in thousands. See :mod:`tests.gpu.stress`."""

from __future__ import annotations

import pytest

from tests.gpu import stress

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

#: The least launches of a loop.
LAUNCHES = 10_000


@pytest.mark.parametrize("name", stress.LOOPS)
def test_no_launch_is_wrong(name: str) -> None:
    (loop,), launches = stress.prepared([name]), 0
    while launches < LAUNCHES:
        found = loop.round()
        assert not found.wrong, "\n".join(map(str, found.wrong))
        launches += found.launches
