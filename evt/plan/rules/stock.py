"""The rules of routes with stock epilogues, which find the class of CUTLASS that computes a formula."""

from __future__ import annotations

from evt.plan.problem import Problem
from evt.plan.rules.rule import rule
from evt.plan.stock.match import Stock
from evt.plan.stock.operators import FusionOperation, fusion_operation, output_operator
from evt.plan.verdict import HOLDS, Match, Refusal, Verdict


@rule("the formula is what a fusion operation computes")
def fusion(problem: Problem) -> Verdict:
    """Find the fusion operation of CUTLASS 3.x."""
    stock = _stock(problem)
    if isinstance(stock, Refusal):
        return stock
    rows = "n" if problem.swaps_operands else "m"
    return _found(fusion_operation(stock, problem.dag, problem.signature, rows))


@rule("the formula is what an output operator computes")
def operator(problem: Problem) -> Verdict:
    """Find the output operator of CUTLASS 2.x for a matrix product."""
    layout = dict(problem.signature.tensors).get(problem.dag.primary.name)
    return _found(_operator(problem, "m" if layout and layout.contiguous == "m" else "n"))


@rule("the formula is what an output operator computes")
def convolution_operator(problem: Problem) -> Verdict:
    """Find it for a convolution: fewer of them have an operator that reads a vector than one that reads C alone."""
    convolution, fused = problem.convolution, _operator(problem, "n")
    if isinstance(fused, Refusal) or fused.reads_source_only:
        return _found(fused)
    name = fused.name
    if convolution.operator != "fprop" or convolution.group_filters:
        return Refusal(f"{name} reads a vector, and CUTLASS has such convolutions for fprop without groups only")
    if len(fused.sources) > 1:
        return Refusal(f"`{fused.sources[0]}` and `{fused.sources[1]}` are two tensors, and convolutions read one")
    if problem.has_few_channels:
        return Refusal(
            f"{name} reads a vector, and CUTLASS's convolutions with one take a step of the main loop for every tap"
        )
    return Match(fused)


@rule("CUTLASS's functor of the activation is as fast as evt's")
def suits(problem: Problem) -> Verdict:
    """Refuse stock epilogues that are slower than a visitor tree."""
    stock = problem.stock
    slow = () if isinstance(stock, Refusal) else tuple(each for each in stock.activations if each.is_slow)
    return Refusal(f"{slow[0].functor} takes longer than evt's function") if slow else HOLDS


def _operator(problem: Problem, columns: str) -> FusionOperation | Refusal:
    """Find an output operator; ``columns`` is the mode along the kernel's own columns."""
    stock = _stock(problem)
    if isinstance(stock, Refusal):
        return stock
    return output_operator(stock, problem.dag, problem.signature, columns)


def _stock(problem: Problem) -> Stock | Refusal:
    """Return the formula in the form of stock epilogues, or why it has none."""
    if problem.options.eager:
        return Refusal('numerics="eager" rounds products on their own')
    found = problem.stock
    if isinstance(found, Refusal):
        return found
    if problem.options.fast_math and any(each.has_fast for each in found.activations):
        return Refusal("fast_math=True approximates the activation, and CUTLASS's functor does not")
    return found


def _found(fused: FusionOperation | Refusal) -> Verdict:
    return Match(fused) if isinstance(fused, FusionOperation) else fused
