"""Groups of the halo kernels.

A block of filters reads the channels of its groups only. Several narrow groups share a block, whose filters are
block-diagonal; a wide group has separate blocks.

Part of :mod:`evt.plan.geometry`.
"""

from __future__ import annotations

from dataclasses import replace

from evt.plan.geometry.convolution import Problem, ceil_div
from evt.plan.geometry.halo import FILTERS, VECTOR
from evt.plan.geometry.halo_kernel import KernelClass


def groups_together(problem: Problem, kernel: KernelClass, groups: int) -> int:
    """Return the groups that fit in a block of filters. TMA moves whole vectors, from a multiple of vectors on."""
    channels = problem.channels // groups
    filters = problem.filters // groups
    together = min(groups, min(kernel.channels // channels, FILTERS // filters))
    while together * filters % VECTOR > 0 or (together < groups and together * channels % VECTOR > 0):
        together -= 1
    return together


def over_groups(problem: Problem, kernel: KernelClass, groups: int) -> Problem:
    """Return the convolution without groups that has the blocks of filters of one with groups, and reads its channels.

    It has no filters if the filters of a group must fit in a block of channels, and do not.
    """
    channels = problem.channels // groups
    filters = problem.filters // groups
    together = groups_together(problem, kernel, groups) if kernel.packed else 0
    if together > 0:
        return replace(problem, channels=together * channels, filters=ceil_div(groups, together) * FILTERS)
    fits = channels <= kernel.channels or kernel.words or not kernel.packed
    blocks = 0 if not fits else groups * ceil_div(filters, FILTERS)
    return replace(problem, channels=channels, filters=blocks * FILTERS)
