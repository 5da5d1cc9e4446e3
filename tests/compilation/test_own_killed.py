"""Builds of own kernels lose nothing: killed at each change of the cache, many at once, with damaged cubins.

A stand-in for NVRTC copies the text. Builders are forks, which kill themselves by SIGKILL.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from evt.compilation import BuildEvent, Cache, KernelSource, build, builder, toolchain
from evt.compilation.cache import LIBRARY, RECORD, SOURCE
from evt.compilation.jit import JitError, Nvrtc
from evt.compilation.own import is_cubin
from evt.diagnostics import Diagnostic
from evt.errors import BuildError

HEADER = b"\x7fELF" + bytes(14) + (190).to_bytes(2, "little")
GOOD = KernelSource("// good\n", "sm_90a", alone=True)
OTHER = KernelSource("// other\n", "sm_90a", alone=True)
REFUSED = KernelSource("// refused\n", "sm_90a", alone=True)
#: Events of Python's audit that change files, or precede a change.
CHANGES = {
    *("open", "fcntl.flock", "os.chmod", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink"),
    *("os.truncate", "os.utime", "shutil.rmtree", "tempfile.mkdtemp"),
}


class FakeNvrtc(Nvrtc):
    """A compiler that copies the text, and adds a line to ``log`` for each compilation."""

    log: Path | None = None

    def compile(self, text: str, options: Sequence[str], **_: Any) -> bytes:
        if FakeNvrtc.log is not None:
            with FakeNvrtc.log.open("a") as file:
                file.write(f"{os.getpid()}\n")
            time.sleep(0.05)
        if text == REFUSED.text:
            raise JitError("nvrtc", "NVRTC_ERROR_COMPILATION", "kernel.cu(1): error: no\n")
        return HEADER + text.encode()


@pytest.fixture(autouse=True)
def nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_nothing() -> toolchain.Toolchain:
        raise BuildError(Diagnostic("E0701", "there is no nvcc"))

    monkeypatch.setattr(builder, "find_way", lambda: FakeNvrtc((13, 0), "a stand-in"))
    monkeypatch.setattr(builder, "find_toolchain", find_nothing)
    monkeypatch.setattr(FakeNvrtc, "log", None)


def forked(work: Callable[[], object]) -> int:
    """Run a function in a fork; return the fork's process."""
    if child := os.fork():
        return child
    try:
        work()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def killed_at(change: int, root: Path, source: KernelSource) -> bool:
    """Build in a fork that is killed at its n-th change within ``root``; return whether it was killed."""

    def work() -> None:
        left = change

        def count(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal left
            if event not in CHANGES:
                return
            if event == "open" and not int(str(arguments[2])) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                return
            if event != "fcntl.flock" and not str(arguments[0]).startswith(str(root)):
                return
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        try:
            build([source], cache=Cache(root))
        except BuildError as error:
            if source != REFUSED or error.diagnostics[0].code != "E0703":
                raise

    _, status = os.waitpid(forked(work), 0)
    assert status in (0, signal.SIGKILL)
    return status != 0


def events_of(source: KernelSource, root: Path) -> list[str]:
    """Build in this process; return the kinds of the events."""
    kinds: list[str] = []

    def heard(event: BuildEvent) -> None:
        kinds.append(event.kind)

    if source == REFUSED:
        with pytest.raises(BuildError, match="NVRTC did not accept"):
            build([source], cache=Cache(root), on_event=heard)
    else:
        (cubin,) = build([source], cache=Cache(root), on_event=heard)
        assert is_cubin(cubin)
        assert cubin.read_bytes() == HEADER + source.text.encode()
    return kinds


def left_over(root: Path) -> list[str]:
    """Return the locks and the working directories in a cache."""
    return [path.name for path in root.glob("??/.*")]


@pytest.mark.parametrize("source", [GOOD, REFUSED], ids=["built", "refused"])
def test_a_build_is_killed_at_each_change_of_the_cache(source: KernelSource, tmp_path: Path) -> None:
    """The next build waits for nobody and makes the same, and other kernels stay.

    It also removes the files of the killed build. If the killed build had published its kernel, clearing the cache
    removes them.
    """
    root, last = tmp_path / "cache", False
    changes = 0
    while not last:
        shutil.rmtree(root, ignore_errors=True)
        build([OTHER], cache=Cache(root))
        last = not killed_at(changes, root, source)
        assert events_of(OTHER, root) == ["hit"]
        kinds = events_of(source, root)
        assert "wait" not in kinds
        assert "damaged" not in kinds
        assert kinds == ["hit"] or left_over(root) == []
        assert len(Cache(root).entries()) == (1 if source == REFUSED else 2)
        Cache(root).clear()
        assert left_over(root) == []
        changes += 1
    assert changes > 10


def test_32_processes_at_once_build_one_kernel_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeNvrtc, "log", tmp_path / "log")
    gate, opened = os.pipe()

    def work() -> None:
        os.close(opened)
        os.read(gate, 1)  # until the other end is closed
        assert events_of(GOOD, tmp_path / "cache")[-1] in ("hit", "built")

    children = [forked(work) for _ in range(32)]
    os.close(opened)
    os.close(gate)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 32
    assert len((tmp_path / "log").read_text().splitlines()) == 1
    assert len(Cache(tmp_path / "cache").entries()) == 1
    assert left_over(tmp_path / "cache") == []


DAMAGES: Mapping[str, Callable[[Path], object]] = {
    "short": lambda entry: (entry / LIBRARY).write_bytes((entry / LIBRARY).read_bytes()[:-1]),
    "long": lambda entry: (entry / LIBRARY).write_bytes((entry / LIBRARY).read_bytes() + b"\0"),
    "changed": lambda entry: (entry / LIBRARY).write_bytes(HEADER + b"// evil\n"),
    "empty": lambda entry: (entry / LIBRARY).write_bytes(b""),
    "a folder": lambda entry: ((entry / LIBRARY).unlink(), (entry / LIBRARY).mkdir()),
    "removed": lambda entry: (entry / LIBRARY).unlink(),
    "no record": lambda entry: (entry / RECORD).unlink(),
    "no facts": lambda entry: (entry / RECORD).write_text("{}"),
    "no JSON": lambda entry: (entry / RECORD).write_bytes(b"\xff\0"),
    "a foreign record": lambda entry: (entry / RECORD).write_text(
        json.dumps({**json.loads((entry / RECORD).read_text()), "library": {"size": 1, "sha256": "0" * 64}})
    ),
    "no entry": shutil.rmtree,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_cubin_is_built_again(damage: str, tmp_path: Path) -> None:
    assert events_of(GOOD, tmp_path) == ["start", "end", "built"]
    assert events_of(OTHER, tmp_path)[-1] == "built"
    (entry,) = (path.parent for path in tmp_path.glob(f"*/*/{SOURCE}") if path.read_text() == GOOD.text)
    DAMAGES[damage](entry)
    kinds = events_of(GOOD, tmp_path)
    assert kinds == [*(["damaged"] if damage != "no entry" else []), "start", "end", "built"]
    assert events_of(GOOD, tmp_path) == events_of(OTHER, tmp_path) == ["hit"]
    assert left_over(tmp_path) == []
