"""The engine of the rewriting passes: one walk in id order, a rule per node, a new graph.

It keeps two things, so that no rule has to think of them. *Types*: what an operation computes in is decided by the
program as written; conversions that it implies become casts, and constants are marked with a type where the type
would not follow any more. *Modes*: a value that is reduced, paired or stored by blocks of columns varies over the
modes that it had.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from evt.functions import TABLE, Fact
from evt.ir.dag import Builder, TypedDag, prune, reads_accumulator
from evt.ir.dtype import B1, F64, DType
from evt.ir.infer import alone, domain, infer, reduced_type, value_type
from evt.ir.node import Apply, Cast, Const, Feed, Fold, Node, Pick, Reduce, Store, ValueType
from evt.optimise.rounding import is_exact


class TypedBuilder(Builder):
    """A builder that knows the types of its nodes; ``dag`` gives those of the inputs."""

    def __init__(self, dag: TypedDag) -> None:
        super().__init__()
        self.dag = dag
        self.types: list[ValueType] = []
        #: What constants among themselves are computed in.
        self.default = alone(dag)
        #: Whether something is computed or stored in f64.
        self.wide = F64 in ({value.dtype for value in dag.types} | {output.dtype for output in dag.outputs})

    def add(self, node: Node, *operands: int) -> int:
        new = super().add(node, *operands)
        if new == len(self.types):
            self.types.append(value_type(self.dag, node, [self.types[operand] for operand in operands]))
        return new

    def apply(self, function: str, *operands: int) -> int:
        return self.add(Apply(function), *operands)

    def number(self, value: float) -> int:
        return self.add(Const.of(value))

    def literal(self, value: float, dtype: DType) -> int:
        """A constant of a compute type: ``i32(3)``, or ``3`` where that is computed in the type anyway."""
        constant = self.number(value)
        return constant if dtype == self.default else self.add(Cast(dtype), constant)

    def constant(self, node: int) -> float | None:
        """The value of a constant, marked with a type that has it or not."""
        op = self[node]
        if isinstance(op, Cast) and op.dtype == op.dtype.compute:
            inner = self[self.arguments(node)[0]]
            return inner.value if isinstance(inner, Const) and is_exact(op.dtype, inner.value) else None
        return op.value if isinstance(op, Const) else None

    def domain(self, function: str, operands: tuple[int, ...]) -> DType:
        """What an application computes in."""
        return domain(self.dag, function, [self.types[operand] for operand in operands])


#: ``rule(builder, node, operands)``: the id that replaces the node in the new graph, or None for "not me".
#: ``operands`` are ids of the new graph; those of an application that vary have the type it computes in.
Rule = Callable[[TypedBuilder, Node, tuple[int, ...]], "int | None"]


def rewrite(dag: TypedDag, *rules: Rule) -> TypedDag:
    """Rebuild the graph, giving each node to each rule until none applies; dead nodes go.

    A program that would no longer read the accumulator stays as it is.
    """
    builder = TypedBuilder(dag)
    pinned = _pinned(dag)
    renamed: list[int] = []
    for node in range(len(dag)):
        op = dag[node]
        types = [dag.types[operand] for operand in dag.arguments(node)]
        operands = _typed(builder, op, types, tuple(renamed[operand] for operand in dag.arguments(node)))
        new = _rewrite_node(builder, rules, op, operands, pinned[node])
        renamed.append(_converted(builder, new, dag.types[node]))
    rewritten = prune(builder.finish(dag.operation, dag.operands, dag.inputs, dag.outputs, dag.source))
    return infer(rewritten) if reads_accumulator(rewritten) else dag


def _typed(builder: TypedBuilder, op: Node, types: list[ValueType], operands: tuple[int, ...]) -> tuple[int, ...]:
    """The new operands of a node, of which the old had ``types``, converted to what it computes in."""
    if isinstance(op, Reduce | Fold):
        wanted = reduced_type(builder.dag, types[0])
        if reduced_type(builder.dag, builder.types[operands[0]]) != wanted:
            return (builder.add(Cast(wanted), operands[0]),)
    if not isinstance(op, Apply):
        return operands
    wanted = domain(builder.dag, op.function, types)
    conditions = TABLE[op.function].conditions
    converted = [_cast(builder, operand, B1 if slot in conditions else wanted) for slot, operand in enumerate(operands)]
    if builder.domain(op.function, tuple(converted)) != wanted:  # constants only
        slot = next(slot for slot in range(len(converted)) if slot not in conditions)
        converted[slot] = builder.add(Cast(wanted), converted[slot])
    return tuple(converted)


def _cast(builder: TypedBuilder, node: int, wanted: DType) -> int:
    """A value in a compute type. Constants take the type of what they meet."""
    have = builder.types[node]
    if have.dtype.compute == wanted or have.constant or builder.constant(node) is not None:
        return node
    return builder.add(Cast(wanted), node)


def _converted(builder: TypedBuilder, node: int, wanted: ValueType) -> int:
    return node if isinstance(builder[node], Store | Feed) else _cast(builder, node, wanted.dtype.compute)


def _rewrite_node(
    builder: TypedBuilder, rules: tuple[Rule, ...], op: Node, operands: tuple[int, ...], pinned: bool
) -> int:
    for rule in rules:
        new = rule(builder, op, operands)
        if new is None or (pinned and builder.types[new].modes != _modes(builder, op, operands)):
            continue
        # A rule's result is smaller than its input in the rules' common measure, so this ends.
        replaced, arguments = builder[new], builder.arguments(new)
        if (replaced, arguments) == (op, operands) or isinstance(replaced, Store | Feed):
            return new
        return _rewrite_node(builder, rules, replaced, arguments, pinned)
    return builder.add(op, *operands)


def _modes(builder: TypedBuilder, op: Node, operands: tuple[int, ...]) -> tuple[str, ...]:
    return value_type(builder.dag, op, [builder.types[operand] for operand in operands]).modes


def _pinned(dag: TypedDag) -> list[bool]:
    """For each node whether something depends on the modes that its value varies over."""
    pinned = [False] * len(dag)
    for node in reversed(range(len(dag))):
        op = dag[node]
        divided = isinstance(op, Store) and any("/" in mode for mode in dag.output[op.name].modes)
        if pinned[node] or divided or isinstance(op, Reduce | Fold | Pick):
            for operand in dag.arguments(node):
                pinned[operand] = True
    return pinned


def retype(dag: TypedDag, builder: Builder) -> TypedDag:
    """The builder's graph with ``dag``'s interface, pruned and typed."""
    return infer(prune(builder.finish(dag.operation, dag.operands, dag.inputs, dag.outputs, dag.source)))


def constant_operand(builder: TypedBuilder, op: Node, operands: tuple[int, ...]) -> list[tuple[float, int]]:
    """(constant, other operand) of a binary node; on the left only where the function commutes."""
    if not isinstance(op, Apply) or len(operands) != 2:
        return []
    pairs = [(operands[1], operands[0])]
    if Fact.COMMUTATIVE in TABLE[op.function].facts:
        pairs.append((operands[0], operands[1]))
    return [(value, x) for i, x in pairs if (value := builder.constant(i)) is not None]


def is_zero(value: float | None, sign: float = 1.0) -> bool:
    """Whether a constant is the zero of a sign."""
    return value == 0.0 and math.copysign(1.0, value) == sign
