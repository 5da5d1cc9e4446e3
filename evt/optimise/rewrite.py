"""The engine of the rewriting passes: one walk in id order, one rule per node, a new graph.

The engine preserves three properties, so that rules do not have to. *Types*: the written program decides the compute
type of an operation; implied conversions become casts, and constants get a type if it would no longer follow. *Modes*:
a value that is reduced, deinterleaved or stored by blocks of columns keeps the modes that it varied over. *Origins*:
new nodes have the origin of the node that they replace.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from evt.functions import TABLE, Comparison, Fact
from evt.ir.dag import Builder, TypedDag, live_nodes, prune, reads_accumulator, reduced_modes
from evt.ir.dtype import B1, F64, DType
from evt.ir.node import (
    ROOTS,
    Apply,
    Cast,
    Const,
    Interleave,
    Node,
    Pick,
    Reduce,
    ReduceBlocks,
    Store,
    ValueType,
    base,
    is_divided,
)
from evt.ir.value_types import constants_type, domain, interleaved_type, reduced_type, value_type
from evt.optimise.rounding import is_exact


class TypedBuilder(Builder):
    """A builder that knows the types of its nodes. ``dag`` has the types of the inputs."""

    def __init__(self, dag: TypedDag) -> None:
        super().__init__()
        self.dag = dag
        self.types: list[ValueType] = []
        #: The entry of :attr:`Dag.reduced` for each node.
        self.reduced: list[tuple[str, ...]] = []
        self._applied: dict[object, ValueType] = {}
        #: The value of each node that is a constant, with or without a type.
        self._constants: list[float | None] = []
        #: The compute type of operations on constants only.
        self.default = constants_type(dag)
        #: True if something is computed or stored in f64.
        self.wide = F64 in ({value.dtype for value in set(dag.types)} | {output.dtype for output in dag.outputs})

    def add(self, node: Node, *operands: int) -> int:
        new = super().add(node, *operands)
        if new == len(self.types):
            self.types.append(self._type(node, [self.types[operand] for operand in operands]))
            self._constants.append(self._value(node, operands))
            self.reduced.append(reduced_modes(node, [self.reduced[operand] for operand in operands]))
        return new

    def _type(self, node: Node, operands: list[ValueType]) -> ValueType:
        """Return the type of a node. Functions are applied to few different types, and each type is one object."""
        if not isinstance(node, Apply):
            return value_type(self.dag, node, operands)
        key = (node.function, *map(id, operands))
        known = self._applied.get(key)
        if known is None:
            known = self._applied[key] = value_type(self.dag, node, operands)
        return known

    def _value(self, node: Node, operands: tuple[int, ...]) -> float | None:
        if isinstance(node, Const):
            return node.value
        if not isinstance(node, Cast) or node.dtype != node.dtype.compute:
            return None
        inner = self[operands[0]]
        return inner.value if isinstance(inner, Const) and is_exact(node.dtype, inner.value) else None

    def apply(self, function: str, *operands: int) -> int:
        return self.add(Apply(function), *operands)

    def number(self, value: float) -> int:
        return self.add(Const.of(value))

    def literal(self, value: float, dtype: DType) -> int:
        """Return a constant of a compute type: ``i32(3)``, or ``3`` if that has the type by default."""
        constant = self.number(value)
        return constant if dtype == self.default else self.add(Cast(dtype), constant)

    def constant(self, node: int) -> float | None:
        """Return the value of a constant, with or without a type; None for other nodes."""
        return self._constants[node]

    def typed(self) -> TypedDag:
        """Return the new graph, pruned; the original graph if they are equal."""
        dag = self.dag
        made = self.finish(dag.operation, dag.operands, dag.inputs, dag.outputs, dag.source)
        pruned = prune(made)
        if (pruned.table, pruned.inputs) == (dag.table, dag.inputs):
            return dag
        types = tuple([self.types[node] for node in live_nodes(made)])
        kept = (pruned.inputs, dag.outputs, pruned.table, dag.source, pruned.origins)
        return TypedDag(dag.operation, dag.operands, *kept, types)

    def domain(self, function: str, operands: tuple[int, ...]) -> DType:
        """Return the compute type of an application."""
        return domain(self.dag, function, [self.types[operand] for operand in operands])


@dataclass(frozen=True, slots=True)
class Rule:
    """A rewriting rule. ``apply(builder, node, operands)`` returns the new graph's id that replaces the node, or None.

    ``operands`` are ids of the new graph. Varying operands of an application have its compute type. ``keys`` select the
    nodes that the rule sees: functions by name or by a fact about them, other nodes by their class.
    """

    keys: frozenset[object]
    apply: Callable[[TypedBuilder, Any, tuple[int, ...]], int | None]


def on(*keys: str | Fact | type[Node]) -> Callable[[Callable[[TypedBuilder, Any, tuple[int, ...]], int | None]], Rule]:
    """Make a function a rule for the nodes that ``keys`` select."""
    return lambda apply: Rule(frozenset(keys), apply)


def rewrite(dag: TypedDag, *rules: Rule) -> TypedDag:
    """Rebuild the graph, applying the rules to each node until none applies; remove dead nodes.

    A program that would no longer read the accumulator remains unchanged.
    """
    rewriter = _Rewriter(dag, rules)
    renamed: list[int] = []
    nodes = rewriter.builder.walk(dag)
    for _, (op, operands), value, pinned in zip(nodes, dag.table, dag.types, _pinned(dag), strict=True):
        types = [dag.types[operand] for operand in operands]
        new = rewriter.rewrite(op, types, tuple([renamed[operand] for operand in operands]), pinned)
        renamed.append(rewriter.converted(new, value))
    rewritten = rewriter.builder.typed()
    return rewritten if reads_accumulator(rewritten) else dag


class _Rewriter:
    """A builder that adds rewritten nodes to a new graph."""

    def __init__(self, dag: TypedDag, rules: tuple[Rule, ...]) -> None:
        self.builder = TypedBuilder(dag)
        self.rules = rules
        self._for: dict[object, tuple[Rule, ...]] = {}
        #: Functions whose operands need no conversion, with the operands' types as written and now.
        self._settled: set[object] = set()

    def rules_for(self, op: Node) -> tuple[Rule, ...]:
        key = op.function if isinstance(op, Apply) else type(op)
        found = self._for.get(key)
        if found is None:
            facts = TABLE[op.function].facts if isinstance(op, Apply) else ()
            keys = {key, type(op), *facts}
            found = self._for[key] = tuple(rule for rule in self.rules if not keys.isdisjoint(rule.keys))
        return found

    def rewrite(self, op: Node, types: list[ValueType], operands: tuple[int, ...], pinned: bool) -> int:
        """Return the node that replaces one whose operands had ``types``."""
        if isinstance(op, Apply):
            operands = self.arguments(op, types, operands)
        elif isinstance(op, Interleave):
            wanted = interleaved_type(self.builder.dag, types)
            if interleaved_type(self.builder.dag, [self.builder.types[operand] for operand in operands]) != wanted:
                operands = (self.builder.add(Cast(wanted), operands[0]), operands[1])
        elif isinstance(op, Reduce | ReduceBlocks):
            wanted = reduced_type(self.builder.dag, types[0])
            if reduced_type(self.builder.dag, self.builder.types[operands[0]]) != wanted:
                operands = (self.builder.add(Cast(wanted), operands[0]),)
        return self.apply_rules(op, operands, pinned)

    def arguments(self, op: Apply, types: list[ValueType], operands: tuple[int, ...]) -> tuple[int, ...]:
        """Return an application's operands, converted to the compute type that it had with ``types``."""
        builder = self.builder
        now = [builder.types[operand] for operand in operands]
        key = (op.function, *map(id, types), *map(id, now))
        if key in self._settled:
            return operands
        wanted = domain(builder.dag, op.function, types)
        conditions = TABLE[op.function].conditions
        each = [B1 if slot in conditions else wanted for slot in range(len(operands))]
        converted = [self.cast(operand, dtype) for operand, dtype in zip(operands, each, strict=True)]
        if builder.domain(op.function, tuple(converted)) != wanted:  # constants only
            slot = next(slot for slot in range(len(converted)) if slot not in conditions)
            converted[slot] = builder.add(Cast(wanted), converted[slot])
        elif all(value.constant or value.dtype.compute == dtype for value, dtype in zip(now, each, strict=True)):
            self._settled.add(key)
        return tuple(converted)

    def cast(self, node: int, wanted: DType) -> int:
        """Return a value in a compute type. Constants take the type of their operation; truth values become 0 or 1."""
        have, value = self.builder.types[node], self.builder.constant(node)
        if have.dtype.compute == wanted or (wanted != B1 and (have.constant or value is not None)):
            return node
        if value is not None:
            return self.builder.add(Const.of(float(value != 0.0), have.modes))
        return self.builder.add(Cast(wanted), node)

    def converted(self, node: int, wanted: ValueType) -> int:
        return node if isinstance(self.builder[node], ROOTS) else self.cast(node, wanted.dtype.compute)

    def apply_rules(self, op: Node, operands: tuple[int, ...], pinned: bool) -> int:
        builder = self.builder
        for rule in self.rules_for(op):
            new = rule.apply(builder, op, operands)
            if new is None or not _keeps_modes(builder, new, op, operands, pinned):
                continue
            # A rule's result is smaller than its input in a measure common to all rules, so this terminates.
            replaced, arguments = builder[new], builder.arguments(new)
            if (replaced, arguments) == (op, operands) or isinstance(replaced, ROOTS):
                return new
            return self.apply_rules(replaced, arguments, pinned)
        return builder.add(op, *operands)


def _keeps_modes(builder: TypedBuilder, new: int, op: Node, operands: tuple[int, ...], pinned: bool) -> bool:
    """Return whether a node may replace another without changing modes that matter.

    A pinned value keeps its modes, and a block value cannot replace a value of whole columns. Arithmetic after a
    reduction must remain so, because a later kernel computes it.
    """
    if any(builder.reduced[operand] for operand in operands) and not builder.reduced[new]:
        return False
    modes = builder.types[new].modes
    blocks = any(is_divided(mode) for mode in modes)
    if not pinned and not blocks:
        return True
    before = value_type(builder.dag, op, [builder.types[operand] for operand in operands]).modes
    return modes == before if pinned else "n" not in before


def _pinned(dag: TypedDag) -> list[bool]:
    """Return for each node whether something depends on the modes that its value varies over.

    Values over whole columns that combine with a block value count as well.
    """
    pinned = [False] * len(dag)
    has_blocks = any(isinstance(op, ReduceBlocks) for op, _ in dag.table)
    for node in reversed(range(len(dag))):
        op = dag[node]
        divided = isinstance(op, Store) and any(is_divided(mode) for mode in dag.output[op.name].modes)
        mixed = has_blocks and len(_widths(dag, node)) > 1
        if pinned[node] or divided or mixed or isinstance(op, Reduce | ReduceBlocks | Pick | Interleave):
            for operand in dag.arguments(node):
                pinned[operand] = True
    return pinned


def _widths(dag: TypedDag, node: int) -> set[str]:
    """Return the column modes of a node's operands."""
    return {mode for operand in dag.arguments(node) for mode in dag.types[operand].modes if base(mode) == "n"}


def constant_operand(builder: TypedBuilder, op: Node, operands: tuple[int, ...]) -> list[tuple[float, int]]:
    """Return (constant, other operand) of a binary node.

    A constant on the left counts only if the function commutes.
    """
    if not isinstance(op, Apply) or len(operands) != 2:
        return []
    pairs = [(operands[1], operands[0])]
    if Fact.COMMUTATIVE in TABLE[op.function].facts:
        pairs.append((operands[0], operands[1]))
    return [(value, x) for i, x in pairs if (value := builder.constant(i)) is not None]


def is_zero(value: float | None, sign: float = 1.0) -> bool:
    """Return whether a constant is a zero with the given sign."""
    return value == 0.0 and math.copysign(1.0, value) == sign


def comparison_of(op: Node) -> Comparison | None:
    """Return the facts about a comparison; None for any other operation."""
    return TABLE[op.function].comparison if isinstance(op, Apply) else None


def chosen(builder: TypedBuilder, operands: tuple[int, ...]) -> int | None:
    """Rewrite ``where(x < y, x, y) -> min(x, y)``, ``where(x < y, y, x) -> max(x, y)``, if neither is NaN."""
    compared, arguments = comparison_of(builder[operands[0]]), builder.arguments(operands[0])
    if compared is None or not compared.chosen:
        return None
    if arguments == operands[1:]:
        return builder.apply(compared.chosen, *arguments)
    other = TABLE[compared.converse].comparison
    assert other is not None
    return builder.apply(other.chosen, *arguments) if arguments == operands[:0:-1] else None
