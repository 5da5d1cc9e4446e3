"""The rules of the halo kernel: the problems that it computes, and those among them that suit it."""

from __future__ import annotations

from math import prod

from evt.ir import Input, Interleave, Output, Pick, ReduceBlocks
from evt.ir.dtype import B1, F64
from evt.plan.geometry.halo import MAX_CLASSES
from evt.plan.halo import FEW_CHANNELS
from evt.plan.problem import Problem
from evt.plan.rules import gemm
from evt.plan.rules.convolution import collective_types
from evt.plan.rules.gemm import operands_moved_by_tma
from evt.plan.rules.rule import Rule, rule
from evt.plan.verdict import HOLDS, Partial, Refusal, Verdict

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


operand_types = Rule("WGMMA multiplies the operands' types", collective_types.check, "operand_types")
tma = Rule(
    "A and B can be moved by TMA: 16-byte aligned addresses, strides and contiguous extents",
    operands_moved_by_tma,
    "tma_of_operands",
)


@rule("a tile and its halo fit TMA's boxes and shared memory")
def fits(problem: Problem) -> Verdict:
    reason = problem.halo.reason
    return Refusal(reason) if reason else HOLDS


@rule("channels are few: widened to a power of 2, a row of taps is at most 128 bytes, a step of the stride exactly 16")
def windows(problem: Problem) -> Verdict:
    reason = problem.windows.reason
    return Refusal(reason) if reason else HOLDS


@rule("the operation is a fprop, or a dgrad of stride 1, with groups")
def has_groups(problem: Problem) -> Verdict:
    return HOLDS if problem.convolution.group_filters else Refusal("there are no groups")


@rule("groups of 16-bit operands: several whole ones fill a block of 64 filters, or each has whole vectors of 16 bytes")
def groups(problem: Problem) -> Verdict:
    reason = problem.grouped_halo.reason
    return Refusal(reason) if reason else HOLDS


@rule("A can be moved by TMA, and so can B where a tile lies in one group: 16-byte aligned addresses and strides")
def tma_of_groups(problem: Problem) -> Verdict:
    signature, size = problem.signature, problem.operand_bytes
    of_a = gemm.moved("A", signature.a, size)
    by_threads = all(each.groups == "multiple" for each in problem.grouped_halo.offered)
    return of_a if by_threads or isinstance(of_a, Refusal) else gemm.moved("B", signature.b, size)


@rule(
    "TMA cannot load A: channels and strides are no multiples of 16 bytes, but of 4, or the number of channels is odd"
)
def unaligned(problem: Problem) -> Verdict:
    layout, sizes = problem.signature.a, problem.sizes.convolution
    if layout.contiguous != "k":
        return Refusal("the channels of `A` are not contiguous")
    size = layout.alignment * problem.operand_bytes
    if 4 <= size < 16 or (size < 4 and sizes is not None and sizes.channels % 2):
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


@rule("operands of a fprop have 16 bits; an odd number of channels is at most 63, without groups; a tile fits")
def words(problem: Problem) -> Verdict:
    reason = problem.words.reason
    return Refusal(reason) if reason else HOLDS


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


@rule(
    "there are several taps, the operands have 8 or 16 bits, and the epilogue reads at most one matrix, writes at most "
    "one, and has no pairs or blocks of columns"
)
def suits_windows(problem: Problem) -> Verdict:
    if problem.convolution.unit_filter:
        return Refusal("the filters have one tap")
    return wide_operands(problem) or further_matrix(problem) or HOLDS


@rule(
    "the operands have 8 or 16 bits; the kernel is expected to be faster than CUTLASS's; the epilogue reads at most "
    "one matrix, writes at most one, and has no pairs or blocks of columns"
)
def suits(problem: Problem) -> Verdict:
    """Prefer layers for which CUTLASS's kernels wait for their input: :mod:`evt.plan.halo` states the limits."""
    halo = problem.halo
    if wide := wide_operands(problem):
        return wide
    if not (halo.fast or halo.for_some):
        return Refusal("a kernel of CUTLASS is expected to be faster")
    if further := further_matrix(problem):
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
    return further_matrix(problem) or HOLDS


@rule("an even number of channels, more than 8; several taps or a stride; no groups (measured on an H100)")
def suits_words(problem: Problem) -> Verdict:
    """Tell where threads copy the input faster than a kernel before: 40 drawn layers on an H100."""
    convolution, sizes = problem.convolution, problem.sizes.convolution
    if convolution.group_filters:
        return Refusal("it was not measured with groups")
    if sizes is not None and sizes.channels % 2:
        return Refusal("every second pixel of an odd number of channels is moved again, which takes longer than a copy")
    return suits_copies.check(problem)


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
