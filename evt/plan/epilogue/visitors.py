"""From values to visitors: which nodes the epilogue visitor graph has, the same for both families.

Inputs become load nodes. Everything element-wise between loads and stores becomes *regions*: one compute node with
one generated functor each. A value is a region's result when it is stored or reduced, when lanes exchange it (pairs
and blocks of columns), or when several regions need it and computing it again costs more than keeping it. This
compiles fastest and keeps shared values in registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from evt.ir import (
    Acc,
    Apply,
    Cast,
    Const,
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
    Store,
    TypedDag,
)
from evt.ir.columns import columns_of
from evt.ir.dtype import B1
from evt.ir.node import PLACES, is_divided
from evt.plan.epilogue.cost import cost
from evt.plan.signature import Signature

_Leaf = Literal[
    "acc",
    "constant",
    "source",
    "scalar",
    "row",
    "column",
    "tile",
    "mask",
    "half",
    "gather",
    "index",
    "size",
    "random",
]
_Inner = Literal["compute", "pick", "interleave", "fold", "once", "keys"]
_Write = Literal["store", "store_mask", "store_half", "store_block", "store_vector", "scatter", "reduce"]
Kind = _Leaf | _Inner | _Write

#: Node kinds that only return registers or a kernel parameter: a tree may hold them several times.
_FREE = frozenset({"acc", "source", "scalar", "size"})
#: Node kinds that write their operand and return it.
WRITES = frozenset({"store", "store_mask", "store_half", "store_block", "store_vector", "scatter", "reduce"})
#: Instructions, roughly, above which a value shared by regions is kept instead of computed twice.
_KEEP_COST = 4


@dataclass(frozen=True, slots=True)
class Visitor:
    """One node of the visitor graph.

    ``name`` is an input's or output's name; ``value`` the graph node whose value it yields;
    ``operands`` index earlier visitors. Of a reduction and its keys, ``reduction`` is its graph node.
    """

    kind: Kind
    name: str
    value: int
    operands: tuple[int, ...] = ()
    reduction: int | None = None


@dataclass(frozen=True)
class Graph:
    """Visitors in topological order, the root last; ``tree`` says whether they nest as a tree."""

    visitors: tuple[Visitor, ...]
    tree: bool


def build_visitors(
    dag: TypedDag,
    *,
    source: str | None,
    implicit_store: str | None,
    rows: str = "m",
    fused: bool = True,
    nested: bool = True,
) -> Graph:
    """Partition a program into visitors.

    ``source`` is the input that the collective loads as C; ``implicit_store`` the output that the collective
    itself stores as D (3.x); ``rows`` the mode that runs along the kernel's rows (``n`` for a transposed problem);
    ``fused`` False makes every operation its own compute node; ``nested`` False makes no tree, for kernels that compute
    one value after the other.
    """
    results = _results(dag, fused)
    visitors: list[Visitor] = []
    known: dict[int, int] = {}
    once: dict[int, int] = {}

    def add(visitor: Visitor) -> int:
        visitors.append(visitor)
        return len(visitors) - 1

    def visit(value: int) -> int:
        """Return the visitor of a value that is a leaf or a region's result; results are visited in id order."""
        if value not in known:
            known[value] = add(_leaf(dag, value, source, rows))
        return known[value]

    def visit_reduced(node: int) -> int:
        """Return the visitor of what a reduction or a block takes: of fewer columns a sum counts each once."""
        op, value = dag[node], dag.arguments(node)[0]
        assert isinstance(op, Reduce | ReduceBlocks)
        operand = visit(value)
        if op.kind in PLACES:
            return add(Visitor("keys", "", value, (operand,), node))
        along = isinstance(op, ReduceBlocks) or "n" in op.modes
        if op.kind != "sum" or not along or "/" not in columns_of(dag.types[value]):
            return operand
        if value not in once:
            once[value] = add(Visitor("once", "", value, (operand,)))
        return once[value]

    for value in sorted(results):
        op = dag[value]
        if isinstance(op, Pick | Interleave):
            kind: Kind = "pick" if isinstance(op, Pick) else "interleave"
            known[value] = add(Visitor(kind, "", value, tuple(map(visit, dag.arguments(value)))))
            continue
        if isinstance(op, ReduceBlocks):
            known[value] = add(Visitor("fold", "", value, (visit_reduced(value),)))
            continue
        operands = region_operands(dag, value, results)
        if not operands:  # constants only: a compute node still needs an operand
            operands = [next(node for node in range(len(dag)) if isinstance(dag[node], Acc))]
        known[value] = add(Visitor("compute", "", value, tuple(visit(operand) for operand in operands)))

    reduced: set[int] = set()
    for name, store in in_order(dag):
        value = dag.arguments(store)[0]
        if dag.reduced[store]:
            for node in reductions_of(dag, store):
                if node not in reduced:
                    reduced.add(node)
                    operand = visit_reduced(node)
                    add(Visitor("reduce", "", dag.arguments(node)[0], (operand,), node))
            continue
        operand = visit(value)
        if name != implicit_store:
            add(Visitor(_store_kind(dag, store), name, value, (operand,)))
        elif visitors[operand].kind != "compute" or _is_used(visitors, operand):
            add(Visitor("compute", name, value, (operand,)))  # the identity: the root is converted to D's type
        else:
            visitors = _move_last(visitors, operand)
    tree = _as_tree(visitors) if nested else None
    return Graph(tuple(tree or visitors), tree is not None)


def _store_kind(dag: TypedDag, store: int) -> Kind:
    op = dag[store]
    assert isinstance(op, Store)
    output = dag.output[op.name]
    if output.is_indexed:
        return "scatter"
    if not output.is_tile:
        return "store_vector"
    if output.dtype == B1:
        return "store_mask"
    divided = next((mode for mode in output.modes if is_divided(mode)), "")
    if not divided:
        return "store"
    return "store_half" if divided == "n/2" else "store_block"


def in_order(dag: TypedDag) -> list[tuple[str, int]]:
    """Return the stores by the names of the outputs, in the order of their visitors: the primary one last, the root."""
    return sorted(dag.stores.items(), key=lambda item: item[0] == dag.primary.name)


def reductions_of(dag: TypedDag, value: int) -> list[int]:
    """Return the reductions that a value which is stored when the kernel has ended is made of, in id order."""
    found, stack, seen = set[int](), [value], {value}
    while stack:
        node = stack.pop()
        if isinstance(dag[node], Reduce):
            found.add(node)
            continue
        new = [operand for operand in dag.arguments(node) if dag.reduced[operand] and operand not in seen]
        seen.update(new)
        stack.extend(new)
    return sorted(found)


def is_reduced(dag: TypedDag, output: str) -> bool:
    """Whether an output is a reduction, or computed of some."""
    return bool(dag.reduced[dag.stores[output]])


def has_fixed_columns(dag: TypedDag) -> bool:
    """Return whether columns are packed, paired or taken in blocks, so that they must be the kernel's own columns."""
    values: tuple[Input | Output, ...] = (*dag.inputs, *dag.outputs)
    own = any(value.dtype == B1 or any(is_divided(mode) for mode in value.modes) for value in values)
    return own or any(isinstance(dag[node], Pick | Interleave | ReduceBlocks) for node in range(len(dag)))


def is_collective(value: Input | Output) -> bool:
    """Return whether the collective itself can load it as C or store it as D: a whole tile of whole elements."""
    return value.is_whole and not value.is_indexed


def stores_d(dag: TypedDag, signature: Signature) -> bool:
    """Whether a collective can store the primary output as its D: no reduction, and a mode's stride is 1."""
    value = dag.primary
    return is_collective(value) and not is_reduced(dag, value.name) and signature[value.name].contiguous is not None


def region_operands(dag: TypedDag, result: int, results: set[int]) -> list[int]:
    """Return the leaves and results that a region reads: a single operation's in its order, others by id."""

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


def is_leaf(op: Node) -> bool:
    """Return whether a value comes from a visitor without operands."""
    return isinstance(op, Acc | Load | Index | Extent | Random)


def _results(dag: TypedDag, fused: bool) -> set[int]:
    """Return the values that get a visitor with operands: compute nodes, pairs and blocks."""

    def computed(value: int) -> bool:
        return isinstance(dag[value], Apply | Cast) and not dag.reduced[value]

    def users_of(value: int) -> list[int]:
        return [user for user in dag.users[value] if not isinstance(dag[user], Store) and not dag.reduced[user]]

    crossing = {value for value in range(len(dag)) if isinstance(dag[value], Pick | Interleave | ReduceBlocks)}
    kept = crossing | {value for value in range(len(dag)) if isinstance(dag[value], Store | Reduce)}
    results = crossing | {operand for value in kept for operand in dag.arguments(value) if computed(operand)}
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
    regions: list[frozenset[int]] = [frozenset()] * len(dag)
    for value in reversed(range(len(dag))):
        users = users_of(value)
        regions[value] = frozenset[int]().union(*(({u} if u in results else regions[u]) for u in users))
        if computed(value) and value not in results and len(regions[value]) > 1 and total[value] >= _KEEP_COST:
            results.add(value)
    return results


def _leaf(dag: TypedDag, value: int, source: str | None, rows: str) -> Visitor:
    op = dag[value]
    match op:
        case Acc():
            return Visitor("acc", "", value)
        case Const():
            return Visitor("constant", "", value)
        case Index():
            return Visitor("index", "", value)
        case Extent():
            return Visitor("size", "", value)
        case Random():
            return Visitor("random", "", value)
    assert isinstance(op, Load)
    load = dag.input[op.name]
    modes = set(load.modes) - {"l"}
    kind: Kind
    if op.name == source:
        kind = "source"
    elif load.is_indexed:
        kind = "gather"
    elif not modes:
        kind = "scalar"
    elif load.dtype == B1:
        kind = "mask"
    elif len(modes) == 2:
        kind = "tile" if modes == {"m", "n"} else "half"
    else:
        kind = "column" if modes == {rows} else "row"
    return Visitor(kind, op.name, value)


def _is_used(visitors: Sequence[Visitor], index: int) -> bool:
    return any(index in visitor.operands for visitor in visitors)


def _move_last(visitors: list[Visitor], index: int) -> list[Visitor]:
    """Move an unused visitor to the end."""
    renumber = {old: old - (old > index) for old in range(len(visitors))}
    rest = [v for i, v in enumerate(visitors) if i != index]
    return [replace(v, operands=tuple(renumber[operand] for operand in v.operands)) for v in (*rest, visitors[index])]


def _as_tree(visitors: list[Visitor]) -> list[Visitor] | None:
    """Return the same visitors as a tree under the last one, or None.

    A store returns its operand, so a value that is stored and read once more flows through its store.
    """
    through = {v.operands[0]: i for i, v in enumerate(visitors[:-1]) if v.kind in WRITES}
    if len(through) != sum(v.kind in WRITES for v in visitors[:-1]):
        return None  # one value stored twice
    tree: list[Visitor] = []
    position: dict[int, int] = {}

    def place(index: int, via_store: bool = True) -> int | None:
        """Place a visitor under its user; None when it is already placed elsewhere and not free to copy."""
        if via_store and index in through:
            index = through[index]
        visitor = visitors[index]
        if index in position and visitor.kind not in _FREE:
            return None
        operands = []
        for operand in visitor.operands:
            placed = place(operand, via_store=through.get(operand) != index)
            if placed is None:
                return None
            operands.append(placed)
        tree.append(replace(visitor, operands=tuple(operands)))
        position[index] = len(tree) - 1
        return position[index]

    if len(visitors) > 200 or place(len(visitors) - 1) is None:
        return None
    # Stores and regions off the path to the root make it a graph.
    return tree if len(position) == len(visitors) else None
