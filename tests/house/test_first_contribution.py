"""The first contribution works: its changes apply to the current code, and the result runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/first-contribution.md").read_text(encoding="utf-8")
#: The changes: a file, and the lines of its one hunk.
CHANGES: list[tuple[str, str]] = re.findall(
    r"^```diff\n--- a/\S+\n\+\+\+ b/(\S+)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE
)


def sides(hunk: str) -> tuple[str, str]:
    """Return the text that a hunk replaces, and its replacement."""
    lines = hunk.splitlines(keepends=True)
    before = "".join(line[1:] for line in lines if line[0] != "+")
    after = "".join(line[1:] for line in lines if line[0] != "-")
    return before, after


@pytest.mark.parametrize(("file", "hunk"), CHANGES, ids=[file for file, _ in CHANGES])
def test_a_change_applies(file: str, hunk: str) -> None:
    before, after = sides(hunk)
    text = (ROOT / file).read_text(encoding="utf-8")
    assert text.count(before) == 1
    assert after not in text


def test_the_tests_that_it_runs_exist() -> None:
    named = re.findall(r"\b(tests/[\w/]+(?:\.\w+)?)(?:::(\w+))?", PAGE)
    assert len(named) > 10
    for file, function in named:
        assert (ROOT / file).exists(), file
        assert not function or f"def {function}(" in (ROOT / file).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the code with the page's changes."""
    copy = tmp_path_factory.mktemp("contribution")
    for folder in ("evt", "grammar", "codegen"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file, hunk in CHANGES:
        if (copy / file).exists():
            text = (copy / file).read_text(encoding="utf-8")
            (copy / file).write_text(text.replace(*sides(hunk)), encoding="utf-8")
    return copy


def run(copy: Path, *words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(copy), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-m", "evt", *words], capture_output=True, encoding="utf-8", cwd=copy, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


FORMULA = "D = ndtr(acc + bias)"


def test_the_function_is_new() -> None:
    command = [sys.executable, "-m", "evt", "check", FORMULA]
    assert subprocess.run(command, capture_output=True, cwd=ROOT).returncode == 1


@pytest.mark.parametrize("stage", ["dag", "gradient"])
def test_stages_are_those_of_the_page(changed: Path, stage: str) -> None:
    shown = PAGE.split(f"$ evt show --stage {stage} '{FORMULA}'\n")[1].split("$ ")[0].split("```")[0]
    printed = run(changed, "show", "--stage", stage, FORMULA)
    assert all(line in ("...", "", *printed.splitlines()) for line in shown.splitlines())


def test_it_is_emitted_and_run(changed: Path) -> None:
    assert "return evt::fn::ndtr(t0);" in run(changed, "emit", FORMULA, "--arch", "sm80", "--dtype", "f16")
    assert " ok\n" in run(changed, "run", FORMULA, "--m", "250", "--n", "120", "--k", "64")
