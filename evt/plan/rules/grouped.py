"""The rules of grouped products, besides the rules of one product, which every group must meet.

``on_sm90``, ``operands`` and ``one_tensor`` are for groups of separate tensors. ``of_rows`` is for groups of rows.
"""

from __future__ import annotations

from evt.ir import Extent, Index, Input, Output, Random, Reduce
from evt.ir.node import base, index_of
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
                return Refusal("random numbers depend on the coordinates of elements in a single problem", node)
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


@rule("no result belongs to a group; there are no row coordinates and random numbers, and size(m) is not read")
def of_rows(problem: Problem) -> Verdict:
    """Check groups of rows: tensors with rows have the rows of all groups, and other inputs one value for each group.

    A reduction over rows, or an output without rows, would have a result for each group. A reduction over columns ends
    with a kernel that stores a result for all rows, and some rows may belong to no group.
    """
    dag = problem.dag
    for node, (op, _) in enumerate(dag.table):
        match op:
            case Reduce() if op.over & {"m", "l"}:
                return Refusal("a reduction over rows would have a result for each group", node)
            case Reduce():
                return Refusal("a reduction would be stored for rows of no group, too", node)
            case Random():
                return Refusal("random numbers depend on the coordinates of elements in a single problem", node)
            case Index("m" | "l") | Extent("m" | "l"):
                return Refusal("the kernel knows neither the rows of a group nor their number", node)
    for output in dag.outputs:
        if "m" not in map(base, output.modes):
            return Refusal(f"`{output.name}` would have a result for each group", output.span)
        if not output.is_tile:
            return Refusal(f"`{output.name}` is a vector that is stored by the first group alone", output.span)
    values: tuple[Input | Output, ...] = (*dag.inputs, *dag.outputs)
    for value in values:
        if value.is_indexed and any(index_of(mode) and base(mode) == "n" for mode in value.modes):
            return Refusal(f"`{value.name}` is read or stored by an index of columns", value.span)
    return HOLDS
