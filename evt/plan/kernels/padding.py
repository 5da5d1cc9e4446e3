"""Copies of a convolution's operands with padded channels, which kernels read where they cannot read the operands.

Channels that are no whole vectors are read element by element, if at all; those of a first layer fill a fraction of a
tile's depth. A copy, made on the way, costs a pass over the input, whose pixels are read once for every tap.
"""

from __future__ import annotations

from evt.plan.problem import Problem


def has_few_channels(problem: Problem) -> bool:
    """Whether CUTLASS's iterators for few channels pack taps together, which the others pad to a tile's depth."""
    shape = problem.convolution
    first = shape.operator == "fprop" and shape.rank == 2 and not shape.group_filters and not shape.large_filter
    return first and shape.few_channels > 0 and problem.operand_bytes == 2


def padded_vector(problem: Problem) -> int:
    """The vectors of the copies that kernels of CUTLASS 2.x read instead of the operands; 0 where they need none.

    Of few channels they are the channels themselves, 4 or 8. Others are copied where an access would be narrower than
    cp.async's, which has 4 bytes, or in volumes than 16 bytes, which is all that their iterators know. What is worked
    on is read where it is.
    """
    shape, size = problem.convolution, problem.operand_bytes
    alignments = {problem.signature.a.alignment, problem.signature.b.alignment}
    if shape.operator != "fprop" or shape.group_filters or problem.dag.feeds:
        return 0
    if has_few_channels(problem):
        channels = 4 if shape.few_channels <= 4 else 8
        return 0 if alignments == {channels} else channels
    least = 16 if shape.rank == 3 else 4
    return 16 // size if min(alignments) * size < least else 0
