"""The house is in order: light to import, rooms in one direction, the same output every time."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import networkx as nx
import pytest

import evt

ROOT = Path(__file__).parents[2]
MODULES = sorted(path for path in (ROOT / "evt").rglob("*.py") if path.parent.name != "__pycache__")
TESTS = sorted(path for path in (ROOT / "tests").rglob("*.py") if path.parent.name != "__pycache__")
LONGEST = 450
#: Rooms and single modules; each may import those before it, and itself, ``TYPE_CHECKING`` imports included.
ORDER = (
    *("version", "imported", "resources", "untraced", "diagnostics", "html", "errors", "storage", "layout", "settings"),
    *("language", "functions", "ir", "optimise", "plan", "launch", "emission", "request"),
    *("draw", "reference", "eager", "gradient", "compilation", "measured", "estimate", "explanation", "explain"),
    *("runtime", "tuning", "described", "program", "grouped", "support", "workload", "nn", "operators", "export"),
    *("fx", "bench", "farm", "editor", "cli", "__main__"),
)
#: The rooms of the planner in the same way; type-only imports count too.
PLANNER_ORDER = (
    *(
        "verdict",
        "gpus",
        "target",
        "cards",
        "options",
        "batches",
        "tma",
        "geometry",
        "halo_cost",
        "halo_kernels",
        "halo",
        "halo_few",
        "depthwise",
        "group_norm",
    ),
    *("wgrad", "unaligned", "signature", "sizes", "stock", "problem", "configurations", "gemm", "gemm_times"),
    *("gemm_speed", "fields"),
    *(
        "epilogue",
        "staged",
        "fusions",
        "stock_epilogue",
        "plan",
        "quotients",
        "gemv",
        "overwritten",
        "joined",
        "moved",
        "transposed",
        "planar",
        "pairs",
        "invariance",
    ),
    *("rules", "kernels", "routes"),
    *("speed", "survey", "__init__"),
)
#: Imports of later modules within a room that do not count as circles: a value's operators and text import their makers
#: when they are called.
OPERATORS = {
    ("evt.ir.dag", "evt.ir.text"): "str(dag)",
}
#: Modules of one room that import each other, the one for types alone: two halves of one class.
LARGEST_CIRCLE = 2
#: Three outputs and shared values, and the formula of README.
PROGRAMS = (
    "out D, E: f32[m, n], F; z = alpha*acc + bias; E = tanh(z); F = z*E + C; D = F*residual + E*z",
    "D = relu(alpha*acc + beta*C) + residual",
)
EMIT = f"""
import evt
for program in {PROGRAMS!r}:
    for arch in ("sm80", "sm90"):
        print(evt.emit(program, arch=arch))
"""


@pytest.fixture(scope="module")
def trees() -> dict[Path, ast.Module]:
    """Return the modules of evt as syntax trees."""
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in MODULES}


def python(code: str, **environment: str) -> str:
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=ROOT, env={**os.environ, **environment}
    )
    return done.stdout


def test_import_is_light() -> None:
    heavy = ("torch", "numpy", "lark", "networkx", "jinja2", "rich", "click")
    code = f"import sys, evt; print([name for name in {heavy!r} if name in sys.modules])"
    assert python(code) == "[]\n"


@pytest.mark.parametrize(
    ("command", "unused"),
    [
        ("check", ("networkx", "jinja2", "evt.plan", "evt.emission", "evt.draw")),
        ("emit", ("networkx", "evt.draw", "evt.explanation", "evt.explain", "evt.measured")),
        ("show", ("networkx", "jinja2", "evt.plan", "evt.emission", "evt.draw")),
    ],
)
def test_a_command_imports_what_it_uses(command: str, unused: tuple[str, ...]) -> None:
    heavy = ("torch", "numpy", "rich", "evt.compilation", "evt.runtime", "evt.reference", *unused)
    code = (
        f"import sys; from evt.cli import main; sys.argv[1:] = [{command!r}, 'D = acc']\n"
        f"try: main()\nexcept SystemExit as end: assert not end.code, end.code\n"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    assert python(code).splitlines()[-1] == "[]"


def test_every_module_has_a_docstring(trees: dict[Path, ast.Module]) -> None:
    assert [str(path) for path, tree in trees.items() if not ast.get_docstring(tree)] == []


def test_no_module_is_long() -> None:
    found = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in (*MODULES, *TESTS)}
    assert len(found) > 500
    assert {str(path): lines for path, lines in found.items() if lines > LONGEST} == {}


def test_imports_point_one_way(trees: dict[Path, ast.Module]) -> None:
    wrong = []
    for path, tree in trees.items():
        parts = path.relative_to(ROOT / "evt").with_suffix("").parts
        if parts == ("__init__",):
            continue  # the front of the package imports on demand
        allowed = set(ORDER[: ORDER.index(parts[0]) + 1])
        if parts[0] in ("bench", "cli"):
            allowed.add("")  # they use `evt` as a user does
        wrong += [(str(path), name) for name in imported_rooms(tree) if name not in allowed]
    assert wrong == []


def imported_rooms(tree: ast.AST) -> Iterator[str]:
    """Yield the rooms that a module imports; "" for the package itself."""
    names = set(ORDER)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                package, _, rest = alias.name.partition(".")
                if package == "evt":
                    yield rest.partition(".")[0]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute"
            if node.module == "evt":
                yield from (alias.name if alias.name in names else "" for alias in node.names)
            elif (node.module or "").startswith("evt."):
                yield (node.module or "").split(".")[1]


def test_the_check_of_imports_sees() -> None:
    code = """
import evt.compilation.cache
from evt import cli, gemm
if TYPE_CHECKING:
    from evt.program import Program
def f():
    from evt.runtime.call import Caller
"""
    assert set(imported_rooms(ast.parse(code))) == {"compilation", "cli", "", "program", "runtime"}


def import_graph(sources: Mapping[str, str]) -> nx.DiGraph[str]:
    """Which modules name which others in an import anywhere, for types alone too; the front of the package apart."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    for name, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            found = []
            if isinstance(node, ast.Import):
                found = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                inner = [f"{node.module}.{alias.name}" for alias in node.names]
                found = [each if each in sources else str(node.module) for each in inner]
            graph.add_edges_from((name, each) for each in found if each in sources and each != "evt" != name)
    return graph


def circles(graph: nx.DiGraph[str]) -> list[list[str]]:
    """Return the modules that import each other, in circles of more than two."""
    return [sorted(each) for each in nx.strongly_connected_components(graph) if len(each) > LARGEST_CIRCLE]


def module_sources() -> dict[str, str]:
    """Return the text of every module by its dotted name."""
    found = {}
    for path in MODULES:
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text(encoding="utf-8")
    return found


def test_no_modules_import_each_other_in_circles() -> None:
    graph = import_graph(module_sources())
    assert {edge for edge in OPERATORS if not graph.has_edge(*edge)} == set()
    graph.remove_edges_from(OPERATORS)
    assert circles(graph) == []


def test_the_check_of_circles_sees() -> None:
    types_alone = "if TYPE_CHECKING:\n    from evt.a import A"
    sources = {"evt.a": "import evt.b", "evt.b": "def f():\n    from evt import c", "evt.c": types_alone}
    assert circles(import_graph(sources)) == [["evt.a", "evt.b", "evt.c"]]
    assert circles(import_graph({**sources, "evt.c": "import os"})) == []


@pytest.mark.parametrize("room", PLANNER_ORDER)
def test_rooms_of_the_planner_point_one_way(room: str, trees: dict[Path, ast.Module]) -> None:
    allowed = {*PLANNER_ORDER[: PLANNER_ORDER.index(room) + 1]}
    found = [path for path in MODULES if path.relative_to(ROOT / "evt").with_suffix("").parts[:2] == ("plan", room)]
    assert found
    for path in found:
        for node in ast.walk(trees[path]):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("evt.plan"):
                inner = (node.module or "").split(".")[2:3] or [alias.name for alias in node.names]
                assert set(inner) <= allowed, f"{path.name}, line {node.lineno}"


def test_every_room_has_its_place() -> None:
    rooms = {path.relative_to(ROOT / "evt").with_suffix("").parts[0] for path in MODULES}
    assert rooms - {"__init__"} <= set(ORDER)
    of_planner = {
        path.relative_to(ROOT / "evt" / "plan").with_suffix("").parts[0] for path in MODULES if "plan" in path.parts
    }
    assert of_planner <= set(PLANNER_ORDER)


def test_public_names_are_sorted(trees: dict[Path, ast.Module]) -> None:
    """In the order of ruff's RUF022: CONSTANTS, then Classes, then the rest."""
    for path, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                names: list[str] = ast.literal_eval(node.value)
                by_kind = sorted(names, key=lambda each: (not each.isupper(), not each[0].isupper(), each))
                assert names == by_kind, path


def test_what_is_promised_is_there() -> None:
    for found in pkgutil.walk_packages(evt.__path__, "evt."):
        if found.name.endswith("__main__"):
            continue
        if found.name == "evt.editor.server" and importlib.util.find_spec("pygls") is None:
            continue  # the extra `lsp` is not installed
        imported = importlib.import_module(found.name)
        for each in getattr(imported, "__all__", ()):
            assert hasattr(imported, each), f"{found.name}.{each}"


def test_changelog_knows_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## \[?{re.escape(evt.__version__)}\]? - \d{{4}}-\d\d-\d\d$", text, re.MULTILINE)
    assert [line for line in text.splitlines() if len(line) > 120] == []


@pytest.mark.parametrize("seeds", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_output_does_not_depend_on_the_hash_seed(seeds: int) -> None:
    texts = {python(EMIT, PYTHONHASHSEED=str(seed)) for seed in range(seeds)}
    assert len(texts) == 1
    assert texts.pop().count("_run(") >= 2 * len(PROGRAMS)
