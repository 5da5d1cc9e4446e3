"""Packed bits in shared memory: ``joins_bits(plan)`` before a store, ``loads_bits(plan)`` after a load."""

from __future__ import annotations

from evt.plan.epilogue.loads import MaskLoad
from evt.plan.epilogue.writes import MaskStore
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
