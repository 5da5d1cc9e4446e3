"""CONTRIBUTING.md: the files and functions that it walks through are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
STEPS = re.findall(r"`((?:evt|tests)/[\w/]+\.py)` `(\w+)`", TEXT)


def defined(path: Path) -> set[str]:
    """Return the names that a module defines at its top."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return found


def test_the_walks_have_their_length() -> None:
    walks = re.findall(r"^### .*?, from .*?\n\n(.*?)(?=^##)", TEXT, re.DOTALL | re.MULTILINE)
    assert [len(re.findall(r"^\d+\. `", walk, re.MULTILINE)) for walk in walks] == [16, 11, 7]
    assert len(STEPS) > 35


@pytest.mark.parametrize(("path", "name"), sorted(set(STEPS)))
def test_a_step_is_there(path: str, name: str) -> None:
    assert name in defined(ROOT / path)


def test_files_and_folders_are_there() -> None:
    named = set(re.findall(r"`((?:evt|tests|codegen|grammar)/[\w./]+)`", TEXT)) | {"README.md", "CHANGELOG.md"}
    assert {each for each in named if not (ROOT / each).exists()} == set()
