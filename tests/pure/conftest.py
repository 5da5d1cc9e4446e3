"""A machine that looks like one GPU or like none, a room to build in, caches of a test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_nvcc import Room, make_room

from evt.compilation import Cache


@pytest.fixture
def launches(monkeypatch):
    """Programs launch on a machine that only looks like one GPU; each launch's members are recorded by name."""
    pytest.importorskip("torch")
    from stub_device import record_launches

    return record_launches(monkeypatch.setattr)


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    room = make_room(tmp_path)
    yield room
    room.end()


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
