"""The rules of the halo kernel: the problems that it computes, and those among them that suit it."""

from __future__ import annotations

from math import prod

from evt.plan.geometry.halo import MAX_CLASSES
from evt.plan.halo import FEW_CHANNELS
from evt.plan.problem import Problem
from evt.plan.rules import gemm, own
from evt.plan.rules.convolution import collective_types
from evt.plan.rules.gemm import operands_moved_by_tma
from evt.plan.rules.rule import Rule, rule
from evt.plan.verdict import HOLDS, Partial, Refusal, Verdict, refused_for


@rule(
    "the operation is a fprop or a dgrad, without groups; the strides of a dgrad are of images, their product at most 4"
)
def operator(problem: Problem) -> Verdict:
    convolution = problem.convolution
    if convolution.operator == "wgrad":
        return Refusal("the operation is wgrad")
    if convolution.operator == "dgrad" and not convolution.unit_stride:
        if convolution.rank == 3:
            return Refusal("the dgrad of volumes has a stride")
        if prod(convolution.geometry.stride) > MAX_CLASSES:
            return Refusal(f"the dgrad has more than {MAX_CLASSES} classes of pixels, which meet other taps each")
    return Refusal("there are groups") if convolution.group_filters else HOLDS


@rule("a gradient with a stride has no reduction with a result for each image")
def images_in_order(problem: Problem) -> Verdict:
    """Check that the tiles of an image follow one another."""
    strided = problem.convolution.operator == "dgrad" and not problem.convolution.unit_stride
    return gemm.of_all_images.check(problem) if strided else HOLDS


operand_types = Rule("WGMMA multiplies the operands' types", collective_types.check, "operand_types")


@rule("a tile and its halo fit TMA's boxes and shared memory")
def fits(problem: Problem) -> Verdict:
    return refused_for(problem.halo.reason)


@rule("channels are few: widened to a power of 2, a row of taps is at most 128 bytes, a step of the stride exactly 16")
def windows(problem: Problem) -> Verdict:
    return refused_for(problem.windows.reason)


@rule("the operation is a fprop, or a dgrad of stride 1, with groups")
def has_groups(problem: Problem) -> Verdict:
    return HOLDS if problem.convolution.group_filters else Refusal("there are no groups")


@rule("groups of 16-bit operands: several whole ones fill a block of 64 filters, or each has whole vectors of 16 bytes")
def groups(problem: Problem) -> Verdict:
    return refused_for(problem.grouped_halo.reason)


@rule("A can be moved by TMA, and so can B where a tile lies in one group: 16-byte aligned addresses and strides")
def tma_of_groups(problem: Problem) -> Verdict:
    signature, size = problem.signature, problem.operand_bytes
    of_a = gemm.moved("A", signature.a, size)
    by_threads = any(each.groups == "multiple" for each in problem.grouped_halo.most)
    return of_a if by_threads or isinstance(of_a, Refusal) else gemm.moved("B", signature.b, size)


@rule(
    "TMA cannot load A: strides and the channels of a group are no multiples of 16 bytes, but of 4, or the number of "
    "channels of a group is odd"
)
def unaligned(problem: Problem) -> Verdict:
    layout, sizes = problem.signature.a, problem.sizes.convolution
    if layout.contiguous != "k":
        return Refusal("the channels of `A` are not contiguous")
    of_group = problem.convolution.group_channels
    size = min(layout.alignment, of_group & -of_group or layout.alignment) * problem.operand_bytes
    if 4 <= size < 16 or (size < 4 and sizes is not None and (of_group or sizes.channels) % 2):
        return HOLDS
    return Refusal(f"`A` is aligned to {size} bytes")


@rule("the operation is a fprop without groups, and TMA cannot load A or B, whose channels are contiguous")
def copied(problem: Problem) -> Verdict:
    """Check that TMA can load copies with padded channels, and not the operands."""
    convolution, (a, b) = problem.convolution, (problem.signature.a, problem.signature.b)
    if convolution.operator != "fprop" or convolution.group_filters:
        return Refusal("the operation is not a fprop without groups")
    if not isinstance(operands_moved_by_tma(problem), Refusal):
        return Refusal("TMA can load A and B")
    if {a.contiguous, b.contiguous} != {"k"}:
        return Refusal("the channels of A or B are not contiguous")
    return HOLDS


@rule("operands of a fprop have 16 bits; an odd number of channels of a group is at most 63; a tile fits")
def words(problem: Problem) -> Verdict:
    return refused_for(problem.words.reason)


@rule("a fprop of 16-bit operands with a stride of 1; at most 8 filters have at most 64 taps together")
def tap_rows(problem: Problem) -> Verdict:
    return refused_for(problem.tap_rows.reason)


@rule(
    "there are several taps, the operands have 8 or 16 bits, and the epilogue reads at most one matrix, writes at most "
    "one, and has no pairs or blocks of columns"
)
def suits_windows(problem: Problem) -> Verdict:
    if problem.convolution.unit_filter:
        return Refusal("the filters have one tap")
    return own.wide_operands(problem) or own.further_matrix(problem) or HOLDS


@rule(
    "the operands have 8 or 16 bits; the kernel is expected to be faster than CUTLASS's; the epilogue reads at most "
    "one matrix, writes at most one, and has no pairs or blocks of columns"
)
def suits(problem: Problem) -> Verdict:
    """Prefer layers for which CUTLASS's kernels wait for their input: :mod:`evt.plan.halo` states the limits."""
    halo = problem.halo
    if wide := own.wide_operands(problem):
        return wide
    if not (halo.fast or halo.for_some):
        return Refusal("a kernel of CUTLASS is expected to be faster")
    if further := own.further_matrix(problem):
        return further
    return (
        HOLDS if halo.fast else Partial("a kernel of CUTLASS is expected to be faster, but for some numbers of images")
    )


@rule(
    "images of 16-bit operands have more than 8 channels, several taps or a stride, and an epilogue that reads at most "
    "one matrix, writes at most one, and has no pairs or blocks of columns (measured on an H100)"
)
def suits_copies(problem: Problem) -> Verdict:
    """Leave few channels to kernels that pad them less, and products of matrices to routes that read A once."""
    convolution, sizes = problem.convolution, problem.sizes.convolution
    if not convolution.not_matrices:
        return Refusal("a 1x1 convolution reads the input once, and a copy would read it once more")
    if sizes is None or sizes.channels <= FEW_CHANNELS:
        return Refusal(f"there are at most {FEW_CHANNELS} channels, and a copy has 16 or more")
    if convolution.rank == 3 or problem.operand_bytes != 2:
        return Refusal("volumes and operands of other types were not measured")
    return own.further_matrix(problem) or HOLDS


@rule("an even number of channels, more than 8; several taps or a stride; no groups (measured on an H100)")
def suits_words(problem: Problem) -> Verdict:
    """Tell where threads copy the input faster than a kernel before: 40 drawn layers on an H100."""
    convolution, sizes = problem.convolution, problem.sizes.convolution
    if convolution.group_filters:
        return Refusal("it was not measured with groups")
    if sizes is not None and sizes.channels % 2:
        return Refusal("every second pixel of an odd number of channels is moved again, which takes longer than a copy")
    return suits_copies.check(problem)


@rule("the epilogue has no pairs or blocks of columns (measured on an H200)")
def suits_taps(problem: Problem) -> Verdict:
    """Let each call of filters of one tap decide by its estimate, unless few channels leave it to CUTLASS."""
    together, sizes = own.exchange(problem), problem.sizes.convolution
    if together is not None:
        return Refusal("pairs and blocks of columns were not measured", together)
    if problem.convolution.unit_filter and sizes is not None and sizes.channels > FEW_CHANNELS:
        return Partial("a kernel of another route is expected to be faster for few pixels")
    return HOLDS
