"""The graph: ``Dag`` after lowering, ``TypedDag`` once every value has a type, ``Builder`` to make either.

Ids are integers in creation order; operands precede their users. Equal nodes merge (hash-consing), so a common
subexpression exists once by construction. A graph is stored as a table of its nodes. A ``networkx.MultiDiGraph`` is
made on request: an edge runs from operand to user, and its key is the operand's slot, so ``z*z`` has two edges.

A graph stores the origins of its nodes separately. A builder gives each new node its current ``origin``. A pass walks
the old graph with :meth:`Builder.walk`, which sets the origin, so that rules do not have to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, TypeAlias

from evt.diagnostics import Source, Span
from evt.ir.node import (
    MODES,
    Acc,
    Feed,
    Input,
    Load,
    Node,
    Operand,
    Output,
    Reduce,
    Scale,
    Store,
    ValueType,
    base,
    index_of,
)
from evt.ir.origin import Origin, Place

#: A node and its operands, by slot.
Entry: TypeAlias = tuple[Node, tuple[int, ...]]


@dataclass(frozen=True)
class Dag:
    """A program as a graph, before type inference; undeclared types are None. ``table`` has its nodes by id.

    ``origins`` are the origins of the nodes, in ``source`` or elsewhere; None for nodes made by hand.
    """

    operation: str
    operands: tuple[Operand, ...]
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    table: tuple[Entry, ...]
    source: Source | None = field(default=None, compare=False)
    origins: tuple[Origin | None, ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.origins:
            object.__setattr__(self, "origins", (None,) * len(self.table))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Dag) or type(other) is not type(self):
            return NotImplemented
        return self._key == other._key

    def __getstate__(self) -> dict[str, object]:
        """Return the fields only: the hash of a text differs between processes, so a pickle must not contain it."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self._key)

    @cached_property
    def _key(self) -> tuple[object, ...]:
        return (self.operation, self.operands, self.inputs, self.outputs, self.table)

    @cached_property
    def graph(self) -> Any:
        """The graph as a frozen ``networkx.MultiDiGraph``, whose nodes have an ``op``."""
        import networkx as nx  # its import takes a tenth of a second

        graph: Any = nx.MultiDiGraph()
        for node, (op, operands) in enumerate(self.table):
            graph.add_node(node, op=op)
            graph.add_edges_from((operand, node, slot) for slot, operand in enumerate(operands))
        return nx.freeze(graph)

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, node: int) -> Node:
        return self.table[node][0]

    def arguments(self, node: int) -> tuple[int, ...]:
        """Return the operands of a node, by slot."""
        return self.table[node][1]

    def where(self, node: int) -> tuple[Source, Span] | None:
        """Return the expression of the program's text that a node comes from, or None."""
        origin = self.origins[node]
        return (self.source, origin.span) if isinstance(origin, Place) and self.source is not None else None

    @cached_property
    def users(self) -> tuple[tuple[int, ...], ...]:
        """The users of each node, each once, in id order."""
        users: list[list[int]] = [[] for _ in self.table]
        for node, (_, operands) in enumerate(self.table):
            for operand in dict.fromkeys(operands):
                users[operand].append(node)
        return tuple(map(tuple, users))

    @cached_property
    def reduced(self) -> tuple[tuple[str, ...], ...]:
        """The modes over which each node, or one of its operands, is reduced when the kernel ends."""
        found: list[tuple[str, ...]] = []
        for op, operands in self.table:
            found.append(reduced_modes(op, [found[operand] for operand in operands]))
        return tuple(found)

    @cached_property
    def input(self) -> Mapping[str, Input]:
        return {value.name: value for value in self.inputs}

    @cached_property
    def output(self) -> Mapping[str, Output]:
        return {value.name: value for value in self.outputs}

    @cached_property
    def primary(self) -> Output:
        """The output that a kernel is built around: D, else the first whole matrix, else the first output."""
        named = (value for value in self.outputs if value.name == "D")
        whole = (value for value in self.outputs if value.is_whole)
        return next(named, None) or next(whole, self.outputs[0])

    @cached_property
    def stores(self) -> Mapping[str, int]:
        """The Store node of each output, in output order."""
        found = {op.name: node for node, (op, _) in enumerate(self.table) if isinstance(op, Store)}
        return {output.name: found[output.name] for output in self.outputs}

    @cached_property
    def feeds(self) -> Mapping[str, int]:
        """The Feed node of each operand with a mainloop fusion, A first."""
        found = {op.name: node for node, (op, _) in enumerate(self.table) if isinstance(op, Feed)}
        return dict(sorted(found.items()))

    @cached_property
    def scales(self) -> Mapping[str, int]:
        """The Scale node of each operand that has one, A first."""
        found = {op.name: node for node, (op, _) in enumerate(self.table) if isinstance(op, Scale)}
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
        return (self.operation, self.operands, self.inputs, self.outputs, self.table, self.types)


class Builder:
    """A builder of graphs. ``add`` returns the existing id for an equal node; a new node gets ``origin``."""

    def __init__(self) -> None:
        self._ids: dict[Entry, int] = {}
        self.table: list[Entry] = []
        self.origin: Origin | None = None
        self.origins: list[Origin | None] = []

    def add(self, node: Node, *operands: int) -> int:
        entry = (node, operands)
        known = self._ids.get(entry)
        if known is None:
            known = self._ids[entry] = len(self.table)
            self.table.append(entry)
            self.origins.append(self.origin)
        return known

    def walk(self, dag: Dag) -> Iterator[int]:
        """Yield the nodes of another graph in id order. Nodes added before the next one get its origin."""
        for node, self.origin in enumerate(dag.origins):
            yield node

    def __getitem__(self, node: int) -> Node:
        return self.table[node][0]

    def arguments(self, node: int) -> tuple[int, ...]:
        return self.table[node][1]

    def __len__(self) -> int:
        return len(self.table)

    def finish(
        self,
        operation: str,
        operands: Iterable[Operand],
        inputs: Iterable[Input],
        outputs: Iterable[Output],
        source: Source | None = None,
    ) -> Dag:
        """Return the finished graph."""
        table, origins = tuple(self.table), tuple(self.origins)
        return Dag(operation, tuple(operands), tuple(inputs), tuple(outputs), table, source, origins)


def reduced_modes(op: Node, operands: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the entry of :attr:`Dag.reduced` for a node, from the entries of its operands."""
    own = op.modes if isinstance(op, Reduce) else ()
    if not own and not any(operands):
        return ()
    found = {*own, *(mode for modes in operands for mode in modes)}
    return tuple(sorted(found, key=lambda mode: (MODES.index(base(mode)), mode)))


def prune(dag: Dag) -> Dag:
    """Return the graph without nodes that no output and no operand needs, and without inputs that no node loads."""
    live = live_nodes(dag)
    if len(live) == len(dag) and read_inputs(dag).issuperset(dag.input):
        return dag
    renamed = {old: new for new, old in enumerate(live)}
    table = tuple(
        (op, tuple([renamed[each] for each in operands])) for op, operands in map(dag.table.__getitem__, live)
    )
    origins = tuple(map(dag.origins.__getitem__, live))
    kept = Dag(dag.operation, dag.operands, dag.inputs, dag.outputs, table, dag.source, origins)
    read = read_inputs(kept)
    return replace(kept, inputs=tuple(value for value in dag.inputs if value.name in read))


def index_inputs(dag: Dag) -> set[str]:
    """Return the inputs that index other inputs or outputs."""
    values: tuple[Input | Output, ...] = (*dag.inputs, *dag.outputs)
    return {index_of(mode) for value in values for mode in value.modes if index_of(mode)}


def read_inputs(dag: Dag) -> set[str]:
    """Return the inputs that are loaded or multiplied, or that index inputs or outputs."""
    loaded = {op.name for op, _ in dag.table if isinstance(op, Load)}.union(factors(dag))
    values: tuple[Input | Output, ...] = (*(dag.input[name] for name in loaded if name in dag.input), *dag.outputs)
    return loaded.union(index_of(mode) for value in values for mode in value.modes)


def live_nodes(dag: Dag) -> list[int]:
    """Return the nodes that outputs and operands need, in id order."""
    live: set[int] = set()
    stack = [*dag.stores.values(), *dag.feeds.values(), *dag.scales.values()]
    while stack:
        node = stack.pop()
        if node not in live:
            live.add(node)
            stack.extend(dag.arguments(node))
    return sorted(live)


def below(dag: Dag, root: int) -> list[int]:
    """Return the nodes that a root depends on, operands first."""
    needed: set[int] = set()
    stack = [*dag.arguments(root)]
    while stack:
        node = stack.pop()
        if node not in needed:
            needed.add(node)
            stack.extend(dag.arguments(node))
    return sorted(needed)


def factors(dag: Dag) -> tuple[str, ...]:
    """Return the inputs that A is multiplied with, beside B."""
    return tuple(op.name for op, _ in dag.table if isinstance(op, Acc) and op != Acc())


def reads_accumulator(dag: Dag) -> bool:
    return any(op == Acc() for op, _ in dag.table)
