"""Visitor nodes as text: what each kind of node is in each family of kernels.

A file of ``tests/fixtures/visitors`` has the cases of one kind. A case is a target and a node's name (``reduction``
finds ``reduction_4``), a formula of a product of f16, and after ``=>`` what the emitted text has of that node: the
functor that it computes, its type, and its arguments. A new case needs no fragment: ``pytest
tests/pure/test_visitors.py --update`` writes what is emitted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest

import evt

FIXTURES = Path(__file__).parents[1] / "fixtures/visitors"
SAMPLES = Path(__file__).parents[2] / "samples"
FAMILY = {"sm80": "2x", "sm90": "3x", "sm100": "3x"}


@dataclass(frozen=True)
class Case:
    path: Path
    title: str
    formula: str
    fragment: str

    def __str__(self) -> str:
        fragment = f"{self.fragment}\n" if self.fragment else ""
        return f"# {self.title}\n{self.formula}\n=>\n{fragment}"

    @property
    def target(self) -> str:
        return self.title.partition(", ")[0]

    @property
    def node(self) -> str:
        return self.title.partition(", ")[2]


def read(path: Path) -> list[Case]:
    found = []
    for block in re.split(r"^# ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[2:]:
        title, _, text = block.partition("\n")
        formula, arrow, fragment = text.partition("\n=>\n")
        assert arrow, f"{path.name}: {title} has no `=>`"
        found.append(Case(path, title, formula, fragment.strip("\n")))
    return found


def cases() -> Iterator[Case]:
    for path in sorted(FIXTURES.glob("*.txt")):
        yield from read(path)


@cache
def emitted(formula: str, target: str) -> str:
    return evt.gemm(formula, route=f"evt-{FAMILY[target]}").emit(target, "f16", "f16")


def nodes(text: str) -> dict[str, str]:
    """Return the types of a visitor's nodes by name, with what they are made of; without its trees."""
    section = text[text.index("// The visitor.\n") : text.index("using Visitor = ")]
    found: dict[str, str] = {}
    for declared, name in re.findall(r"^(using (\w+) =\s+[^;]*;)", section, re.MULTILINE):
        if not re.fullmatch(r"Tree\d+|Graph", name):
            node = name.removeprefix("descriptor_of_")
            found[node] = f"{found[node]}\n{declared}" if node in found else declared
    return found


def fragment(text: str, node: str) -> str:
    """Return the part of an emitted text that is about a node."""
    (name,) = [each for each in nodes(text) if re.fullmatch(rf"{node}(_\d+)?", each)]
    structs = re.findall(r"^(struct (\w+) \{\n  using Parameters.*?^\};)", text, re.MULTILINE | re.DOTALL)
    functors = [struct for struct, functor in structs if re.search(rf"\b{functor}\b", nodes(text)[name])]
    arguments = re.findall(rf"^  ((?:arguments_of_{name}|jobs\.{name})\..*;)$", text, re.MULTILINE)
    return "\n".join([*functors, nodes(text)[name], *arguments])


@pytest.mark.parametrize("case", tuple(cases()), ids=lambda case: f"{case.path.stem}: {case.title}: {case.formula}")
def test_node(case: Case, request: pytest.FixtureRequest) -> None:
    found = fragment(emitted(case.formula, case.target), case.node)
    if request.config.getoption("update") and found != case.fragment:
        text = case.path.read_text(encoding="utf-8")
        case.path.write_text(text.replace(str(case), str(replace(case, fragment=found)), 1), encoding="utf-8")
    else:
        assert found == case.fragment, "`--update` writes the fixture"


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("*.txt")), ids=lambda path: path.stem)
def test_a_file_is_its_cases(path: Path) -> None:
    """So that ``--update`` finds what it replaces."""
    heading, *rest = path.read_text(encoding="utf-8").partition("\n\n")
    assert heading.startswith("# Cases of ")
    assert "".join(rest) == "\n\n" + "\n".join(map(str, read(path)))


def templates(declared: str) -> set[str]:
    """Return the templates of nodes."""
    return set(re.findall(r"^using (?!descriptor_of_)\w+ =\s+([\w:]+)", declared, re.MULTILINE))


@pytest.mark.parametrize("target", FAMILY)
def test_every_node_of_the_samples_has_a_fixture(target: str) -> None:
    """In this family of kernels, or in one that has the same node."""
    shown = set[str]().union(*(templates(case.fragment) for case in cases()))
    for path in sorted(SAMPLES.glob("*.evt")):
        try:
            text = evt.load(path, route=f"evt-{FAMILY[target]}").emit(target)
        except evt.EvtError:
            continue  # not a product, or not of this family
        assert templates("\n".join(nodes(text).values())) <= shown, path.stem
