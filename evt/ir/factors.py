"""Factors of operands: ``peel(graph, name, value)`` takes the outermost ones off a formula.

``multiply_sums(dag)`` lets the factors of a converted B multiply the product.
"""

from __future__ import annotations

from dataclasses import replace

from evt.ir.dag import Builder, Dag, below
from evt.ir.dtype import converts
from evt.ir.node import Acc, Apply, Element, Feed, Load, base

#: A factor, and whether the operand is divided by it.
_Factors = list[tuple[int, bool]]


def peel(graph: Builder | Dag, name: str, value: int) -> tuple[_Factors, int]:
    """Return the outermost factors of a formula that do not depend on the operand's element, and the rest."""
    reads = [False] * len(graph)
    for node in range(len(graph)):
        reads[node] = graph[node] == Element(name) or any(reads[each] for each in graph.arguments(node))
    factors: _Factors = []
    while graph[value] in (Apply("mul"), Apply("div")):
        left, right = graph.arguments(value)
        divides = graph[value] == Apply("div")
        if reads[left] == reads[right] or (divides and reads[right]):
            break
        factors.append((right if reads[left] else left, divides))
        value = left if reads[left] else right
    return factors, value


def multiply_sums(dag: Dag) -> Dag:
    """Return a graph in which a factor of B that is constant over k multiplies the product: ``s[n]*B`` -> ``s[n]*acc``.

    Only a B that is converted to the type of A: its elements would have to be rounded to that type.
    """
    a, b = dag.operands
    if b.name not in dag.feeds or not converts(a.dtype, b.dtype):
        return dag
    factors, element = peel(dag, b.name, dag.arguments(dag.feeds[b.name])[0])
    if dag[element] != Element(b.name) or any(_varies_along_k(dag, factor) for factor, _ in factors):
        return dag
    builder, renamed = Builder(), dict[int, int]()
    for node in builder.walk(dag):
        if isinstance(dag[node], Acc):
            value = builder.add(Acc())
            for factor, divides in factors:
                for each in (*below(dag, factor), factor):
                    renamed[each] = builder.add(dag[each], *(renamed[one] for one in dag.arguments(each)))
                value = builder.add(Apply("div" if divides else "mul"), value, renamed[factor])
            renamed[node] = value
        elif not isinstance(dag[node], Feed):
            renamed[node] = builder.add(dag[node], *(renamed[each] for each in dag.arguments(node)))
    made = builder.finish(dag.operation, dag.operands, dag.inputs, dag.outputs, dag.source)
    return replace(made, inputs=dag.inputs)


def _varies_along_k(dag: Dag, root: int) -> bool:
    stack = [root]
    while stack:
        node = stack.pop()
        op = dag[node]
        if isinstance(op, Element) or (isinstance(op, Load) and "k" in map(base, dag.input[op.name].modes)):
            return True
        stack.extend(dag.arguments(node))
    return False


__all__ = ["multiply_sums", "peel"]
