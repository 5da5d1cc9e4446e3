"""Builds for later calls: a thread fills the cache, calls wait for it, and the process ends without it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from evt.compilation import KernelSource, build_ahead
from evt.compilation.jit import Missing, find_nvrtc
from evt.errors import BuildError
from tests.support.fake_nvcc import Room, wait_for


def sources(*texts: str) -> list[KernelSource]:
    return [KernelSource(text, "sm_90a") for text in texts]


def ahead(room: Room, *texts: str) -> None:
    build_ahead(sources(*texts), cache=room.cache, toolchain=room.tools)


def release(room: Room) -> None:
    Path(f"{room.file}.open").touch()


def test_the_caller_goes_on_and_a_build_of_the_same_source_waits(room: Room) -> None:
    ahead(room, "// gate device\n", "// other\n")
    wait_for(lambda: room.starts()["device"])
    assert not room.cache.entries()
    release(room)
    assert room.build("// gate device\n")[0].read_text().startswith("// gate device")
    wait_for(lambda: len(room.cache.entries()) == 2)
    assert room.starts()["device"] == 2


def test_requests_follow_each_other(room: Room) -> None:
    ahead(room, "// gate device\n")
    ahead(room, "// second\n")
    release(room)
    wait_for(lambda: len(room.cache.entries()) == 2)


def test_a_failure_meets_whoever_needs_the_library(room: Room, capfd: pytest.CaptureFixture[str]) -> None:
    ahead(room, "// fail device refused\n", "// good\n")
    ahead(room, "// later\n")
    wait_for(lambda: len(room.cache.entries()) == 2)
    assert capfd.readouterr() == ("", "")
    with pytest.raises(BuildError, match="E0703"):
        room.build("// fail device refused\n")


def test_requests_keep_the_leave_to_compile_of_their_time(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead(room, "// gate device\n")
    ahead(room, "// second\n")
    monkeypatch.setenv("EVT_COMPILE", "never")
    ahead(room, "// third\n")
    release(room)
    wait_for(lambda: len(room.cache.entries()) == 2)
    monkeypatch.delenv("EVT_COMPILE")
    ahead(room, "// fourth\n")
    wait_for(lambda: len(room.cache.entries()) == 3)
    assert room.starts()["device"] == 3


def test_nothing_asks_for_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evt.compilation.ahead._AHEAD", None)
    build_ahead([])


def test_a_process_ends_its_compilers(room: Room) -> None:
    program = (
        "build_ahead([KernelSource(text, 'sm_90a') for text in texts], cache=Cache(Path(root)), toolchain=tools)\n"
        "while not Path(nvcc).with_name('log').exists(): time.sleep(0.02)\n"
    )
    process = room.spawn("// hang device\n", "// waits\n", program=program)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "", "")
    wait_for(lambda: not room.compilers())
    assert not room.left_over()


def test_a_child_process_has_a_thread_of_its_own(room: Room) -> None:
    ahead(room, "// gate device\n")
    wait_for(lambda: room.starts()["device"])
    child = os.fork()
    if child == 0:
        ahead(room, "// of the child\n")
        wait_for(lambda: room.cache.entries())
        os._exit(0)
    _, status = os.waitpid(child, 0)
    release(room)
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.skipif(isinstance(find_nvrtc(), Missing), reason="NVRTC is missing")
def test_a_process_does_not_end_within_nvrtc(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """It aborts, or crashes, where its memory is freed while a thread compiles."""
    monkeypatch.setenv("EVT_CACHE_DIR", str(room.cache.root))
    program = (
        "import evt\n"
        "from evt.runtime.plans import kernel_sources\n"
        "plan = evt.linear('D = gelu(acc + bias[n])', route='gemm-own-3x').plan('sm90', 'f16', 'f16')\n"
        "build_ahead(kernel_sources([plan]))\n"
        "while not list(Path(root).glob('??/.*.lock')): time.sleep(0.01)\n"
        "time.sleep(0.1)\n"
    )
    process = room.spawn(program=program)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "", "")
    assert not room.left_over()
