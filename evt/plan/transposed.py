"""Epilogues of tiles by rows that visit the transposed tile: ``is_transposed(plan)``, ``transpose(step)``.

WGMMA of a tile by rows is not transposed: a thread has two rows and many columns, and the operations of own kernels two
columns and many rows. Lanes exchange all sums then. If the operations are of single elements and of vectors, and all
matrices have 16 bits, the operations' columns are the matrix's rows instead, and vectors change places.
"""

from __future__ import annotations

from evt.plan.epilogue.broadcasts import ColumnBroadcast, RowBroadcast, ScalarBroadcast
from evt.plan.epilogue.computes import Apply
from evt.plan.epilogue.loads import AccFetch, Auxiliary, SourceFetch
from evt.plan.epilogue.step import Step
from evt.plan.epilogue.values import Access
from evt.plan.moved import moved
from evt.plan.plan import OwnProduct, Plan

_OF_ELEMENTS = (AccFetch, SourceFetch, ScalarBroadcast, RowBroadcast, ColumnBroadcast, Apply)


def is_transposed(plan: Plan) -> bool:
    """Return whether the operations' columns are the matrix's rows."""
    loop = plan.mainloop
    if plan.config.schedule != "own_rows" or not isinstance(loop, OwnProduct) or loop.pairs or plan.destination is None:
        return False
    if any(each.dtype.bits != 16 for group in moved(plan) for each in group):
        return False
    return all(isinstance(step, _OF_ELEMENTS) or _is_staged(step) for step in plan.steps)


def _is_staged(step: Step) -> bool:
    return isinstance(step, Auxiliary) and step.access is Access.TILE


def transpose(step: Step) -> Step:
    """Return a step with rows and columns exchanged."""
    if not isinstance(step, RowBroadcast | ColumnBroadcast):
        return step
    rows, columns, batch = step.strides
    other = ColumnBroadcast if isinstance(step, RowBroadcast) else RowBroadcast
    return other(
        step.dtype,
        step.values,
        (columns, rows, batch),
        name=step.name,
        operands=step.operands,
        result=step.result,
        origin=step.origin,
    )
