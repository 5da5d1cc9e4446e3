"""The part of a program that makes a value vary over a mode, for messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from evt.diagnostics import Label
from evt.ir.dag import Dag
from evt.ir.node import Acc, Load, ValueType, shown
from evt.ir.origin import Place


def find_culprit(dag: Dag, types: Sequence[ValueType], values: Iterable[int], mode: str) -> int | None:
    """Return the leaf that gives values a mode: the accumulator, else an input, a pair or a block."""
    leaves, seen = list[int](), set[int]()
    stack = [value for value in values if mode in types[value].modes]
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            inner = [operand for operand in dag.arguments(node) if mode in types[operand].modes]
            leaves += [] if inner else [node]
            stack.extend(inner)
    return min(leaves, key=lambda node: (not isinstance(dag[node], Acc), node), default=None)


def assumed_tile(dag: Dag, node: int | None) -> str | None:
    """Return the name of an input that has rows and columns only because it has no subscript."""
    op = None if node is None else dag[node]
    return op.name if isinstance(op, Load) and dag.input[op.name].batchable else None


def label_of(dag: Dag, types: Sequence[ValueType], node: int | None) -> tuple[Label, ...]:
    """Return a label at the leaf that gives a value its modes."""
    origin = None if node is None else dag.origins[node]
    if node is None or not isinstance(origin, Place):
        return ()
    op, modes = dag[node], f"is [{shown(types[node].modes)}]"
    name = "`acc` " if isinstance(op, Acc) else f"`{op.name}` " if isinstance(op, Load) else ""
    return (Label(origin.span, f"{name}{modes}" + ", because it has no subscript" * bool(assumed_tile(dag, node))),)
