"""However a process that builds is ended, its compilers end with it and nobody waits for its locks."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from itertools import product
from pathlib import Path

import pytest

import evt.compilation
from tests.support.fake_nvcc import Room, wait_for

SIGNALS = [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL]
#: How a process comes to build, over ``go``, which does.
WAYS = {
    "main thread": "go()",
    "thread": "thread = threading.Thread(target=go); thread.start(); thread.join()",
    "daemon thread": "threading.Thread(target=go, daemon=True).start(); time.sleep(600)",
    "pool": "pool = concurrent.futures.ThreadPoolExecutor(1); pool.submit(go); pool.shutdown()",
}
#: Pairs that have each way and each signal.
EACH_ONCE = (*zip(WAYS, SIGNALS, strict=True),)
#: How a building process is forked: by Python, whose hooks see it, or by C. The fork lives on.
FORKS = {
    "fork": "os.fork()",
    "fork in C": "ctypes.PyDLL(None).fork()",
}
_FORKED = """\
threading.Thread(target=go, daemon=True).start()
while len(list(Path(root).glob("??/.*/device.log"))) == 0: time.sleep(0.01)
forked = FORK
if forked == 0:
    ctypes.PyDLL(None).sleep(600)  # other threads may have held any of Python's locks
    os._exit(0)
Path(root, "forked").write_text(str(forked))
time.sleep(600)
"""


def at_work(room: Room) -> None:
    """Wait until nvcc, its shell, and the shell's children in and out of their session run."""
    wait_for(lambda: len(room.compilers()) >= 4)


def require_clean(room: Room, *texts: str) -> None:
    """Nothing is left, and the next build goes on at once. It takes less than a second on a machine that is free."""
    wait_for(lambda: not room.compilers(), seconds=20)
    wait_for(lambda: room.left_over() == [], seconds=20)
    room.calm()
    kinds: list[str] = []
    libraries = room.build(*texts, on_event=lambda event: kinds.append(event.kind))
    assert [library.read_text() for library in libraries] == list(texts)
    assert "wait" not in kinds


@pytest.mark.parametrize(
    ("way", "sent"),
    [
        pytest.param(way, sent, id=f"{way}-{sent.name}", marks=() if (way, sent) in EACH_ONCE else pytest.mark.slow)
        for way, sent in product(WAYS, SIGNALS)
    ],
)
def test_nothing_is_left(room: Room, way: str, sent: signal.Signals) -> None:
    if sent == signal.SIGINT and way in ("thread", "pool"):
        pytest.skip("Python does not end at Ctrl-C before its threads do")
    builder = room.spawn("// hang device\n", program=WAYS[way])
    at_work(room)
    builder.send_signal(sent)
    builder.communicate(timeout=60)
    require_clean(room, "// hang device\n")


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL], ids=lambda sent: sent.name)
@pytest.mark.parametrize("fork", FORKS)
def test_a_process_that_was_forked_keeps_nothing(room: Room, fork: str, sent: signal.Signals) -> None:
    texts = [f"// hang device {index}\n" for index in range(3)]  # more than start at once: some locks are just held
    builder = room.spawn(*texts, program=_FORKED.replace("FORK", FORKS[fork]))
    forked = room.cache.root / "forked"
    wait_for(lambda: forked.exists() and forked.read_text())
    try:
        at_work(room)
        builder.send_signal(sent)
        builder.wait()
        require_clean(room, *texts)
    finally:
        os.kill(int(forked.read_text()), signal.SIGKILL)
        builder.communicate()


@pytest.mark.parametrize("call", ["lambda *_: die()", "lambda *taken: (flock(*taken), die())"], ids=["before", "after"])
def test_a_builder_that_is_killed_as_it_takes_a_lock(room: Room, call: str) -> None:
    """Just before or after the file is locked; the supervisor does not have the lock yet."""
    program = f"import fcntl; flock, die = fcntl.flock, lambda: os.kill(os.getpid(), 9); fcntl.flock = {call}; go()"
    builder = room.spawn("// hang device\n", program=program)
    _, errors = builder.communicate(timeout=60)
    assert (builder.returncode, errors) == (-signal.SIGKILL, "")
    require_clean(room, "// hang device\n")


def test_a_build_that_goes_on_is_not_hurt_by_a_fork(room: Room) -> None:
    program = _FORKED.replace("daemon=True).start()", "daemon=True).start(); done = []").replace("FORK", "os.fork()")
    builder = room.spawn("// gate\n", program=program)
    forked = room.cache.root / "forked"
    wait_for(lambda: forked.exists() and forked.read_text())
    try:
        Path(f"{room.file}.open").touch()
        wait_for(room.cache.entries)
        wait_for(lambda: room.left_over() == [])
        lock = room.cache.lock(room.cache.entries()[0].key, wait=False)
        assert lock is not None
        lock.release()
    finally:
        os.kill(int(forked.read_text()), signal.SIGKILL)
        builder.kill()
        builder.communicate()


def test_a_supervisor_that_is_killed(room: Room) -> None:
    """The build fails, and its processes are gone."""
    builder = room.spawn("// stay device\n")
    wait_for(lambda: len(room.compilers()) >= 3)
    (supervisor,) = children(builder.pid)
    os.kill(supervisor, signal.SIGKILL)
    _, errors = builder.communicate(timeout=60)
    assert "E0703" in errors
    assert "memory" in errors
    wait_for(lambda: not room.compilers(), seconds=20)
    assert room.left_over() == []


def test_the_supervisor_imports_pythons_modules() -> None:
    """Its own folder comes first when it is run as a program."""
    folder = Path(evt.compilation.__file__).parent
    assert not {path.stem for path in folder.glob("*.py")} & sys.stdlib_module_names


def children(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(stat.parent.name))
    return found
