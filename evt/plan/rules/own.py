"""The rules that several of evt's own kernels for sm90 share."""

from __future__ import annotations

from collections.abc import Collection

from evt.ir import Input, Interleave, Output, Pick, ReduceBlocks
from evt.ir.dtype import B1, F64, DType
from evt.plan.problem import Problem
from evt.plan.rules.gemm import operands_moved_by_tma
from evt.plan.rules.rule import Rule, rule
from evt.plan.verdict import HOLDS, Refusal, Verdict

#: Wider types are faster by CUTLASS's kernels: 1.07 to 2.3 times, measured on an H200.
MOST_BITS = 16


@rule("the target has WGMMA: sm90")
def on_sm90(problem: Problem) -> Verdict:
    if problem.target.family("3x") == "3x":
        return HOLDS
    has_two = "has two products of A" if problem.shape == "dual" else ""
    own = has_two or ("has factors for blocks of k" if problem.dag.scales else "converts B" if problem.converts else "")
    only = f"only evt's GEMM kernel for sm90 {own}, and " if own else ""
    return Refusal(f"{only}the target is {problem.target.name}")


@rule("WGMMA multiplies the operands' types; A is contiguous along k, and so is B, unless it has 16 bits")
def operands_along_k(problem: Problem) -> Verdict:
    a, b = problem.dag.operands
    if a.dtype.bits == 64:
        return Refusal("f64 is multiplied by the mma instructions of 2.x kernels", a.span)
    for operand, layout in ((a, problem.signature.a), (b, problem.signature.b)):
        if layout.contiguous != "k" and (operand is a or operand.dtype.bits != 16):
            given = f"`{operand.name}` is {operand.dtype} and contiguous along {layout.contiguous}"
            return Refusal(given, operand.span)
    return HOLDS


@rule("there is one batch")
def one_batch(problem: Problem) -> Verdict:
    """Refuse tensors that several batches share; a call refuses several batches of other tensors."""
    for operand, layout in zip(problem.dag.operands, (problem.signature.a, problem.signature.b), strict=True):
        if layout.batch == "shared":
            return Refusal(f"several batches share `{operand.name}`", operand.span)
    return HOLDS


def one_type(problem: Problem, types: Collection[DType]) -> Verdict:
    """Check that A and B have the same type, one of ``types``."""
    a, b = problem.dag.operands
    for operand in (a, b):
        if operand.dtype not in types:
            return Refusal(f"`{operand.name}` is {operand.dtype}", operand.span)
    return HOLDS if a.dtype == b.dtype else Refusal(f"A is {a.dtype}, and B is {b.dtype}", b.span)


tma = Rule(
    "A and B can be moved by TMA: 16-byte aligned addresses, strides and contiguous extents",
    operands_moved_by_tma,
    "tma_of_operands",
)


@rule("the epilogue has no f64")
def epilogue(problem: Problem) -> Verdict:
    values: tuple[Input | Output, ...] = (*problem.dag.inputs, *problem.dag.outputs)
    for value in values:
        if value.dtype == F64:
            return Refusal(f"`{value.name}` is {value.dtype}", value.span)
    return HOLDS


def _columns_of_warp(most: int) -> Rule:
    """Return the rule that lanes of one warp exchange pairs and blocks of columns."""

    def check(problem: Problem) -> Verdict:
        if problem.columns_together <= most:
            return HOLDS
        reason = f"{problem.columns_together} columns are taken together, and a warp has {most}"
        return Refusal(reason, exchange(problem))

    return Rule(f"pairs and blocks of columns lie in the {most} columns of a warp", check, "columns_of_warp")


def exchange(problem: Problem) -> int | None:
    """Return the first operation on pairs or blocks of columns."""
    exchanges = (Pick, Interleave, ReduceBlocks)
    return next((node for node, (op, _) in enumerate(problem.dag.table) if isinstance(op, exchanges)), None)


#: A warp has 16 filters of WGMMA's 64, and all 32 channels of a depthwise thread block.
columns_of_warp, columns_of_depthwise_warp = _columns_of_warp(16), _columns_of_warp(32)


def wide_operands(problem: Problem) -> Refusal | None:
    """Refuse operands of more than 16 bits."""
    operand = problem.dag.operands[0].dtype
    if operand.bits <= MOST_BITS:
        return None
    return Refusal(f"the operands are {operand}, for which a kernel of CUTLASS is faster")


def further_matrix(problem: Problem) -> Refusal | None:
    """Refuse a second matrix that is read or written, and exchanges of columns."""
    for values in (problem.dag.inputs, problem.dag.outputs):
        more = [value for value in values if value.is_tile and value.dtype != B1][1:]
        if more:
            return Refusal(f"`{more[0].name}` is a further matrix, which is moved element by element", more[0].span)
    together = exchange(problem)
    if together is not None:
        return Refusal("pairs and blocks of columns are stored element by element", together)
    return None
