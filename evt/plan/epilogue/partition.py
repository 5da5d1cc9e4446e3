"""The regions of an epilogue: which values are the result of a step, and which the functor of another computes.

Everything elementwise between loads and stores becomes *regions*: one step with one functor each. A value is a region's
result if it is stored or reduced, or if lanes exchange it (pairs and blocks of columns). It is also one if several
regions need it and recomputation costs more than keeping it, or if it is constant along a mode: own kernels compute
such a value once for each column. This compiles fastest, and keeps shared values in registers.
"""

from __future__ import annotations

from collections.abc import Collection

from evt.ir import Apply, Cast, Interleave, Pick, Reduce, ReduceBlocks, Store, TypedDag
from evt.ir.node import base
from evt.plan.epilogue.cost import cost
from evt.plan.epilogue.facts import is_leaf, swapped

#: Instructions, roughly, above which a value that regions share is kept instead of computed twice.
_KEEP_COST = 4


def results(dag: TypedDag, fused: bool, kept_along: Collection[str] = ()) -> set[int]:
    """Return the values that get a step with operands: regions, pairs and blocks.

    ``fused=False`` makes every operation a separate step. ``kept_along``: the kernel computes a value that is constant
    along one of these modes once, and keeps it.
    """

    def computed(value: int) -> bool:
        return isinstance(dag[value], Apply | Cast) and not dag.reduced[value]

    def users_of(value: int) -> list[int]:
        return [user for user in dag.users[value] if not isinstance(dag[user], Store) and not dag.reduced[user]]

    crossing = {value for value in range(len(dag)) if _is_exchanged(dag, value)}
    kept = crossing | {value for value in range(len(dag)) if isinstance(dag[value], Store | Reduce)}
    results = crossing | {operand for value in kept for operand in operands_of(dag, value) if computed(operand)}
    if not fused:
        for value in reversed(range(len(dag))):
            if computed(value) and any(user in results for user in users_of(value)):
                results.add(value)
        return results
    total = [0] * len(dag)
    for value in range(len(dag)):
        if computed(value):
            inherited = sum(total[operand] for operand in dag.arguments(value))
            total[value] = min(1_000_000, inherited + cost(dag[value]))
    for mode in kept_along:
        kept = {value for value in range(len(dag)) if computed(value) and mode not in map(base, dag.types[value].modes)}
        results |= {
            value for value in kept if total[value] >= _KEEP_COST and any(user not in kept for user in users_of(value))
        }
    regions: list[frozenset[int]] = [frozenset()] * len(dag)
    for value in reversed(range(len(dag))):
        users = users_of(value)
        regions[value] = frozenset[int]().union(*(({u} if u in results else regions[u]) for u in users))
        if computed(value) and value not in results and len(regions[value]) > 1 and total[value] >= _KEEP_COST:
            results.add(value)
    return results


def _is_exchanged(dag: TypedDag, value: int) -> bool:
    """Return whether a step exchanges a value between lanes; the halves of a swapped value need no steps."""
    if isinstance(dag[value], Pick):
        return any(swapped(dag, user) is None for user in dag.users[value])
    return isinstance(dag[value], Interleave | ReduceBlocks)


def operands_of(dag: TypedDag, value: int) -> tuple[int, ...]:
    """Return the operands of a value's step."""
    whole = swapped(dag, value)
    return dag.arguments(value) if whole is None else (whole,)


def region_operands(dag: TypedDag, result: int, results: set[int]) -> list[int]:
    """Return the leaves and results that a region reads: in the order of a single operation, else by id."""

    def is_operand(value: int) -> bool:
        return value in results or is_leaf(dag[value])

    if all(map(is_operand, dag.arguments(result))):
        return list(dict.fromkeys(dag.arguments(result)))
    found: set[int] = set()
    stack, seen = list(dag.arguments(result)), {result}
    while stack:
        value = stack.pop()
        if value in seen:
            continue
        seen.add(value)
        if is_operand(value):
            found.add(value)
        else:
            stack.extend(dag.arguments(value))
    return sorted(found)
