"""The manual is true: its examples and commands run, and its tables are complete."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise

import pytest

from evt.diagnostics import CODES
from evt.plan import TARGETS
from tests.support import command_line
from tests.support.documents import DOCUMENTS, ROOT, Block, blocks, run_examples, section

TEXTS = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in DOCUMENTS}


def test_marks_are_known() -> None:
    """An example is run by `make test`, or its mark says when."""
    assert {block.mark for block in blocks("python")} == {"", "slow", "model", "after"}


def test_examples_run() -> None:
    assert run_examples("") == {}


@pytest.mark.slow
@pytest.mark.parametrize("mark", ["slow", "model", "after"])
def test_slow_examples_run(mark: str) -> None:
    assert run_examples(mark) == {}


def test_a_tutorial_needs_nothing_of_the_reader() -> None:
    """A reader who pastes the examples of the front page and the tutorial one after the other can run them all."""
    pages = ("README.md", "docs/tutorial.md")
    assert [block.place for block in blocks("python") if block.mark == "model" and block.place.startswith(pages)] == []


def test_examples_are_short() -> None:
    assert [block.place for block in blocks("python") if block.text.count("\n") > 25] == []


def console() -> list[tuple[str, str, list[str]]]:
    """Return the place of each command of the console blocks, the command, and the output that is shown."""
    found = []
    for block in blocks("console"):
        lines = block.text.splitlines()
        starts = [number for number, line in enumerate(lines) if line.startswith("$ ")]
        for start, end in pairwise([*starts, len(lines)]):
            found.append((block.place, lines[start].removeprefix("$ "), lines[start + 1 : end]))
    return found


@pytest.mark.usefixtures("_no_gpu")
@pytest.mark.parametrize(("place", "command", "shown"), console())
def test_commands_print_what_is_shown(
    place: str, command: str, shown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    name, *words = shlex.split(command)
    assert name == "evt"
    result = command_line.run(*words)
    assert (result.exit_code == 0) != any("error[" in line for line in shown), result.output
    assert re.match(pattern(shown), result.output), result.output


def pattern(shown: list[str]) -> str:
    """Return a pattern for an output: a line `...` stands for any lines, and `...` in a line for any text."""
    parts = (r"(.*\n)*" if line == "..." else f"{re.escape(line).replace(re.escape('...'), '.*')}\n" for line in shown)
    return "".join(parts)


def test_the_pattern_sees() -> None:
    assert re.match(pattern(["a (b)", "...", "c ... d"]), "a (b)\nx\ny\nc 1 d\n")
    assert not re.match(pattern(["a", "c"]), "a\nb\nc\n")


def written() -> list[str]:
    """Return the evt commands of indented blocks and shell blocks, with their continued lines."""
    command = re.compile(r"^(?: {4})?(evt (?:.*\\\n)*.*)$", re.MULTILINE)
    indented = [
        each for text in TEXTS.values() for each in re.findall(r"^ {4}(evt (?:.*\\\n)*.*)$", text, re.MULTILINE)
    ]
    return [*indented, *(each for block in blocks("sh") for each in command.findall(block.text))]


@pytest.mark.parametrize("command", written())
def test_the_options_of_a_command_exist(command: str) -> None:
    """Read the arguments of a command, without running it: some take long, or need nvcc."""
    from evt.cli import main

    command = re.sub(r" --import \S+", "", command)  # a module of the reader
    _, name, *words = shlex.split(command, comments=True)
    parent = command_line.context()
    found = main.get_command(parent, name)
    assert found is not None
    found.make_context(name, words, parent=parent)


def test_named_commands_exist() -> None:
    from evt.cli.entry import COMMANDS

    assert {name for text in TEXTS.values() for name in re.findall(r"`evt ([a-z]+)", text)} <= set(COMMANDS)


def test_the_table_of_rooms_is_complete() -> None:
    rooms = {f"evt/{path.parent.name}" for path in (ROOT / "evt").glob("*/__init__.py")}
    assert set(re.findall(r"^\| `(evt/\w+)` \|", section("docs/architecture.md", "The rooms"), re.MULTILINE)) == rooms


def test_the_table_of_targets_is_complete() -> None:
    rows = "".join(re.findall(r"^\| (`sm.*?) \|", TEXTS["docs/requirements.md"], re.MULTILINE))
    assert set(re.findall(r"sm\d+", rows)) == {target.name for target in TARGETS.values()}
    for text in TEXTS.values():
        assert set(re.findall(r"`(sm\d+)`", text)) <= set(TARGETS)


def test_codes_and_files_exist() -> None:
    for text in TEXTS.values():
        assert set(re.findall(r"\bE\d{4}\b", text)) <= set(CODES)
        for name in re.findall(r"samples/\w+\.\w+|(?<![\w/])tests/\w+(?:/\w+\.py)?", text):
            assert (ROOT / name).exists(), name


@pytest.mark.parametrize("program", ["A = A*s[m, k]; D = acc", "conv2d(A: f16, B: f16); B = 2*B; D = acc"])
def test_unsupported_programs_are_refused(program: str) -> None:
    result = command_line.run("check", program)
    assert result.exit_code == 1
    assert "error[E0901]" in result.output


@pytest.mark.parametrize("block", blocks("evt"), ids=lambda block: block.place)
def test_programs_are_accepted(block: Block) -> None:
    result = command_line.run("check", block.text)
    assert result.exit_code == 0, result.output
