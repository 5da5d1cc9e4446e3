"""`evt build`, `evt doctor` and `evt cache`."""

from __future__ import annotations

import json
import os
import re
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import evt
from evt.compilation import BuildEvent, Check, Toolchain
from evt.version import JSON_SCHEMA
from tests.support.command_line import FORMULA, document, ok, run


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replace evt.compilation.build; return its answers."""
    path = tmp_path / "cached" / "kernel.so"
    path.parent.mkdir()
    path.write_bytes(b"\x7fELF library")

    def build(sources: Any, *, on_event: Callable[[BuildEvent], None], **_: object) -> list[Path]:
        assert [source.gencode for source in sources] == ["sm_90a"]
        assert [source.text for source in sources] in ([evt.emit(FORMULA)], [evt.emit(FORMULA, name="mine")])
        on_event(BuildEvent("hit", "key", 0))
        return [path]

    monkeypatch.setattr("evt.compilation.builder.build", build)
    return path


def test_build(library: Path, tmp_path: Path) -> None:
    path, header = tmp_path / "mine.so", tmp_path / "mine.h"
    told = f"{path}: from the cache; {header} declares mine_run\n"
    assert ok("build", FORMULA, "-o", str(path), "--name", "mine") == told
    assert path.read_bytes() == library.read_bytes()
    assert os.access(path, os.X_OK)
    assert not os.access(header, os.X_OK)
    assert header.read_text() == ok("emit", FORMULA, "--name", "mine", "-o", os.devnull, "--header", "-")
    assert "int mine_run(mine_arguments const* arguments, size_t size, void* stream);" in header.read_text()
    assert sorted(os.listdir(tmp_path)) == ["cached", "mine.h", "mine.so"]


@pytest.mark.parametrize(
    ("name", "header"), [("x.so", "x.h"), ("libx.so.1.2", "libx.h"), ("x", "x.h"), ("a.b", "a.b.h")]
)
def test_the_header_is_beside_the_library(library: Path, tmp_path: Path, name: str, header: str) -> None:
    ok("build", FORMULA, "-o", str(tmp_path / name))
    assert sorted(os.listdir(tmp_path)) == sorted(["cached", name, header])
    ok("build", FORMULA, "-o", str(tmp_path / name))  # which replaces its own


def test_where_there_is_no_place_for_a_header(library: Path, tmp_path: Path) -> None:
    assert ok("build", FORMULA, "-o", os.devnull) == f"{os.devnull}: from the cache\n"
    assert run("build", FORMULA, "-o", "-").stdout_bytes == library.read_bytes()
    assert os.listdir(tmp_path) == ["cached"]


def test_the_users_own_header_is_not_lost(library: Path, tmp_path: Path) -> None:
    path, own = tmp_path / "mine.so", tmp_path / "mine.h"
    own.write_text("int mine(void);\n")
    refused = run("build", FORMULA, "-o", str(path))
    assert refused.exit_code == 2
    assert "which evt has not written; name another file by --header." in refused.stderr
    assert own.read_text() == "int mine(void);\n"
    assert not path.exists()
    ok("build", FORMULA, "-o", str(path), "--header", str(tmp_path / "other.h"))
    assert sorted(os.listdir(tmp_path)) == ["cached", "mine.h", "mine.so", "other.h"]
    for command in ("emit", "build"):
        refused = run(command, FORMULA, "-o", str(path), "--header", str(path))
        assert refused.exit_code == 2
        assert "the same file" in refused.stderr


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_neither_or_both(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """A failure during the second write leaves the first file unchanged, and no other file."""
    path, header = tmp_path / "mine.so", tmp_path / "mine.h"
    ok("build", FORMULA, "-o", str(path), "--name", "mine")
    before = header.read_bytes()
    opened, fdopen = [], os.fdopen

    def second_fails(*arguments: Any) -> Any:
        opened.append(fdopen(*arguments))
        if len(opened) == 2:
            opened[-1].close()
            raise error
        return opened[-1]

    monkeypatch.setattr(os, "fdopen", second_fails)
    assert run("build", FORMULA, "-o", str(path)).exit_code == (2 if isinstance(error, OSError) else 130)
    assert header.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["cached", "mine.h", "mine.so"]


@pytest.mark.parametrize("name", ["", "1x", "a-b", "a b", "_x", "ä", "x\n", "x" * 61, "a::b"])
def test_a_name_that_is_none_in_c(library: Path, tmp_path: Path, name: str) -> None:
    for command in ("emit", "build"):
        refused = run(command, FORMULA, "--name", name, "-o", str(tmp_path / "x"))
        assert refused.exit_code == 1
        assert "error[E0607]: `name` is " in refused.stderr
        (suggested,) = re.findall(r"help: name it `(\w+)`", refused.stderr)
        assert ok("emit", FORMULA, "--name", suggested)
    assert os.listdir(tmp_path) == ["cached"]


def test_build_refuses_before_it_builds(library: Path) -> None:
    library.unlink()
    assert run("build", FORMULA, "-o", "/nonexistent/x.so").exit_code == 2
    assert run("build", FORMULA, "-o", "x.so", "--arch", "sm70").exit_code == 1


def test_print_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    tools = Toolchain(
        Path("/opt/my cuda/nvcc"), "13.0.88", Path("/opt/cutlass/include"), "4.2.0", evt_include=Path("/evt")
    )
    monkeypatch.setattr("evt.compilation.find_toolchain", lambda: tools)
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
    monkeypatch.setattr("evt.compilation.diagnose", lambda: CHECKS)
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
    monkeypatch.setattr("evt.compilation.diagnose", lambda: [CHECKS[0], CHECKS[2]])
    assert "can be built here, but not run" in ok("doctor")
    assert json.loads(ok("doctor", "--json"))["ok"] is True
    monkeypatch.setattr("evt.compilation.diagnose", lambda: [CHECKS[0], Check("GPU 0", True, "H200", required=False)])
    assert "can be built and run here" in ok("doctor")


@pytest.fixture
def filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a cache of three libraries of 1, 2 and 3 MB, last used 40, 20 and 0 days ago."""
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
    assert json.loads(ok("cache", "path", "--json")) == {
        "schema": JSON_SCHEMA,
        "ok": True,
        "path": str(filled),
    }
    assert ok("cache", "size") == "3 libraries, 6.0 MB\n"
    found = json.loads(ok("cache", "list", "--json"))
    assert found["count"] == 3
    assert [entry["key"][:2] for entry in found["entries"]] == ["0a", "1a", "2a"]
    assert set(found["entries"][0]) == {"key", "library", "size_bytes", "used", "formula", "target", "kernel"}
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
