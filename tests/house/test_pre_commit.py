"""The hooks of pre-commit are the checks that CI runs beside the tests."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONFIG = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def recipe(target: str) -> list[str]:
    """Return the commands of a target of the Makefile."""
    (body,) = re.findall(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    return [line.strip() for line in body.splitlines()]


def hooks() -> list[str]:
    """Return the command of each hook, without the search path that precedes it."""
    found = []
    for entry in re.findall(r"^ +entry: (.*)$", CONFIG, re.MULTILINE):
        shell, option, script = shlex.split(entry)
        assert (shell, option) == ("bash", "-c")
        path, executed, command = script.split(" ", 2)
        assert (path, executed) == ("PATH=.venv/bin:$PATH", "exec")
        found.append(command)
    return found


def test_hooks_are_what_ci_runs() -> None:
    assert hooks() == [*recipe("lint"), *recipe("house")]
    assert "make test" in (ROOT / ".ci/run").read_text(encoding="utf-8")
    assert {"lint", "suite"} <= set(shlex.split(recipe("test")[0]))


def test_hooks_need_no_network() -> None:
    """A hook of another repository would be fetched from it."""
    assert re.findall(r"^ +- repo: (.*)$", CONFIG, re.MULTILINE) == ["local"]
    assert set(re.findall(r"^ +language: (.*)$", CONFIG, re.MULTILINE)) == {"system"}
    assert len(re.findall(r"^ +- id: ", CONFIG, re.MULTILINE)) == len(hooks())


def test_house_rules_are_among_the_tests_of_ci() -> None:
    (command,) = recipe("house")
    assert command.startswith("pytest ")
    words = shlex.split(command)
    ignored = [word.removeprefix("--ignore=") for word in words if word.startswith("--ignore=")]
    assert all((ROOT / each).exists() for each in ("tests/house", *ignored))
    assert "tests/house" in words
    assert "-m 'not slow'" in " ".join(recipe("suite"))
