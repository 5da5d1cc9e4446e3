"""Facts about a typed graph as an epilogue: the order of its outputs, reductions, leaves, fixed columns."""

from __future__ import annotations

from evt.ir import (
    Acc,
    Extent,
    Index,
    Input,
    Interleave,
    Load,
    Node,
    Output,
    Pick,
    Random,
    Reduce,
    ReduceBlocks,
    TypedDag,
)
from evt.ir.dtype import B1
from evt.ir.node import MOMENTS, Apply, Cast, Const, Store, is_divided
from evt.plan.signature import Signature


def in_order(dag: TypedDag) -> list[tuple[str, int]]:
    """Return the stores by the names of the outputs, in the order of their steps: the primary output comes last."""
    return sorted(dag.stores.items(), key=lambda item: item[0] == dag.primary.name)


def reductions_of(dag: TypedDag, value: int) -> list[int]:
    """Return the reductions that a value is computed from, in id order; the kernel stores the value at its end.

    Reductions that share their parts count as one: see :func:`shared_parts`.
    """
    found, stack, seen = set[int](), [value], {value}
    while stack:
        node = stack.pop()
        if isinstance(dag[node], Reduce):
            found.add(shared_parts(dag, node))
            continue
        new = [operand for operand in dag.arguments(node) if dag.reduced[operand] and operand not in seen]
        seen.update(new)
        stack.extend(new)
    return sorted(found)


def shared_parts(dag: TypedDag, node: int) -> int:
    """Return the first of the reductions with the parts of a reduction: a mean and a variance of one value share."""
    op = dag[node]
    if not isinstance(op, Reduce) or op.kind not in MOMENTS:
        return node
    kinds = [Reduce(kind, op.modes) for kind in MOMENTS]
    return min(user for user in dag.users[dag.arguments(node)[0]] if dag[user] in kinds)


def is_reduced(dag: TypedDag, output: str) -> bool:
    """Return whether an output is a reduction, or computed from reductions."""
    return bool(dag.reduced[dag.stores[output]])


def has_fixed_columns(dag: TypedDag) -> bool:
    """Return whether columns are packed, paired or in blocks, so that they must be the kernel's own columns."""
    values: tuple[Input | Output, ...] = (*dag.inputs, *dag.outputs)
    own = any(value.dtype == B1 or any(is_divided(mode) for mode in value.modes) for value in values)
    return own or any(isinstance(dag[node], Pick | Interleave | ReduceBlocks) for node in range(len(dag)))


def is_collective(value: Input | Output) -> bool:
    """Return whether the collective itself can load it as C or store it as D: a whole tile of whole elements."""
    return value.is_whole and not value.is_indexed


def stores_d(dag: TypedDag, signature: Signature) -> bool:
    """Return whether a collective can store the primary output as its D: no reduction, and one mode has stride 1."""
    value = dag.primary
    return is_collective(value) and not is_reduced(dag, value.name) and signature[value.name].contiguous is not None


def keeps_zeros(dag: TypedDag) -> bool:
    """Return whether a program has one output, which is 0 wherever the product is 0, for all inputs."""
    zeros = list[bool]()
    for op, operands in dag.table:
        match op:
            case Acc() | Cast() | Store():
                zeros.append(all(zeros[operand] for operand in operands))
            case Const(bits):
                zeros.append(bits == 0)
            case Apply("where"):
                zeros.append(all(zeros[operand] for operand in operands[1:]))
            case Apply("relu"):
                zeros.append(zeros[operands[0]])
            case _:
                zeros.append(False)
    return len(dag.outputs) == 1 and zeros[dag.stores[dag.primary.name]]


def swapped(dag: TypedDag, value: int) -> int | None:
    """Return ``x`` if a value is ``swap(x)``, ``interleave(odd(x), even(x))`` with one distance; else None."""
    op = dag[value]
    if not isinstance(op, Interleave):
        return None
    second, first = dag.arguments(value)
    pairs = (dag[second], dag[first]) == (Pick(1, op.block), Pick(0, op.block))
    return dag.arguments(first)[0] if pairs and dag.arguments(first) == dag.arguments(second) else None


def is_leaf(op: Node) -> bool:
    """Return whether a value comes from a step without operands."""
    return isinstance(op, Acc | Load | Index | Extent | Random)
