"""What rules say of work on an operand: which main loops do it, and what to write where none does."""

from __future__ import annotations

from evt.ir import Apply, Element, Load, TypedDag
from evt.ir.node import ELEMENT_MODES
from evt.ir.operand import formula_of
from evt.plan.signature import ConvolutionClass


def worked(dag: TypedDag) -> str | None:
    """Why a main loop that takes operands as they are does not do, and what to write instead."""
    if not dag.feeds:
        return None
    return f"{_operands(dag)} is worked on, which this main loop does not do; without it: {alternative(dag)}"


def not_worked(dag: TypedDag) -> str | None:
    """Why there is nothing for a main loop to do."""
    return None if dag.feeds else "A and B are multiplied as they are"


def too_wide(dag: TypedDag) -> str | None:
    """Why an operand's registers lie otherwise than those of m16n8 instructions."""
    operand = dag.operands[0].dtype
    return f"{operand} is multiplied by instructions of another shape" if operand.bits > 32 else None


def not_fprop(dag: TypedDag, convolution: ConvolutionClass) -> str | None:
    """Why the main loop of a convolution does not work on its operand."""
    if convolution.operator != "fprop" or "B" in dag.feeds:
        return f"the operator is {convolution.operator}, of which {_operands(dag)} is worked on"
    if convolution.rank == 3:
        return "there are three dimensions"
    return "there are groups" if convolution.group_filters else None


def _operands(dag: TypedDag) -> str:
    return " and ".join(f"`{name}`" for name in dag.feeds) or "nothing"


def alternative(dag: TypedDag) -> str:
    """What computes the same without work on an operand in the main loop."""
    name = next(iter(dag.feeds))
    outer, _ = ELEMENT_MODES[name]
    factor = scale(dag, name)
    if factor is None:
        return f"compute {name} by a kernel before"
    modes = dag.input[factor].modes
    if modes in ((), (outer,)):
        return f"scale the product instead: `{factor}{f'[{outer}]' if modes else ''} * acc`"
    other = next(each for each in ELEMENT_MODES if each != name)
    return f"scale {other} along k instead, once if it is a weight"


def scale(dag: TypedDag, name: str) -> str | None:
    """The input by which an operand is multiplied, where its formula is nothing else: ``A = s * A``."""
    value = dag.arguments(dag.feeds[name])[0]
    operands = [dag[node] for node in dag.arguments(value)]
    loads = [op.name for op in operands if isinstance(op, Load)]
    return loads[0] if dag[value] == Apply("mul") and Element(name) in operands and loads else None


def unreadable(dag: TypedDag) -> str | None:
    """Why the main loop of CUTLASS 2.x cannot give a formula what it reads, or None."""
    for name in dag.feeds:
        loads = (op for op in map(dag.__getitem__, formula_of(dag, name)) if isinstance(op, Load))
        for value in (dag.input[op.name] for op in loads):
            if len(value.modes) > 1 or "l" in value.modes or value.flexible:
                return f"`{value.name}` is [{', '.join(value.modes)}]"
    return None
