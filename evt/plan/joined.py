"""Packed bits that the warps of a consumer join before they store them: ``joins_bits(plan)``."""

from __future__ import annotations

from evt.plan.epilogue.writes import MaskStore
from evt.plan.plan import OwnProduct, Plan


def joins_bits(plan: Plan) -> bool:
    """Return whether the kernel's only mask is stored after each part of D that TMA stores.

    The parts of consumers by rows, of pairs, and of groups of rows have other shapes.
    """
    loop = plan.mainloop
    if not isinstance(loop, OwnProduct) or loop.pairs or loop.ends is not None or plan.config.schedule == "own_rows":
        return False
    return plan.destination is not None and sum(isinstance(step, MaskStore) for step in plan.steps) == 1
