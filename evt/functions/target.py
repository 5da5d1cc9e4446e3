"""The targets of a row in torch.fx graphs: ``read_target("torch.rsub(y, x)") -> Target``."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from typing import Any


@dataclass(frozen=True, slots=True)
class Target:
    """A target that computes a row: ``path`` begins with `torch`, `operator` or `Tensor`.

    ``order`` has the row's parameters in the target's order, and is empty if that is the row's order. ``given`` has the
    required keyword arguments.
    """

    path: tuple[str, ...]
    order: tuple[str, ...] = ()
    given: tuple[tuple[str, Any], ...] = ()


@cache
def read_target(text: str) -> Target:
    """Return a parsed entry of :attr:`evt.functions.Function.targets`."""
    root = ast.parse(text, mode="eval").body
    if not isinstance(root, ast.Call):
        return Target(tuple(ast.unparse(root).split(".")))
    order = tuple(ast.unparse(argument) for argument in root.args)
    given = tuple((str(keyword.arg), ast.literal_eval(keyword.value)) for keyword in root.keywords)
    return Target(tuple(ast.unparse(root.func).split(".")), order, given)
