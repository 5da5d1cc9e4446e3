"""A notebook that runs without Jupyter: ``executed(notebook)``.

``python -m docs.builder.notebook`` runs `docs/notebook.ipynb` and stores the outputs. The output of a cell has the
forms of its last expression, as in Jupyter.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

PATH = Path(__file__).parents[1] / "notebook.ipynb"
#: The methods of a displayed object, and the types of their results.
_FORMS = {"_repr_html_": "text/html", "_repr_svg_": "image/svg+xml"}


def executed(notebook: Mapping[str, Any]) -> dict[str, Any]:
    """Return a notebook with the outputs of its cells, which run in order in one module."""
    module = ModuleType("notebook_cells")
    sys.modules[module.__name__] = module  # Dynamo finds the globals of a function by its module
    cells, count = [], 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            value = _run("".join(cell["source"]), vars(module))
            cell = {**cell, "execution_count": count, "outputs": _outputs(value, count)}
        cells.append(cell)
    return {**notebook, "cells": cells}


def _run(source: str, namespace: dict[str, Any]) -> Any:
    """Run a cell; return the value of its last statement if it is an expression."""
    tree = ast.parse(source)
    last = tree.body[-1] if tree.body else None
    value = last.value if isinstance(last, ast.Expr) else None
    if value is not None:
        tree.body.pop()
    exec(compile(tree, "<cell>", "exec"), namespace)
    return None if value is None else eval(compile(ast.Expression(value), "<cell>", "eval"), namespace)


def _outputs(value: Any, count: int) -> list[dict[str, Any]]:
    if value is None:
        return []
    data = {"text/plain": _lines(repr(value))}
    for method, mime in _FORMS.items():
        if hasattr(value, method):
            data[mime] = _lines(getattr(value, method)())
    return [{"output_type": "execute_result", "execution_count": count, "metadata": {}, "data": data}]


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def read() -> dict[str, Any]:
    """Return the notebook of the manual."""
    notebook: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))
    return notebook


if __name__ == "__main__":
    PATH.write_text(json.dumps(executed(read()), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
