"""The matrices that an own kernel moves by TMA, through shared memory: C and D of 16-bit floats."""

from __future__ import annotations

from evt.ir import Input, Output
from evt.ir.columns import pair_distances
from evt.ir.dtype import BF16, F16
from evt.ir.node import base
from evt.plan.epilogue.facts import is_collective
from evt.plan.problem import Problem

#: Types of C and D, whose buffers have elements of 16 bits.
_TYPES = (F16, BF16)
#: The bytes that addresses and strides are multiples of.
ALIGNED_BYTES = 16


def is_staged(problem: Problem, value: Input | Output) -> bool:
    """Return whether an own kernel can move a matrix as C or D: row-major, aligned, of all columns."""
    return is_collective(value) and _is_moved(problem, value)


def is_unaligned(problem: Problem, value: Input | Output) -> bool:
    """Return whether an own kernel would move a matrix as C or D if its rows were aligned."""
    return is_collective(value) and _is_movable(problem, value) and not _is_aligned(problem, value)


def is_paired(problem: Problem) -> bool:
    """Return whether an own GEMM kernel stores a D with a column for each pair of neighbouring columns.

    TMA loads the rows of B in another order then, so that k is contiguous. Two blocks leave no registers for operands
    that are converted. Threads would move all other matrices element by element.
    """
    primary, dag = problem.dag.primary, problem.dag
    if primary.modes[-1:] != ("n/2",) or problem.converts or problem.packs or problem.signature.b.contiguous != "k":
        return False
    if not _is_moved(problem, primary):
        return False
    values: tuple[Input | Output, ...] = (*dag.inputs, *dag.outputs)
    if any(value.is_tile for value in values if value is not primary):
        return False
    (value,) = dag.arguments(dag.stores[primary.name])
    return pair_distances(dag, dag.types)[value] == {1}


def _is_moved(problem: Problem, value: Input | Output) -> bool:
    return _is_movable(problem, value) and _is_aligned(problem, value)


def _is_movable(problem: Problem, value: Input | Output) -> bool:
    row_major = base(problem.signature[value.name].contiguous or "") == "n"
    return row_major and value.dtype in _TYPES and not value.is_indexed


def _is_aligned(problem: Problem, value: Input | Output) -> bool:
    return problem.signature[value.name].alignment * problem.tensor_bytes(value.name) >= ALIGNED_BYTES
