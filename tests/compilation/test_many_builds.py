"""Builds of many sources: open files, two processes at a time, and the message at the limit."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path
from typing import Any

import pytest

from evt.compilation import KernelSource, build
from evt.errors import BuildError
from tests.support.depth import in_depth
from tests.support.fake_nvcc import Process, Room

#: Builds under a limit of open files; prints how many were open at most here and in the supervisor, at any event.
LIMITED = """\
import resource
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (AT_MOST, most))
seen = [0]
def count(event):
    children = Path(f"/proc/self/task/{threading.main_thread().native_id}/children").read_text().split()
    for pid in [os.getpid(), *children]:
        seen.append(len(os.listdir(f"/proc/{pid}/fd")))
libraries = go(on_event=count)
print(json.dumps([max(seen), [path.read_text() for path in libraries]]))
"""


def output(process: Process) -> Any:
    printed, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    return json.loads(printed)


@pytest.mark.parametrize("count", in_depth([60, 1100], quick=[60]))
def test_open_files_do_not_grow_with_the_sources(room: Room, count: int) -> None:
    limit = 64 if count == 60 else 256
    few, many = [f"few {index}\n" for index in range(8)], [f"many {index}\n" for index in range(count)]
    program = LIMITED.replace("AT_MOST", str(limit))
    for texts in (few, many):
        most, built = output(room.spawn(*texts, program=program))
        assert built == texts
        assert most < 48
    assert room.starts() == dict.fromkeys(("device", "host", "link"), 8 + count)
    assert room.left_over() == []


@pytest.mark.parametrize("count", in_depth([25, 200], quick=[25]))
def test_two_processes_with_the_same_sources_in_other_orders(room: Room, count: int) -> None:
    texts = [f"{index}\n" for index in range(count)]
    orders = [texts, texts[::-1], [*texts[count // 2 :], *texts[: count // 2]]]
    builders = [room.spawn(*order) for order in orders]
    assert [output(builder) for builder in builders] == orders
    assert room.starts() == dict.fromkeys(("device", "host", "link"), count)
    assert room.left_over() == []


def test_descriptors_beyond_those_of_select(room: Room) -> None:
    """A program that has more than 1,024 files open builds."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 1200:
        pytest.skip(f"at most {hard} files can be open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1050)]
    try:
        assert [path.read_text() for path in room.build("one\n", "two\n")] == ["one\n", "two\n"]
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("left", range(12))
def test_the_limit_is_named(room: Room, left: int) -> None:
    """Whichever step of a build finds no descriptor; a build that needs no more than are left succeeds."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(map(int, os.listdir("/proc/self/fd"))) + 1
    limit = most + left
    held = [os.open(os.devnull, os.O_RDONLY)]
    while held[-1] < most - 1:  # the lowest descriptors are taken first
        held.append(os.dup(held[0]))
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        build([KernelSource("one\n", "sm_90a")], cache=room.cache, toolchain=room.tools, jobs=4)
    except BuildError as error:
        (problem,) = error.diagnostics
        assert problem.code == "E0708"
        assert str(limit) in problem.message
        assert "ulimit -n" in problem.help
    else:
        assert left > 3
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in held:
            os.close(descriptor)
    assert room.left_over() == []
    assert Path(room.build("one\n")[0]).read_text() == "one\n"
