"""Two products of A as one product whose columns are pairs: ``in_pairs(problem) -> Problem | Refusal``.

The kernel for pairs has the first and the second column of a pair in the same thread (docs/decisions/0033). So the
columns of ``acc`` are the first ones of pairs, and the columns of ``matmul(A, up)`` the second ones: B and ``up`` stay
where they are. A vector along n has a value for each pair.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from evt.ir import Acc, Index, Input, Load, Output, Pick, Random, Reduce, ReduceBlocks, TypedDag, infer
from evt.ir.dag import Builder, factors, prune
from evt.ir.node import Interleave, base
from evt.plan.plan import OwnProduct
from evt.plan.problem import Problem
from evt.plan.verdict import Refusal

#: Operations that an epilogue of two products lacks, since its columns are pairs.
_LACKING: dict[type, str] = {
    Reduce: "a reduction",
    ReduceBlocks: "a reduction",
    Pick: "pairs of columns",
    Interleave: "pairs of columns",
    Index: "a coordinate",
    Random: "a random number",
}


def in_pairs(problem: Problem) -> Problem | Refusal:
    """Return the problem with pairs of columns in the place of two products, or why it has no such form.

    A problem of one product is returned unchanged.
    """
    dag = problem.dag
    names = factors(dag)
    if not names:
        return problem
    if (refusal := next(_refusals(problem, names), None)) is not None:
        return refusal
    return replace(problem, dag=_paired(dag, names[0]), written=dag)


def product_columns(loop: OwnProduct, columns: int) -> int:
    """Return the columns of a kernel's product, whose B has ``columns``."""
    return columns if loop.partner is None else 2 * columns


def _refusals(problem: Problem, names: tuple[str, ...]) -> Iterator[Refusal]:
    dag = problem.dag
    if len(names) > 1:
        yield Refusal(f"A is multiplied with {len(names)} inputs beside B; a kernel takes one")
    if dag.feeds or dag.scales:
        yield Refusal("operands have formulas, and there are two products of A")
    if problem.grouped or problem.ragged:
        yield Refusal("groups have one product each")
    up, b = dag.input[names[0]], dag.operands[1]
    if up.dtype != b.dtype or up.dtype != dag.operands[0].dtype:
        yield Refusal(f"A, B and `{up.name}` have different types", up.span)
    layout = problem.signature[up.name]
    if {layout.contiguous, problem.signature.b.contiguous} != {"k"}:
        yield Refusal(f"B and `{up.name}` are not contiguous along k", up.span)
    if problem.sizes.has_batches:
        yield Refusal("there are batches, and two products of A")
    for node, (op, _) in enumerate(dag.table):
        if type(op) in _LACKING:
            yield Refusal(f"the epilogue of two products has {_LACKING[type(op)]}", node)
    values: tuple[Input | Output, ...] = (*dag.inputs, *dag.outputs)
    for value in values:
        if value is not dag.primary and value.name != up.name and "n" in map(base, value.modes) and not _is_row(value):
            yield Refusal(f"`{value.name}` varies over n beside two products of A", value.span)


def _is_row(value: Input | Output) -> bool:
    """Return whether a value is a vector along n that a kernel reads."""
    return isinstance(value, Input) and value.modes == ("n",)


def _paired(dag: TypedDag, up: str) -> TypedDag:
    builder, renamed = Builder(), list[int]()
    for node in builder.walk(dag):
        op = dag[node]
        if isinstance(op, Acc):
            made = builder.add(Pick(int(op.name == up), 1), builder.add(Acc()))
        else:
            made = builder.add(op, *(renamed[each] for each in dag.arguments(node)))
            if isinstance(op, Load) and _is_row(dag.input[op.name]):
                made = builder.add(Pick(0, 1), made)
        renamed.append(made)
    halves = {"n": "n/2"}
    outputs = (replace(each, modes=tuple(halves.get(mode, mode) for mode in each.modes)) for each in dag.outputs)
    return infer(prune(builder.finish(dag.operation, dag.operands, dag.inputs, outputs, dag.source)))
