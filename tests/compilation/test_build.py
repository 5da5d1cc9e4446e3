"""Building with a shell script for nvcc: the number of runs, parallel builds, and the files after a failure."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import stat
import subprocess
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace

import pytest

import evt.compilation.process
from evt.compilation import BuildEvent, KernelSource, build, build_and_use, cache_key
from evt.errors import BuildError
from tests.support.fake_nvcc import Line, Room, runs, wait_for

# One process


def test_built_then_found(room: Room) -> None:
    events: list[BuildEvent] = []
    (library,) = room.build("one\n", on_event=events.append)
    assert library.read_text() == "one\n"
    assert room.starts() == {"device": 1, "host": 1, "link": 1}
    kinds = Counter((event.kind, event.stage) for event in events)
    assert kinds == {(kind, stage): 1 for kind in ("start", "end") for stage in room.starts()} | {("built", ""): 1}
    assert all(event.seconds > 0 for event in events if event.kind in ("end", "built"))
    assert room.left_over() == []
    events.clear()
    assert room.build("one\n", on_event=events.append) == [library]
    assert [event.kind for event in events] == ["hit"]
    assert sum(room.starts().values()) == 3


def test_the_order_of_sources_is_kept_and_repeats_are_built_once(room: Room) -> None:
    room.build("b\n")
    libraries = room.build("c\n", "b\n", "a\n", "c\n")
    assert [library.read_text() for library in libraries] == ["c\n", "b\n", "a\n", "c\n"]
    assert room.starts()["device"] == 3
    assert room.build() == []


def test_the_commands(room: Room) -> None:
    (library,) = room.build("one\n")
    record = json.loads((library.parent / "build.json").read_text())
    steps = {step["name"]: step["command"] for step in record["passes"]}
    assert "-gencode=arch=compute_90a,code=sm_90a" in steps["device"]
    for stage, macro in (("device", "-DEVT_DEVICE_PASS"), ("host", "-DEVT_HOST_PASS")):
        assert macro in steps[stage]
        assert "-isystem cutlass/cutlass" in steps[stage]
        assert "-std=c++17 -O3 -DNDEBUG --expt-relaxed-constexpr" in steps[stage]
    assert record["links"]["cutlass"] == "/opt"  # no path reaches nvcc, which hands them to a shell
    assert "-gencode" not in steps["host"]
    assert list(steps)[-1] == "link"


def overlap(lines: list[Line]) -> int:
    """Return the most runs that were under way at one time."""
    now = most = 0
    for line in sorted(lines, key=lambda line: line.at):
        now += 1 if line.what == "start" else -1
        most = max(most, now)
    return most


@pytest.mark.parametrize("jobs", [1, 2, 4])
def test_passes_run_side_by_side_up_to_the_number_of_jobs(
    room: Room, jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(f"{room.file}.meet").write_text(str(jobs))  # a pass ends when this number has started
    room.build("// meet 1\n", "// meet 2\n", jobs=jobs)
    assert overlap(room.log()) == jobs


def test_jobs_fit_processors_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    process = evt.compilation.process
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    for gigabytes, jobs in ((1, 1), (10, 2), (100, 8)):
        monkeypatch.setattr(process, "available_bytes", lambda size=gigabytes: size * 10**9)
        assert process.default_jobs() == jobs
    monkeypatch.undo()
    assert process.available_bytes() > 0


def test_a_wrong_number_of_jobs(room: Room) -> None:
    with pytest.raises(ValueError, match="jobs is 0"):
        room.build("one\n", jobs=0)


def test_verbose_prints_the_commands(room: Room, capsys: pytest.CaptureFixture[str]) -> None:
    room.build("one\n", verbose=True)
    printed = capsys.readouterr().err
    assert "-DEVT_DEVICE_PASS" in printed
    assert "built" in printed


def test_an_old_nvcc_is_refused_before_it_runs(room: Room) -> None:
    old = dataclasses.replace(room.tools, nvcc_version="12.0.1")
    with pytest.raises(BuildError, match="E0706"):
        build([KernelSource("", "sm_90a")], cache=room.cache, toolchain=old)
    assert room.log() == []


def test_a_damaged_entry_is_built_again(room: Room) -> None:
    (library,) = room.build("one\n")
    library.write_text("on")
    events: list[BuildEvent] = []
    assert room.build("one\n", on_event=events.append) == [library]
    assert library.read_text() == "one\n"
    assert [event.text for event in events if event.kind == "damaged"] == ["kernel.so has 2 bytes instead of 4"]
    (library.parent / "build.json").write_text("}{")
    os.utime(library)  # as a new process would see it
    assert room.build("one\n") == [library]
    assert json.loads((library.parent / "build.json").read_text())["library"]["size"] == 4
    assert room.left_over() == []


def test_an_untrusted_entry_is_neither_used_nor_replaced(room: Room) -> None:
    (library,) = room.build("one\n")
    library.parent.chmod(0o770)
    with pytest.raises(BuildError, match="E0705"):
        room.build("one\n")
    assert room.starts()["device"] == 1
    assert stat.S_IMODE(library.parent.stat().st_mode) == 0o770


# Failures


@pytest.mark.parametrize("stage", ["device", "host", "link"])
def test_a_failure_is_our_bug_and_its_log_is_kept(room: Room, stage: str) -> None:
    text = f"// fail {stage} kernel.cu(3): error: no such visitor\n"
    events: list[BuildEvent] = []
    with pytest.raises(BuildError) as caught:
        room.build(text, on_event=events.append)
    (problem,) = caught.value.diagnostics
    assert problem.code == "E0703"
    assert "bug in evt" in problem.message
    assert problem.notes == ("kernel.cu(3): error: no such visitor",)
    kept = room.cache.root / "failed" / cache_key(KernelSource(text, "sm_90a"), room.tools)
    assert str(kept) in problem.help
    assert (kept / "kernel.cu").read_text() == text
    assert "kernel.cu(1): warning: w" in (kept / "nvcc.log").read_text()
    assert [event.kind for event in events].count("failed") == 1
    assert room.cache.entries() == []
    assert room.left_over() == []


def test_a_failed_pass_ends_the_other(room: Room) -> None:
    with pytest.raises(BuildError, match="boom"):
        room.build("// hang device\n// fail host error: boom\n")
    assert not any(runs(line.pid) for line in room.log())


def test_one_failure_does_not_stop_the_others(room: Room) -> None:
    with pytest.raises(BuildError) as caught:
        room.build("// fail device error: one\n", "good\n", "// fail host error: two\n")
    assert [problem.notes for problem in caught.value.diagnostics] == [("error: one",), ("error: two",)]
    assert [entry.library.read_text() for entry in room.cache.entries()] == ["good\n"]


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("// fail device fatal error: x.ptx: No space left on device\n", "E0704", "no space left"),
        (
            "// fail host nvcc fatal   : Failed to preprocess host compiler properties.\n",
            "E0701",
            "host compiler",
        ),
        ("// fail device nvcc error   : 'cicc' died due to signal 9 (Kill signal)\n", "E0703", "memory"),
        ("// die device\n", "E0703", "memory"),
    ],
)
def test_what_is_not_our_bug_is_not_called_one(room: Room, text: str, code: str, words: str) -> None:
    with pytest.raises(BuildError) as caught:
        room.build(text)
    (problem,) = caught.value.diagnostics
    assert problem.code == code
    assert words in problem.message
    assert "bug in evt" not in str(caught.value)


@pytest.mark.parametrize("stage", ["device", "host", "link"])
@pytest.mark.parametrize(
    ("words", "free", "code"),
    [("", 500_000, "E0704"), ("", 10**10, "E0703"), ("kernel.cu(3): error: x", 500_000, "E0703")],
)
def test_a_pass_that_fails_without_a_message_on_a_full_disk(
    room: Room, monkeypatch: pytest.MonkeyPatch, stage: str, words: str, free: int, code: str
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    with pytest.raises(BuildError) as caught:
        room.build(f"// fail {stage} {words}\n")
    (problem,) = caught.value.diagnostics
    assert problem.code == code
    assert ("bug in evt" in problem.message) == (code == "E0703")


USERS = (
    "namespace evt::user {\n\nfloat fn_wave(float p_x) {\n  return undeclared(p_x);\n}\n\n}  // namespace evt::user\n"
)


@pytest.mark.parametrize(
    ("text", "origin", "flags", "code", "said"),
    [
        (f"{USERS}// fail device kernel.cu(4): error: x", "wheel", "", "E0653", "the C++ of `wave`"),
        (f"{USERS}// fail host kernel.cu:4:10: error: x", "wheel", "", "E0653", "the C++ of `wave`"),
        (f"{USERS}// fail device kernel.cu(4): error: x", "/opt/c", "-G", "E0653", "the C++ of `wave`"),
        (f"{USERS}// fail device kernel.cu(14): error: x", "wheel", "", "E0703", "a bug in evt"),
        (f"{USERS}// fail device other.h(4): error: x", "wheel", "", "E0703", "a bug in evt"),
        (f"{USERS}// fail device kernel.cu(4): warning: x", "wheel", "", "E0703", "a bug in evt"),
        ("// fail device nvcc fatal   : Unknown option '-no'", "wheel", "-no", "E0701", "in NVCC_APPEND_FLAGS"),
        ("// fail host g++: error: unrecognized option '-no'", "wheel", "-no", "E0701", "in NVCC_APPEND_FLAGS"),
        ("// fail device nvcc fatal   : Unknown option '-no'", "wheel", "", "E0703", "a bug in evt"),
        ("// fail device kernel.cu(4): error: x", "wheel", "-G", "E0703", "unset NVCC_APPEND_FLAGS"),
        ("// fail device kernel.cu(4): error: x", "/opt/c", "", "E0703", "unset CUTLASS_PATH"),
    ],
)
def test_whose_fault_it_is(
    room: Room, monkeypatch: pytest.MonkeyPatch, text: str, origin: str, flags: str, code: str, said: str
) -> None:
    monkeypatch.setenv("NVCC_APPEND_FLAGS", flags)
    if origin != "wheel":
        monkeypatch.setenv("CUTLASS_PATH", origin)
    with pytest.raises(BuildError) as caught:
        dataclasses.replace(room, tools=dataclasses.replace(room.tools, cutlass_origin=origin)).build(f"{text}\n")
    (problem,) = caught.value.diagnostics
    assert problem.code == code
    assert said in str(caught.value)
    assert ("a bug in evt" in str(caught.value)) == (said == "a bug in evt")


def test_who_waited_for_a_build_that_failed_is_told(room: Room) -> None:
    """One of several simultaneous requests runs nvcc. A later request tries again."""
    text = "// gate\n// fail device kernel.cu(3): error: no such visitor\n"
    processes = [room.spawn(text, program=_SAY_HOW_IT_FAILED) for _ in range(8)]
    wait_for(lambda: len(list(room.cache.root.glob("waiting-*"))) == 7)
    Path(f"{room.file}.open").touch()
    answers = [outcome(process) for process in processes]
    assert room.starts()["device"] == 1
    assert answers == [answers[0]] * 8
    assert "bug in evt" in answers[0][0]
    with pytest.raises(BuildError, match="no such visitor"):
        room.build(text)
    assert room.starts()["device"] == 2


_SAY_HOW_IT_FAILED = """
from evt.errors import BuildError
def listen(event):
    if event.kind == "wait":
        Path(root, f"waiting-{os.getpid()}").touch()
try:
    go(on_event=listen)
except BuildError as error:
    print(json.dumps([str(error)]))
"""


def test_of_a_failure_only_what_is_asked_at_the_time_is_told(room: Room) -> None:
    """A source that was refused yesterday is tried once more, also by who waits for another that is built today."""
    with pytest.raises(BuildError):
        room.build("// fail device error: yesterday\n")
    before = room.starts()
    other = room.spawn("// gate\n")
    wait_for(lambda: room.starts() - before == {"device": 1, "host": 1})
    room.calm()
    texts = ("// gate\n", "// fail device error: yesterday\n")
    mine = room.spawn(*texts)
    wait_for(lambda: len(room.cache.entries()) == 1)
    Path(f"{room.file}.open").touch()
    assert outcome(mine) == list(texts)
    assert outcome(other) == ["// gate\n"]
    assert not any((room.cache.root / "failed").iterdir())


def test_an_nvcc_that_is_gone(room: Room) -> None:
    room.tools.nvcc.unlink()
    with pytest.raises(BuildError, match="E0701"):
        room.build("one\n")
    assert room.left_over() == []


def test_a_listener_that_raises_ends_the_build(room: Room) -> None:
    kinds = []

    def listener(event: BuildEvent) -> None:
        kinds.append(event.kind)
        if event.kind == "end":
            raise RuntimeError("the listener's own")

    with pytest.raises(RuntimeError, match="own"):
        room.build("// hang device\n", on_event=listener)
    assert kinds.count("end") == 1  # a pass that was given up has not ended
    assert "failed" not in kinds
    assert not any(runs(line.pid) for line in room.log())
    assert room.left_over() == []


# Many processes


def outcome(process: subprocess.Popen[str]) -> list[str]:
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    texts = json.loads(output)
    assert isinstance(texts, list)
    return texts


def test_many_processes_build_once(room: Room) -> None:
    processes = [room.spawn("// sleep\n") for _ in range(8)]
    assert [outcome(process) for process in processes] == [["// sleep\n"]] * 8
    assert room.starts() == {"device": 1, "host": 1, "link": 1}
    assert room.left_over() == []


def test_overlapping_sets_in_any_order_build_each_once(room: Room) -> None:
    texts = [f"// sleep {i}\n" for i in range(4)]
    orders = [texts, texts[::-1], texts[2:] + texts[:2], texts[1:3]]
    processes = [room.spawn(*order) for order in orders]
    assert [outcome(process) for process in processes] == orders
    assert room.starts() == {"device": 4, "host": 4, "link": 4}


def test_a_waiter_says_so(room: Room) -> None:
    other = room.spawn("// gate\n")
    wait_for(lambda: room.log())
    kinds = []

    def listener(event: BuildEvent) -> None:
        kinds.append(event.kind)
        Path(f"{room.file}.open").touch()

    (library,) = room.build("// gate\n", on_event=listener)
    assert kinds == ["wait", "hit"]
    assert outcome(other) == [library.read_text()]


@pytest.mark.slow
def test_clearing_and_building_at_one_time(room: Room) -> None:
    """Each library is used whole or built again; nobody meets a file that is gone."""
    stop = Event()
    errors: list[BaseException] = []

    def clear() -> None:
        try:
            while not stop.is_set():
                room.cache.clear()
                room.cache.entries()
                room.cache.prune(max_bytes=0)
        except BaseException as error:
            errors.append(error)

    clearing = [Thread(target=clear) for _ in range(2)]
    for thread in clearing:
        thread.start()
    used = []
    try:
        for turn in range(12):
            text = f"{turn % 3}\n"
            with suppress(BuildError):  # E0704: cleared each time
                used += [(text, use(room, text))]
    finally:
        stop.set()
        for thread in clearing:
            thread.join()
    assert errors == []
    assert all(read == text for text, read in used)
    assert use(room, "last\n") == "last\n"
    room.cache.clear()
    assert room.left_over() == []


def use(room: Room, text: str) -> str:
    sources = [KernelSource(text, "sm_90a")]
    (read,) = build_and_use(sources, lambda _, path: path.read_text(), cache=room.cache, toolchain=room.tools)
    return read


def test_a_library_that_is_removed_before_its_use_is_built_again(room: Room) -> None:
    turns = []

    def use(_: int, library: Path) -> str:
        turns.append(library)
        if len(turns) == 1:
            room.cache.clear()
        return library.read_text()

    sources = [KernelSource("one\n", "sm_90a")]
    assert build_and_use(sources, use, cache=room.cache, toolchain=room.tools) == ["one\n"]
    assert room.starts()["link"] == 2

    def never(_: int, library: Path) -> str:
        room.cache.clear()
        return library.read_text()

    with pytest.raises(BuildError, match="removed as soon as they are built"):
        build_and_use(sources, never, cache=room.cache, toolchain=room.tools)


def test_what_using_a_library_raises_is_raised(room: Room) -> None:
    def use(_: int, library: Path) -> str:
        raise FileNotFoundError("something else")

    with pytest.raises(FileNotFoundError, match="something else"):
        build_and_use([KernelSource("one\n", "sm_90a")], use, cache=room.cache, toolchain=room.tools)
    assert room.starts()["link"] == 1


def test_a_directory_removed_under_nvcc(room: Room) -> None:
    text = room.tools.nvcc.read_text()
    room.tools.nvcc.write_text(text.replace("while read", f'rm -rf "{room.cache.root}"\nwhile read', 1))
    with pytest.raises(BuildError, match=r"E0704.*was removed while nvcc was at work"):
        room.build("one\n")


def test_ctrl_c_ends_the_compilers_and_leaves_nothing(room: Room) -> None:
    builder = room.spawn("// hang device\n", "// hang host\n")
    wait_for(lambda: room.starts()["device"] == room.starts()["host"] == 2)
    builder.send_signal(signal.SIGINT)
    _, errors = builder.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors
    wait_for(lambda: not any(runs(line.pid) for line in room.log()))
    assert room.left_over() == []
    assert not (room.cache.root / "failed").exists()


def test_ctrl_c_while_waiting(room: Room) -> None:
    lock_key = cache_key(KernelSource("one\n", "sm_90a"), room.tools)
    room.cache.prepare()
    lock = room.cache.lock(lock_key, wait=True)
    assert lock is not None
    waiter = room.spawn("one\n")
    time.sleep(1)
    waiter.send_signal(signal.SIGINT)
    _, errors = waiter.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors
    lock.release()
    assert room.build("one\n")
