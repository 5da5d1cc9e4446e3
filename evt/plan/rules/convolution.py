"""The rules of kernels of convolutions: each gives the reason why a problem fails it, or None."""

from __future__ import annotations

from evt.plan.kernels.padding import padded_vector
from evt.plan.problem import Problem
from evt.plan.rules.gemm import mma


def convolved(problem: Problem) -> str | None:
    """What mma instructions multiply, of the iterators of convolutions."""
    a = problem.dag.operands[0].dtype
    if a.bits == 64:
        return "CUTLASS's convolutions have no f64"
    convolution = problem.convolution
    if a.bits == 8 and convolution.operator != "fprop":
        return f"8-bit operands must be contiguous along k, and the channels of {convolution.operator} are not"
    return mma(problem, problem.operand_bytes * padded_vector(problem))


def of_sm90(problem: Problem) -> str | None:
    return None if problem.target.family("3x") == "3x" else f"the target is {problem.target.name}"


def collective_operator(problem: Problem) -> str | None:
    convolution = problem.convolution
    if convolution.operator == "wgrad":
        return "visitors do not know the nested columns of wgrad, which are taps and channels"
    if convolution.group_filters:
        return "the collectives have no groups"
    return unit_dgrad(problem)


def collective_types(problem: Problem) -> str | None:
    convolution = problem.convolution
    a = problem.dag.operands[0].dtype
    if a.bits == 64:
        return "f64 is multiplied by the mma instructions of 2.x kernels"
    if a.bits != 16 and convolution.operator == "dgrad":
        return f"WGMMA takes {a} along k only, and the filters of dgrad are not"
    return None


def im2col(problem: Problem) -> str | None:
    convolution = problem.convolution
    return None if convolution.im2col else "a stride is beyond 8, or padding or dilated filters reach too far"


def padded(problem: Problem) -> str | None:
    """Whether a copy with padded channels is worth it, and is one that the collectives read."""
    convolution, signature = problem.convolution, problem.signature
    if convolution.operator != "fprop" or convolution.group_filters:
        return "the operation is not a fprop without groups"
    if convolution.row_channels:
        return None
    alignment = min(signature.a.alignment, signature.b.alignment) * problem.operand_bytes
    if alignment >= 16:
        return "the channels of A and B are whole vectors of 16 bytes"
    if not convolution.not_matrices and alignment >= 4:
        return "a product of matrices reads the input once, as a copy would"
    return im2col(problem)


def small_operands(problem: Problem) -> str | None:
    if not problem.convolution.large_operand:
        return None
    return "an operand has 2 GiB or more, beyond the 32-bit offsets of CUTLASS 2.x's iterators: split the images"


def unit_dgrad(problem: Problem) -> str | None:
    convolution = problem.convolution
    if convolution.operator != "dgrad" or convolution.unit_stride:
        return None
    return "CUTLASS permutes the rows of a dgrad with a stride, of which visitors know nothing"


def groups(problem: Problem) -> str | None:
    convolution = problem.convolution
    if not convolution.group_filters:
        return None
    if convolution.operator != "fprop" or convolution.rank == 3:
        return "CUTLASS has groups for the fprop of one and two dimensions only"
    if convolution.group_channels * problem.operand_bytes < 4:
        given = f"{convolution.group_channels} channels"
        return f"a group's channels must be multiples of 4 bytes, and are {given}: depthwise needs a kernel of its own"
    filters = convolution.group_filters
    if 64 % filters and filters % 64:
        return f"a group has {filters} filters, which divide no tile of 64 columns and are divided by none"
    return None


def volumes(problem: Problem) -> str | None:
    if problem.convolution.rank < 3 or padded_vector(problem):
        return None
    for operand, layout in zip(problem.dag.operands, (problem.signature.a, problem.signature.b), strict=True):
        if layout.alignment * problem.operand_bytes < 16:
            size = layout.alignment * problem.operand_bytes
            return f"CUTLASS's iterators of volumes take 16 bytes at a time, and `{operand.name}` is aligned to {size}"
    return None
