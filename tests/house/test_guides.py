"""The guides for contributors name files and definitions that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDES = [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEXTS = {path: re.sub(r"\s+", " ", path.read_text(encoding="utf-8")) for path in GUIDES}
#: A Python file and a definition in it: `evt/plan/survey.py` `Survey`, or `Survey.plan`.
STEPS = sorted(
    {step for text in TEXTS.values() for step in re.findall(r"`((?:evt|tests)/[\w/]+\.py)` `([\w.]+)`", text)}
)


def defined(body: list[ast.stmt], prefix: str = "") -> set[str]:
    """Return the names that a module defines, and the names that its classes define, as Class.name."""
    found: set[str] = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(prefix + node.name)
        if isinstance(node, ast.ClassDef):
            found |= defined(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.Assign):
            found |= {prefix + target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(prefix + node.target.id)
    return found


def unknown_files(text: str) -> set[str]:
    """Return the files and folders that a text names and that do not exist."""
    named = set(re.findall(r"`((?:evt|tests|codegen|grammar|samples|docs)/[\w./-]*)`", text))
    return {each for each in named if not (ROOT / each).exists()}


@pytest.mark.parametrize(("path", "name"), STEPS)
def test_a_step_exists(path: str, name: str) -> None:
    assert name in defined(ast.parse((ROOT / path).read_text(encoding="utf-8")).body)


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_folders_exist(guide: Path) -> None:
    assert unknown_files(TEXTS[guide]) == set()


def test_every_step_of_a_walk_names_a_definition() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    walks = re.findall(r"^## (Walk: .*?)\n\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    assert len(walks) >= 4
    for title, walk in walks:
        steps = re.findall(r"^(\d+)\. (.*)$", walk, re.MULTILINE)
        assert [int(number) for number, _ in steps] == list(range(1, len(steps) + 1)), title
        assert all(re.match(r"`evt/[\w/]+\.py` `[\w.]+`", step) for _, step in steps), title
    assert len(STEPS) > 50


def test_the_diagram_names_rooms_and_their_functions() -> None:
    """An edge is labelled with the function of a stage, and the room that exports it."""
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    edges = re.findall(r"\|\"(\w+) \(evt/(\w+)\)\"\|", text)
    assert len(edges) >= 9
    for function, room in edges:
        modules = (ROOT / "evt" / room).rglob("*.py")
        assert any(function in defined(ast.parse(path.read_text(encoding="utf-8")).body) for path in modules), function


def test_the_check_sees() -> None:
    source = "A = 1\nB: int = 2\ndef c(): ...\nclass D:\n    e: int\n    def f(self): ..."
    assert defined(ast.parse(source).body) == {"A", "B", "c", "D", "D.e", "D.f"}
    assert unknown_files("`evt/plan/` `evt/none.py` `docs/decisions/none-0.md` `x/y.py`") == {
        "evt/none.py",
        "docs/decisions/none-0.md",
    }
