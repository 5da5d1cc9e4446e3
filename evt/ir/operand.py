"""Mainloop fusions: a program split into the formulas of A and B and the epilogue, which share only inputs.

``epilogue_of(dag) -> TypedDag`` is the program without mainloop fusions. ``formula_of(dag, name)`` are the nodes of
one. ``factor_of(dag, name)`` are the nodes of an operand's factor.
"""

from __future__ import annotations

from evt.ir.dag import Builder, Dag, TypedDag, below, prune
from evt.ir.infer import infer
from evt.ir.node import Acc, Element, Feed, Scale


def sides_of(dag: Dag) -> list[frozenset[str]]:
    """Return the dependencies of each node: ``A`` and ``B`` (their elements), ``acc``, or only inputs."""
    sides: list[frozenset[str]] = []
    for node in range(len(dag)):
        op = dag[node]
        own = frozenset({op.name}) if isinstance(op, Element) else frozenset({"acc"} if isinstance(op, Acc) else ())
        sides.append(own.union(*(sides[operand] for operand in dag.arguments(node))))
    return sides


def epilogue_of(dag: TypedDag) -> TypedDag:
    """Return the program without the formulas of its operands and the inputs that only they read."""
    if not (dag.feeds or dag.scales):
        return dag
    builder, renamed = Builder(), dict[int, int]()
    for node in builder.walk(dag):
        if not isinstance(dag[node], Feed | Scale):
            renamed[node] = builder.add(dag[node], *(renamed[operand] for operand in dag.arguments(node)))
    return infer(prune(builder.finish(dag.operation, dag.operands, dag.inputs, dag.outputs, dag.source)))


def formula_of(dag: Dag, name: str) -> list[int]:
    """Return the nodes of an operand's formula, operands first, without its feed."""
    return below(dag, dag.feeds[name])


def factor_of(dag: Dag, name: str) -> list[int]:
    """Return the nodes of an operand's factor, operands first, without its scale."""
    return below(dag, dag.scales[name])
