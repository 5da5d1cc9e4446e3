"""The command line: what it prints, where, and what it exits with."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import torch
from click.testing import CliRunner, Result

import evt
from evt.build import BuildEvent, Check, Toolchain
from evt.cli import main
from evt.cli.answers import Answers, _cut_to_tf32, is_exact, magnitudes
from evt.cli.entry import COMMANDS
from evt.cli.judge import judge
from evt.cli.request import TARGET_NAMES, is_file
from evt.diagnostics import CODES, Diagnostic, Source
from evt.errors import InternalError
from evt.ir import Output
from evt.ir.dtype import BY_NAME
from evt.ir.lower import OPERATIONS
from evt.plan import TARGETS
from evt.program import Program
from evt.reference import evaluate
from evt.spec import optimised_graph, typed_graph

FORMULA = "D = relu(alpha*acc + beta*C) + residual"
THREE_OUTPUTS = "out D, E: f32[m, n], F; z = alpha*acc + bias; E = tanh(z); F = z*E + C; D = F*residual + E*z"
WITH_HEADER = "linear(A: bf16[m, k], B: bf16[n, k]); D = acc"
REDUCED = "out D, s: f32[m], amax: f32; D = gelu(acc); s = sum[n](D); amax = max[m, n](abs(acc))"
WRONG = "D = foo(acc)"


def run(*arguments: str, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(main, arguments, input=stdin, prog_name="evt")


def process(*arguments: str, stdin: bytes | None = None, **environment: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "evt", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, env={**os.environ, **environment})


def ok(*arguments: str, stdin: str | bytes | None = None) -> str:
    result = run(*arguments, stdin=stdin)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return result.stdout


def document(result: Result) -> Any:
    return json.loads(result.stdout)


@pytest.fixture
def formula_file(tmp_path: Path) -> Path:
    path = tmp_path / "formula.evt"
    path.write_text(FORMULA + "\n")
    return path


# Help and usage


def test_version() -> None:
    assert ok("--version") == f"evt {evt.__version__}\n"


def test_the_help_names_the_commands() -> None:
    words = ok("--help").split()
    assert [name for name in words if name in COMMANDS and name != "run"]
    assert set(COMMANDS) <= set(words)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_has_an_example_that_parses(name: str) -> None:
    text = " ".join(ok(name, "--help").split())
    assert text == " ".join(ok(name, "-h").split())
    _, _, example = text.partition("Example: ")
    words = shlex.split(example)
    assert words[:2] == ["evt", name]
    command = main.get_command(click.Context(main), name)
    assert command is not None
    with command.make_context(name, words[2:], resilient_parsing=True) as context:
        assert not context.args or name == "cache"


def test_the_help_names_the_operations() -> None:
    text = " ".join(ok("emit", "--help").split())
    assert "--op gemm|linear|grouped_gemm|conv2d|..." in text
    for name in OPERATIONS:
        base, _, gradient = name.partition("_")
        assert base in text
        assert f"conv2d_{gradient}".removesuffix("_") in text


def test_the_help_names_the_targets() -> None:
    assert ", ".join(TARGETS) == TARGET_NAMES
    for command in ("emit", "check", "explain", "build"):
        assert TARGET_NAMES in " ".join(ok(command, "--help").split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Usage"),
        (["emti", FORMULA], "Did you mean `emit`?"),
        (["unknowable"], "Commands: emit"),
        ([FORMULA], "evt emit PROGRAM"),
        (["emit"], "Missing argument 'PROGRAM'"),
        (["emit", FORMULA, "--tpye", "f16"], "No such option"),
        (["emit", "-D = acc"], "No such option"),
        (["check"], "Missing argument"),
        (["graph", FORMULA, "--format", "png"], "'png' is not one of"),
        (["show", FORMULA, "--stage", "parsed"], "'parsed' is not one of"),
        (["explain", "E9999"], "There is no diagnostic E9999"),
        (["explain", "e0210"], "Did you mean one of E0201, E0202,"),
        (["build", FORMULA], "Missing option '-o'"),
        (["cache", "prune"], "Give --max-size"),
        (["cache", "prune", "--max-size", "much"], "write for example 500MB"),
        (["cache", "prune", "--older-than", "30"], "write for example 12h"),
        (["emit", WITH_HEADER, "--op", "gemm"], "header says linear, not gemm"),
        (["emit", WITH_HEADER, "--dtype", "f16"], "header says A is bf16, not f16"),
        (["run", FORMULA, "--op", "linear", "--l", "2"], "--l is for gemm"),
        *((["run", FORMULA, f"--{mode}", size], "not in the range") for mode in "mnkl" for size in ("0", "-5")),
        (["run", FORMULA, "--m", "1.5"], "not a valid integer"),
        (["run", FORMULA, "--m", "99999999999999999999"], "not in the range"),
        (["run", FORMULA, "--m", "2000000000", "--n", "2000000000"], "GB are free"),
        (["run", FORMULA, "--m", "1", "--n", "1", "--k", "2000000000", "--l", "2000000000"], "GB are free"),
    ],
)
def test_wrong_usage(arguments: list[str], said: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert not result.stdout
    assert "Traceback" not in result.stderr


# PROGRAM


def test_a_formula_a_file_and_stdin_are_the_same(formula_file: Path) -> None:
    text = ok("emit", FORMULA)
    assert text.startswith("// Generated by evt")
    assert text == evt.emit(FORMULA)
    assert ok("emit", str(formula_file)) == text
    assert ok("emit", "-", stdin=FORMULA) == text
    assert ok("emit", "-", stdin=b"\xef\xbb\xbf" + FORMULA.encode()) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nothing.evt", True),
        ("some/where", True),
        ("D = acc/2", False),
        ("D = acc", False),
        ("", False),
        ("a\nb.evt", False),
        ("\0.evt", False),
        ("x" * 5000, False),
        (os.curdir, True),
    ],
)
def test_what_is_a_file(text: str, expected: bool) -> None:
    assert is_file(text) is expected


def test_a_file_that_exists_needs_no_suffix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("epilogue").write_text("D = acc")
    assert ok("check", "epilogue") == "epilogue: ok\n"


def unreadable(tmp_path: Path) -> Iterator[tuple[str, str]]:
    (tmp_path / "binary.evt").write_bytes(b"\x7fELF\x02\x01\xff\xfe\0")
    (tmp_path / "large.evt").write_bytes(b"# " + b"x" * (1 << 20))
    yield str(tmp_path), "it is a directory"
    yield str(tmp_path / "none.evt"), "No such file"
    yield str(tmp_path / "binary.evt"), "is not UTF-8"
    yield str(tmp_path / "large.evt"), "larger than"
    yield "D = acc \udcff", "byte 0xff on line 1 is not UTF-8"


def test_what_cannot_be_read(tmp_path: Path) -> None:
    for text, said in unreadable(tmp_path):
        result = run("emit", text)
        assert result.exit_code == 1
        assert said in result.stderr
        assert "error[E0105]" in result.stderr


def test_stdin_that_cannot_be_read() -> None:
    assert "is not UTF-8" in run("emit", "-", stdin=b"D = \xff").stderr
    assert "error[E0103]" in run("emit", "-", stdin="").stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["emit", ""], "E0103"),
        (["emit", "--", "-D = acc"], "E0101"),
        (["emit", FORMULA, "--dtype", "complex64"], "E0303"),
        (["emit", FORMULA, "--arch", "sm70"], "E0501"),
        (["emit", FORMULA, "--arch", ""], "E0501"),
        (["emit", FORMULA, "--op", "gem"], "E0501"),
        (["emit", FORMULA, "--route", "evt-9x"], "E0501"),
        (["emit", FORMULA, "--config", "huge"], "E0501"),
        (["emit", FORMULA, "--arch", "sm80", "--route", "evt-3x"], "E0502"),
        (["emit", FORMULA, "--a", "f16", "--b", "bf16"], "E0308"),
        (["emit", FORMULA, "--op", "conv4d"], "E0501"),
        (["emit", FORMULA, "--numerics", "match_eager", "--fast-math"], "E0607"),
        (["emit", FORMULA, "--arch", "sm80", "--dtype", "e4m3"], "E0503"),
        (["run", "D = max[n%32](acc)", "--n", "40", "--device", "cpu"], "E0604"),
        (["show", WRONG], "E0201"),
        (["explain", WRONG], "E0201"),
        (["graph", WRONG], "E0201"),
        (["run", WRONG], "E0201"),
        (["build", WRONG, "-o", "x.so"], "E0201"),
    ],
)
def test_diagnostics(arguments: list[str], code: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error[{code}]")
    assert not result.stdout


def test_diagnostics_as_json() -> None:
    for command in ("explain", "run", "check"):
        result = run(command, WRONG, "--json")
        assert result.exit_code == 1
        assert not result.stderr
        found = document(result)
        assert found["ok"] is False
        (diagnostic,) = found["diagnostics"]
        assert diagnostic["code"] == "E0201"
        assert (diagnostic["line"], diagnostic["column"], diagnostic["end_column"]) == (1, 5, 8)


class _Terminal(CliRunner):
    """Standard error is a terminal."""

    def isolation(self, *args: Any, **options: Any) -> Any:
        isolated = super().isolation(*args, **options)

        class Isolated:
            def __enter__(self) -> Any:
                streams = isolated.__enter__()
                sys.stderr.isatty = lambda: True  # type: ignore[method-assign]
                return streams

            def __exit__(self, *error: Any) -> Any:
                return isolated.__exit__(*error)

        return Isolated()


def test_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b" not in run("emit", WRONG).stderr
    assert "\x1b[1;31m" in _Terminal().invoke(main, ["emit", WRONG], color=True).stderr
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in _Terminal().invoke(main, ["emit", WRONG], color=True).stderr


# Bugs and interruptions


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    def breaks(error: BaseException) -> None:
        def fail(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr(Program, "emit", fail)
        monkeypatch.setattr(Program, "explain", fail)

    return breaks


@pytest.mark.parametrize(
    "error",
    [KeyError("x"), RecursionError(), InternalError(Diagnostic("E0902", "a plan without nodes"))],
    ids=lambda error: type(error).__name__,
)
def test_a_bug(broken: Callable[[BaseException], None], error: Exception) -> None:
    broken(error)
    result = run("emit", FORMULA)
    assert result.exit_code == 3
    assert result.stderr.startswith("error[E0902]: ")
    assert "This is a bug in evt" in result.stderr
    assert "Traceback" not in result.output
    assert "EVT_TRACEBACK=1" in result.stderr


def test_a_bug_with_its_traceback(broken: Callable[[BaseException], None], monkeypatch: pytest.MonkeyPatch) -> None:
    broken(KeyError("x"))
    shown = run("--traceback", "emit", FORMULA)
    assert shown.exit_code == 3
    assert "Traceback" in shown.stderr
    assert "EVT_TRACEBACK" not in shown.stderr
    monkeypatch.setenv("EVT_TRACEBACK", "1")
    assert "Traceback" in run("emit", FORMULA).stderr
    assert "Traceback" not in run("emit", WRONG).stderr


def test_a_bug_as_json(broken: Callable[[BaseException], None]) -> None:
    broken(KeyError("x"))
    result = run("explain", FORMULA, "--json")
    assert result.exit_code == 3
    assert document(result)["diagnostics"][0]["code"] == "E0902"


def test_a_bug_is_never_a_mistake_of_a_checked_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise InternalError(Diagnostic("E0902", "no"))

    monkeypatch.setattr("evt.spec.typed_graph", fail)
    assert run("check", FORMULA).exit_code == 3


def test_interrupted(broken: Callable[[BaseException], None]) -> None:
    broken(KeyboardInterrupt())
    result = run("emit", FORMULA)
    assert (result.exit_code, result.output) == (130, "")


def test_interrupted_while_it_reads() -> None:
    command = [sys.executable, "-m", "evt", "emit", "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and "pipe" not in _waits_in(child.pid):
            time.sleep(0.05)
        child.send_signal(signal.SIGINT)
        assert child.wait(20) == 130
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.read() + child.stderr.read() == b""


def _waits_in(pid: int) -> str:
    """The system call in which a process waits; it reads its input when that is a pipe's."""
    try:
        call = Path(f"/proc/{pid}/syscall").read_text().split()
    except OSError:
        time.sleep(2)
        return "pipe"
    return "pipe" if call[:2] == ["0", "0x0"] else ""


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


# emit, as a process


@pytest.mark.parametrize("program", [FORMULA, THREE_OUTPUTS])
@pytest.mark.parametrize("arch", ["sm80", "sm90"])
def test_the_same_bytes_every_time(program: str, arch: str) -> None:
    texts = {
        process("emit", program, "--arch", arch, PYTHONHASHSEED=str(seed), LC_ALL="C", PYTHONUTF8="0").stdout
        for seed in range(5)
    }
    assert texts == {evt.emit(program, arch=arch).encode()}


def test_exit_codes_of_a_process(tmp_path: Path) -> None:
    assert process("emit", "-", stdin=FORMULA.encode()).returncode == 0
    assert process("emit", WRONG).returncode == 1
    assert process("emit", str(tmp_path)).returncode == 1
    assert process("emit").returncode == 2
    assert process("nothing").returncode == 2
    # Bytes that are no text, and a locale that has no letters for what the user wrote.
    done = process("emit", os.fsdecode(b"D = \xff"), LC_ALL="POSIX", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert done.returncode == 1
    assert process("check", "D = größe", PYTHONIOENCODING="ascii").returncode in (0, 1)


def test_emit_imports_nothing_heavy() -> None:
    heavy = ["torch", "numpy", "rich", "evt.build", "evt.runtime", "evt.reference", "evt.draw"]
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


# check


def test_check_several(tmp_path: Path, formula_file: Path) -> None:
    wrong = tmp_path / "wrong.evt"
    wrong.write_text("D = foo(acc)\nE = bar(acc)\n")
    result = run("check", str(formula_file), str(wrong), FORMULA, "D = acc +")
    assert result.exit_code == 1
    assert result.stdout == f"{formula_file}: ok\n<formula>: ok\n"
    assert result.stderr.count("error[") == 3
    assert f"{wrong}:2:5" in result.stderr
    quiet = run("check", "-q", str(formula_file), str(wrong))
    assert (quiet.exit_code, quiet.stdout) == (1, "")
    assert ok("check", "--quiet", str(formula_file)) == ""
    assert ok("check", "-", stdin=FORMULA) == "<stdin>: ok\n"


def test_check_as_json(formula_file: Path) -> None:
    result = run("check", "--json", str(formula_file), WRONG, "nothing.evt")
    assert result.exit_code == 1
    found = document(result)
    assert set(found) == {"ok", "diagnostics", "programs"}
    assert [each["code"] for each in found["diagnostics"]] == ["E0201", "E0105"]
    assert [(each["name"], each["ok"]) for each in found["programs"]] == [
        (str(formula_file), True),
        ("<formula>", False),
        ("nothing.evt", False),
    ]
    assert document(run("check", "--json", FORMULA)) == {
        "ok": True,
        "diagnostics": [],
        "programs": [{"name": "<formula>", "ok": True, "diagnostics": []}],
    }


def test_check_takes_types_and_settings() -> None:
    assert ok("check", FORMULA, "--a", "e4m3", "--b", "e5m2", "--arch", "sm90", "--relaxed") == "<formula>: ok\n"
    assert "E0308" in run("check", FORMULA, "--a", "e4m3", "--b", "i8").stderr
    assert "E0503" in run("check", FORMULA, "--dtype", "e4m3", "--arch", "sm80").stderr
    assert "E0501" in run("check", FORMULA, "--arch", "sm80", "--route", "evt-9x").stderr


def test_settings_are_those_of_a_program() -> None:
    program = Program(Source(REDUCED), deterministic=False, fast_math=True, relaxed=True)
    options = ("--no-deterministic", "--fast-math", "--relaxed")
    assert ok("emit", REDUCED, *options) == program.emit()
    assert ok("show", REDUCED, "--stage", "optimised", *options) == str(optimised_graph(program.spec))
    assert ok("emit", REDUCED, "--deterministic") == ok("emit", REDUCED) != program.emit()
    eager = Program(Source(FORMULA), numerics="match_eager")
    assert ok("emit", FORMULA, "--numerics", "match_eager") == eager.emit() != evt.emit(FORMULA)


@pytest.mark.parametrize("arch", ["sm80", "sm90"])
def test_the_whole_language_prints(arch: str) -> None:
    for stage in ("tree", "dag", "typed", "optimised", "plan"):
        assert ok("show", EVERYTHING, "--stage", stage, "--arch", arch)
    for format in ("text", "mermaid", "dot", "svg"):
        assert ok("graph", EVERYTHING, "--format", format, "--stage", "optimised")
    assert "evt_finish" in ok("emit", EVERYTHING, "--arch", arch)
    assert "Reduction" in ok("show", EVERYTHING, "--stage", "plan", "--arch", arch)


@pytest.mark.parametrize("arch", ["sm80", "sm90"])
def test_explain_reductions(arch: str) -> None:
    text = ok("explain", REDUCED, "--arch", arch)
    assert "after the kernel, evt_finish: combines the parts of reductions, in a fixed order\n   reduction_" in text
    assert re.search(r"workspace, for each batch:\n   reduction_\d+: float\[parts\]\[m\]\n", text)
    assert re.search(r"reduction_\d+: column reduction, sum, in parts\n", text)
    found = json.loads(ok("explain", REDUCED, "--arch", arch, "--json"))
    assert [(each["name"], each["when"]) for each in found["kernels"]] == [("evt_finish", "after")]
    assert [each["element"] for each in found["workspace"]] == ["float", "float"]
    assert json.loads(ok("explain", FORMULA, "--arch", arch, "--json"))["workspace"] == []


def test_explain_counts_bits_and_halves() -> None:
    text = "in gate: b1[m, n]; out D: f16[m, n/2], seen: b1[m, n]; z = where(gate, acc, 0); D = even(z); seen = z > 0"
    assert "epilogue traffic: 0.125 bytes read and 1.125 written per element of acc\n" in ok("explain", text)


def test_check_finds_what_types_and_targets_refuse() -> None:
    assert "E0304" in run("check", "out D: f16[n]; D = acc").stderr
    assert run("check", FORMULA, "--arch", "sm80").exit_code == 0
    assert "E0501" in run("check", FORMULA, "--arch", "sm70").stderr


# show, explain, graph


def test_show() -> None:
    assert ok("show", FORMULA, "--stage", "tree") == "D = (relu(((alpha * acc) + (beta * C))) + residual)\n"
    program = evt.gemm(FORMULA)
    assert ok("show", FORMULA) == ok("show", FORMULA, "--stage", "dag") == str(program.spec.dag)
    assert ok("show", FORMULA, "--stage", "typed", "--dtype", "bf16") == str(typed_graph(program.spec, "bf16"))
    assert ok("show", FORMULA, "--stage", "optimised") == str(optimised_graph(program.spec))
    # The tree of a program that is wrong later on.
    assert ok("show", WRONG, "--stage", "tree") == "D = foo(acc)\n"


def test_show_where_values_come_from() -> None:
    for stage in ("dag", "typed", "optimised"):
        lines = ok("show", FORMULA, "--stage", stage, "--origins").splitlines()
        assert any(line.endswith("  # 1:10 alpha*acc + beta*C") for line in lines)
        plain = [line.partition("#")[0].rstrip() for line in lines]
        assert plain == ok("show", FORMULA, "--stage", stage).splitlines()
    for stage in ("tree", "plan"):
        failed = run("show", FORMULA, "--stage", stage, "--origins")
        assert failed.exit_code == 2
        assert "--origins is for the stages dag, typed, optimised." in failed.stderr


@pytest.mark.parametrize("arch", ["sm80", "sm90"])
def test_show_the_plan(arch: str) -> None:
    text = ok("show", THREE_OUTPUTS, "--stage", "plan", "--arch", arch)
    plan = Program(evt.gemm(THREE_OUTPUTS).spec.source).plan(arch)
    for node in plan.nodes:
        assert f"{type(node).__name__}  name={node.name}" in text
    for field in plan.fields:
        assert f"name={field.name}  kind={field.kind}" in text
    for region in plan.regions:
        assert all(str(statement) in text for statement in region.statements)
    assert f"family: {plan.family}\n" in text
    assert "object at 0x" not in text


def test_show_to_a_file(tmp_path: Path) -> None:
    ok("show", FORMULA, "-o", str(tmp_path / "dag"))
    assert (tmp_path / "dag").read_text() == ok("show", FORMULA)


def test_explain_a_program() -> None:
    text = ok("explain", FORMULA, "--arch", "sm80")
    assert text == f"{evt.gemm(FORMULA).explain('sm80')}\n"
    found = json.loads(ok("explain", FORMULA, "--json"))
    assert found == {"ok": True, **evt.gemm(FORMULA).explain().to_json()}


@pytest.mark.parametrize("code", CODES)
def test_explain_every_code(code: str) -> None:
    assert ok("explain", code).startswith(f"# {code}: ")


@pytest.fixture
def _page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evt.diagnostics.page", lambda code: f"# {code}\n\nA *page*.\n")


@pytest.mark.usefixtures("_page")
def test_explain_a_code() -> None:
    assert ok("explain", "E0203") == ok("explain", "e0203") == "# E0203\n\nA *page*.\n"
    expected = {"ok": True, "code": "E0203", "title": CODES["E0203"].title, "page": "# E0203\n\nA *page*.\n"}
    assert json.loads(ok("explain", "E0203", "--json")) == expected


@pytest.mark.usefixtures("_page")
def test_a_page_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evt.cli.explain.use_color", lambda _: True)
    text = ok("explain", "E0203")
    assert "page" in text
    assert "*page*" not in text


@pytest.mark.parametrize("format", ["text", "mermaid", "dot", "svg"])
def test_graph(format: str, tmp_path: Path) -> None:
    from evt.draw import FORMATS, draw

    assert format in FORMATS
    program = evt.gemm(FORMULA)
    text = ok("graph", FORMULA, "--format", format)
    assert text.rstrip("\n") == draw(program.spec.dag, format).rstrip("\n")
    assert text.endswith("\n")
    typed = ok("graph", FORMULA, "--format", format, "--stage", "typed", "--dtype", "bf16")
    assert typed.rstrip("\n") == draw(typed_graph(program.spec, "bf16"), format).rstrip("\n")
    optimised = ok("graph", FORMULA, "--format", format, "--stage", "optimised")
    assert optimised.rstrip("\n") == draw(optimised_graph(program.spec), format).rstrip("\n")
    ok("graph", FORMULA, "--format", format, "-o", str(tmp_path / "graph"))
    assert (tmp_path / "graph").read_text() == text


# run


@pytest.fixture
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


SMALL = ("--m", "24", "--n", "40", "--k", "16")


@pytest.mark.usefixtures("_no_gpu")
def test_run_says_that_it_used_the_reference() -> None:
    text = ok("run", FORMULA, *SMALL)
    assert "no kernel was run" in text
    assert "m=24 n=40 k=16" in text
    assert "D: f16[24, 40]  relative error " in text
    assert "time" in text


@pytest.mark.usefixtures("_no_gpu")
def test_run_as_json() -> None:
    found = document(run("run", THREE_OUTPUTS, *SMALL, "--l", "3", "--dtype", "bf16", "--json"))
    assert found["ok"] is True
    assert (found["device"], found["gpu"]) == ("cpu", "")
    assert found["sizes"] == {"m": 24, "n": 40, "k": 16, "l": 3}
    assert [(each["name"], each["dtype"], each["shape"]) for each in found["outputs"]] == [
        ("D", "bf16", [3, 24, 40]),
        ("E", "f32", [3, 24, 40]),
        ("F", "bf16", [3, 24, 40]),
    ]
    for output in found["outputs"]:
        assert 0 < output["relative_error"] <= output["bound"] < 0.02
        assert output["ok"] is True
    assert found["seconds"] > 0
    assert found["repetitions"] >= 3


@pytest.mark.usefixtures("_no_gpu")
@pytest.mark.parametrize(
    "program",
    [
        "D = acc",
        "D = acc * 0",
        "D = log(acc)",
        "D = exp(acc * 1000)",
        "D = acc / s[m] + b[n] * x",
        "in alpha: f32 = 2; D = alpha * acc",
        "out D: f32[n, m], E; E = acc + bias; D = E * E",
        "D = acc * x[l, m, n] + y[l, n] + z[l]",
        "D = round(acc * 3)",
    ],
)
@pytest.mark.parametrize("batch", [(), ("--l", "2")])
def test_run_programs(program: str, batch: tuple[str, ...]) -> None:
    found = document(run("run", program, *SMALL, *batch, "--dtype", "f16", "--json"))
    assert found["ok"] is True, found


@pytest.mark.usefixtures("_no_gpu")
@pytest.mark.parametrize("dtype", ["f16", "bf16", "tf32", "f32"])
def test_run_types_and_operations(dtype: str) -> None:
    assert document(run("run", FORMULA, *SMALL, "--op", "linear", "--dtype", dtype, "--json"))["a"] == dtype


@pytest.mark.usefixtures("_no_gpu")
def test_run_draws_the_same_numbers_again() -> None:
    def errors(seed: str) -> list[float]:
        found = document(run("run", FORMULA, *SMALL, "--seed", seed, "--json"))
        return [*found["scalars"].values(), *(each["relative_error"] for each in found["outputs"])]

    assert errors("7") == errors("7") != errors("8")
    assert document(run("run", "in alpha: f32 = 2; D = alpha*acc", *SMALL, "--json"))["scalars"] == {}


@pytest.mark.usefixtures("_no_gpu")
def test_run_never_falls_back_in_silence() -> None:
    result = run("run", FORMULA, "--device", "cuda")
    assert result.exit_code == 1
    assert result.stderr.startswith("error[E0801]")
    assert document(run("run", FORMULA, "--device", "cuda", "--json"))["diagnostics"][0]["code"] == "E0801"


@pytest.mark.usefixtures("_no_gpu")
@pytest.mark.parametrize("wrong", ["nothing", "an element", "a nan"])
def test_run_finds_a_wrong_answer(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    right = Program.__call__

    def call(self: Program, *operands: Any, out: dict[str, torch.Tensor], **inputs: Any) -> None:
        if wrong != "nothing":
            right(self, *operands, out=out, **inputs)
            out["D"][3, 5] = out["D"][3, 5] + 1 if wrong == "an element" else torch.nan

    monkeypatch.setattr(Program, "__call__", call)
    result = run("run", FORMULA, *SMALL)
    assert result.exit_code == 1
    assert "WRONG" in result.stdout
    found = document(run("run", FORMULA, *SMALL, "--json"))
    assert found["ok"] is False
    (output,) = found["outputs"]
    assert output["unexpected"] == {"nothing": 24 * 40, "an element": 0, "a nan": 1}[wrong]
    assert (output["relative_error"] is None) == (wrong != "an element")


EVERYTHING = """
in s: f32[m?], bias: f16[n] = 0, gate: b1[m, n]
out D: f16[m, n/2], full: f32[m, n], scale: f32[m, n/32], seen: b1[m, n], total: f32[m], amax: f32
out q: i8[m, n], h: e4m3[m, n], i: i32[m, n], u: u8[m, n], d: f64[m, n]
z = where(gate && iota(n) <= iota(m) + 30, s * acc + bias, -0.5)
D = silu(even(z)) * bf16(odd(z))
scale = max[n%32](abs(z))
full = dropout(z, 0.1, seed, offset) / scale
seen = z > 0
total = sum[n](z)
amax = max[m, n](abs(z))
q = 20 * z
u = 20 * z
h = z
i = iota(m) * 3 + iota(n)
d = z
"""
QUANTISED = """
gemm(A: i8[m, k], B: i8[k, n])
in  x_scale: f32[m?], azp: i32[m], azp_adj: i32[n], bias: bf16[n] = 0
out D: bf16[m, n], mask: b1[m, n], rowsum: f32[m], amax: f32
z = x_scale * (acc - azp * azp_adj) + bias
D = relu(z)
mask = z > 0
rowsum = sum[n](z)
amax = max[m, n](abs(z))
"""


@pytest.mark.usefixtures("_no_gpu")
@pytest.mark.parametrize("batch", [(), ("--l", "2")])
def test_run_the_whole_language(batch: tuple[str, ...]) -> None:
    found = document(run("run", EVERYTHING, "--m", "24", "--n", "64", "--k", "16", *batch, "--json"))
    assert found["ok"] is True, found
    outputs = {each["name"]: each for each in found["outputs"]}
    lead = [2] if batch else []
    assert outputs["D"]["shape"] == [*lead, 24, 32]
    assert outputs["seen"]["shape"] == [*lead, 24, 8]
    assert outputs["scale"]["shape"] == [*lead, 24, 2]
    assert outputs["amax"]["shape"] == lead
    counted = {name for name, each in outputs.items() if each["unequal"] is not None}
    assert counted == {"seen", "q", "h", "i", "u"}
    assert all(outputs[name]["unequal"] == 0 for name in counted)
    assert all(outputs[name]["bound"] is None for name in counted)
    assert outputs["i"]["allowed"] == 0
    assert set(found["scalars"]) == {"seed", "offset"}


@pytest.mark.usefixtures("_no_gpu")
def test_run_quantised() -> None:
    result = run("run", QUANTISED, "--m", "24", "--n", "64", "--k", "16")
    assert result.exit_code == 0, result.output
    assert "A i8, B i8" in result.stdout
    assert "mask: b1[24, 8]  0 of 1536 elements differ, 0 allowed  ok" in result.stdout


@pytest.mark.usefixtures("_no_gpu")
@pytest.mark.parametrize(
    "options",
    [
        *(("--dtype", dtype) for dtype in ("f64", "e4m3", "e5m2", "i8", "u8", "double", "fp8")),
        *(("--a", a, "--b", b) for a, b in (("e4m3", "e5m2"), ("u8", "i8"), ("f32", "tf32"))),
        ("--numerics", "match_eager", "--dtype", "bf16"),
        ("--relaxed", "--fast-math", "--no-deterministic"),
    ],
)
@pytest.mark.parametrize("operation", ["gemm", "linear"])
def test_run_operands_and_numerics(options: tuple[str, ...], operation: str) -> None:
    found = document(run("run", "D = relu(acc * s[m]) + 1", *SMALL, *options, "--op", operation, "--json"))
    assert found["ok"] is True, found


def disturbed(off: float, wrong: bool) -> Callable[..., None]:
    """A kernel whose sums are off by that much, relatively, and perhaps wrong in one element of each output."""

    def call(self: Program, a: torch.Tensor, b: torch.Tensor, *, out: dict[str, torch.Tensor], **inputs: Any) -> None:
        acc = a.double() @ b.double()
        noise = torch.randn(acc.shape, generator=torch.Generator().manual_seed(1))
        results = evaluate(typed_graph(self.spec), (acc + off * noise * acc.square().mean().sqrt()).float(), inputs)
        for name, buffer in out.items():
            buffer.copy_(results[name])
            if wrong:
                one = buffer.view(-1)[100:101]
                one.copy_(one ^ 16 if buffer.dtype == torch.uint8 else (one.float() + 16).to(buffer.dtype))

    return call


@pytest.mark.usefixtures("_no_gpu")
@pytest.mark.parametrize(
    "program",
    [
        "out D: f32[m, n]; D = gelu(acc)",
        "out D: f32[m, n]; D = where(acc > 0, acc, -0.5)",
        "out D: f32[m, n]; D = round(acc * 3)",
        "out D: f32[m, n]; D = bf16(acc) * C",
        "out D: f32[m, n]; D = i8(30 * acc) + C",
        "out D: i8[m, n]; D = 30 * acc",
        "out D: u8[m, n]; D = abs(acc) * 30",
        "out D: i32[m, n]; D = 1e5 * acc",
        "out D: e4m3[m, n]; D = acc",
        "out D: b1[m, n]; D = acc > 0.1",
        "out D: f32[m]; D = sum[n](abs(acc))",
        "out D: f32[n]; D = max[m](acc)",
    ],
)
def test_run_tells_rounding_from_mistakes(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """On sums that are off as another order makes them, thresholds are crossed and elements round elsewhere."""
    sizes = ("--m", "200", "--n", "256", "--k", "384")
    monkeypatch.setattr(Program, "__call__", disturbed(2e-6, False))
    assert document(run("run", program, *sizes, "--json"))["ok"] is True
    monkeypatch.setattr(Program, "__call__", disturbed(1e-6, True))
    result = run("run", program, *sizes)
    assert result.exit_code == 1
    assert "WRONG" in result.stdout


@pytest.mark.usefixtures("_no_gpu")
@pytest.mark.parametrize("program", [EVERYTHING, "out D: i8[m, n]; D = 30 * acc", "out D: b1[m, n]; D = acc > 0"])
def test_run_finds_what_is_left_unwritten(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setattr(Program, "__call__", lambda self, *operands, out, **inputs: None)
    found = document(run("run", program, "--m", "24", "--n", "64", "--k", "16", "--json"))
    assert [each["name"] for each in found["outputs"] if each["ok"]] == []


def test_compare_counts_integers() -> None:
    output = Output("D", BY_NAME["i32"], ("m", "n"))
    right = torch.arange(12, dtype=torch.int32).reshape(3, 4)
    answers = Answers(right, right)
    assert judge(output, right, answers, 4, 0.0).ok
    off = right.clone()
    off[1, 1] += 1
    result = judge(output, off, answers, 4, 0.0)
    assert (result.ok, result.unequal, result.allowed, result.unexpected) == (False, 1, 0, 1)


def test_what_is_exact() -> None:
    outputs = "out D: f32[m, n], i: i32[m, n], b: b1[m, n], s: i32[m]"
    text = f"{outputs}\nD = acc * 0.5; i = 3 * acc; b = acc > 2; s = sum[n](acc)"
    typed = typed_graph(evt.gemm(text).spec, "i8")
    assert [name for name in ("D", "i", "b", "s") if is_exact(typed, name)] == ["i", "b", "s"]
    assert magnitudes(typed) is None
    typed = typed_graph(evt.gemm("out D, s: f32[m], t: f32; D = acc; s = sum[n](acc * C); t = max[m, n](acc)").spec)
    sums = magnitudes(typed)
    assert sums is not None
    assert [(each.name, str(each.dtype)) for each in sums.outputs] == [("s", "f64")]
    assert "abs" in str(sums)


def test_operands_are_cut_to_tf32() -> None:
    cut = _cut_to_tf32(torch.tensor([1 + 2.0**-10, 1 + 2.0**-11, -1 - 2.0**-11]))
    assert cut.tolist() == [1 + 2.0**-10, 1.0, -1.0]
    half = torch.ones(2, dtype=torch.float16)
    assert _cut_to_tf32(half) is half


def test_run_without_torch() -> None:
    code = f"import sys; sys.modules['torch'] = None\nfrom evt.cli import main; main(['run', {FORMULA!r}])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "Error: evt run needs PyTorch: pip install 'evt-compiler[torch]'\n"


# build, doctor, cache


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What evt.build.build answers."""
    path = tmp_path / "cached" / "kernel.so"
    path.parent.mkdir()
    path.write_bytes(b"\x7fELF library")

    def build(sources: Any, *, on_event: Callable[[BuildEvent], None], **_: object) -> list[Path]:
        assert [(source.text, source.gencode) for source in sources] == [(evt.emit(FORMULA), "sm_90a")]
        on_event(BuildEvent("hit", "key", 0))
        return [path]

    monkeypatch.setattr("evt.build.builder.build", build)
    return path


def test_build(library: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.so"
    assert ok("build", FORMULA, "-o", str(path)) == f"{path}: from the cache\n"
    assert path.read_bytes() == library.read_bytes()
    assert os.access(path, os.X_OK)


def test_build_refuses_before_it_builds(library: Path) -> None:
    library.unlink()
    assert run("build", FORMULA, "-o", "/nonexistent/x.so").exit_code == 2
    assert run("build", FORMULA, "-o", "x.so", "--arch", "sm70").exit_code == 1


def test_print_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    tools = Toolchain(
        Path("/opt/my cuda/nvcc"), "13.0.88", Path("/opt/cutlass/include"), "4.2.0", evt_include=Path("/evt")
    )
    monkeypatch.setattr("evt.build.find_toolchain", lambda: tools)
    words = shlex.split(ok("build", FORMULA, "--print-command", "-o", "./x.so"))
    assert words[0] == "/opt/my cuda/nvcc"
    assert words[-3:] == ["x.cu", "-o", "./x.so"]
    assert "-gencode=arch=compute_90a,code=sm_90a" in words
    assert words[words.index("-isystem") + 1] == "/opt/cutlass/include"
    assert "-shared" in words
    assert "-I/evt" not in words
    assert shlex.split(ok("build", FORMULA, "--print-command", "--arch", "sm80"))[-1] == "kernel.so"


CHECKS = [
    Check("Python", True, "3.11"),
    Check("nvcc", False, "no nvcc was found", "pip install nvcc"),
    Check("PyTorch", False, "not installed", "pip install torch", required=False),
]


def test_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evt.build.diagnose", lambda: CHECKS)
    result = run("doctor")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[:5] == [
        "ok       Python   3.11",
        "MISSING  nvcc     no nvcc was found",
        "                  -> pip install nvcc",
        "absent   PyTorch  not installed",
        "                  -> pip install torch",
    ]
    as_json = run("doctor", "--json")
    assert as_json.exit_code == 1
    assert document(as_json)["ok"] is False
    assert document(as_json)["checks"][1] == {
        "name": "nvcc",
        "ok": False,
        "found": "no nvcc was found",
        "remedy": "pip install nvcc",
        "required": True,
    }


def test_doctor_is_content_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evt.build.diagnose", lambda: [CHECKS[0], CHECKS[2]])
    assert "can be built here, but not run" in ok("doctor")
    assert json.loads(ok("doctor", "--json"))["ok"] is True
    monkeypatch.setattr("evt.build.diagnose", lambda: [CHECKS[0], Check("GPU 0", True, "H200", required=False)])
    assert "can be built and run here" in ok("doctor")


@pytest.fixture
def filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of three libraries of 1, 2 and 3 MB, last used 40, 20 and 0 days ago."""
    root = tmp_path / "cache"
    monkeypatch.setenv("EVT_CACHE_DIR", str(root))
    for position, days in enumerate((40, 20, 0)):
        entry = root / f"{position}a" / (f"{position}a" + 62 * "0")
        entry.mkdir(parents=True, mode=0o700)
        (entry / "kernel.so").write_bytes(bytes((position + 1) * 1_000_000))
        record = entry / "build.json"
        record.write_text("{}")
        os.utime(record, (time.time() - days * 86400,) * 2)
    for path in (root, *root.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    return root


def test_cache_reads(filled: Path) -> None:
    assert ok("cache", "path") == f"{filled}\n"
    assert json.loads(ok("cache", "path", "--json")) == {"ok": True, "path": str(filled)}
    assert ok("cache", "size") == "3 libraries, 6.0 MB\n"
    found = json.loads(ok("cache", "list", "--json"))
    assert found["count"] == 3
    assert [entry["key"][:2] for entry in found["entries"]] == ["0a", "1a", "2a"]
    assert set(found["entries"][0]) == {"key", "library", "size_bytes", "used"}
    assert json.loads(ok("cache", "size", "--json"))["size_bytes"] == found["size_bytes"]
    lines = ok("cache", "list").splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("0a0000000000      1.0 MB  used 20")


@pytest.mark.parametrize(
    ("arguments", "removed"),
    [
        (["--max-size", "6GB"], []),
        (["--max-size", "5.5MB"], ["0a"]),
        (["--max-size", "3.1 mb"], ["0a", "1a"]),
        (["--max-size", "0"], ["0a", "1a", "2a"]),
        (["--older-than", "30d"], ["0a"]),
        (["--older-than", "2w"], ["0a", "1a"]),
        (["--older-than", "12h", "--max-size", "1KiB"], ["0a", "1a", "2a"]),
    ],
)
def test_cache_prune(filled: Path, arguments: list[str], removed: list[str]) -> None:
    found = json.loads(ok("cache", "prune", *arguments, "--json"))
    assert [entry["key"][:2] for entry in found["removed"]] == removed
    assert json.loads(ok("cache", "size", "--json"))["count"] == 3 - len(removed)


def test_cache_clear(filled: Path) -> None:
    assert ok("cache", "clear") == "removed 3 libraries, 6.0 MB\n"
    assert ok("cache", "size") == "0 libraries, 0.0 MB\n"


def test_cache_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EVT_CACHE_DIR", str(tmp_path / "file"))
    result = run("cache", "list")
    assert result.exit_code == 1
    assert "error[E0704]" in result.stderr
    assert run("cache").exit_code == 2
