"""Schedulers: the order in which a kernel's tiles are visited, where a call may set it."""

from __future__ import annotations

from evt.plan.kernels.draft import Draft


def swizzle_and_raster(draft: Draft) -> None:
    """Add the settings of the persistent scheduler of CUTLASS 3.x that a call may choose."""
    draft.fields.size("swizzle")
    draft.fields.size("raster")


def raster(draft: Draft) -> None:
    """Add the settings of a grouped kernel's scheduler that a call may choose; it has no swizzle."""
    draft.fields.size("raster")
