"""The rough cost of an epilogue's operations, in instructions per element: enough to compare and to choose."""

from __future__ import annotations

from collections.abc import Collection

from evt.functions import TABLE, TRANSCENDENTAL
from evt.ir import Apply, Dag, Node, Reduce, ReduceBlocks, TypedDag
from evt.ir.node import base

#: Further instructions of a reduction for each element, to combine lanes and parts: along columns, and along rows.
#: At 16384x1024x1024, sums of rows take 1.08 of a bare store and sums of columns 1.22: H200, 2026-11-21.
_COMBINED, _COMBINED_ALONG_ROWS = 10, 14


def cost(op: Node) -> int:
    """Return the cost of one operation; loads, stores and constants are free here."""
    return TABLE[op.function].instructions if isinstance(op, Apply) else op.instructions


def instructions_of(dag: TypedDag, *, fast: bool = False, straight: Collection[str] = ()) -> int:
    """Return the instructions of an epilogue for each element of the product; values of a row or column are free.

    Stalls count as instructions. ``fast`` means that functions may be approximated. ``straight`` are the functions
    without branches: elements overlap, and nothing stalls, if all functions are.
    """
    tiles = (node for node in range(len(dag)) if {"m", "n"} <= set(map(base, dag.types[node].modes)))
    reduced = [node for node in range(len(dag)) if isinstance(dag[node], Reduce | ReduceBlocks)]
    combined = sum(_combined(dag[node]) for node in reduced)
    nodes = dict.fromkeys((*tiles, *reduced))
    branches = any(_stalls(dag[node], fast, straight) for node in nodes)
    return combined + sum(cost(dag[node]) + _stalls(dag[node], fast, () if branches else straight) for node in nodes)


def _stalls(op: Node, fast: bool, straight: Collection[str]) -> int:
    row = TABLE[op.function] if isinstance(op, Apply) else None
    return row.stalls if row is not None and not (fast and row.fast) and row.name not in straight else 0


def _combined(op: Node) -> int:
    if not isinstance(op, Reduce):
        return 0
    return _COMBINED_ALONG_ROWS if op.modes == ("m",) else _COMBINED


def is_light(dag: Dag) -> bool:
    """Return whether the whole epilogue costs less than one transcendental function.

    Only then does the largest accumulator tile leave registers enough for it: measured on an H200, bias and gelu
    took 9 % longer with 192x128 tiles than with 128x128, and two residuals 16 % less.
    """
    return sum(cost(dag[node]) for node in range(len(dag))) < TRANSCENDENTAL
