"""Several texts at a time by NVRTC: the processes end with their parent, and report each failure."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from evt.compilation import BuildEvent, Cache, KernelSource, Toolchain, build, build_each, builder, jit_pool
from evt.compilation.jit import JitError, Missing, NvJitLink, Nvrtc, find_nvjitlink, find_nvrtc
from evt.compilation.jit_pool import compile_text, kept, link_texts
from evt.compilation.own import is_cubin
from evt.compilation.pool import Cancellation, CancelledError
from evt.diagnostics import Diagnostic
from evt.errors import BuildError
from evt.farm.builders import Builders
from tests.support.fake_nvcc import hear_hangups, runs, wait_for

pytestmark = pytest.mark.skipif(isinstance(find_nvrtc(), Missing), reason="NVRTC is missing")

OPTIONS = ("--gpu-architecture=sm_90a",)
KERNEL = 'extern "C" __global__ void kernel(int* p) { *p = NUMBER; }\n'


def long_text(statements: int) -> str:
    """Return a text that takes a second for 20 statements, and more than a minute for 400."""
    body = "".join(f"x[{i}] = sinf(x[{i + 1}] * {i}.0f) + cosf(x[{i + 2}]);\n" for i in range(statements))
    return f'extern "C" __global__ void kernel(float* x) {{\n{body}}}\n'


ENDLESS = long_text(400)


def text_of(number: int) -> str:
    return KERNEL.replace("NUMBER", str(number))


def source(text: str) -> KernelSource:
    return KernelSource(text, "sm_90a", alone=True)


def find_nothing() -> Toolchain:
    raise BuildError(Diagnostic("E0701", "there is no nvcc"))


@pytest.fixture
def nvrtc() -> Nvrtc:
    found = find_nvrtc()
    assert isinstance(found, Nvrtc)
    return found


@pytest.fixture(autouse=True)
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[jit_pool._Pool]:
    """Yield a pool of this test, by NVRTC alone, which leaves no process."""
    monkeypatch.delenv("EVT_BUILD_WAY", raising=False)
    made = jit_pool._Pool()
    monkeypatch.setattr(jit_pool, "_POOL", made)
    monkeypatch.setattr(builder, "find_toolchain", find_nothing)
    yield made
    assert not made._workers
    assert not children()


@pytest.fixture
def busy(pool: jit_pool._Pool, monkeypatch: pytest.MonkeyPatch) -> jit_pool._Pool:
    """Return a pool whose own process always compiles: other processes compile everything, at once."""
    monkeypatch.setattr(jit_pool, "_WAIT", 0)
    monkeypatch.setattr(pool, "_here", 1)
    return pool


def children(parent: int | None = None) -> list[int]:
    """Return the processes that compile for a process."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (each / "cmdline").read_bytes().split(b"\0")
            if b"jit_worker.py" in b" ".join(words) and words[-2] == str(parent or os.getpid()).encode():
                found.append(int(each.name))
    return [pid for pid in found if runs(pid)]


def compiled(nvrtc: Nvrtc, text: str, end: Cancellation | None = None) -> bytes:
    return compile_text(nvrtc, text, OPTIONS, headers={}, end=end)


def test_a_process_makes_what_this_one_makes(nvrtc, busy):
    linker = find_nvjitlink()
    assert isinstance(linker, NvJitLink)
    assert compiled(nvrtc, text_of(7)) == nvrtc.compile(text_of(7), OPTIONS)
    headers = {"number.h": "#define NUMBER 4321\n"}
    text, options = f'#include "number.h"\n{KERNEL}', (*OPTIONS, "-dlto")
    part = compile_text(nvrtc, text, options, output="ltoir", headers=headers, name="part.cu")
    inputs, options = (("part", part),), ("-arch=sm_90a", "-lto")
    assert link_texts(linker, inputs, options) == linker.link(inputs, options)
    assert busy._here == 1
    assert busy._is_usable


@pytest.mark.parametrize("wait", [0, 100])
def test_a_single_text_and_short_ones_start_no_process(pool, tmp_path, monkeypatch, wait):
    monkeypatch.setattr(jit_pool, "_WAIT", wait)
    monkeypatch.setattr(jit_pool._Worker, "start", lambda: pytest.fail("a process was started"))
    for count in (1, 5 if wait else 1):
        sources = [source(text_of(10 * count + number)) for number in range(count)]
        assert all(map(is_cubin, build(sources, cache=Cache(tmp_path), jobs=4)))
    assert pool._here == 0


def test_a_process_keeps_running_within_a_block_only(nvrtc, busy):
    compiled(nvrtc, text_of(0))
    assert not children()
    with kept(), kept():
        compiled(nvrtc, text_of(1))
        (first,) = children()
        compiled(nvrtc, text_of(2))
        assert children() == [first]
    assert not children()


def test_the_errors_have_their_text(nvrtc, busy):
    with pytest.raises(JitError, match="nvrtc: NVRTC_ERROR_COMPILATION") as raised:
        compiled(nvrtc, "int x = ;")
    assert "kernel.cu(1): error" in raised.value.log
    linker = find_nvjitlink()
    assert isinstance(linker, NvJitLink)
    with pytest.raises(JitError, match="nvjitlink: ") as raised:
        link_texts(linker, [("part", b"no code")], ["-arch=sm_90a", "-lto"])
    assert raised.value.log


@pytest.mark.usefixtures("busy")
def test_a_build_tells_the_errors_of_all_processes(tmp_path):
    sources = [source(text_of(0)), *(source(f"int wrong_{number} = ;\n") for number in range(3))]
    libraries, errors = build_each(sources, lambda wanted: build(wanted, cache=Cache(tmp_path), jobs=4))
    assert [*libraries] == sources[:1]
    for each in sources[1:]:
        (problem,) = errors[each].diagnostics
        assert problem.code == "E0703"
        assert "kernel.cu(1): error" in problem.notes[0]
    assert len(list(tmp_path.glob("failed/*/nvcc.log"))) == 3


def killer(pool: jit_pool._Pool, sent: signal.Signals, count: int) -> threading.Thread:
    """Return a thread that kills the next processes of a pool, while they compile."""

    def alive() -> list[subprocess.Popen[bytes]]:
        return [each.process for each in [*pool._workers] if each.process.poll() is None]

    def kill() -> None:
        for _ in range(count):
            # The pool may not have noticed yet that the last process ended.
            wait_for(lambda: alive() and not pool._starting and not pool._free)
            process = alive()[0]
            time.sleep(0.3)
            process.send_signal(sent)
            process.wait()

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    return thread


def test_a_killed_process_is_replaced(nvrtc, busy, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    text = long_text(20)
    thread = killer(busy, signal.SIGKILL, 1)
    assert compiled(nvrtc, text) == nvrtc.compile(text, OPTIONS)
    thread.join()
    assert busy._is_usable


def test_two_killed_processes_are_an_error(busy, tmp_path):
    thread = killer(busy, signal.SIGKILL, 2)
    with pytest.raises(BuildError, match="the compiler was killed, most likely because memory ran out"):
        build([source(ENDLESS)], cache=Cache(tmp_path))
    thread.join()
    assert not list(tmp_path.glob("??/.*"))
    assert is_cubin(build([source(text_of(0))], cache=Cache(tmp_path))[0])


def test_two_crashed_processes_are_an_error(nvrtc, busy):
    thread = killer(busy, signal.SIGSEGV, 2)
    with pytest.raises(JitError, match="nvrtc: terminated by signal 11"):
        compiled(nvrtc, ENDLESS)
    thread.join()


def test_a_cancellation_ends_the_process(nvrtc, busy):
    end = Cancellation()
    timer = threading.Timer(1.5, end.cancel)
    timer.start()
    started = time.monotonic()
    with kept(), pytest.raises(CancelledError):
        compiled(nvrtc, ENDLESS, end)
    assert time.monotonic() - started < 15
    assert not children()


def test_an_error_of_the_caller_ends_all_processes(busy, tmp_path):
    def stop(event: BuildEvent) -> None:
        if event.kind == "start" and event.index == 1:
            raise TimeoutError

    started = time.monotonic()
    with pytest.raises(TimeoutError):
        build([source(ENDLESS), source(text_of(0))], cache=Cache(tmp_path), jobs=2, on_event=stop)
    assert time.monotonic() - started < 15
    assert not list(tmp_path.glob("??/.*"))


def test_many_threads_share_few_processes(nvrtc, pool, monkeypatch):
    monkeypatch.setattr(jit_pool, "_WAIT", 0.05)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})
    most = 0

    def count(number: int) -> bytes:
        nonlocal most
        most = max(most, len(pool._workers))
        return compiled(nvrtc, text_of(number))

    with kept(), ThreadPoolExecutor(16) as threads:
        made = list(threads.map(count, range(48)))
    assert made == [nvrtc.compile(text_of(number), OPTIONS) for number in range(48)]
    assert most == 2
    assert pool._here == 0


def test_no_more_processes_start_at_a_time_than_compile(nvrtc, pool, monkeypatch):
    """Starts need the processors that compilations need."""
    monkeypatch.setattr(jit_pool, "_WAIT", 0.1)
    monkeypatch.setattr(jit_pool, "default_jobs", lambda: 8)
    starts: list[tuple[int, int]] = []
    start = jit_pool._Pool._start

    def noted(self: jit_pool._Pool) -> None:
        starts.append((len(self._starting), len(self._workers) - len(self._starting)))
        start(self)

    monkeypatch.setattr(jit_pool._Pool, "_start", noted)
    with kept(), ThreadPoolExecutor(8) as threads:
        list(threads.map(partial(compiled, nvrtc), map(long_text, range(4, 20))))
    assert starts[0] == (0, 0)
    assert len(starts) > 1
    assert all(starting <= ready for starting, ready in starts)


def test_builders_share_the_processes(busy, tmp_path, monkeypatch):
    monkeypatch.setenv("EVT_CACHE_DIR", str(tmp_path))
    ended: list[BaseException | None] = []
    seen = set[int]()
    with Builders() as builders:
        for number in range(6):
            builders.build([source(text_of(number))], lambda error: (seen.update(children()), ended.append(error)))
        wait_for(lambda: len(ended) == 6)
    assert ended == [None] * 6
    assert 0 < len(seen) <= builders.threads


def wrong_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit_pool, "python", lambda: "/bin/false")


def no_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit_pool, "python", lambda: "/nonexistent")


def bundled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)


def daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing.process, "current_process", lambda: SimpleNamespace(daemon=True))


def other_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evt.compilation.own.find_nvrtc", lambda: Nvrtc((13, 0), "another file"))


def no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(socket, "socketpair", refuse)


@pytest.mark.parametrize("prevent", [wrong_python, no_python, bundled, daemon, other_library, no_files])
def test_without_processes_this_one_compiles(prevent: Callable[..., None], busy, tmp_path, monkeypatch):
    prevent(monkeypatch)
    made = build([source(text_of(number)) for number in range(4)], cache=Cache(tmp_path), jobs=4)
    assert all(map(is_cubin, made))
    assert busy._here == 1
    assert not busy._workers


@pytest.mark.usefixtures("busy")
def test_a_process_that_may_not_compile_starts_none(tmp_path, monkeypatch):
    monkeypatch.setattr(jit_pool._Worker, "start", lambda: pytest.fail("a process was started"))
    monkeypatch.setenv("EVT_COMPILE", "never")
    with pytest.raises(BuildError, match="E0709"):
        build([source(text_of(0)), source(text_of(1))], cache=Cache(tmp_path))


@pytest.mark.usefixtures("busy")
def test_a_full_disk_is_named(tmp_path):
    """A limit of file sizes stands for it: the cubin is larger than the text."""
    child = os.fork()
    if child == 0:
        code = 1
        with contextlib.suppress(BaseException):
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
            try:
                build([source(text_of(number)) for number in range(2)], cache=Cache(tmp_path), jobs=2)
            except BuildError as error:
                code = 0 if {each.code for each in error.diagnostics} == {"E0704"} else 2
        os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert not list(tmp_path.glob("??/.*"))
    assert is_cubin(build([source(text_of(0))], cache=Cache(tmp_path))[0])


def test_a_fork_compiles_by_its_own_processes(nvrtc, busy):
    with kept():
        compiled(nvrtc, text_of(0))
        (mine,) = children()
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException), kept():
                made = compiled(nvrtc, text_of(1))
                os.write(writer, json.dumps([made == nvrtc.compile(text_of(1), OPTIONS), children()]).encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as answers:
            is_equal, others = json.loads(answers.read())
        os.waitpid(child, 0)
        assert is_equal
        assert others
        assert mine not in others
        assert compiled(nvrtc, text_of(2)) == nvrtc.compile(text_of(2), OPTIONS)
        assert children() == [mine]


#: A user's script: no `if __name__` protects it, and it prints one line, however many processes compile.
SCRIPT = """\
import ctypes, os, signal, sys, threading, time
from pathlib import Path
from evt.compilation import *
print("begun", flush=True)
root, *texts = sys.argv[1:]
def go():
    return build([KernelSource(text, "sm_90a", alone=True) for text in texts], cache=Cache(Path(root)), jobs=len(texts))
"""


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Yield a function that starts the script with further lines."""
    started: list[subprocess.Popen[str]] = []

    def start(lines: str, *texts: str) -> subprocess.Popen[str]:
        file = tmp_path / "script.py"
        file.write_text(SCRIPT + lines)
        environment = {**os.environ, "PYTHONPATH": str(Path(jit_pool.__file__).parents[2])}
        command = [sys.executable, str(file), str(tmp_path / "cache"), *texts]
        started.append(
            subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, text=True, preexec_fn=hear_hangups, cwd=tmp_path
            )
        )
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.communicate()


def test_a_script_without_a_guard_runs_once(script, tmp_path):
    process = script("print(len(go()))\n", *map(text_of, range(5)))
    assert process.communicate(timeout=120)[0].splitlines() == ["begun", "5"]
    assert process.returncode == 0
    assert len(Cache(tmp_path / "cache").entries()) == 5


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL], ids=lambda s: s.name)
@pytest.mark.parametrize("fork", ["", "os.fork()", "ctypes.PyDLL(None).fork()"], ids=["", "fork", "fork in C"])
def test_the_processes_end_with_a_killed_parent(script, tmp_path, sent, fork):
    lines = f"""\
threading.Thread(target=go, daemon=True).start()
while not Path(root, "forked").exists(): time.sleep(0.01)
forked = {fork or "1"}
if forked == 0: ctypes.PyDLL(None).sleep(600)
print(forked, flush=True)
time.sleep(600)
"""
    process = script(lines, ENDLESS, long_text(401))
    wait_for(lambda: children(process.pid))
    (tmp_path / "cache" / "forked").touch()
    process.stdout.readline()
    forked = int(process.stdout.readline())
    try:
        process.send_signal(sent)
        if sent == signal.SIGINT and not fork:  # which waits at its exit for the text that it compiles itself
            wait_for(lambda: not children(process.pid), seconds=10)
            process.kill()
        process.wait(timeout=20)
        wait_for(lambda: not children(process.pid), seconds=10)
    finally:
        if forked > 1:
            os.kill(forked, signal.SIGKILL)


def test_a_process_that_exits_ends_all_others(script):
    """It waits for the text that it compiles itself."""
    process = script(
        "from evt.compilation import jit_pool\n"
        "short, endless = texts\n"
        "texts = [short]\n"
        "threading.Thread(target=go).start()\n"
        "while not jit_pool._POOL._here: time.sleep(0.01)\n"
        "texts = [endless]\n"
        "threading.Thread(target=go, daemon=True).start()\n"
        "while not jit_pool._POOL._workers: time.sleep(0.01)\n",
        *(long_text(40), ENDLESS),
    )
    wait_for(lambda: children(process.pid))
    assert process.wait(timeout=60) == 0
    wait_for(lambda: not children(process.pid), seconds=10)
