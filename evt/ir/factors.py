"""Factors of operands: ``peel(graph, name, value)`` takes the outermost ones off a formula.

``multiply_sums(dag)`` lets the factors of a converted B multiply the product. ``zero_point(graph, name, value)`` is
the value that a formula subtracts from the operand's elements, or adds.
"""

from __future__ import annotations

from dataclasses import replace

from evt.ir.dag import Builder, Dag, below
from evt.ir.dtype import F32, I32, converts
from evt.ir.node import Acc, Apply, Cast, Element, Feed, Load, base

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


def zero_point(graph: Builder | Dag, name: str, value: int) -> tuple[int, bool] | None:
    """Return z and whether it is added, if an operand's formula is ``B - z`` or ``B + z``."""
    adds = graph[value] == Apply("add")
    if not adds and graph[value] != Apply("sub"):
        return None
    element, zero = graph.arguments(value)
    if adds and _is_element(graph, name, zero):
        element, zero = zero, element
    return (zero, adds) if _is_element(graph, name, element) and not _is_element(graph, name, zero) else None


def _is_element(graph: Builder | Dag, name: str, node: int) -> bool:
    """Return whether a value is an operand's element, or the element in a compute type."""
    if graph[node] in (Cast(F32), Cast(I32)):
        (node,) = graph.arguments(node)
    return graph[node] == Element(name)


def multiply_sums(dag: Dag) -> Dag:
    """Return a graph in which a factor of B that is constant over k multiplies the product: ``s[n]*B`` -> ``s[n]*acc``.

    Only a B that is converted to the type of A: its elements would have to be rounded to that type.
    """
    a, b = dag.operands
    if b.name not in dag.feeds or not converts(a.dtype, b.dtype):
        return dag
    factors, element = peel(dag, b.name, dag.arguments(dag.feeds[b.name])[0])
    kept = dag[element] != Element(b.name)
    if kept and zero_point(dag, b.name, element) is None:
        return dag
    if not factors or any(_varies_along_k(dag, factor) for factor, _ in factors):
        return dag
    builder, renamed = Builder(), dict[int, int]()
    for node in builder.walk(dag):
        if dag[node] == Acc():
            value = builder.add(Acc())
            for factor, divides in factors:
                for each in (*below(dag, factor), factor):
                    renamed[each] = builder.add(dag[each], *(renamed[one] for one in dag.arguments(each)))
                value = builder.add(Apply("div" if divides else "mul"), value, renamed[factor])
            renamed[node] = value
        elif isinstance(dag[node], Feed):
            if kept or dag[node] != Feed(b.name):
                fed = element if dag[node] == Feed(b.name) else dag.arguments(node)[0]
                renamed[node] = builder.add(dag[node], renamed[fed])
        else:
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
