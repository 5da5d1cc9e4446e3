"""The README is true: its examples run, and its tables are complete."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from evt.diagnostics import CODES
from evt.functions import TABLE
from evt.plan import TARGETS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def example(language: str) -> str:
    """Return the code block under the comment that announces it."""
    marker = f"<!-- {language} example: run by tests/house/test_readme.py -->\n```{language}\n"
    return README.split(marker)[1].split("```")[0]


def section(title: str) -> str:
    return README.split(f"\n## {title}\n")[1].split("\n## ")[0]


def commands() -> list[str]:
    """Return the commands of the console example, and the ones of the installation."""
    installed = re.findall(r"^    (evt .*)$", section("Install"), re.MULTILINE)
    assert len(installed) == 2
    return [*installed, *(line.removeprefix("$ ") for line in example("console").splitlines())]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "error"}
    return subprocess.run([sys.executable, *words], capture_output=True, encoding="utf-8", cwd=ROOT, env=environment)


def test_the_python_example_runs() -> None:
    done = run("-c", example("python"))
    assert done.returncode == 0, done.stderr
    assert (
        "<evt.Program gemm(A[m, k]*, B[k, n]*): alpha*, beta*, C[m, n]*, residual[m, n]* -> D[m, n]*; * inferred>"
        in done.stdout
    )
    assert len([line for line in example("python").splitlines() if line]) <= 20


def other_examples() -> list[str]:
    """Return the Python examples after the first."""
    marker = "<!-- python example: run by tests/house/test_readme.py -->\n```python\n"
    return [text.split("```")[0] for text in README.split(marker)[2:]]


@pytest.mark.parametrize("text", other_examples(), ids=lambda text: text.splitlines()[-1])
def test_the_other_examples_run(text: str) -> None:
    assert text.count("\n") < 20
    done = run("-c", text)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", commands())
def test_the_commands_run(command: str) -> None:
    name, *words = shlex.split(command)
    assert name == "evt"
    done = run("-m", "evt", *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def indented_commands() -> list[str]:
    """Return the evt commands of the indented blocks, with their continued lines."""
    return re.findall(r"^    (evt (?:.*\\\n)*.*)$", README, re.MULTILINE)


@pytest.mark.parametrize("command", indented_commands())
def test_the_options_of_a_command_exist(command: str) -> None:
    """Read the arguments of a command, without running it: some take long, or need nvcc."""
    from evt.cli import main

    _, name, *words = shlex.split(command, comments=True)
    found = main.get_command(click.Context(main), name)
    assert found is not None
    found.make_context(name, words)


def test_every_command_is_named() -> None:
    from evt.cli.entry import COMMANDS

    assert [command for command in COMMANDS if f"evt {command}" not in README] == []
    assert set(re.findall(r"`evt ([a-z]+)", README)) <= set(COMMANDS)


def test_the_table_of_rooms_is_complete() -> None:
    rooms = {f"evt/{path.parent.name}" for path in (ROOT / "evt").glob("*/__init__.py")}
    assert set(re.findall(r"^\| `(evt/\w+)` \|", section("How it works"), re.MULTILINE)) == rooms
    for name in re.findall(r"`(\w+/)`", section("How it works")):
        assert (ROOT / name).is_dir()


def test_the_table_of_functions_is_complete() -> None:
    table = README.split("<!-- functions:")[1].split("<!-- end of functions -->")[0]
    assert re.findall(r"`([^`]+\))`", table) == [str(row) for row in TABLE.values()]


def test_the_table_of_targets_is_complete() -> None:
    rows = "".join(re.findall(r"^\| (`sm.*?) \|", section("Requirements"), re.MULTILINE))
    named = set(re.findall(r"sm\d+", rows))
    assert named == {target.name for target in TARGETS.values()}
    assert set(re.findall(r"`(sm\d+)`", README)) == set(TARGETS)


def test_its_codes_and_files_exist() -> None:
    assert set(re.findall(r"E\d{4}", README)) <= set(CODES)
    for name in re.findall(r"samples/\w+\.evt|tests/\w+(?:/\w+\.py)?|CHANGELOG\.md|evt/\w+\.py", README):
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize("program", ["A = A*s[m, k]; D = acc", "conv2d(A: f16, B: f16); B = 2*B; D = acc"])
def test_what_is_not_supported_yet_is_refused(program: str) -> None:
    done = run("-m", "evt", "check", program)
    assert done.returncode == 1
    assert "error[E0901]" in done.stderr


def test_the_language_example_is_a_program() -> None:
    (text,) = re.findall(r"```\n# comment.*?\n(gemm.*?)```", section("The language"), re.DOTALL)
    assert run("-m", "evt", "check", text).returncode == 0
