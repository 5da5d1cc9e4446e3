"""The matrices that an own kernel moves by TMA, through shared memory: C and D of 16-bit floats, and all matrices of a
product.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from evt.ir import Input, Output
from evt.ir.columns import pair_distances
from evt.ir.dtype import B1, BF16, E4M3, E5M2, F16, F32, I8, I32, U8, DType
from evt.ir.node import Interleave, Pick, ReduceBlocks, base
from evt.plan.epilogue.facts import is_collective
from evt.plan.problem import Problem
from evt.plan.signature import bytes_of

#: Types of C and D, of a product's D of pairs, and of all matrices of a product.
_TYPES, _BYTES = (F16, BF16), (E4M3, E5M2, I8, U8)
_OF_PRODUCTS = (*_TYPES, *_BYTES, F32, I32)
#: The most bytes of an element in a buffer of staged matrices: with more, shared memory has few stages. A part of a
#: consumer by rows has 64 rows.
MOST_STAGED, MOST_STAGED_BY_ROWS = 16, 4
#: The bytes that addresses and strides are multiples of.
ALIGNED_BYTES = 16


def is_staged(problem: Problem, value: Input | Output, *, by_product: bool = False) -> bool:
    """Return whether an own kernel can move a matrix by TMA: row-major, aligned, of all columns."""
    return is_collective(value) and _is_moved(problem, value, _OF_PRODUCTS if by_product else ())


def staged_bytes(loads: Sequence[DType], stores: Sequence[DType]) -> int:
    """Return the bytes of an element in a buffer of staged matrices: bytes_of_element of kit/staged.hpp.

    A stored matrix has the memory of a loaded one with elements of its size.
    """
    loaded, stored = (Counter(map(bytes_of, each)) for each in (loads, stores))
    return sum(size * count for size, count in (loaded | stored).items())


def staged_by_product(problem: Problem, most: int = MOST_STAGED) -> list[Input | Output]:
    """Return the matrices of an epilogue that an own GEMM kernel moves, D first: all that have room in the buffers.

    TMA moves matrices only if it stores D.
    """
    primary, dag = problem.dag.primary, problem.dag
    if not is_staged(problem, primary, by_product=True):
        return []
    found: list[Input | Output] = [primary]
    others: tuple[Input | Output, ...] = (*dag.inputs, *dag.outputs)
    for value in others:
        if (
            value is not primary
            and is_staged(problem, value, by_product=True)
            and bytes_of_staged((*found, value)) <= most
        ):
            found.append(value)
    return found


def unaligned_by_product(problem: Problem) -> list[Input | Output]:
    """Return the matrices that an own GEMM kernel loads if TMA cannot store D: their rows begin at any address.

    Threads store D and further outputs.
    """
    values: tuple[Input | Output, ...] = (*problem.dag.inputs, *problem.dag.outputs)
    is_one = problem.signature.convolution is None and not problem.sizes.has_batches and not problem.ragged
    if not is_one or problem.converts or problem.packs or is_paired(problem):
        return []
    has_bits = any(value.dtype == B1 for value in values)
    if has_bits or not is_unaligned(problem, problem.dag.primary, by_product=True):
        return []

    found = list[Input | Output]()
    for value in problem.dag.inputs:
        loaded = is_staged(problem, value, by_product=True) or is_unaligned(problem, value, by_product=True)
        has_halves = value.dtype is not None and bytes_of(value.dtype) > 1
        if loaded and has_halves and bytes_of_staged((*found, value)) <= MOST_STAGED:
            found.append(value)
    return found


def bytes_of_staged(values: Collection[Input | Output]) -> int:
    """Return the bytes of an element of some inputs and outputs in a buffer."""
    loads = [value.dtype for value in values if isinstance(value, Input) and value.dtype]
    return staged_bytes(loads, [value.dtype for value in values if isinstance(value, Output) and value.dtype])


def is_unaligned(problem: Problem, value: Input | Output, *, by_product: bool = False) -> bool:
    """Return whether an own kernel would move a matrix as C or D if its rows were aligned."""
    types = _OF_PRODUCTS if by_product else _TYPES
    is_matrix = is_collective(value) and value.dtype in types
    return is_matrix and _is_movable(problem, value, types) and not _is_aligned(problem, value)


def is_paired(problem: Problem) -> bool:
    """Return whether an own GEMM kernel stores a D with a column for each pair of columns."""
    return distance_of_pairs(problem) > 0


def distance_of_pairs(problem: Problem) -> int:
    """Return the distance of the columns of a pair for which an own GEMM kernel stores one column of D, or 0.

    TMA loads the rows of B in another order then, so that k is contiguous. Two blocks leave no registers for operands
    that are converted. Threads would move all other matrices element by element. A warp has blocks of neighbouring
    columns, and pairs of other distances, only if pairs are neighbours.
    """
    primary, dag = problem.dag.primary, problem.dag
    if primary.modes[-1:] != ("n/2",) or problem.converts or problem.packs or problem.signature.b.contiguous != "k":
        return 0
    if not _is_moved(problem, primary):
        return 0
    values: tuple[Input | Output, ...] = (*dag.inputs, *dag.outputs)
    if any(value.is_tile for value in values if value is not primary):
        return 0
    (value,) = dag.arguments(dag.stores[primary.name])
    (found,) = pair_distances(dag, dag.types)[value]
    others = [op for op, _ in dag.table if isinstance(op, ReduceBlocks | Pick | Interleave)]
    alike = all(not isinstance(op, ReduceBlocks) and op.block == found for op in others)
    return found if found == 1 or alike else 0


def _is_moved(problem: Problem, value: Input | Output, types: Sequence[DType] = ()) -> bool:
    return _is_movable(problem, value, types) and _is_aligned(problem, value)


def _is_movable(problem: Problem, value: Input | Output, types: Sequence[DType] = ()) -> bool:
    row_major, primary = base(problem.signature[value.name].contiguous or "") == "n", problem.dag.primary
    stores_bytes = problem.signature.convolution is None and primary.dtype in _BYTES
    moved = value is primary if stores_bytes else value.dtype in _TYPES  # C and D have one buffer
    return row_major and (value.dtype in types or moved) and not value.is_indexed


def _is_aligned(problem: Problem, value: Input | Output) -> bool:
    return problem.signature[value.name].alignment * problem.tensor_bytes(value.name) >= ALIGNED_BYTES
