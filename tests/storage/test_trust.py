"""Whom the cache trusts, and directories that do not serve it."""

from __future__ import annotations

import os
import stat
import struct
import subprocess
import warnings
from pathlib import Path

import pytest
from click.testing import CliRunner

from evt.cli import main
from evt.compilation import Cache
from evt.errors import BuildError
from tests.support.entries import KEY, SOURCE, TOOLS, code_of, put

# Trust


@pytest.mark.parametrize("bit", [stat.S_IWGRP, stat.S_IWOTH], ids=["group", "others"])
@pytest.mark.parametrize("level", ["kernel.so", "build.json", "entry", "shard", "root"])
def test_what_others_could_write_is_refused(cache: Cache, bit: int, level: str) -> None:
    entry = put(cache).parent
    places = {"entry": entry, "shard": entry.parent, "root": cache.root}
    target = places.get(level, entry / level)
    target.chmod(target.stat().st_mode | bit)
    with pytest.raises(BuildError) as caught:
        cache.lookup(SOURCE, TOOLS)
    assert code_of(caught.value) == "E0705"
    mend = caught.value.diagnostics[0].help
    assert mend == f"chmod go-w {target}"
    subprocess.run(mend, shell=True, check=True)
    assert cache.lookup(SOURCE, TOOLS) == entry / "kernel.so"


def test_what_was_loaded_before_is_looked_at_again(cache: Cache) -> None:
    path = put(cache)
    assert cache.lookup(SOURCE, TOOLS) == path
    path.chmod(0o666)
    with pytest.raises(BuildError, match="E0705"):
        cache.lookup(SOURCE, TOOLS)


def test_what_belongs_to_another_is_refused(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    put(cache)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    for action in (lambda: cache.lookup(SOURCE, TOOLS), cache.prepare, cache.entries, cache.clear):
        with pytest.raises(BuildError, match="evt runs as uid 12345") as caught:
            action()
        assert code_of(caught.value) == "E0705"


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to give files away")
@pytest.mark.parametrize("level", [0, 1, 2, 3], ids=["library", "entry", "shard", "root"])
def test_one_step_that_belongs_to_another_is_refused(cache: Cache, level: int) -> None:
    path = put(cache)
    os.chown((path, *path.parents)[level], 12345, 12345)
    with pytest.raises(BuildError, match="belongs to uid 12345"):
        cache.lookup(SOURCE, TOOLS)


@pytest.mark.parametrize("level", ["kernel.so", "entry", "shard"])
def test_a_link_inside_is_refused(cache: Cache, tmp_path: Path, level: str) -> None:
    entry = put(cache).parent
    target = {"entry": entry, "shard": entry.parent}.get(level, entry / level)
    target.rename(tmp_path / "elsewhere")
    target.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BuildError, match="is a symbolic link"):
        cache.lookup(SOURCE, TOOLS)


def test_the_root_may_be_a_link_from_a_safe_place(tmp_path: Path) -> None:
    (tmp_path / "big disk").mkdir()
    (tmp_path / "cache").symlink_to("big disk")
    cache = Cache(tmp_path / "cache")
    (tmp_path / "big disk").chmod(0o700)
    assert cache.lookup(SOURCE, TOOLS) is None
    path = put(cache)
    assert cache.lookup(SOURCE, TOOLS) == path
    (tmp_path / "big disk").chmod(0o770)
    with pytest.raises(BuildError, match="E0705"):
        cache.lookup(SOURCE, TOOLS)


def test_a_link_that_others_could_swap_is_refused(tmp_path: Path) -> None:
    put(Cache(tmp_path / "mine"))
    (tmp_path / "open").mkdir()
    (tmp_path / "open/cache").symlink_to(tmp_path / "mine")
    (tmp_path / "open").chmod(0o777)
    cache = Cache(tmp_path / "open/cache")
    with pytest.raises(BuildError, match=r"open can be written by everybody \(mode 0777\)"):
        cache.lookup(SOURCE, TOOLS)
    (tmp_path / "open").chmod(0o1777)  # as /tmp: only the owner of a link can swap it
    assert cache.lookup(SOURCE, TOOLS)


def test_a_directory_above_that_others_could_swap_is_refused(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "above/cache")
    put(cache)
    (tmp_path / "above").chmod(0o702)
    for action in (lambda: cache.lookup(SOURCE, TOOLS), cache.prepare):
        with pytest.raises(BuildError, match="E0705"):
            action()


def allow(path: Path, *entries: tuple[int, int, int]) -> None:
    """Give a path an access control list of (tag, permissions, id)."""
    packed = (struct.pack("<HHI", tag, bits, number & 0xFFFFFFFF) for tag, bits, number in entries)
    try:
        os.setxattr(path, "system.posix_acl_access", struct.pack("<I", 2) + b"".join(packed))
    except OSError as error:
        pytest.skip(f"no access control lists here: {error}")


USER, NAMED_USER, GROUP, NAMED_GROUP, MASK, OTHER = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20


@pytest.mark.parametrize(
    ("entries", "who"),
    [
        ([(NAMED_USER, 7, 12345), (GROUP, 5, -1), (MASK, 7, -1)], "uid 12345"),
        ([(NAMED_USER, 2, 12345), (GROUP, 5, -1), (MASK, 7, -1)], "uid 12345"),
        ([(GROUP, 5, -1), (NAMED_GROUP, 7, 54321), (MASK, 7, -1)], "its group"),
        ([(NAMED_USER, 5, 12345), (GROUP, 5, -1), (MASK, 7, -1)], ""),  # may read
        ([(NAMED_USER, 7, 12345), (GROUP, 5, -1), (MASK, 5, -1)], ""),  # masked
        ([(NAMED_USER, 7, os.getuid()), (GROUP, 5, -1), (MASK, 7, -1)], ""),  # ourselves
    ],
)
def test_whom_an_access_control_list_lets_write(tmp_path: Path, entries: list[tuple[int, int, int]], who: str) -> None:
    """The mode's bits for the group are the list's mask, and the group may be our own."""
    above = tmp_path / "above"
    cache = Cache(above / "cache")
    path = put(cache)
    allow(above, (USER, 7, -1), *entries, (OTHER, 5, -1))
    if not who:
        assert cache.lookup(SOURCE, TOOLS) == path
        return
    with pytest.raises(BuildError, match=f"above can be written by {who}") as caught:
        cache.lookup(SOURCE, TOOLS)
    subprocess.run(caught.value.diagnostics[0].help, shell=True, check=True)
    assert cache.lookup(SOURCE, TOOLS) == path


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to give a directory to another group")
def test_a_group_above_must_be_our_own(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "above/cache")
    path = put(cache)
    (tmp_path / "above").chmod(0o775)
    assert cache.lookup(SOURCE, TOOLS) == path  # root's own group
    os.chown(tmp_path / "above", 0, 54321)
    with pytest.raises(BuildError, match="can be written by its group"):
        cache.lookup(SOURCE, TOOLS)


# Directories that do not serve


def test_a_file_for_a_root(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for root in (tmp_path / "file", tmp_path / "file/below", Path("/proc/evt"), Path("/dev/null/evt")):
        with pytest.raises(BuildError, match="EVT_CACHE_DIR") as caught:
            Cache(root).prepare()
        assert code_of(caught.value) == "E0704"
    with pytest.raises(BuildError, match="Not a directory"):
        Cache(tmp_path / "file").lookup(SOURCE, TOOLS)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("~nosuchuser/x", "there is no user nosuchuser"),
        ("x" * 300, "File name too long"),
        ("loop/cache", "Too many levels of symbolic links"),
        ("file/cache", "Not a directory"),
        ("closed/cache", "Permission denied"),
    ],
)
def test_a_root_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, said: str) -> None:
    if "closed" in value and os.getuid() == 0:
        pytest.skip("root may look into any directory")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_text("")
    (tmp_path / "closed").mkdir(mode=0)
    monkeypatch.setenv("EVT_CACHE_DIR", value)
    runner = CliRunner()
    for command in ("cache clear", "cache size", "cache list", "cache prune --max-size 1GB", "build D=acc -o x.so"):
        done = runner.invoke(main, command.split())
        assert done.exit_code == 1, command
        assert "error[E0704]: the cache directory" in done.stderr
        assert said in done.stderr
    done = runner.invoke(main, ["doctor"])
    assert "MISSING  cache directory" in done.stdout
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = runner.invoke(main, ["explain", "D=acc", "--m", "8", "--n", "8", "--k", "8"])
    assert done.exit_code == (1 if "~" in value else 0)  # measurements are left out of account


@pytest.mark.parametrize("value", ["~", "~/x"])
def test_nobody_is_at_home(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as of a user that the machine does not know
    monkeypatch.setenv("EVT_CACHE_DIR", value)
    with pytest.raises(BuildError, match=r"E0704.*HOME is not set"):
        Cache()
    monkeypatch.delenv("EVT_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with pytest.raises(BuildError, match=r"E0704.*HOME is not set"):
        Cache()


def test_a_current_directory_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.setenv("EVT_CACHE_DIR", "relative")
    with pytest.raises(BuildError, match=r"E0704.*relative cannot be used: No such file or directory"):
        Cache()
    monkeypatch.chdir(tmp_path)


def test_a_link_to_nowhere_for_a_root(tmp_path: Path) -> None:
    (tmp_path / "cache").symlink_to(tmp_path / "nowhere")
    with pytest.raises(BuildError, match="E0704"):
        Cache(tmp_path / "cache").prepare()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.prepare()
    lock = cache.lock(KEY, wait=True)
    assert lock is not None

    def full(path: Path, data: bytes) -> None:
        with open("/dev/full", "wb") as file:
            file.write(data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(BuildError, match="No space left on device"):
        cache.workspace(KEY, {"kernel.cu": "text"})
    lock.release()
    assert os.listdir(cache.root / KEY[:2]) == []
