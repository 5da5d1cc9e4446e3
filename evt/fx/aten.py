"""Calls of ATen's operators in a graph: their names, and their arguments by name."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

#: The key in ``node.meta`` of what parameters and buffers alone decide.
CONSTANT = "evt_constant"


def operator_name(node: Node) -> str | None:
    """Return ``add.Tensor`` of a call of ``torch.ops.aten.add.Tensor``; also of ``prims``."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return None
    return f"{node.target._schema.name.partition('::')[2]}.{node.target._overloadname}"


def base_name(node: Node) -> str:
    """Return ``add`` of a call of ``torch.ops.aten.add.Tensor``, and nothing of other nodes."""
    return (operator_name(node) or "").partition(".")[0]


def shape_of(node: Node) -> tuple[Any, ...]:
    return tuple(node.meta["val"].shape)


def dtype_of(node: Node) -> torch.dtype:
    found: torch.dtype = node.meta["val"].dtype
    return found


def type_name(dtype: torch.dtype) -> str:
    """Return ``float16`` of ``torch.float16``."""
    return str(dtype).removeprefix("torch.")


def is_tensor(node: object) -> bool:
    return isinstance(node, Node) and isinstance(node.meta.get("val"), torch.Tensor)


def is_constant(node: Node) -> bool:
    """Return whether a node is an attribute of the graph's module, or an input that seldom changes: a parameter."""
    return node.op == "get_attr" or bool(node.meta.get(CONSTANT))


class Arguments:
    """A call's arguments by the operator's own names, defaults included."""

    def __init__(self, node: Node) -> None:
        schema = node.target._schema  # type: ignore[union-attr]
        self.names = [each.name for each in schema.arguments]
        given = dict(zip(self.names, node.args, strict=False))
        defaults = {each.name: each.default_value for each in schema.arguments if each.has_default_value()}
        self.values: dict[str, Any] = {**defaults, **given, **node.kwargs}

    @property
    def first(self) -> Node | None:
        value = self.values[self.names[0]]
        return value if isinstance(value, Node) else None

    def __getitem__(self, name: str) -> Any:
        return self.values.get(name)
