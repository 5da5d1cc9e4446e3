"""Plain ``pytest`` runs the tests that this machine supports, and gives the reason for each skipped one."""

from __future__ import annotations

import functools
import gc
import logging
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from evt.compilation import Cache
from evt.functions import TABLE
from tests.support.fake_nvcc import Room, make_room


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="write the files of tests/golden")
    group = parser.getgroup("random programs")
    group.addoption("--count", type=int, help="how many random programs are checked: 25, and 300 by the slow tests")
    group.addoption("--first", type=int, default=0, help="the seed of the first of them")
    group.addoption("--compiled", type=int, help="how many of them are compiled, or run on a GPU")


def pytest_configure(config: pytest.Config) -> None:
    """Ctrl-C reaches the processes of tests, also where these run in the background and it would be ignored."""
    if hasattr(config, "workerinput"):  # one of several processes, whose threads would wait for each other
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@functools.cache
def _missing(need: str) -> str:
    """Return the tool that this machine lacks for a mark, or ""."""
    if need == "cxx":
        return "" if shutil.which("g++") else "there is no g++"
    if need == "nvcc":
        from evt.compilation import find_toolchain
        from evt.errors import BuildError

        try:
            find_toolchain()
        except BuildError as error:
            return "; ".join(problem.message for problem in error.diagnostics)
        return ""
    import torch

    return _missing("nvcc") if torch.cuda.is_available() else "torch sees no GPU"


#: Rooms whose files take the most time. They run first: a long file at the end leaves one process alone with it.
_LONG = ("samples", "nvcc", "cxx")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Collect no garbage among the tests and the modules, which stay: each search takes a second of CPU time."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests that lack a tool. One case stands for all cases of a function: reporting thousands takes seconds."""
    items.sort(key=lambda item: item.path.parent.name not in _LONG)
    kept, others, skipped = list[pytest.Item](), list[pytest.Item](), set[str]()
    for item in items:
        reasons = [
            f"needs {need}: {reason}"
            for need in ("cxx", "nvcc", "gpu")
            if item.get_closest_marker(need) and (reason := _missing(need))
        ]
        function = item.nodeid.partition("[")[0]
        if reasons and function in skipped:
            others.append(item)
            continue
        kept.append(item)
        if reasons:
            skipped.add(function)
            item.add_marker(pytest.mark.skip(reason=reasons[0]))
    items[:] = kept
    config.hook.pytest_deselected(items=others)


@pytest.fixture(scope="session", autouse=True)
def _cache_directory(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[None]:
    """Return a cache of kernels for this run, never the user's; xdist's workers share it."""
    root = tmp_path_factory.getbasetemp()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EVT_CACHE_DIR", str((root if worker_id == "master" else root.parent) / "evt-cache"))
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_traces() -> Iterator[None]:
    """Let torch.compile print no graphs for a trace: pytest adds its handler to each logger, also to that of traces."""
    with pytest.MonkeyPatch.context() as patch:
        if "torch" in sys.modules:
            patch.setattr("torch._logging._internal.trace_log", logging.Logger("traces"))
        yield


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a cache of kernels and measurements that this test alone has."""
    monkeypatch.setenv("EVT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def _functions_are_forgotten() -> Iterator[None]:
    """Check that a test removes the functions that it registers: other tests would find them."""
    before = len(TABLE)
    yield
    assert len(TABLE) == before, "register functions under evt.functions.testing.temporarily()"


@pytest.fixture
def launches(monkeypatch):
    """Programs launch on a machine that only looks like one GPU; each launch's members are recorded by name."""
    from tests.support.stub_device import record_launches

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
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
