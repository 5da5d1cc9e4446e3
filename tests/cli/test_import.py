"""``--import``: programs on the command line call functions that a module registers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from evt.functions.testing import temporarily
from tests.support.command_line import ok, run

TWICE = 'import evt\nevt.function("twice(x)", cxx="2.0f * x", torch=lambda x: 2 * x, derivative="2")\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    with temporarily():
        yield tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        *(["emit"], ["check"], ["explain"], ["show"], ["show", "--stage", "gradient"], ["graph"]),
        ["run", "--m", "8", "--n", "8", "--k", "8"],
    ],
)
def test_a_file_registers_functions(folder: Path, arguments: list[str]) -> None:
    (folder / "functions_of_mine.py").write_text(TWICE)
    command, *options = arguments
    assert run(command, "D = twice(acc)").exit_code == 1
    assert run(command, "D = twice(acc)", *options, "--import", "functions_of_mine.py").exit_code == 0


def test_a_module_is_found_in_the_current_folder(folder: Path) -> None:
    (folder / "twice_in_a_module.py").write_text(TWICE)
    assert "ok" in ok("check", "--import", "twice_in_a_module", "D = twice(acc)")


@pytest.mark.parametrize(
    ("text", "name", "status", "said"),
    [
        ("", "no_such_module", 2, "`no_such_module` cannot be imported: ModuleNotFoundError"),
        ("", "none.py", 2, "`none.py` cannot be imported: FileNotFoundError"),
        ("raise SystemExit(3)", "broken.py", 2, "`broken.py` cannot be imported: SystemExit: 3"),
        ("1/0", "broken.py", 2, "`broken.py` cannot be imported: ZeroDivisionError"),
        ("x =", "broken.py", 2, "`broken.py` cannot be imported: SyntaxError"),
        (TWICE.replace('"2"', '"3"'), "broken.py", 1, "error[E0655]: the derivative of `twice`"),
    ],
)
def test_what_cannot_be_imported_is_said(folder: Path, text: str, name: str, status: int, said: str) -> None:
    if text:
        (folder / name).write_text(text)
    result = run("check", "D = acc", "--import", name)
    assert result.exit_code == status
    assert said in " ".join(result.stderr.split())
