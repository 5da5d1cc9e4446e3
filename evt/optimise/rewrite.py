"""The engine of the rewriting passes: one walk in id order, a rule per node, a new graph."""

from __future__ import annotations

from collections.abc import Callable

from evt.ir.dag import Builder, TypedDag, prune
from evt.ir.infer import infer
from evt.ir.node import Node

#: ``rule(builder, node, operands)``: the id that replaces the node in the new graph, or None for "not me".
#: ``operands`` are ids of the new graph.
Rule = Callable[[Builder, Node, tuple[int, ...]], "int | None"]


def rewrite(dag: TypedDag, *rules: Rule) -> TypedDag:
    """Rebuild the graph, giving each node to each rule until none applies; dead nodes go."""
    builder = Builder()
    renamed: list[int] = []
    for node in range(len(dag)):
        new = _rewrite_node(builder, rules, dag[node], tuple(renamed[i] for i in dag.arguments(node)))
        renamed.append(new)
    return retype(dag, builder)


def _rewrite_node(builder: Builder, rules: tuple[Rule, ...], op: Node, operands: tuple[int, ...]) -> int:
    for rule in rules:
        new = rule(builder, op, operands)
        if new is not None:
            # A rule's result is smaller than its input in the rules' common measure, so this ends.
            replaced, arguments = builder[new], builder.arguments(new)
            if (replaced, arguments) == (op, operands):
                return new
            return _rewrite_node(builder, rules, replaced, arguments)
    return builder.add(op, *operands)


def retype(dag: TypedDag, builder: Builder) -> TypedDag:
    """The builder's graph with ``dag``'s interface, pruned and typed."""
    return infer(prune(builder.finish(dag.operation, dag.operands, dag.inputs, dag.outputs, dag.source)))
