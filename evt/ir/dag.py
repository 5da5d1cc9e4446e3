"""The graph: ``Dag`` as lowered, ``TypedDag`` once every value has a type, ``Builder`` to make either.

Nodes live in a frozen ``networkx.MultiDiGraph``: ids are ints in creation order, operands before their users;
an edge runs from operand to user and its key is the operand's slot, so ``z*z`` keeps two edges.
Equal nodes merge (hash-consing), so a common subexpression exists once by construction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import networkx as nx

from evt.diagnostics import Source
from evt.ir.node import Acc, Feed, Input, Load, Node, Operand, Output, Store, ValueType


@dataclass(frozen=True)
class Dag:
    """A program as a graph, before types: undeclared types are None."""

    operation: str
    operands: tuple[Operand, ...]
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    graph: Any = field(compare=False)
    source: Source | None = field(default=None, compare=False)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Dag) or type(other) is not type(self):
            return NotImplemented
        return self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @cached_property
    def _key(self) -> tuple[object, ...]:
        return (self.operation, self.operands, self.inputs, self.outputs, self._table)

    @cached_property
    def _table(self) -> tuple[tuple[Node, tuple[int, ...]], ...]:
        operands: list[list[tuple[int, int]]] = [[] for _ in self.graph]
        for source, users in self.graph.adjacency():
            for user, slots in users.items():
                operands[user].extend((slot, source) for slot in slots)
        return tuple(
            (node, tuple(source for _, source in sorted(pairs)))
            for (_, node), pairs in zip(self.graph.nodes(data="op"), operands, strict=True)
        )

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, node: int) -> Node:
        return self._table[node][0]

    def arguments(self, node: int) -> tuple[int, ...]:
        """The operands of a node, by slot."""
        return self._table[node][1]

    @cached_property
    def users(self) -> tuple[tuple[int, ...], ...]:
        """For each node the nodes that read it, each once, in id order."""
        users: list[list[int]] = [[] for _ in self._table]
        for node, (_, operands) in enumerate(self._table):
            for operand in dict.fromkeys(operands):
                users[operand].append(node)
        return tuple(map(tuple, users))

    @cached_property
    def input(self) -> Mapping[str, Input]:
        return {value.name: value for value in self.inputs}

    @cached_property
    def output(self) -> Mapping[str, Output]:
        return {value.name: value for value in self.outputs}

    @cached_property
    def stores(self) -> Mapping[str, int]:
        """The Store node of each output, in output order."""
        found = {op.name: node for node, (op, _) in enumerate(self._table) if isinstance(op, Store)}
        return {output.name: found[output.name] for output in self.outputs}

    @cached_property
    def feeds(self) -> Mapping[str, int]:
        """The Feed node of each operand that is worked on, A first."""
        found = {op.name: node for node, (op, _) in enumerate(self._table) if isinstance(op, Feed)}
        return dict(sorted(found.items()))

    def __str__(self) -> str:
        from evt.ir.text import format_dag

        return format_dag(self)


@dataclass(frozen=True, eq=False)
class TypedDag(Dag):
    """A program whose operands, inputs, outputs and values all have types."""

    types: tuple[ValueType, ...] = ()

    @cached_property
    def _key(self) -> tuple[object, ...]:
        return (self.operation, self.operands, self.inputs, self.outputs, self._table, self.types)


class Builder:
    """Makes a graph node by node; ``add`` returns the existing id for an equal node."""

    def __init__(self) -> None:
        self._graph: Any = nx.MultiDiGraph()
        self._ids: dict[tuple[Node, tuple[int, ...]], int] = {}
        self._table: list[tuple[Node, tuple[int, ...]]] = []

    def add(self, node: Node, *operands: int) -> int:
        key = (node, operands)
        known = self._ids.get(key)
        if known is not None:
            return known
        new = self._ids[key] = len(self._table)
        self._table.append(key)
        self._graph.add_node(new, op=node)
        for slot, operand in enumerate(operands):
            self._graph.add_edge(operand, new, key=slot)
        return new

    def __getitem__(self, node: int) -> Node:
        return self._table[node][0]

    def arguments(self, node: int) -> tuple[int, ...]:
        return self._table[node][1]

    def __len__(self) -> int:
        return len(self._table)

    def finish(
        self,
        operation: str,
        operands: Iterable[Operand],
        inputs: Iterable[Input],
        outputs: Iterable[Output],
        source: Source | None = None,
    ) -> Dag:
        """Hand the graph on, frozen."""
        return Dag(operation, tuple(operands), tuple(inputs), tuple(outputs), nx.freeze(self._graph), source)


def prune(dag: Dag) -> Dag:
    """The graph without nodes that no output and no operand needs, and without inputs that no node loads."""
    live: set[int] = set()
    stack = [*dag.stores.values(), *dag.feeds.values()]
    while stack:
        node = stack.pop()
        if node not in live:
            live.add(node)
            stack.extend(dag.arguments(node))
    builder, renamed = Builder(), dict[int, int]()
    for node in range(len(dag)):
        if node in live:
            renamed[node] = builder.add(dag[node], *(renamed[operand] for operand in dag.arguments(node)))
    loaded = {op.name for op in (builder[node] for node in range(len(builder))) if isinstance(op, Load)}
    inputs = (value for value in dag.inputs if value.name in loaded)
    return builder.finish(dag.operation, dag.operands, inputs, dag.outputs, dag.source)


def reads_accumulator(dag: Dag) -> bool:
    return any(isinstance(dag[node], Acc) for node in range(len(dag)))
