"""Packed bits in shared memory: ``joins_bits(plan)`` before a store, ``loads_bits(plan)`` after a load.

``mask_of(plan)`` is the mask that the kernel applies to pairs of rounded elements of D.
"""

from __future__ import annotations

import math

from evt.plan.epilogue.computes import Apply
from evt.plan.epilogue.loads import MaskLoad
from evt.plan.epilogue.regions import Call, Constant
from evt.plan.epilogue.writes import AuxStore, MaskStore
from evt.plan.plan import HaloConvolution, OwnProduct, Plan


def joins_bits(plan: Plan) -> bool:
    """Return whether the kernel's only mask is stored after each part of D that TMA stores.

    The parts of consumers by rows, of pairs, and of groups of rows have other shapes.
    """
    return _has_blocks(plan) and sum(isinstance(step, MaskStore) for step in plan.steps) == 1


def loads_bits(plan: Plan) -> bool:
    """Return whether threads load the words of the kernel's only mask for a tile, before the consumer multiplies.

    The columns of groups begin within words. CTAs that share a tile complete parts of it. D has a buffer, which a
    consumer enters when its warps have read the words of the tile before.
    """
    return (_has_blocks(plan) or _has_tiles(plan)) and sum(isinstance(step, MaskLoad) for step in plan.steps) == 1


def mask_of(plan: Plan) -> MaskLoad | None:
    """Return the mask if D is the one output, and 0 where the mask's bits are not set; else None.

    Rounding keeps zeros. So a word of two rounded elements of D can be masked, instead of both elements before.
    """
    if not loads_bits(plan) or plan.destination is None or plan.destination.dtype.bits != 16:
        return None
    *others, store = plan.steps
    if not isinstance(store, AuxStore) or any(step.passes for step in others):
        return None
    root = plan.steps[store.operands[0]]
    if not isinstance(root, Apply) or not isinstance(call := root.region.statements[-1], Call):
        return None
    if call.function != "where" or call.operands[0] not in root.region.parameters:
        return None
    other = call.operands[2]
    if not isinstance(other, Constant) or other.value != 0 or math.copysign(1.0, other.value) < 0:
        return None
    index = root.operands[root.region.parameters.index(call.operands[0])]
    mask, readers = plan.steps[index], [step for step in plan.steps if index in step.operands]
    return mask if isinstance(mask, MaskLoad) and readers == [root] else None


def _has_blocks(plan: Plan) -> bool:
    """Return whether a consumer of the GEMM kernel completes blocks of 64 columns, whose parts of D TMA stores."""
    loop = plan.mainloop
    if not isinstance(loop, OwnProduct) or loop.pairs or loop.ends is not None or plan.config.schedule == "own_rows":
        return False
    return plan.destination is not None


def _has_tiles(plan: Plan) -> bool:
    """Return whether a consumer of the halo kernel completes a tile of 64 columns, which is D's buffer."""
    loop = plan.mainloop
    if not isinstance(loop, HaloConvolution) or loop.shared or loop.groups != "one":
        return False
    return plan.destination is not None
