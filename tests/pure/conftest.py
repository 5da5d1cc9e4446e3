"""A machine that looks like one GPU or like none, a room to build in, caches of a test's own."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_nvcc import Room, make_room

from evt.build import Cache

_FORMATS = {"size": "q", "pointer": "Q", "number": "d", "integer": "q"}


@pytest.fixture
def launches(monkeypatch):
    """Programs launch on a machine that only looks like one GPU; each launch's members are recorded by name."""
    torch = pytest.importorskip("torch")
    from evt.plan import find_target
    from evt.runtime import call as call_module
    from evt.runtime import prepare as prepare_module
    from evt.runtime.kernels import Kernels, plan_kernels
    from evt.runtime.library import Library

    recorded: list[dict[str, float]] = []

    def make_kernels(spec, bound, target, atomic):
        plans = plan_kernels(spec, bound, find_target("sm90"))
        return Kernels(plans, tuple(map(library, plans)))

    def library(plan):
        form = "".join(_FORMATS[field.kind] for field in plan.fields)

        def run(arguments: bytes, size: int, stream: int) -> int:
            assert size == len(arguments) == 8 * len(plan.fields)
            assert stream == 77
            values = struct.unpack(f"={form}", arguments)
            recorded.append(dict(zip((field.name for field in plan.fields), values, strict=True)))
            return 0

        needed = 64 if any(field.role == "workspace" for field in plan.fields) else 0
        return Library(None, run, form, lambda arguments: needed)

    monkeypatch.setattr(call_module, "make_kernels", make_kernels)
    monkeypatch.setattr(call_module, "_needs_no_kernel", lambda bound: False)
    monkeypatch.setattr(call_module, "device_target", lambda index: find_target("sm90"))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(multi_processor_count=132))
    monkeypatch.setattr(prepare_module, "_current_device", lambda: 0)
    monkeypatch.setattr(prepare_module, "_raw_stream", lambda index: 77)
    return recorded


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    room = make_room(tmp_path)
    yield room
    room.end()


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a cache of kernels and measurements that this test alone has."""
    monkeypatch.setenv("EVT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
