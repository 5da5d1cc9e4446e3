"""The rules of own products: batches that the GEMM kernel of evt computes, and the problems that suit the kernel."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from evt.ir import Input, Output, Reduce
from evt.ir.dtype import B1
from evt.plan.batches import counts
from evt.plan.geometry.halo import FILTERS
from evt.plan.geometry.halo_schedule import LINE_BYTES
from evt.plan.pairs import in_pairs
from evt.plan.problem import Problem
from evt.plan.rules.gemm import contiguous, operands_moved_by_tma
from evt.plan.rules.own import columns_of_warp, exchange, further_matrix, wide_operands
from evt.plan.rules.rule import Rule, rule
from evt.plan.staged import (
    MOST_STAGED,
    bytes_of_staged,
    distance_of_pairs,
    is_paired,
    is_staged,
    is_unaligned,
)
from evt.plan.verdict import HOLDS, Refusal, Verdict

#: The most pixels of a 1x1 convolution that are copied: 1,568 pixels of 20 and 50 channels take 0.80 and 0.89 of
#: CUTLASS's time on an H100, 12,544 pixels 1.4.
_MOST_COPIED_PIXELS = 4096


def _operands(problem: Problem) -> Verdict:
    """Let a kernel copy an operand whose address or rows are not aligned.

    A packed B has its own layout.
    """
    return operands_moved_by_tma(problem) if problem.packs else contiguous.check(problem)


tma = Rule(
    "TMA can move A and B, or the operation is a matrix product, which copies unaligned rows",
    _operands,
    "tma_of_operands",
)


def _columns(problem: Problem) -> Verdict:
    """Let a thread have pairs of any distance if D has their values."""
    return HOLDS if distance_of_pairs(problem) > 1 else columns_of_warp.check(problem)


columns = Rule(f"{columns_of_warp.statement}, or D stores one value for each pair", _columns, columns_of_warp.code)


@rule("A has one product, or two products that are computed as pairs of columns")
def dual(problem: Problem) -> Verdict:
    """Check that a kernel for pairs of columns computes two products: see :mod:`evt.plan.pairs`."""
    if problem.shape != "dual":
        return HOLDS
    found = in_pairs(problem)
    if isinstance(found, Refusal):
        return found
    primary = problem.dag.primary
    return HOLDS if is_paired(found) else Refusal(f"TMA does not store `{primary.name}`", primary.span)


@rule("there are several batches")
def batches(problem: Problem) -> Verdict:
    """Leave one batch to the route of products; tuning would build its kernels twice."""
    operands = problem.signature.a.batch, problem.signature.b.batch
    return HOLDS if problem.sizes.has_batches or "shared" in operands else Refusal("there is one batch")


@rule(
    "the epilogue has no reductions, batch coordinates or indexed tensors, and TMA moves all of its matrices except "
    "packed bits"
)
def of_batches(problem: Problem) -> Verdict:
    dag = problem.dag
    if problem.packs:
        return Refusal("a packed B cannot have several batches", dag.operands[1].span)
    for node, (op, _) in enumerate(dag.table):
        if isinstance(op, Reduce):
            return Refusal("a reduction would have parts for each batch", node)
    if counts(dag, "l"):
        return Refusal("coordinates and random numbers depend on the batch")
    values: tuple[Input | Output, ...] = (*dag.inputs, *dag.outputs)
    for value in values:
        if value.is_indexed:
            return Refusal(f"`{value.name}` is read or stored by an index", value.span)
    for output in dag.outputs:
        if not output.is_tile:
            return Refusal(f"`{output.name}` is a vector that is stored", output.span)
    return _moved(problem, _is_staged)


@rule("the operands have 8 or 16 bits")
def suits_batches(problem: Problem) -> Verdict:
    return wide_operands(problem) or HOLDS


@rule(
    "the operands have 8 or 16 bits; there is one batch; TMA moves all row-major matrices of at most 32 bits, or a "
    "product has matrices, or a convolution a residual and D, whose rows are not aligned; the epilogue has no blocks "
    "of columns and no indexed tensors, and pairs only if D stores their values"
)
def suits(problem: Problem) -> Verdict:
    """Leave tensors that threads would move element by element to CUTLASS."""
    if wide := wide_operands(problem):
        return wide
    if _copies_many_pixels(problem):
        return Refusal(f"more than {_MOST_COPIED_PIXELS} pixels are copied, whose rows are short")
    if problem.sizes.has_batches:
        return Refusal("there are batches, which would be launched one by one")
    primary = problem.dag.primary
    if not primary.is_tile:
        return Refusal(f"`{primary.name}` is not a matrix, and TMA stores matrices", primary.span)
    return _moved(problem, _is_moved_fast)


@rule(
    "the operation is a convolution of known sizes with more than 64 filters and a 128-byte line of channels or more, "
    "and has no reductions over rows (measured on an H200)"
)
def beside(problem: Problem) -> Verdict:
    """Offer products beside the halo kernel: 57 layers took 0.97 of its time on an H200, 0.72 to 1.11."""
    sizes = problem.sizes.convolution
    if sizes is None:
        return Refusal("the operation is no convolution of known sizes")
    if sizes.columns <= FILTERS:
        return Refusal(f"{sizes.columns} filters are one block")
    reductions = (node for node, (op, _) in enumerate(problem.dag.table) if isinstance(op, Reduce) and "m" in op.over)
    if (reduction := next(reductions, None)) is not None:
        return Refusal("a reduction is over rows", reduction)
    channel_bytes = sizes.depth * problem.operand_bytes
    return HOLDS if channel_bytes >= LINE_BYTES else Refusal(f"a pixel has {channel_bytes} bytes of channels")


def _copies_many_pixels(problem: Problem) -> bool:
    """Return whether a convolution's input is copied that CUTLASS's kernels read in place, in words of 4 bytes."""
    sizes = problem.sizes.convolution
    if problem.signature.convolution is None or not isinstance(operands_moved_by_tma(problem), Refusal):
        return False
    return sizes is None or sizes.images * prod(sizes.results) > _MOST_COPIED_PIXELS


def _is_staged(problem: Problem, value: Input | Output) -> bool:
    return is_staged(problem, value, by_product=True)


def _is_moved_fast(problem: Problem, value: Input | Output) -> bool:
    """Return whether TMA moves a matrix, or rows of a product that copies unaligned operands are not aligned."""
    copies = problem.signature.convolution is None or isinstance(operands_moved_by_tma(problem), Refusal)
    return _is_staged(problem, value) or (copies and is_unaligned(problem, value, by_product=True))


def _moved(problem: Problem, admitted: Callable[[Problem, Input | Output], bool]) -> Verdict:
    """Refuse other matrices, which threads would move element by element."""
    dag = problem.dag
    if is_paired(problem):
        return HOLDS
    values: tuple[Input | Output, ...] = (*dag.inputs, *dag.outputs)
    matrices = [value for value in values if value.is_tile and value.dtype != B1]
    for value in matrices:
        if not admitted(problem, value):
            return Refusal(f"`{value.name}` is moved element by element", value.span)
    if (together := exchange(problem)) is not None:
        return Refusal("pairs and blocks of columns are stored element by element", together)
    if not all(_is_staged(problem, value) for value in matrices):
        return HOLDS if problem.signature.convolution is None else further_matrix(problem) or HOLDS
    if (needed := bytes_of_staged(matrices)) > MOST_STAGED:
        return Refusal(f"an element of the epilogue's matrices has {needed} bytes, and buffers have {MOST_STAGED}")
    return HOLDS
