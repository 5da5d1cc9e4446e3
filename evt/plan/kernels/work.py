"""Mainloop fusions: the operands' formulas and factors as regions, and the inputs of these."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from evt.ir import Const, Element, Extent, Input, Load, TypedDag
from evt.ir.dag import below
from evt.ir.factors import zero_point
from evt.ir.node import ELEMENT_MODES, base, divisor
from evt.ir.operand import formula_of
from evt.ir.origin import quoted
from evt.plan.epilogue.regions import Value, make_region
from evt.plan.epilogue.values import Single
from evt.plan.fields import Field
from evt.plan.fusions import Factor, FactorInput, Work, WorkVector
from evt.plan.kernels.draft import Draft


def plan_work(draft: Draft) -> tuple[Work, ...]:
    """Return the fusions of the kernel's operands, in their order: exchanged in a transposed problem."""
    found = [_work_on(draft, name) for name in draft.problem.dag.feeds]
    if draft.transposed:
        found = [replace(work, operand="B" if work.operand == "A" else "A") for work in found]
    return tuple(sorted(found, key=lambda work: work.operand))


def _work_on(draft: Draft, name: str) -> Work:
    """Return the region of an operand's element and inputs, and the members that provide these."""
    program = draft.problem.dag
    value = program.arguments(program.feeds[name])[0]
    nodes = formula_of(program, name)
    loads = {node: op.name for node in nodes if isinstance(op := program[node], Load)}
    sizes = {node: op.mode for node in nodes if isinstance(op := program[node], Extent)}
    elements = [node for node in nodes if isinstance(program[node], Element)]
    parameters = {
        **dict.fromkeys(elements, "x"),
        **{node: draft.names[each] for node, each in loads.items()},
        **{node: f"size_{mode}" for node, mode in sizes.items()},
    }
    region = make_region(program, draft.next_region(), value, parameters)
    if not elements:  # the optimiser has found that the element does not matter
        dtype = next(operand.dtype for operand in program.operands if operand.name == name)
        region = replace(region, parameters=(Value("x", dtype.compute), *region.parameters))
    given = (_input(draft, program.input[each]) for each in loads.values())
    inputs = (*given, *map(draft.size, sizes.values()))
    return Work(name, region, inputs, quoted(program.origins[program.feeds[name]], program.source))


def plan_factors(draft: Draft) -> tuple[Factor, ...]:
    """Return the factors of the operands, A first."""
    dag = draft.problem.dag
    return tuple(_block_value(draft, name, node, dag.arguments(node)[0]) for name, node in dag.scales.items())


def plan_zeros(draft: Draft) -> tuple[Factor, ...]:
    """Return the zero points of the operands that are inputs."""
    dag = draft.problem.dag
    return tuple(
        replace(_block_value(draft, name, dag.feeds[name], node), role="added" if adds else "subtracted")
        for name, node, adds in _zero_points(dag)
        if isinstance(dag[node], Load)
    )


def plan_bias(draft: Draft) -> int:
    """Return the code of zero of a packed B, without a zero point that is an input."""
    dag = draft.problem.dag
    bias = -int(dag.operands[1].dtype.least) if draft.problem.packs else 0
    for _, node, adds in _zero_points(dag):
        op = dag[node]
        if isinstance(op, Const):
            bias += -int(op.value) if adds else int(op.value)
    return bias


def _zero_points(dag: TypedDag) -> Iterator[tuple[str, int, bool]]:
    """Yield the operands with a zero point, its node, and whether it is added."""
    for name, feed in dag.feeds.items():
        found = zero_point(dag, name, dag.arguments(feed)[0])
        if found is not None:
            yield name, *found


def _block_value(draft: Draft, name: str, user: int, value: int) -> Factor:
    """Return a value for blocks of an operand, which the node ``user`` takes."""
    dag = draft.problem.dag
    loads = {node: op.name for node in (*below(dag, value), value) if isinstance(op := dag[node], Load)}
    parameters = {node: draft.names[each] for node, each in loads.items()}
    region = make_region(dag, draft.next_region(), value, parameters)
    inputs = tuple(_factor_input(draft, name, dag.input[each]) for each in loads.values())
    return Factor(name, region, inputs, quoted(dag.origins[user], dag.source))


def _factor_input(draft: Draft, operand: str, value: Input) -> FactorInput:
    outer, summed = ELEMENT_MODES[operand]
    widths = {base(mode): divisor(mode) for mode in value.modes}
    assert value.dtype is not None

    def stride(mode: str) -> Field | Literal[0]:
        return draft.fields.stride(value.name, mode) if mode in widths else 0

    pointer, blocks = draft.fields.pointer(value.name), (widths.get(outer, 0), widths.get(summed, 0))
    return FactorInput(value.name, value.dtype, pointer, blocks, (stride(outer), stride(summed), stride("l")))


def _input(draft: Draft, value: Input) -> Single | WorkVector:
    if value.is_scalar:
        return draft.single(value)
    assert value.dtype is not None
    return WorkVector(value.dtype, draft.fields.pointer(value.name), "k" in value.modes)
