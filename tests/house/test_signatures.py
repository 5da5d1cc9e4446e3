"""Signatures and examples that docstrings quote agree with the code."""

from __future__ import annotations

import ast
import doctest
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted(path for path in (ROOT / "evt").rglob("*.py") if path.parent.name != "__pycache__")
_QUOTED = re.compile(r"``((\w+)\([^`]*)``")


def mismatches(source: str) -> Iterator[str]:
    """Yield the signatures quoted in a module's docstrings that differ from its functions and classes.

    ``f(a, b) -> C`` has the function's first parameters in order, ``...`` for more of them, and its result. Arguments
    that are not names are examples and match any parameter.
    """
    tree = ast.parse(source)
    defined = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            for text, name in _QUOTED.findall(ast.get_docstring(node) or ""):
                if name in defined and not _agrees(defined[name], text):
                    yield text


def _agrees(definition: ast.FunctionDef | ast.ClassDef, text: str) -> bool:
    """Return whether a call, perhaps with a result after ``->``, fits a definition; other texts are not signatures."""
    written, _, result = text.partition(" -> ")
    try:
        expression: ast.AST = ast.parse(written, mode="eval").body
    except SyntaxError:
        return ":" not in written
    calls = [each for each in ast.walk(expression) if isinstance(each, ast.Call)]
    call = next(each for each in calls if isinstance(each.func, ast.Name) and each.func.id == definition.name)
    parameters = _parameters(definition)
    if parameters is None:
        return True
    ordered, named, required = parameters
    values = [each for each in call.args if ast.unparse(each) != "..."]
    keywords = [str(each.arg) for each in call.keywords]
    if len(values) > len(ordered) or not {*keywords} <= {*ordered, *named}:
        return False
    if any(isinstance(each, ast.Name) and each.id != name for each, name in zip(values, ordered, strict=False)):
        return False
    complete = len(values) < len(call.args) or len(values) + len({*keywords} & {*ordered}) >= required
    annotation = getattr(definition, "returns", None) if call is expression else None
    is_type = annotation is not None and re.fullmatch(r"[A-Z]\w+|str|int|bool|None", result)
    return complete and (not is_type or result in re.findall(r"\w+", ast.unparse(annotation)))


def _parameters(definition: ast.FunctionDef | ast.ClassDef) -> tuple[list[str], list[str], int] | None:
    """Return the positional parameters, the keyword-only ones, and the number of required ones; None for any."""
    if isinstance(definition, ast.ClassDef):
        init = next((each for each in definition.body if getattr(each, "name", "") == "__init__"), None)
        if not isinstance(init, ast.FunctionDef):
            return None
        definition = init
    signature = definition.args
    ordered = [each.arg for each in (*signature.posonlyargs, *signature.args) if each.arg not in ("self", "cls")]
    if signature.vararg:
        return None
    return ordered, [each.arg for each in signature.kwonlyargs], len(ordered) - len(signature.defaults)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_signatures_in_docstrings(path: Path) -> None:
    assert list(mismatches(path.read_text(encoding="utf-8"))) == []


DEFINITION = "def f(a, b, *, c=1) -> Plan: ..."


@pytest.mark.parametrize(
    "quoted", ["f(a, b)", "f(a, ...)", "f(a, b) -> Plan", "f(1, 'x')", "f(...)", "f(a, b) -> x", "f(a, b)(c)"]
)
def test_a_right_signature(quoted: str) -> None:
    assert list(mismatches(f'"""Module: ``{quoted}``."""\n{DEFINITION}')) == []


@pytest.mark.parametrize("quoted", ["f(a)", "f(b, a)", "f(a, b, c)", "f(a, b) -> Text", "f(a, d=1)", "f(a: int)"])
def test_a_wrong_signature(quoted: str) -> None:
    assert list(mismatches(f'"""Module: ``{quoted}``."""\n{DEFINITION}')) == [quoted]


def test_examples_run() -> None:
    """Examples that need no GPU and no caller's tensors run as they are printed."""
    found = [path for path in MODULES if ">>>" in path.read_text(encoding="utf-8")]
    assert ROOT / "evt/layout/__init__.py" in found
    for path in found:
        if path == ROOT / "evt/__init__.py":
            continue  # its tensors are the reader's
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        result = doctest.testmod(importlib.import_module(name))
        assert result.attempted
        assert not result.failed
