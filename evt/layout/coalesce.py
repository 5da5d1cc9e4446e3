"""Coalescing: an equal function with the fewest modes; and CuTe's ``filter``, which also drops modes of stride 0."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from evt.layout import tree
from evt.layout.compose import concatenate, require_modes
from evt.layout.flat import Pairs, coalesced, filtered_pairs
from evt.layout.layout import Layout, flat_layout
from evt.layout.swizzle import through_swizzles
from evt.layout.tree import IntTuple


@through_swizzles
def coalesce(layout: Layout, profile: IntTuple = 0) -> Layout:
    """Return an equal function of integers with the fewest modes and depth at most 1; with a profile, at its leaves.

    Raise LayoutError E0674 for a profile with more modes than the layout.
    """
    return _by_profile(layout, tree.tree(profile, "a profile"), coalesced)


@through_swizzles
def filtered(layout: Layout, profile: IntTuple = 0) -> Layout:
    """Return the layout coalesced, without modes of stride 0, as CuTe's ``filter``; with a profile, at its leaves.

    Raise LayoutError E0674 for a profile with more modes than the layout.
    """
    return _by_profile(layout, tree.tree(profile, "a profile"), filtered_pairs)


def _by_profile(layout: Layout, profile: IntTuple, operation: Callable[[Iterable[tuple[int, int]]], Pairs]) -> Layout:
    """Apply an operation on pairs to the modes of a layout at the leaves of a profile."""
    if not isinstance(profile, tuple):
        return flat_layout(operation(layout.leaves))
    require_modes(layout, profile)
    modes = layout.modes
    parts = (_by_profile(mode, part, operation) for mode, part in zip(modes, profile, strict=False))
    return concatenate(*parts, *modes[len(profile) :])
