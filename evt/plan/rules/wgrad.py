"""The rules of the kernel of filter gradients."""

from __future__ import annotations

from evt.ir.dtype import BF16, F16
from evt.plan.problem import Problem
from evt.plan.rules import own
from evt.plan.rules.rule import rule
from evt.plan.tma import LARGEST_STRIDE
from evt.plan.verdict import HOLDS, Refusal, Verdict
from evt.plan.wgrad import fits as tile_fits
from evt.plan.wgrad import problem_of, tiles_of


@rule("the operation is a wgrad of images, without groups; strides are at most 8")
def filter_gradient(problem: Problem) -> Verdict:
    convolution = problem.convolution
    if convolution.operator != "wgrad":
        return Refusal(f"the operation is a {convolution.operator}")
    if convolution.rank > 2:
        return Refusal("the filters are volumes")
    if max(convolution.geometry.stride) > LARGEST_STRIDE:
        return Refusal(f"a stride is beyond {LARGEST_STRIDE}")
    return Refusal("there are groups") if convolution.group_filters else HOLDS


@rule("A and B are f16 or bf16, both the same")
def operand_types(problem: Problem) -> Verdict:
    """Check that WGMMA takes transposed operands: of 16 bits alone."""
    return own.one_type(problem, (F16, BF16))


@rule("a tile of pixels and its halo fit TMA's boxes and shared memory")
def fits(problem: Problem) -> Verdict:
    sizes = problem.sizes.convolution
    if sizes is None:
        return HOLDS
    found = problem_of(sizes.sizes)
    if any(tile_fits(found, tile) for tile in tiles_of(problem.convolution.geometry)):
        return HOLDS
    return Refusal("a tile and its halo do not fit in shared memory")


@rule("it was not measured: a kernel of CUTLASS is taken unless this route is asked for")
def suits(problem: Problem) -> Verdict:
    return Refusal("it was not measured")
