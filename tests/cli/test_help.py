"""Help in sections, completion of values, formats by suffix, colours on request, and the contents of the cache."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import evt
from evt.cli.sections import COMMANDS
from evt.compilation import BuildEvent, Phases
from evt.plan import ROUTES, TARGETS
from tests.support.command_line import FORMULA, ok, process, run


def test_the_help_is_grouped() -> None:
    text = ok("--help")
    assert [text.index(f"{section}:\n") for section in COMMANDS] == sorted(
        text.index(f"{section}:\n") for section in COMMANDS
    )
    assert "_EVT_COMPLETE=bash_source" in text
    text = ok("emit", "--help")
    places = [text.index(f"\n{each}:\n") for each in ("Options", "Program", "Target and route", "Numerics", "Sizes")]
    assert places == sorted(places)
    assert places[2] < text.index("  --arch NAME") < places[3]
    assert text.count("  --arch NAME") == 1


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("evt bu", ["build"]),
        ("evt emit --arch ", [*TARGETS, "native"]),
        ("evt check --arch sm8", ["sm80", "sm86", "sm89"]),
        ("evt export --arch sm80,sm9", ["sm80,sm90"]),
        ("evt emit --dtype b", ["bf16"]),
        ("evt bench --dtype e", ["e4m3", "e5m2"]),
        ("evt emit --route conv-", [route.name for route in ROUTES if route.name.startswith("conv-")]),
        ("evt show --op grouped", ["grouped_gemm"]),
        ("evt graph --format ", ["text", "mermaid", "dot", "svg"]),
    ],
)
def test_values_are_completed(line: str, expected: list[str]) -> None:
    words = line.split()
    place = len(words) if line.endswith(" ") else len(words) - 1
    done = process(_EVT_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=str(place))
    assert [each.partition(",")[2] for each in done.stdout.decode().splitlines()] == expected


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
