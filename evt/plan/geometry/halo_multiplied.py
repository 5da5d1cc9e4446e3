"""The convolution that a main loop of the halo kernels multiplies, which differs from the one of the call.

Part of :mod:`evt.plan.geometry`.
"""

from __future__ import annotations

from dataclasses import replace

from evt.plan.geometry.convolution import Axis, Problem, ceil_div
from evt.plan.geometry.halo import WINDOW_BYTES
from evt.plan.geometry.halo_kernel import KernelClass


def has_columns(problem: Problem) -> bool:
    """Return whether filters are columns along the depth of a volume of many slices: few taps are outside then."""
    single = problem.tap_count == 1 and problem.height.stride == 1 and problem.width.stride == 1
    whole = problem.height.output == problem.height.size and problem.width.output == problem.width.size
    return single and whole and problem.depth.taps > 1 and problem.depth.output >= 2 * problem.depth.taps


def flattened(problem: Problem) -> Problem:
    """Return a volume with such filters as an image: a row has the pixels of a slice."""
    pixels = problem.height.size * problem.width.size
    depth = Axis(1, 1, 1, 1, 1, 0)
    return replace(problem, height=problem.depth, width=Axis(pixels, pixels, 1, 1, 1, 0), depth=depth)


def over_residues(problem: Problem) -> Problem:
    """Return the convolution that a residue class of the output multiplies at most, in a gradient with a stride."""
    return replace(problem, height=problem.height.of_residue, width=problem.width.of_residue)


def over_tap_rows(problem: Problem) -> Problem:
    """Return the convolution of one tap whose boxes have the pixels that all taps reach."""
    return replace(problem, height=problem.height.of_window, width=problem.width.of_window)


def over_windows(problem: Problem, kernel: KernelClass, pixels: int) -> Problem:
    """Return the convolution in which a row of taps is one tap over a window. Windows share no padding.

    A chunk of a window has some ``pixels``. A step of several chunks makes a tap of each, over every step's chunk.
    """
    window = kernel.block_bytes // WINDOW_BYTES
    output = problem.width.output
    step = problem.width.stride // pixels
    taps = min(step, ceil_div(problem.width.taps, pixels))
    width = Axis((output + window - 1) * step, output, taps, step, 1, 0, window)
    return replace(problem, channels=kernel.channels, width=width)
