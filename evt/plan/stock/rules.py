"""The rules of the routes by stock epilogues: each gives the reason why a problem fails it, or None."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evt.plan.kernels.padding import has_few_channels
from evt.plan.stock.match import Stock, match_stock
from evt.plan.stock.operators import Fused, fusion_operation, output_operator

if TYPE_CHECKING:
    from evt.plan.problem import Problem


def _stock(problem: Problem) -> Stock | str:
    """The formula as stock epilogues have it, or why they do not."""
    if problem.options.separate_products:
        return 'numerics="match_eager" rounds products on their own'
    found = match_stock(problem.dag)
    if problem.options.fast_math and isinstance(found, Stock) and any(each.has_fast for each in found.activations):
        return "fast_math=True approximates the activation, and CUTLASS's functor does not"
    return found


def stock_operator(problem: Problem, columns: str) -> Fused | str:
    """The output operator of CUTLASS 2.x for a formula, or why there is none.

    ``columns`` is the mode along the kernel's own columns.
    """
    found = _stock(problem)
    return found if isinstance(found, str) else output_operator(found, problem.dag, problem.signature, columns)


def fusion(problem: Problem) -> Fused | str:
    """The fusion operation of CUTLASS 3.x for a formula, or why there is none."""
    found = _stock(problem)
    if isinstance(found, str):
        return found
    swapped = problem.target.family("3x") == "3x" and problem.swaps_operands
    return fusion_operation(found, problem.dag, problem.signature, "n" if swapped else "m")


def no_operator(problem: Problem) -> str | None:
    """Why no output operator of CUTLASS 2.x computes a formula, for a product of matrices."""
    contiguous = dict(problem.signature.tensors).get("D")
    found = stock_operator(problem, "m" if contiguous and contiguous.contiguous == "m" else "n")
    return found if isinstance(found, str) else None


def no_convolution_operator(problem: Problem) -> str | None:
    """The same for a convolution: those with an operator that reads a vector are fewer than those that read C alone."""
    convolution = problem.convolution
    found = stock_operator(problem, "n")
    if isinstance(found, str) or found.reads_source_only:
        return found if isinstance(found, str) else None
    name = found.name
    if convolution.operator != "fprop" or convolution.group_filters:
        return f"{name} reads a vector, and CUTLASS has such convolutions for fprop without groups only"
    if len(found.sources) > 1:
        return f"`{found.sources[0]}` and `{found.sources[1]}` are two tensors, and convolutions read one"
    if has_few_channels(problem):
        return f"{name} reads a vector, and CUTLASS's convolutions with one take a step of the main loop for every tap"
    return None


def stepped_dgrad(problem: Problem) -> str | None:
    """Why a gradient of the input with a stride is none of CUTLASS's."""
    convolution = problem.convolution
    if not convolution.dilated or convolution.rank > 2:
        return None
    return "CUTLASS's dgrad with a stride has no dilation"


def no_fusion(problem: Problem) -> str | None:
    """Why no fusion operation of CUTLASS 3.x computes a formula."""
    found = fusion(problem)
    return found if isinstance(found, str) else None
