"""Convolutions whose D is contiguous, [N, F, H, W] for images. A filter is a plane of an image.

The rows of image i begin at row ``i * F * H * W``. D is then a matrix [m, n] whose rows are contiguous. No other tensor
of the epilogue may have rows. Threads store D.
"""

from __future__ import annotations

from evt.ir import TypedDag
from evt.ir.dtype import BF16, F16
from evt.ir.node import Index, Random, base
from evt.plan.problem import Problem


def may_be_planar(dag: TypedDag) -> bool:
    """Return whether the one tensor with rows is D, of 16-bit floats, and the epilogue does not read rows' numbers."""
    if len(dag.outputs) > 1 or any(isinstance(op, Index | Random) for op, _ in dag.table):
        return False
    is_matrix = dag.primary.modes == ("m", "n") and dag.primary.dtype in (F16, BF16)
    return is_matrix and not any("m" in map(base, value.modes) for value in dag.inputs)


def is_planar(problem: Problem) -> bool:
    """Return whether the rows of D are contiguous, and D may have planes."""
    return problem.signature[problem.dag.primary.name].contiguous == "m" and may_be_planar(problem.dag)
