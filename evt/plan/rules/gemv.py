"""The rules of products of few rows or few columns: problems that the kernel computes, and problems that suit it."""

from __future__ import annotations

from evt.ir.dtype import BF16, F16, I8, U8
from evt.plan.geometry.halo import EIGHT
from evt.plan.problem import Problem
from evt.plan.rules.gemm import operands_moved_by_tma
from evt.plan.rules.own import one_type
from evt.plan.rules.rule import rule
from evt.plan.verdict import HOLDS, Partial, Refusal, Verdict


@rule("A and B have one type of 16-bit floats or 8-bit integers, and are contiguous along k")
def operands(problem: Problem) -> Verdict:
    if isinstance(found := one_type(problem, (F16, BF16, I8, U8)), Refusal):
        return found
    layouts = problem.signature.a, problem.signature.b
    for operand, layout in zip(problem.dag.operands, layouts, strict=True):
        if layout.contiguous != "k":
            return Refusal(f"`{operand.name}` is contiguous along {layout.contiguous}", operand.span)
    return HOLDS


@rule("TMA cannot load A or B")
def unaligned(problem: Problem) -> Verdict:
    """Leave aligned operands to the GEMM kernel."""
    return HOLDS if isinstance(operands_moved_by_tma(problem), Refusal) else Refusal("TMA can load A and B")


@rule(f"TMA cannot load A or B, or the operation is a convolution of known sizes with at most {EIGHT} filters")
def unaligned_or_narrow(problem: Problem) -> Verdict:
    """Leave aligned operands to other kernels, unless most of a tile of 64 columns would be empty."""
    sizes, verdict = problem.sizes.convolution, unaligned.check(problem)
    if sizes is None or not isinstance(verdict, Refusal):
        return verdict
    return HOLDS if sizes.columns <= EIGHT else Refusal(f"there are {sizes.columns} filters, and {verdict.reason}")


@rule("rows are few")
def suits(problem: Problem) -> Verdict:
    """Let each call decide by its estimate."""
    return Partial("the GEMM kernel, which copies unaligned operands, is expected to be faster for many rows")


@rule("the operation is a convolution of known sizes with few filters (measured on an H200)")
def suits_columns(problem: Problem) -> Verdict:
    """Let each call decide by its estimate."""
    if problem.sizes.convolution is None:
        return Refusal("the operation is no convolution of known sizes")
    return Partial("another kernel is expected to be faster for many filters or channels")
