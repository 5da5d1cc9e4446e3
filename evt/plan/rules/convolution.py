"""The rules of kernels of convolutions."""

from __future__ import annotations

from evt.plan.epilogue.facts import stores_d
from evt.plan.problem import Problem
from evt.plan.rules.gemm import d_moved_by_tma, moved_by_tma, multiplied_by_mma
from evt.plan.rules.rule import Rule, rule
from evt.plan.sizes import BEYOND_OFFSETS
from evt.plan.verdict import HOLDS, Refusal, Verdict

# CUTLASS 3.x


@rule("the target has implicit-GEMM collectives of CUTLASS 3.x that evt uses: sm90")
def on_sm90(problem: Problem) -> Verdict:
    return HOLDS if problem.target.family("3x") == "3x" else Refusal(f"the target is {problem.target.name}")


@rule("D is not stored with pixels adjacent: their stride is nested, and no constant that TMA needs")
def adjacent_columns(problem: Problem) -> Verdict:
    """Check D where the collective stores it: a step of the epilogue stores reductions and scattered rows."""
    primary = problem.dag.primary
    if stores_d(problem.dag, problem.signature) and problem.signature[primary.name].contiguous == "m":
        return Refusal(f"the pixels of `{primary.name}` are adjacent in memory", primary.span)
    return HOLDS


@rule("the collectives take the operator")
def collective_operator(problem: Problem) -> Verdict:
    convolution = problem.convolution
    if convolution.operator == "wgrad":
        return Refusal("visitors do not know the nested columns of wgrad, which are taps and channels")
    if convolution.group_filters:
        return Refusal("the collectives have no groups")
    return _unit_dgrad(problem)


@rule("the collectives take the operands' types")
def collective_types(problem: Problem) -> Verdict:
    a = problem.dag.operands[0].dtype
    if a.bits == 64:
        return Refusal("f64 is multiplied by the mma instructions of 2.x kernels")
    if a.bits != 16 and problem.convolution.operator == "dgrad":
        return Refusal(f"WGMMA takes {a} along k only, and the filters of dgrad are not")
    return HOLDS


@rule("TMA's im2col mode reaches all taps")
def im2col(problem: Problem) -> Verdict:
    return _reached(problem)


def _reached(problem: Problem) -> Verdict:
    if problem.convolution.im2col:
        return HOLDS
    return Refusal("a stride is beyond 8, or padding or dilated filters reach too far")


@rule("channels are few or unaligned, and padded copies are not")
def padded(problem: Problem) -> Verdict:
    """Check that a copy with padded channels is worth it, and that the collectives can read it."""
    convolution = problem.convolution
    if convolution.operator != "fprop" or convolution.group_filters:
        return Refusal("the operation is not a fprop without groups")
    if convolution.row_channels:
        return HOLDS
    alignment = problem.operand_alignment * problem.operand_bytes
    if alignment >= 16:
        return Refusal("the channels of A and B are whole vectors of 16 bytes")
    if not convolution.not_matrices and alignment >= 4:
        return Refusal("a product of matrices reads the input once, as a copy would")
    return _reached(problem)


tma = Rule("A, B and D can be moved by TMA: 16-byte aligned addresses, strides and channels", moved_by_tma, "tma")
tma_of_d = Rule("D can be moved by TMA: 16-byte aligned address, strides and channels", d_moved_by_tma, "tma_of_d")

# CUTLASS 2.x


@rule("mma instructions multiply the operands' types and layouts")
def mma(problem: Problem) -> Verdict:
    """Check that mma instructions multiply the operands, with the iterators of convolutions."""
    a = problem.dag.operands[0].dtype
    if a.bits == 64:
        return Refusal("CUTLASS's convolutions have no f64")
    operator = problem.convolution.operator
    if a.bits == 8 and operator != "fprop":
        return Refusal(f"8-bit operands must be contiguous along k, and the channels of {operator} are not")
    return multiplied_by_mma(problem, problem.padded_vector or problem.operand_alignment)


@rule("operands are smaller than 2 GiB")
def small_operands(problem: Problem) -> Verdict:
    return Refusal(BEYOND_OFFSETS) if problem.sizes.exceeds_offsets(problem.operand_bytes) else HOLDS


@rule("groups, if any, fill the instructions' tiles")
def whole_groups(problem: Problem) -> Verdict:
    convolution = problem.convolution
    if not convolution.group_filters:
        return HOLDS
    if convolution.operator != "fprop" or convolution.rank == 3:
        return Refusal("CUTLASS has groups for the fprop of one and two dimensions only")
    if convolution.group_channels * problem.operand_bytes < 4:
        given = f"{convolution.group_channels} channels"
        return Refusal(f"a group's channels must be multiples of 4 bytes, and are {given}")
    filters = convolution.group_filters
    if 64 % filters and filters % 64:
        return Refusal(
            f"a group has {filters} output channels, which neither divide a tile of 64 columns nor are a multiple of it"
        )
    return HOLDS


@rule("gradients of volumes have operands that are aligned to 16 bytes")
def aligned_volumes(problem: Problem) -> Verdict:
    if problem.convolution.rank < 3 or problem.padded_vector:
        return HOLDS
    for operand, layout in zip(problem.dag.operands, (problem.signature.a, problem.signature.b), strict=True):
        size = layout.alignment * problem.operand_bytes
        if size < 16:
            return Refusal(
                f"CUTLASS's iterators of volumes take 16 bytes at a time, and `{operand.name}` is aligned to {size}"
            )
    return HOLDS


@rule("a gradient of the input has stride 1")
def unit_dgrad(problem: Problem) -> Verdict:
    return _unit_dgrad(problem)


def _unit_dgrad(problem: Problem) -> Verdict:
    convolution = problem.convolution
    if convolution.operator != "dgrad" or convolution.unit_stride:
        return HOLDS
    return Refusal("CUTLASS permutes the rows of a dgrad with a stride, which visitors do not support")


@rule("a gradient of the input with a stride has no dilation")
def undilated_dgrad(problem: Problem) -> Verdict:
    convolution = problem.convolution
    if not convolution.dilated or convolution.rank > 2:
        return HOLDS
    return Refusal("CUTLASS's dgrad with a stride has no dilation")
