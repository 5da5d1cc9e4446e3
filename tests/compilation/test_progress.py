"""The progress of builds: shown on a terminal only, with the phase and the time; the seconds of each phase."""

from __future__ import annotations

import io
import json
import re

import pytest

from evt.compilation import BuildEvent, KernelSource, Phases, build
from evt.compilation.progress import Times, expected_seconds, shown
from tests.support.fake_nvcc import Room


class _Stream(io.StringIO):
    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


def replaced_stderr(monkeypatch: pytest.MonkeyPatch, *, terminal: bool) -> _Stream:
    """Replace standard error; pytest puts its own in place between a fixture and the test."""
    stream = _Stream(terminal=terminal)
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return stream


def sources(*texts: str) -> list[KernelSource]:
    return [KernelSource(text, "sm_90a", kernel=f"evt-3x {text[3:8]}") for text in texts]


def plain(stream: _Stream) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())


def test_a_terminal_shows_the_kernel_the_phase_and_the_time(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = replaced_stderr(monkeypatch, terminal=True)
    several = sources("// first sleep\n// sleep\n", "// other sleep\n// sleep\n")
    build(several, cache=room.cache, toolchain=room.tools)
    said = plain(stderr)
    assert re.search(r"evt: 0 of 2 kernels ready, evt-3x (first|other) for sm_90a: compiling the kernel", said)
    assert "evt: 1 of 2 kernels ready" in said
    assert re.search(r"0:00:0\d", said)
    before = len(stderr.getvalue())
    build(several, cache=room.cache, toolchain=room.tools)
    assert len(stderr.getvalue()) == before  # a hit shows nothing


def test_builds_beside_each_other_show_one_line(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = replaced_stderr(monkeypatch, terminal=True)
    with shown(sources("// outer\n"), room.cache, None, hidden=False):
        build(sources("// inner\n"), cache=room.cache, toolchain=room.tools)
    assert not plain(stderr)
    build(sources("// later\n"), cache=room.cache, toolchain=room.tools)
    assert "evt-3x later" in plain(stderr)


def test_earlier_builds_predict_the_remaining_time(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = replaced_stderr(monkeypatch, terminal=True)
    for entry in (room.build("one\n"), room.build("two\n")):
        record = entry[0].with_name("build.json")
        facts = json.loads(record.read_text())
        facts["passes"] = [{"name": name, "seconds": 40.0} for name in ("device", "host")]
        record.write_text(json.dumps(facts))
    for gencode in ("sm_90a", "sm_80"):
        assert expected_seconds(room.cache, {gencode}) == {"device": 40.0, "host": 40.0}
    build(sources("// third sleep\n// sleep\n"), cache=room.cache, toolchain=room.tools)
    assert re.search(r"about (39|40) s left", plain(stderr))
    before = len(plain(stderr))
    several = sources(*(f"// third sleep {number}\n// sleep\n" for number in range(3)))
    build(several, cache=room.cache, toolchain=room.tools, jobs=2)
    assert re.search(r"about (79|80) s left", plain(stderr)[before:])  # two kernels have not begun


def test_a_log_has_no_progress(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = replaced_stderr(monkeypatch, terminal=False)
    build(sources("// first sleep\n// sleep\n"), cache=room.cache, toolchain=room.tools)
    assert stderr.getvalue() == ""


def test_verbose_lines_replace_the_progress(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = replaced_stderr(monkeypatch, terminal=True)
    build(sources("// first sleep\n// sleep\n"), cache=room.cache, toolchain=room.tools, verbose=True)
    said = stderr.getvalue()
    assert re.search(r"^evt: \w+ start device ", said, re.MULTILINE)
    assert re.search(r"^evt: \w+ built ", said, re.MULTILINE)
    assert "\x1b" not in said


def test_times_add_up_by_phase_and_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    times = Times()
    assert str(times) == ""
    times(BuildEvent("end", "a", 0, "device", 3.0))
    times(BuildEvent("end", "b", 1, "device", 20.25))
    times(BuildEvent("end", "a", 0, "formula", 0.5))
    times(BuildEvent("wait", "c", 2))
    clock[0] += 7
    times(BuildEvent("hit", "c", 2))
    assert str(times) == "device 23.2 s, waiting 7.0 s, formula 0.5 s"


def test_an_unknown_phase_is_named() -> None:
    phases = Phases()
    assert phases.after(BuildEvent("start", "a", 0, "formulas")) == "formulas"
    assert phases.after(BuildEvent("start", "a", 0, "device")) == "compiling the kernel and formulas"
