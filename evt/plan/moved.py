"""The matrices of an own product's epilogue that TMA moves: ``moved(plan) -> (loads, stores)``, C and D first."""

from __future__ import annotations

from evt.plan.epilogue.loads import Auxiliary
from evt.plan.epilogue.values import Access
from evt.plan.plan import OwnProduct, Plan, Tensor
from evt.plan.staged import staged_bytes


def moved(plan: Plan) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return the matrices that the kernel loads, and that it stores, in the order of their buffers."""
    loads, stores = further(plan)
    return tuple(filter(None, (plan.source, *map(_tensor, loads)))), tuple(
        filter(None, (plan.destination, *map(_tensor, stores)))
    )


def further(plan: Plan) -> tuple[list[Auxiliary], list[Auxiliary]]:
    """Return the steps of the matrices beside C and D that the kernel loads, and that it stores."""
    loop, stored = plan.mainloop, plan.destination
    if not isinstance(loop, OwnProduct) or (stored is None and not loop.unaligned):
        return [], []
    staged = [step for step in plan.steps if isinstance(step, Auxiliary) and step.access is Access.TILE]
    others = [step for step in staged if stored is None or step.pointer != stored.pointer]
    return [step for step in others if not step.passes], [step for step in others if step.passes]


def moved_bytes(plan: Plan) -> int:
    """Return the bytes of an element of all matrices in a buffer."""
    loads, stores = moved(plan)
    return staged_bytes([each.dtype for each in loads], [each.dtype for each in stores])


def _tensor(step: Auxiliary) -> Tensor:
    return Tensor(step.dtype, True, step.alignment, step.pointer, step.strides)
