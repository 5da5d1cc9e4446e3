"""Golden files: the whole output of the compiler for each case of ``cases.txt``.

``NAME.cu`` is the emitted C++ with a list of the pasted headers instead of their text. ``NAME.txt`` is the plan and the
text of ``evt explain``. A block of an earlier case is printed as a reference to that case. So a change of a template
shows in one file. ``pytest tests/golden --update`` writes the files and deletes those without a case.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

import evt
from evt.functions.testing import temporarily
from evt.plan import ROUTES
from evt.plan.target import Family
from tests.support.command_line import ok
from tests.support.plans import STEPS

FOLDER = Path(__file__).parent
SAMPLES = FOLDER.parents[1] / "samples"


@dataclass(frozen=True)
class Case:
    name: str
    options: tuple[str, ...]
    program: str


def cases() -> Iterator[Case]:
    """Yield the cases: the paragraphs whose first line is no comment."""
    for paragraph in (FOLDER / "cases.txt").read_text(encoding="utf-8").split("\n\n"):
        first, _, program = paragraph.strip("\n").partition("\n")
        if not first.startswith("#"):
            name, *options = shlex.split(first)
            yield Case(name, tuple(options), program)


CASES = tuple(cases())


@cache
def source(case: Case) -> tuple[str, ...]:
    """Return the paragraphs of a case's C++.

    Leave out evt's version, the text of the pasted headers, and the schema, which repeats the struct's members.
    """
    text = ok("emit", case.program, *case.options, "--name", "golden")
    pasted = re.search(r"^// PASTED\b[^\n]*\n// -+\n\n(.*?)^// -+\n// YOUR EPILOGUE\n", text, re.MULTILINE | re.DOTALL)
    assert pasted is not None
    headers = re.findall(r"^// evt/[\w/]+\.hpp\n", pasted[1], re.MULTILINE)
    text = text.replace(pasted[1], "".join([*headers, "\n"]), 1)
    text = re.sub(r'(?<=return "){\\"abi.*?(?=";$)', "...", text, count=1, flags=re.MULTILINE)
    return tuple(text.replace(f"by evt {evt.__version__} ", "by evt ", 1).split("\n\n"))


@cache
def decisions(case: Case) -> tuple[str, ...]:
    """Return the sections of a case's plan and of its explanation, where each route is a section.

    Leave out the plan's parameters and fields, which the C++ declares.
    """
    plan = ok("show", "--stage", "plan", case.program, *case.options).rstrip("\n")
    plan = re.sub(r"^(parameters|fields):\n(  .*\n)*", "", plan, flags=re.MULTILINE)
    explained = ok("explain", "--verbose", case.program, *case.options).rstrip("\n")
    return (*re.split(r"\n(?=\w)", plan), "explain:", *re.split(r"\n(?=(?:->|  ) [\w-]+: |\w)", explained))


#: For each kind of file: its blocks, their separator, and the reference to an equal block of an earlier case.
KINDS = {".cu": (source, "\n\n", "// ... as in {}: {:.50}"), ".txt": (decisions, "\n", "  ... as in {}: {:.50}")}


def output(case: Case, kind: str) -> str:
    """Return the text of a case's file."""
    blocks, separator, reference = KINDS[kind]
    earlier = CASES[: CASES.index(case)]
    found = []
    for block in blocks(case):
        first, newline, _ = block.partition("\n")
        same = next((each.name for each in earlier if block in blocks(each)), None) if newline else None
        found.append(reference.format(same, first.strip()) if same else block)
    return separator.join(found).rstrip("\n") + "\n"


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_output(case: Case, kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER)  # where the options find user_functions.py
    with temporarily():
        found = output(case, kind)
    path = FOLDER / f"{case.name}{kind}"
    if request.config.getoption("update"):
        path.write_text(found, encoding="utf-8")
    assert found == path.read_text(encoding="utf-8"), "`pytest tests/golden --update` writes the file"


def test_every_file_has_a_case(request: pytest.FixtureRequest) -> None:
    files = {path for path in FOLDER.iterdir() if path.suffix in KINDS and path.stem != "cases"}
    stale = {path for path in files if path.stem not in {case.name for case in CASES}}
    if request.config.getoption("update"):
        for path in stale:
            path.unlink()
    else:
        assert not stale, "`pytest tests/golden --update` deletes them"


def shown() -> dict[str, set[tuple[str, str]]]:
    """Return the families and the kinds of visitor nodes in the cases' plans, by route."""
    found: dict[str, set[tuple[str, str]]] = {}
    for case in CASES:
        text = (FOLDER / f"{case.name}.txt").read_text(encoding="utf-8")
        (route,), (family,) = (re.findall(rf"^{name}: (\S+)", text, re.MULTILINE) for name in ("route", "family"))
        found.setdefault(route, set()).update((family, kind) for kind in re.findall(r"^    \d+: (\w+)", text, re.M))
    return found


def test_every_route_family_and_node_has_a_case() -> None:
    routes = shown()
    assert set(routes) == {route.name for route in ROUTES}
    families, kinds = (set(each) for each in zip(*set().union(*routes.values()), strict=True))
    assert families == set(get_args(Family))
    assert kinds >= {node.__name__ for node in STEPS}


@pytest.mark.parametrize("arch", ["sm80", "sm90", "sm100"])
def test_every_node_of_the_samples_has_a_case_in_its_family(arch: str) -> None:
    pairs = set().union(*shown().values())
    for path in sorted(SAMPLES.glob("*.evt")):
        try:
            plan = evt.load(path, route="evt").plan(arch)
        except evt.EvtError:
            continue
        if plan.family in ("2x", "3x", "sm100"):
            assert {(plan.family, type(node).__name__) for node in plan.epilogue.steps} <= pairs, path.stem
