"""Calls of ATen's operators in a graph: their names, and their arguments by name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, TypeGuard

import torch
from torch._ops import OpOverload
from torch.fx import Node

#: The key in ``node.meta`` that marks values of parameters and buffers alone.
CONSTANT = "evt_constant"


#: Operators of other namespaces than ATen's that have a name here. Operators of other libraries may share ATen's names.
_NAMED = ("prims::convert_element_type", "evt::launch")


def operator_name(node: Node) -> str | None:
    """Return the operator's name with its overload, ``add.Tensor``, for a call of ATen or of :data:`_NAMED`."""
    target = node.target
    return name_of(target) if isinstance(target, OpOverload) and node.op == "call_function" else None


def base_name(node: Node) -> str:
    """Return the operator's name without its overload, ``add``, or "" for other nodes."""
    return (operator_name(node) or "").partition(".")[0]


@cache
def name_of(target: OpOverload) -> str | None:
    """Return the name of an operator with its overload; None for operators of other libraries."""
    space, _, name = target._schema.name.partition("::")
    if space != "aten" and target._schema.name not in _NAMED:
        return None
    return f"{name}.{target._overloadname}"


@cache
def _parameters_of(target: OpOverload) -> tuple[tuple[str, ...], Mapping[str, Any]]:
    """Return the names in an operator's schema, and the defaults."""
    arguments = target._schema.arguments
    defaults = {each.name: each.default_value for each in arguments if each.has_default_value()}
    return tuple(each.name for each in arguments), defaults


def shape_of(node: Node) -> tuple[Any, ...]:
    return tuple(node.meta["val"].shape)


def dtype_of(node: Node) -> torch.dtype:
    found: torch.dtype = node.meta["val"].dtype
    return found


def type_name(dtype: torch.dtype) -> str:
    """Return the name of a type: ``float16`` for ``torch.float16``."""
    return str(dtype).removeprefix("torch.")


def is_tensor(node: object) -> TypeGuard[Node]:
    return isinstance(node, Node) and isinstance(node.meta.get("val"), torch.Tensor)


def is_constant(node: Node) -> bool:
    """Return whether a node is an attribute of the graph's module, or is marked :data:`CONSTANT`."""
    return node.op == "get_attr" or bool(node.meta.get(CONSTANT))


def is_random(node: Node) -> bool:
    """Return whether an operator draws numbers: dropout in evaluation, and attention without dropout, draw none."""
    target = node.target
    if not isinstance(target, OpOverload) or torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    known = {each.name: each.default_value for each in target._schema.arguments if each.has_default_value()}
    known |= dict(zip((each.name for each in target._schema.arguments), node.args, strict=False))
    known |= node.kwargs
    return known.get("train", True) is not False and known.get("dropout_p", 1.0) != 0.0


class Arguments:
    """The arguments of a call by the names in the operator's schema, with defaults."""

    def __init__(self, node: Node) -> None:
        self.names, defaults = _parameters_of(node.target)
        given = zip(self.names, node.args, strict=False)
        self.values: dict[str, Any] = {**defaults, **dict(given), **node.kwargs}

    @property
    def first(self) -> Node | None:
        value = self.values[self.names[0]]
        return value if isinstance(value, Node) else None

    def __getitem__(self, name: str) -> Any:
        return self.values.get(name)
