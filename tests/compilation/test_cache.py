"""The cache: publishing, damage, pruning."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import evt.compilation
from evt.compilation import Cache, KernelSource
from tests.support.entries import KEY, SOURCE, TOOLS, put

# Its folder


def test_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVT_CACHE_DIR", str(tmp_path / "named"))
    assert Cache().root == tmp_path / "named"
    assert Cache(tmp_path / "given").root == tmp_path / "given"
    monkeypatch.setenv("EVT_CACHE_DIR", "~/kernels")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Cache().root == tmp_path / "kernels"
    monkeypatch.setenv("EVT_CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert Cache().root == tmp_path / "xdg/evt"


def test_looking_creates_nothing(cache: Cache) -> None:
    assert cache.lookup(SOURCE, TOOLS) is None
    assert cache.entries() == []
    assert cache.size_bytes() == 0
    assert cache.prune(max_bytes=0) == cache.clear() == []
    assert not cache.root.exists()


def test_published_then_found(cache: Cache) -> None:
    path = put(cache)
    assert path == cache.root / KEY[:2] / KEY / "kernel.so"
    assert cache.lookup(SOURCE, TOOLS) == path
    assert sorted(os.listdir(path.parent)) == ["build.json", "kernel.cu", "kernel.so"]
    assert os.listdir(path.parents[1]) == [KEY]
    record = json.loads((path.parent / "build.json").read_text())
    assert record["library"]["size"] == len(b"library")
    assert record["nvcc"] == "13.0.88"


def test_everything_is_private_whatever_the_umask(cache: Cache) -> None:
    before = os.umask(0)
    try:
        path = put(cache)
    finally:
        os.umask(before)
    for at in (cache.root, path.parents[1], path.parent, *path.parent.iterdir()):
        assert stat.S_IMODE(at.stat().st_mode) in (0o700, 0o600), at
    assert cache.lookup(SOURCE, TOOLS) == path


# Damage


def truncate(entry: Path) -> None:
    (entry / "kernel.so").write_bytes(b"lib")


def flip(entry: Path) -> None:
    (entry / "kernel.so").write_bytes(b"Library")


def lose(name: str) -> Callable[[Path], None]:
    return lambda entry: (entry / name).unlink()


def record(text: bytes) -> Callable[[Path], None]:
    def write(entry: Path) -> None:
        (entry / "build.json").write_bytes(text)

    return write


def directory_for_a_library(entry: Path) -> None:
    (entry / "kernel.so").unlink()
    (entry / "kernel.so").mkdir(mode=0o700)


def pipe_for(name: str) -> Callable[[Path], None]:
    def make(entry: Path) -> None:
        (entry / name).unlink()
        os.mkfifo(entry / name, 0o600)

    return make


def directory_for_a_record(entry: Path) -> None:
    (entry / "build.json").unlink()
    (entry / "build.json").mkdir(mode=0o700)


def huge_record(entry: Path) -> None:
    os.truncate(entry / "build.json", 10**10)


def file_for_an_entry(entry: Path) -> None:
    shutil.rmtree(entry)
    entry.write_text("")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (truncate, "3 bytes instead of 7"),
        (flip, "has changed"),
        (lose("kernel.so"), "kernel.so is missing"),
        (lose("build.json"), "build.json is missing"),
        (record(b""), "cannot be read"),
        (record(b"\xff\x00garbage"), "cannot be read"),
        (record(b"[1, 2]"), "cannot be read"),
        (record(b'{"library": {"size": 7}}'), "cannot be read"),
        (record(b"[" * 100_000), "cannot be read"),
        (directory_for_a_library, "kernel.so"),
        (pipe_for("kernel.so"), "kernel.so has 0 bytes"),  # to be opened for reading it would wait for a writer
        (pipe_for("build.json"), "cannot be read"),
        (directory_for_a_record, "cannot be read"),
        (huge_record, "cannot be read"),
        (file_for_an_entry, "is not a directory"),
    ],
)
@pytest.mark.parametrize("loaded_before", [False, True])
def test_damage_is_noticed_and_replaced(
    cache: Cache, damage: Callable[[Path], None], reason: str, loaded_before: bool
) -> None:
    path = put(cache)
    if loaded_before:
        assert cache.lookup(SOURCE, TOOLS) == path
    damage(path.parent)
    if not (loaded_before and reason == "cannot be read"):  # the record is read at a process's first load
        library, why = cache.find(KEY)
        assert library is None
        assert reason in why
    assert put(cache) == path
    assert cache.lookup(SOURCE, TOOLS) == path
    assert os.listdir(path.parents[1]) == [KEY]


# Keeping it small


def fill(cache: Cache) -> list[Path]:
    """Three entries of over 1000 bytes, used one, two and three hours ago."""
    paths = []
    for hours in (1, 2, 3):
        path = put(cache, KernelSource(f"// {hours}\n", "sm_80"), bytes(1000))
        then = time.time() - hours * 3600
        os.utime(path.parent / "build.json", (then, then))
        paths.append(path)
    return paths


def test_entries_the_longest_unused_first(cache: Cache) -> None:
    paths = fill(cache)
    assert [entry.library for entry in cache.entries()] == paths[::-1]
    assert cache.size_bytes() == sum(entry.size_bytes for entry in cache.entries()) > 3000
    cache.lookup(KernelSource("// 3\n", "sm_80"), TOOLS)  # used now
    assert [entry.library for entry in cache.entries()] == [paths[1], paths[0], paths[2]]


def test_prune(cache: Cache) -> None:
    paths = fill(cache)
    assert cache.prune() == []
    assert [entry.library for entry in cache.prune(older_than_s=2.5 * 3600)] == [paths[2]]
    assert [entry.library for entry in cache.prune(max_bytes=2000)] == [paths[1]]
    assert [path.exists() for path in paths] == [True, False, False]
    assert [entry.library for entry in cache.prune(max_bytes=0)] == [paths[0]]
    assert [os.listdir(shard) for shard in cache.root.iterdir()] == [[], [], []]


def test_what_is_being_built_stays(cache: Cache) -> None:
    path = put(cache)
    lock = cache.lock(KEY, wait=False)
    assert lock is not None
    assert cache.lock(KEY, wait=False) is None
    work = cache.workspace(KEY, {})
    assert cache.clear() == []
    assert path.exists()
    assert work.exists()
    lock.release()
    assert [entry.library for entry in cache.clear()] == [path]
    assert not work.exists()


def test_a_waiter_holds_the_lock_that_others_see(cache: Cache) -> None:
    """The holder removes the file when it is done; who waited on that file must not think it has the lock."""
    cache.prepare()
    first = cache.lock(KEY, wait=True)
    assert first is not None
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(cache.lock, KEY, wait=True)
        time.sleep(0.2)
        assert not waiting.done()
        first.release()
        second = waiting.result(timeout=60)
    assert second is not None
    assert cache.lock(KEY, wait=False) is None
    second.release()
    third = cache.lock(KEY, wait=False)
    assert third is not None
    third.release()
    third.release()


def test_clear_leaves_what_is_not_ours(cache: Cache) -> None:
    put(cache)
    kept = cache.keep_failure("f" * 64, "source", "log", [])
    (cache.root / "notes.txt").write_text("mine")
    (cache.root / "ab").mkdir(exist_ok=True)
    (cache.root / "ab/README").write_text("mine")
    assert len(cache.clear()) == 1
    assert not kept.exists()
    assert (cache.root / "notes.txt").exists()
    assert (cache.root / "ab/README").exists()


def test_the_import_is_light() -> None:
    names = ("torch", "networkx", "lark", "numpy", "platformdirs", "importlib.metadata")
    program = f"import sys, evt.compilation; print([name for name in {names} if name in sys.modules])"
    path = str(Path(evt.compilation.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
