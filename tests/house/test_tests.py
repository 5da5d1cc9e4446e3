"""The tests' own rules: rooms, imports, and the names of chosen configurations."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
#: Folders for tests that need a tool, for tests of no room, and of modules that tests share.
OTHERS = {"cxx", "nvcc", "gpu", "golden", "house", "playground", "samples", "programs", "support"}
#: The name of a configuration: `halo_shared_64x64x64`, `depthwise_4x7`.
CONFIGURATION = re.compile(r"(halo|implicit|pingpong|cooperative|multistage|depthwise|one_sm|two_sm)[a-z_]*_\d+x\d+")
#: The table of the configurations that serve sizes, and tests whose measurements are made up.
TABLES = {"plan/test_speed.py", "bench/test_networks.py", "measured/test_measured.py"}


@pytest.fixture(scope="module")
def trees() -> dict[Path, ast.Module]:
    """Return the modules of the tests as syntax trees."""
    found = (path for path in TESTS.rglob("*.py") if "__pycache__" not in path.parts)
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(found)}


def test_folders_mirror_the_rooms() -> None:
    rooms = {path.stem for path in (ROOT / "evt").iterdir() if path.name != "__pycache__"}
    folders = {path.name for path in TESTS.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders - OTHERS <= rooms
    commands = {"__init__.py", "conftest.py", "epilogue_gate.py", "fuzz_gpu.py"}
    assert {path.name for path in TESTS.glob("*.py")} == commands


def imports(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, str]]:
    """Yield the modules that a module imports from, and the imported names; relative imports are of the tests."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            module = f"tests.{node.module or ''}" if node.level else node.module or ""
            yield from ((module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)


def private_reads(tree: ast.AST) -> Iterator[str]:
    """Yield the private names that a module imports from evt or the tests, or reads from a module of the tests."""
    modules, nodes = set(), list(ast.walk(tree))
    for module, name in imports(nodes):
        if module.partition(".")[0] in ("evt", "tests"):
            if name.startswith("_"):
                yield f"{module}.{name}"
            if module.startswith("tests"):
                modules.add(name)
    for node in nodes:
        match node:
            case ast.Attribute(ast.Name(owner), attribute) if owner in modules and re.match(r"_[^_]", attribute):
                yield f"{owner}.{attribute}"


def test_no_test_reads_private_names(trees: dict[Path, ast.Module]) -> None:
    assert [(str(path), name) for path, tree in trees.items() for name in private_reads(tree)] == []


def test_the_check_of_private_names_sees() -> None:
    code = (
        "from evt.runtime.site import _SITES\nfrom tests.fx import vision\nfrom . import table\nvision._Layer, table._x"
    )
    assert list(private_reads(ast.parse(code))) == ["evt.runtime.site._SITES", "vision._Layer", "table._x"]


def test_no_module_imports_a_test(trees: dict[Path, ast.Module]) -> None:
    tests = {path.stem for path in trees if path.stem.startswith("test_")}
    found = [
        (str(path), name)
        for path, tree in trees.items()
        for module, name in imports(ast.walk(tree))
        if module.startswith("tests") and {module.rpartition(".")[2], name} & tests
    ]
    assert found == []


def configurations(node: ast.AST) -> set[str]:
    """Return the names of configurations among a node's constants."""
    constants = (each.value for each in ast.walk(node) if isinstance(each, ast.Constant))
    return {each for each in constants if isinstance(each, str) and CONFIGURATION.match(each)}


def chosen(tree: ast.AST) -> Iterator[str]:
    """Yield the names of configurations that assertions expect, except the ones that the test asks for."""
    for test in ast.walk(tree):
        if isinstance(test, ast.FunctionDef):
            keywords = [each for each in ast.walk(test) if isinstance(each, ast.keyword) and each.arg == "config"]
            asked = set().union(*(configurations(each.value) for each in keywords))
            for node in ast.walk(test):
                if isinstance(node, ast.Assert):
                    yield from sorted(configurations(node) - asked)


def test_chosen_configurations_are_in_one_table(trees: dict[Path, ast.Module]) -> None:
    """A changed cost model then changes one file; other tests ask for properties of the chosen kernel."""
    others = [path for path in trees if str(path.relative_to(TESTS)) not in TABLES]
    named = [path for path in others if CONFIGURATION.search(path.read_text(encoding="utf-8"))]
    assert [(str(path), name) for path in named for name in chosen(trees[path])] == []


def test_the_check_of_configurations_sees() -> None:
    expected = "halo_64x64x64"
    code = f"def test(): assert made(config='pingpong_64x64x64').name == 'pingpong_64x64x64' != '{expected}'"
    assert list(chosen(ast.parse(code))) == [expected]
