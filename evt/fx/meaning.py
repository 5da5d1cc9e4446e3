"""What ATen's operators mean elementwise: ``meaning(node) -> Applied``, in terms of the table of functions.

The rows of :data:`evt.functions.TABLE` name the operators that they are. What is left to say here is what the operators
have beside the function: factors (``alpha`` of an addition), limits that are None, casts, and those that do nothing to
an element.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.fx import Node

from evt.functions import TABLE, Function
from evt.ir.dtype import DType, from_torch_name

#: An operand: a node of the graph, a number, or what another function makes of operands.
Operand = "Node | float | Applied"


@dataclass(frozen=True)
class Applied:
    """A function of the table, or a cast to a type, of operands: nodes, numbers, or more of these."""

    what: Function | DType
    operands: tuple[Any, ...]


@dataclass(frozen=True)
class _Target:
    """An operator that is a row: the row's parameters in the order of the operator's, and the keywords it must have."""

    row: Function
    order: tuple[str, ...]
    keywords: Mapping[str, str]


_PREFIX = "torch.ops.aten."

#: Operators whose elements are those of their first operand, in the same places.
IDENTITIES = ("alias", "clone", "contiguous", "detach", "lift_fresh_copy", "positive")


def meaning(node: Node) -> Applied | Node | None:
    """Return what an operator computes of each element, the operand that it passes on, or None for another operator."""
    name = operator_name(node)
    if name is None:
        return None
    arguments = _Arguments(node)
    base = name.partition(".")[0]
    if base in IDENTITIES:
        return arguments.first
    if base in ("convert_element_type", "_to_copy", "to"):
        dtype = from_torch_name(str(node.meta["val"].dtype).removeprefix("torch."))
        return None if dtype is None or arguments.first is None else Applied(dtype, (arguments.first,))
    special = _SPECIAL.get(name)
    if special is not None:
        return special(arguments)
    for target in _targets().get(name, ()):
        found = arguments.apply(target)
        if found is not None:
            return found
    return None


def operator_name(node: Node) -> str | None:
    """Return ``add.Tensor`` of a call of ``torch.ops.aten.add.Tensor``; also of ``prims``."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return None
    return f"{node.target._schema.name.partition('::')[2]}.{node.target._overloadname}"


class _Arguments:
    """A call's arguments by the operator's own names, defaults included."""

    def __init__(self, node: Node) -> None:
        schema = node.target._schema  # type: ignore[union-attr]
        self.names = [each.name for each in schema.arguments]
        given = dict(zip(self.names, node.args, strict=False))
        defaults = {each.name: each.default_value for each in schema.arguments if each.has_default_value()}
        self.values: dict[str, Any] = {**defaults, **given, **node.kwargs}
        self.extra: dict[str, Any] = {}

    @property
    def first(self) -> Node | None:
        value = self.values[self.names[0]]
        return value if isinstance(value, Node) else None

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def apply(self, target: _Target) -> Applied | None:
        """Return the row applied to the operands, or None where other arguments than the row's are not the defaults."""
        for name, wanted in target.keywords.items():
            if repr(self.values.get(name)) != wanted:
                return None
        row = target.row
        taken, operands = self.names[: len(row.parameters)], {}
        for mine, parameter in zip(taken, target.order, strict=False):
            operands[parameter] = self.values[mine]
        factor = 1.0
        for name in self.names[len(taken) :]:
            value = self.values[name]
            if name in target.keywords:
                continue
            if name in ("alpha", "value") and row.name in ("add", "sub", "fma") and _is_number(value):
                factor = value
            elif name not in _IGNORED or value not in _IGNORED[name]:
                return None
        if not all(_is_operand(value) for value in operands.values()):
            return None
        if factor != 1:
            scaled = {"add": "y", "sub": "y", "fma": "a"}[row.name]
            operands[scaled] = Applied(TABLE["mul"], (operands[scaled], float(factor)))
        ordered = [operands.get(each.name, each.default) for each in row.parameters]
        return None if any(each is None for each in ordered) else Applied(row, tuple(ordered))


#: Arguments beside those of the row that mean nothing with these values.
_IGNORED: Mapping[str, tuple[Any, ...]] = {
    "approximate": ("none",),
    "scale": (1, 1.0),
    "input_scale": (1, 1.0),
    "eps": (None,),
    "generator": (None,),
    "memory_format": (None,),
}


def _clamp(arguments: _Arguments) -> Applied | None:
    """``clamp(x, None, 6)`` is ``min(x, 6)``."""
    x, low, high = arguments["self"], arguments["min"], arguments["max"]
    result: Any = x
    for row, limit in (("max", low), ("min", high)):
        if limit is not None:
            result = Applied(TABLE[row], (result, limit))
    return result if isinstance(result, Applied) else None


def _masked_fill(arguments: _Arguments) -> Applied:
    return Applied(TABLE["where"], (arguments["mask"], arguments["value"], arguments["self"]))


_SPECIAL = {
    "clamp.default": _clamp,
    "clamp.Tensor": _clamp,
    "hardtanh.default": lambda a: Applied(TABLE["hardtanh"], (a["self"], a["min_val"], a["max_val"])),
    "masked_fill.Scalar": _masked_fill,
    "masked_fill.Tensor": _masked_fill,
}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_operand(value: object) -> bool:
    return isinstance(value, Node) or _is_number(value)


@cache
def _targets() -> dict[str, list[_Target]]:
    """The rows by operator; those that ask for keywords come first."""
    found: dict[str, list[_Target]] = {}
    for row in TABLE.values():
        for text in row.targets:
            if text.startswith(_PREFIX):
                name, target = _read_target(row, text.removeprefix(_PREFIX))
                found.setdefault(name, []).append(target)
    for targets in found.values():
        targets.sort(key=lambda target: -len(target.keywords))
    return found


def _read_target(row: Function, text: str) -> tuple[str, _Target]:
    """Read ``rsub.Scalar(y, x)``, ``gelu.default(approximate='tanh')`` or a plain name."""
    name, _, inside = text.removesuffix(")").partition("(")
    order: Sequence[str] = [parameter.name for parameter in row.parameters]
    keywords = dict(re.findall(r"(\w+)=([^,]+)", inside))
    if inside and not keywords:
        order = inside.split(", ")
    return name, _Target(row, tuple(order), keywords)
