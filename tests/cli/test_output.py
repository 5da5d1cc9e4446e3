"""The command line: its files and streams, and `evt emit` as a process."""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import evt
from tests.support.command_line import FORMULA, THREE_OUTPUTS, WITH_HEADER, WRONG, ok, process, run

# Output


def test_emit_to_a_file(tmp_path: Path) -> None:
    path = tmp_path / "kernel.cu"
    assert ok("emit", FORMULA, "-o", str(path)) == ""
    assert path.read_text() == evt.emit(FORMULA)
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask
    assert os.listdir(tmp_path) == ["kernel.cu"]
    assert ok("emit", FORMULA, "-o", "-") == path.read_text()


def test_a_file_is_replaced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, link = tmp_path / "kernel.cu", tmp_path / "link.cu"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    result = run("emit", FORMULA, "-o", str(path))
    assert result.exit_code == 2
    assert "No space left on device" in result.stderr
    assert path.read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["kernel.cu", "link.cu"]
    monkeypatch.undo()
    ok("emit", FORMULA, "-o", str(link))
    assert link.is_symlink()
    assert path.read_text() == evt.emit(FORMULA)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        *((["emit", FORMULA, option, ""], "E0303") for option in ("--dtype", "--a", "--b")),
        (["emit", FORMULA, "--dtype", "f16", "--a", ""], "E0303"),
        (["bench", FORMULA, "--dtype", ""], "E0303"),
        *(([command, FORMULA, "--arch", ""], "E0501") for command in ("emit", "check", "explain")),
        *((["emit", FORMULA, option, ""], "E0501") for option in ("--op", "--route", "--config")),
        (["bench", ""], "E0103"),
    ],
)
def test_an_empty_value_is_no_value_left_out(arguments: list[str], code: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 1
    assert f"[{code}]" in result.stderr


def test_a_mistake_leaves_the_file(tmp_path: Path) -> None:
    path = tmp_path / "kernel.cu"
    path.write_text("old")
    assert run("emit", WRONG, "-o", str(path)).exit_code == 1
    assert path.read_text() == "old"


def test_a_device_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    ok("emit", FORMULA, "-o", os.devnull)
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/nonexistent/x.cu", "there is no directory /nonexistent"),
        (".", "it is a directory"),
        ("", "not a file name"),
    ],
)
@pytest.mark.parametrize("command", ["emit", "graph", "show", "build"])
def test_what_cannot_be_written(command: str, path: str, said: str) -> None:
    result = run(command, FORMULA, "-o", path)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "'-o'" in result.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_no_space_left() -> None:
    command = [sys.executable, "-m", "evt", "emit", FORMULA]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (
        1,
        b"Error: cannot write to standard output: No space left on device\n",
    )


def test_the_reader_goes_away() -> None:
    command = [sys.executable, "-m", "evt", "emit", FORMULA]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")
    script = f"{shlex.join(command)} | head -1"
    piped = subprocess.run(["bash", "-c", script], capture_output=True)
    assert piped.stderr == b""
    assert piped.stdout.count(b"\n") == 1


def test_standard_output_is_closed() -> None:
    script = f"{shlex.join([sys.executable, '-m', 'evt', 'emit', FORMULA])} >&-"
    done = subprocess.run(["bash", "-c", script], capture_output=True)
    assert (done.returncode, done.stderr) == (1, b"Error: standard output is closed\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ("emit", FORMULA, "-o", "kernel.cu"),
        ("emit", FORMULA, "-o", "kernel.cu", "--header", "kernel.h"),
        ("graph", FORMULA, "-o", "graph.svg"),
        ("build", FORMULA, "-o", "kernel.so"),
        ("export", "--torch", "folder", "--arch", "sm90", "--name", "a_kernel", FORMULA),
        ("export", "--cmake", "folder", "--arch", "sm90", "--name", "a_kernel", FORMULA),
        ("cache", "export", "pack.zip"),
        ("bench", FORMULA, "--json", "results.json"),
        ("check", "program.evt"),
        ("fmt", "program.evt"),
    ],
    ids=" ".join,
)
def test_the_working_directory_is_gone(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    result = run(*arguments)
    assert result.exit_code in (1, 2), result.output
    assert "bug" not in result.stderr


# emit, as a process


@pytest.mark.parametrize("seeds", [1, pytest.param(5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("program", [FORMULA, THREE_OUTPUTS])
@pytest.mark.parametrize("arch", ["sm80", "sm90"])
def test_the_same_bytes_every_time(program: str, arch: str, seeds: int) -> None:
    """Processes with other hash seeds than this one print the text that this one emits."""
    texts = {
        process("emit", program, "--arch", arch, PYTHONHASHSEED=str(seed), LC_ALL="C", PYTHONUTF8="0").stdout
        for seed in range(seeds)
    }
    assert texts == {evt.emit(program, arch=arch).encode()}


def test_emit_imports_nothing_heavy() -> None:
    heavy = ["torch", "numpy", "rich", "evt.compilation", "evt.runtime", "evt.reference", "evt.draw"]
    code = (
        "import atexit, json, os, sys\n"
        f"atexit.register(lambda: print(json.dumps([name for name in {heavy!r} if name in sys.modules])))\n"
        "from evt.cli import main\n"
        f"main(['emit', {FORMULA!r}, '-o', os.devnull])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr, done.returncode) == ("[]\n", "", 0)


def test_emit_is_what_the_api_emits() -> None:
    assert ok("emit", FORMULA, "--arch", "sm80", "--dtype", "bf16") == evt.emit(FORMULA, "gemm", "sm80", "bf16")
    assert ok("emit", FORMULA, "--op", "linear", "--a", "bf16", "--b", "bf16") == evt.emit(
        FORMULA, "linear", dtype="bf16"
    )
    assert ok("emit", FORMULA, "--route", "evt-2x") == evt.emit(FORMULA, route="evt-2x")
    assert ok("emit", WITH_HEADER, "--op", "linear", "--dtype", "bfloat16") == evt.emit(WITH_HEADER)
