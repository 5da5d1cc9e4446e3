"""The rules of grouped products, besides the rules of one product, which every group must meet."""

from __future__ import annotations

from evt.ir import Index, Input, Output, Random, Reduce
from evt.plan.problem import Problem
from evt.plan.rules.rule import rule
from evt.plan.verdict import HOLDS, Refusal, Verdict


@rule("the target has grouped kernels with visitors")
def on_sm90(problem: Problem) -> Verdict:
    if problem.target.family("3x") == "3x":
        return HOLDS
    return Refusal(f"CUTLASS has grouped kernels with visitors for sm90, not for {problem.target.name}")


@rule("operands need no transposition")
def operands(problem: Problem) -> Verdict:
    for operand, layout in zip(problem.dag.operands, (problem.signature.a, problem.signature.b), strict=True):
        if problem.operand_bytes == 4 and layout.contiguous != "k":
            given = f"`{operand.name}` is contiguous along {layout.contiguous}"
            return Refusal(f"f32 operands must be contiguous along k, and {given}", operand.span)
    return HOLDS


@rule("nodes read and write one tensor of each group")
def one_tensor(problem: Problem) -> Verdict:
    dag = problem.dag
    for node, (op, _) in enumerate(dag.table):
        match op:
            case Reduce():
                reason = "a reduction would be over each group, and its parts have no place in a grouped kernel"
                return Refusal(reason, node)
            case Random():
                return Refusal("random numbers are counted over one problem", node)
            case Index("l"):
                return Refusal("a group has no batches: `iota(l)`", node)
    for output in dag.outputs:
        if not output.is_tile:
            return Refusal("a vector or scalar that is stored has no place in a grouped kernel", output.span)
    values: tuple[Input | Output, ...] = (*dag.inputs, *dag.outputs)
    for value in values:
        if "l" in value.modes:
            return Refusal(f"a group has no batches: `{value.name}` has the mode l", value.span)
        if value.is_indexed:
            reason = f"an index of each group has no place in a grouped kernel: `{value.name}` is read or stored by one"
            return Refusal(reason, value.span)
    return HOLDS
