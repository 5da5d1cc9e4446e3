"""Values of fewer columns, in pairs and blocks: ``check_columns(dag, types)``, ``pair_distances(dag, types)``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from evt.diagnostics import Diagnostic, Label
from evt.ir.culprit import assumed_tile, find_culprit, label_of
from evt.ir.dag import Dag, TypedDag, below
from evt.ir.node import (
    PLACES,
    Interleave,
    Pick,
    Reduce,
    ReduceBlocks,
    ValueType,
    base,
    distance,
    divisor,
    is_divided,
    is_paired,
    written,
)
from evt.ir.origin import at


def columns_of(value: ValueType) -> str:
    """Return the mode of a value's columns, or "" if the value does not vary over columns."""
    return next((mode for mode in value.modes if base(mode) == "n"), "")


def columns_together(dag: TypedDag) -> int:
    """Return the number of adjacent columns that an epilogue visits together: the columns of a pair block or of a
    block.
    """
    found = 1
    for node, (op, _) in enumerate(dag.table):
        if isinstance(op, Pick | Interleave):
            found = max(found, 2 * op.block)
        elif isinstance(op, ReduceBlocks):
            found = max(found, divisor(columns_of(dag.types[node])))
    return found


def check_columns(dag: Dag, types: Sequence[ValueType]) -> Iterator[Diagnostic]:
    """Yield mistakes in values of fewer columns (E0307).

    A value of pairs combines with values of pairs of equal distance, and with blocks that hold whole pairs. A block
    value combines with all columns of its block. The operands of ``interleave`` are halves of the columns, in pairs of
    its distance.
    """
    whole = not any(is_divided(mode) for value in set(types) for mode in value.modes)
    if whole and not any(isinstance(op, Interleave) for op, _ in dag.table):
        return
    distances = pair_distances(dag, types)
    factors = {node for scale in dag.scales.values() for node in below(dag, scale)}  # their blocks may differ
    for node in range(len(dag)):
        if node in factors:
            continue
        if found := _mistake(dag, node, types, distances):
            message, label, hint = found
            labels: tuple[Label, ...] = ()
            if label == _MEET:
                culprits = [find_culprit(dag, types, dag.arguments(node), mode) for mode in _widths(dag, node, types)]
                labels = tuple(each for culprit in culprits for each in label_of(dag, types, culprit))
                if assumed := next(filter(None, (assumed_tile(dag, culprit) for culprit in culprits)), None):
                    hint = f"write `{assumed}[m, n/2]`, or take even({assumed}) and odd({assumed})"
            diagnostic = Diagnostic("E0307", message, None, label, hint, secondary=labels)
            yield at(dag.origins[node], dag.source, diagnostic)
            if len(distances[node]) > 1:
                return  # which holds for all its users


#: The label of an operation whose operands have different columns.
_MEET = "made from both"


def _widths(dag: Dag, node: int, types: Sequence[ValueType]) -> list[str]:
    """Return the modes of the columns that a node reads."""
    return sorted({columns_of(types[operand]) for operand in dag.arguments(node)} - {""})


def _mistake(
    dag: Dag, node: int, types: Sequence[ValueType], distances: Sequence[frozenset[int]]
) -> tuple[str, str, str] | None:
    """Return the mistake in the operands of a node: message, label and help."""
    op, arguments = dag[node], dag.arguments(node)
    found = {columns_of(types[operand]): operand for operand in arguments}
    found.pop("", None)
    halves = {mode: operand for mode, operand in found.items() if written(mode) == "n/2"}
    blocks = [mode for mode in found if mode != "n" and mode not in halves]
    apart = sorted({each for operand in halves.values() for each in distances[operand]})
    if isinstance(op, Interleave) and (mistake := _not_interleaved(op, list(found))):
        return mistake
    if len(apart) > 1 or ("n" in found and halves) or len(blocks) > 1 or (len(found) > 1 and dag.reduced[node]):
        words = {*(set(found) - set(halves)), *(f"n/2@{each}" for each in apart)}
        widths = ", ".join(f"[{mode.replace('@', ' at a distance of ')}]" for mode in sorted(words))
        hint = "take even(x) and odd(x) of every full-width value, with the same distance"
        return f"values of different widths meet: {widths}", _MEET, hint
    together = 2 * max(apart, default=0)
    if halves and blocks and divisor(blocks[0]) % together:
        message = f"blocks of {divisor(blocks[0])} columns have no whole pairs of columns {together // 2} apart"
        return message, _MEET, f"take blocks of at least {together} columns"
    if isinstance(op, Pick) and (halves or blocks):
        message = f"a value of {_shown(types[arguments[0]])} cannot be paired again"
        return message, "paired twice", "pair the full-width value"
    if isinstance(op, Reduce) and op.kind in PLACES and (halves or blocks):
        message = f"`{op.kind}` takes all columns, and this value is {_shown(types[arguments[0]])}"
        return message, "fewer columns", "apply it to the full-width value"
    if isinstance(op, ReduceBlocks) and blocks:
        message = f"a value of {_shown(types[arguments[0]])} cannot be reduced by blocks again"
        return message, "reduced twice", "reduce blocks of the full-width value"
    if isinstance(op, ReduceBlocks) and halves and op.width % apart[0]:
        message = f"pairs of columns {apart[0]} apart do not lie together in blocks of {op.width}"
        return message, "blocks of pairs", f"take blocks of at least {apart[0]}, as `{op.kind}[n%{apart[0]}](x)`"
    return None


def _not_interleaved(op: Interleave, found: Sequence[str]) -> tuple[str, str, str] | None:
    """Return the reason that values of these columns cannot be interleaved: message, label and help."""
    if not found:
        hint = "interleave(even(x), odd(x)) are the columns of x"
        return "neither of the interleaved values has columns", "of no columns", hint
    for mode in found:
        if mode not in ("n/2", f"n/2@{op.block}"):
            apart = f", {op.block}" if op.block > 1 else ""
            message = (
                f"a value of [{mode.replace('@', ' at a distance of ')}] is interleaved at a distance of {op.block}"
            )
            return (
                message,
                "not half of these columns",
                f"take even(x{apart}) and odd(x{apart}), or tensors of [m, n/2]",
            )
    return None


def pair_distances(dag: Dag, types: Sequence[ValueType]) -> list[frozenset[int]]:
    """Return the distance of the pairs of each value with half the columns: 1 if nothing determines it.

    A tensor with half the columns takes the distance of the values that it combines with. Two distances are a mistake.
    """
    parent = list(range(len(dag)))

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    is_half = [written(columns_of(value)) == "n/2" for value in types]
    for node in range(len(dag)):
        if is_half[node]:
            for operand in dag.arguments(node):
                if is_half[operand]:
                    parent[root(operand)] = root(node)
    for op, operands in dag.table:
        halves = [operand for operand in operands if isinstance(op, Interleave) and is_half[operand]]
        for operand in halves:
            parent[root(operand)] = root(halves[0])
    found: dict[int, set[int]] = {}
    for node, half in enumerate(is_half):
        if half and is_paired(mode := columns_of(types[node])):
            found.setdefault(root(node), set()).add(distance(mode))
    for op, operands in dag.table:
        if isinstance(op, Interleave):
            for operand in filter(is_half.__getitem__, operands):
                found.setdefault(root(operand), set()).add(op.block)
    none, one = frozenset[int](), frozenset({1})
    return [frozenset(found.get(root(node), one)) if half else none for node, half in enumerate(is_half)]


def _shown(value: ValueType) -> str:
    return f"[{', '.join(map(written, value.modes))}]"
