"""Help in sections, completion of values, formats by suffix, colours on request, and the contents of the cache."""

from __future__ import annotations

import importlib
import json
import os
import re
from pathlib import Path

import click
import pytest

import evt
from docs.builder.commands import helped
from evt.cli import main
from evt.cli.entry import COMMANDS as SECTIONS
from evt.cli.sections import COMMANDS
from evt.compilation import BuildEvent, Phases
from evt.diagnostics import CODES
from evt.plan import ROUTES, TARGETS
from evt.version import JSON_SCHEMA
from tests.support.command_line import FORMULA, context, document, ok, process, run


def test_the_help_is_grouped() -> None:
    text = ok("--help")
    assert [text.index(f"{section}:\n") for section in COMMANDS] == sorted(
        text.index(f"{section}:\n") for section in COMMANDS
    )
    assert "_EVT_COMPLETE=bash_source" in text
    text = ok("emit", "--help-all")
    places = [text.index(f"\n{each}:\n") for each in ("Options", "Program", "Target and route", "Sizes", "Numerics")]
    assert places == sorted(places)
    assert places[2] < text.index("  --arch NAME") < places[3]
    assert text.count("  --arch NAME") == 1


@pytest.mark.parametrize("name", ["check", "compare", "show", "explain", "graph", "emit", "build", "run", "tune run"])
def test_the_help_is_short(name: str) -> None:
    """The short help names every option; the long help also describes it."""
    short, long = ok(*name.split(), "--help"), ok(*name.split(), "--help-all")
    assert short.count("\n") < 0.9 * long.count("\n")
    options = set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", long, re.MULTILINE))
    assert len(options) > 15
    assert options == set(re.findall(r"--[\w-]+", short)) & options
    assert "--fast-math" not in short or "approximate functions" not in short
    assert ("Rows of D" in short) is (name in ("run", "tune run", "compare"))
    assert "--help-all" not in ok("doctor", "--help") + ok("fmt", "--help")


@pytest.mark.parametrize("name", ["", "tune", "cache", "bench"])
def test_no_summary_of_a_command_is_cut(name: str) -> None:
    assert not re.findall(r"^  \w.*\.\.\.$", ok(*name.split(), "--help"), re.MULTILINE)


#: An example of each command that prints JSON; `build` and `tune` need tools, and `bench` writes a file.
DOCUMENTS = {
    "check": ["check", FORMULA],
    "fmt": ["fmt", FORMULA],
    "show": ["show", FORMULA],
    "show a plan": ["show", FORMULA, "--stage", "plan"],
    "explain": ["explain", FORMULA],
    "explain a code": ["explain", "E0203"],
    "compare": ["compare", FORMULA],
    "graph": ["graph", FORMULA],
    "layout": ["layout", "(4,2):(2,1)"],
    "emit": ["emit", FORMULA],
    "run": ["run", FORMULA, "--m", "8", "--n", "8", "--k", "8", "--device", "cpu"],
    "doctor": ["doctor"],
    "cache": ["cache", "size"],
    "a mistake": ["emit", "D = foo(acc)"],
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_names_its_schema(name: str) -> None:
    read = json.loads(run(*DOCUMENTS[name], "--json").stdout)
    assert list(read)[:2] == ["schema", "ok"]
    assert read["schema"] == JSON_SCHEMA
    assert read["ok"] is (name != "a mistake") or name == "doctor"


def test_the_manual_reads_the_help_that_users_see() -> None:
    """A command makes its help option once, of the settings of its first context: here a new command's."""
    importlib.reload(importlib.import_module("evt.cli.check"))
    assert "-h, --help" in helped("check")
    assert ok("check", "-h") == ok("check", "--help")


@pytest.mark.parametrize("words", [["tune", "import", "none"], ["bench", "diff", "none", "none"]], ids=" ".join)
def test_a_command_that_fails_prints_json(words: list[str]) -> None:
    result = run(*words, "--json")
    assert (result.exit_code, result.stderr) == (1, "")
    expected = "cannot read none: No such file or directory"
    assert document(result) == {"schema": JSON_SCHEMA, "ok": False, "error": expected, "diagnostics": []}


def test_every_command_prints_json() -> None:
    without = [name for name in SECTIONS if "--json" not in ok(name, "--help")]
    assert without == ["lsp", "tune", "cache"]  # two of them are groups
    for name in ("tune", "cache", "bench"):
        group = main.get_command(context(), name)
        assert isinstance(group, click.Group)
        assert [each for each in group.commands if "--json" not in ok(name, each, "--help")] == []


def test_documents_have_the_content_of_the_text(tmp_path: Path) -> None:
    emitted = json.loads(ok("emit", FORMULA, "--arch", "sm80", "--json"))
    assert emitted["text"] == ok("emit", FORMULA, "--arch", "sm80")
    assert (emitted["target"], emitted["route"]) == ("sm80", "evt-2x")
    shown = json.loads(ok("show", FORMULA, "--stage", "typed", "--json"))
    assert shown["text"] == ok("show", FORMULA, "--stage", "typed")
    assert shown["nodes"][-1] == {
        "operation": "store D",
        "operands": [len(shown["nodes"]) - 2],
        "type": "f32[m, n]",
        "origin": f"1:1 {FORMULA}",
    }
    drawn = json.loads(ok("graph", FORMULA, "--format", "svg", "--json"))
    assert drawn["drawing"].startswith("<svg")
    ok("graph", FORMULA, "--json", "-o", str(tmp_path / "graph.json"))
    assert json.loads((tmp_path / "graph.json").read_text())["format"] == "text"
    ok("export", "--cmake", str(tmp_path / "made"), FORMULA, "--arch", "sm80")
    exported = json.loads(ok("export", "--cmake", str(tmp_path / "other"), FORMULA, "--arch", "sm80", "--json"))
    assert exported["targets"] == ["sm80"]
    assert {
        str(path.relative_to(tmp_path / "other")) for path in (tmp_path / "other").rglob("*") if path.is_file()
    } == set(exported["files"])


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("evt bu", ["build"]),
        ("evt emit --arch ", [*TARGETS, "native"]),
        ("evt check --arch sm8", ["sm80", "sm86", "sm89"]),
        ("evt emit --arch h", ["h100", "h200", "h800", "h20"]),
        ("evt explain E010", [code for code in CODES if code.startswith("E010")]),
        ("evt explain samples/ro", ["samples/ro"]),  # the shell completes files
        ("evt check a.evt sam", ["sam"]),
        ("evt export --arch sm80,sm9", ["sm80,sm90"]),
        ("evt emit --dtype b", ["bf16"]),
        ("evt bench --dtype e", ["e4m3", "e5m2"]),
        ("evt emit --route conv-", [route.name for route in ROUTES if route.name.startswith("conv-")]),
        ("evt show --op grouped", ["grouped_gemm"]),
        ("evt emit D=relu(acc) --route evt-3x --config pingpong_19", ["pingpong_192x128x64_1x2"]),
        ("evt emit --arch sm80 --op conv2d D=relu(acc) --config multistage_128x128", ["multistage_128x128x64"]),
        ("evt run samples/conv_relu_add.evt --config halo_232", [f"halo_232x64x{k}" for k in (64, 32, 16)]),
        ("evt emit D=gellu(acc) --config ", [""]),
        ("evt emit --config p", [""]),
        ("evt graph --format ", ["text", "mermaid", "dot", "svg"]),
        ("evt emit --padding s", ["same"]),
        ("evt bench ", ["diff", "plot", "run"]),
        ("evt bench --suite training --baselines eager,evt-", ["eager,evt-measured", "eager,evt-max-autotune"]),
    ],
)
def test_values_are_completed(line: str, expected: list[str]) -> None:
    result = run(**_completing(line))
    assert [each.partition(",")[2] for each in result.stdout.splitlines()] == expected


def test_a_process_completes_values() -> None:
    assert process(**_completing("evt bu")).stdout.decode() == "plain,build\n"


def _completing(line: str) -> dict[str, str]:
    """Return the environment in which a shell asks for the completions of a line."""
    words = line.split()
    place = len(words) if line.endswith(" ") else len(words) - 1
    return {"_EVT_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(place)}


def test_every_file_is_completed() -> None:
    """The shell completes the values that name files."""
    names = ("file", "files", "imports", "json_file", "old", "new", "program", "programs", "others")
    found = []

    def visit(command: click.Command, parent: click.Context) -> None:
        here = click.Context(command, parent=parent, info_name=command.name)
        for each in command.get_params(here):
            if each.type.name == "file" or each.name in names:
                found.append(each.name)
                assert [item.type for item in each.shell_complete(here, "x")] == ["file"], (command.name, each.name)
        if isinstance(command, click.Group):
            for name in command.list_commands(here):
                inner = command.get_command(here, name)
                assert inner is not None
                visit(inner, here)

    visit(main, context())
    assert {"output", "header", *names} == {*found}


@pytest.mark.parametrize(
    ("name", "begins"),
    [("g.svg", "<svg"), ("g.dot", "digraph"), ("g.mmd", "flowchart"), ("g.txt", "gemm\n"), ("G.SVG", "<svg")],
)
def test_a_drawing_has_the_format_of_its_suffix(tmp_path: Path, name: str, begins: str) -> None:
    path = tmp_path / name
    ok("graph", FORMULA, "-o", str(path))
    assert path.read_text().startswith(begins)
    ok("graph", FORMULA, "-o", str(path), "--format", "dot")
    assert path.read_text().startswith("digraph")
    assert ok("graph", FORMULA) == ok("graph", FORMULA, "-o", "-") == ok("graph", FORMULA, "--format", "text")


@pytest.mark.parametrize("name", ["g.png", "g", "g.svg.gz"])
def test_a_suffix_of_no_format_is_refused(tmp_path: Path, name: str) -> None:
    result = run("graph", FORMULA, "-o", str(tmp_path / name))
    assert result.exit_code == 2
    said = " ".join(result.stderr.split())
    assert ".txt (text), .mmd (mermaid), .dot (dot), .svg (svg)" in said
    assert not list(tmp_path.iterdir())
    ok("graph", FORMULA, "-o", str(tmp_path / name), "--format", "svg")


@pytest.mark.parametrize(
    ("environment", "colours"),
    [
        ({}, False),
        ({"FORCE_COLOR": "1"}, True),
        ({"CLICOLOR_FORCE": "1"}, True),
        ({"FORCE_COLOR": "0"}, False),
        ({"CLICOLOR_FORCE": "0"}, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        ({"CLICOLOR_FORCE": "1", "NO_COLOR": ""}, True),
    ],
)
def test_colours_are_asked_for(environment: dict[str, str], colours: bool) -> None:
    unset = dict.fromkeys(("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "CLICOLOR"), "")
    for arguments in (["check", "D = foo(acc)"], ["explain", "E0203"]):
        done = process(*arguments, **{**unset, **environment})
        assert (b"\x1b[" in done.stdout + done.stderr) is colours


def test_the_cache_lists_formulas_routes_and_targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVT_CACHE_DIR", str(tmp_path))
    op = evt.gemm("D = relu(acc + bias)\nE = D*2")
    for key, record in (("a", {"kernel": "evt-3x pingpong"}), ("b", {}), ("c", None)):
        folder = tmp_path / (2 * key) / (64 * key)
        folder.mkdir(parents=True)
        (folder / "kernel.so").write_bytes(b"0")
        (folder / "build.json").write_text(json.dumps(record) if record is not None else "damaged")
        (folder / "kernel.cu").write_text(op.emit("sm90", a="f16", b="f16"))
    for path in (tmp_path, *tmp_path.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    found = {entry["key"][0]: entry for entry in json.loads(ok("cache", "list", "--json"))["entries"]}
    assert found["a"]["formula"] == "D = relu(acc + bias)\nE = D*2"
    assert (found["a"]["target"], found["a"]["kernel"]) == ("sm90", "evt-3x pingpong")
    assert found["b"]["kernel"] in op.emit("sm90", a="f16", b="f16")
    assert (found["c"]["formula"], found["c"]["kernel"]) == ("", "")
    text = ok("cache", "list")
    assert "sm90   evt-3x pingpong\n    D = relu(acc + bias)\n    E = D*2\n" in text
    assert os.linesep.join(text.splitlines()[-1:]).startswith("3 libraries")


def test_measurements_are_exported_with_a_document(tmp_path: Path) -> None:
    file = tmp_path / "times.json"
    assert json.loads(ok("tune", "export", str(file), "--json")) == {"schema": JSON_SCHEMA, "ok": True, "exported": 0}
    assert json.loads(file.read_text()) == json.loads(ok("tune", "export", "-"))
    assert run("tune", "export", "-", "--json").exit_code == 2


def test_the_phases_of_builds() -> None:
    phases = Phases()
    said = [
        phases.after(BuildEvent(kind, key, 0, stage))
        for kind, key, stage in (
            ("start", "a", "device"),
            ("start", "a", "host"),
            ("start", "b", "device"),
            ("end", "a", "device"),
            ("end", "a", "host"),
            ("failed", "b", "device"),
            ("start", "a", "link"),
            ("built", "a", ""),
        )
    ]
    kernel, launcher = "compiling the kernel", "compiling the launcher"
    both = f"{kernel} and {launcher}"
    assert said == [kernel, both, both, both, kernel, "", "linking", ""]
