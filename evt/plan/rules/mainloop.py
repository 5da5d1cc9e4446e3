"""The rules of mainloop fusions: the main loops that have them, and the formula to write instead."""

from __future__ import annotations

from evt.ir import Apply, Element, Load, TypedDag
from evt.ir.node import ELEMENT_MODES
from evt.ir.operand import formula_of
from evt.plan.problem import Problem
from evt.plan.rules.rule import rule
from evt.plan.verdict import HOLDS, Refusal, Verdict


@rule("there is no mainloop fusion")
def no_work(problem: Problem) -> Verdict:
    """Refuse mainloop fusions, with the formula to write instead."""
    dag = problem.dag
    if not dag.feeds:
        return HOLDS
    reason = f"{_operands(dag)} has a mainloop fusion, which this main loop cannot do; without it: {_alternative(dag)}"
    return Refusal(reason, _first(dag))


@rule("there is a mainloop fusion")
def work(problem: Problem) -> Verdict:
    return HOLDS if problem.dag.feeds else Refusal("A and B have no mainloop fusion")


@rule("operands have at most 32 bits")
def narrow(problem: Problem) -> Verdict:
    """Refuse wider operands, whose registers do not have the layout of m16n8 instructions."""
    operand = problem.dag.operands[0]
    if operand.dtype.bits <= 32:
        return HOLDS
    return Refusal(f"{operand.dtype} is multiplied by instructions of another shape", operand.span)


@rule("mainloop fusions read vectors and scalars shared by all batches")
def readable(problem: Problem) -> Verdict:
    dag = problem.dag
    for name in dag.feeds:
        for node in formula_of(dag, name):
            op = dag[node]
            value = dag.input[op.name] if isinstance(op, Load) else None
            if value is not None and (len(value.modes) > 1 or "l" in value.modes or value.flexible):
                return Refusal(f"`{value.name}` is [{', '.join(value.modes)}]", node)
    return HOLDS


@rule("the mainloop fusion is on A of a 1-D or 2-D fprop without groups")
def work_of_fprop(problem: Problem) -> Verdict:
    dag, convolution = problem.dag, problem.convolution
    if convolution.operator != "fprop" or "B" in dag.feeds:
        reason = f"the mainloop fusion is on {_operands(dag)} of {convolution.operator}"
        return Refusal(reason, _first(dag))
    if convolution.rank == 3:
        return Refusal("it has three spatial dimensions")
    return Refusal("there are groups") if convolution.group_filters else HOLDS


def _first(dag: TypedDag) -> int | None:
    """Return the first operand's formula."""
    return next(iter(dag.feeds.values()), None)


def _operands(dag: TypedDag) -> str:
    return " and ".join(f"`{name}`" for name in dag.feeds) or "nothing"


def _alternative(dag: TypedDag) -> str:
    """Return a formula of the same value without a mainloop fusion."""
    name = next(iter(dag.feeds))
    outer, _ = ELEMENT_MODES[name]
    factor = _scale(dag, name)
    if factor is None:
        return f"compute {name} by a kernel before"
    modes = dag.input[factor].modes
    if modes in ((), (outer,)):
        return f"scale the product instead: `{factor}{f'[{outer}]' if modes else ''} * acc`"
    other = next(each for each in ELEMENT_MODES if each != name)
    return f"scale {other} along k instead, once if it is a weight"


def _scale(dag: TypedDag, name: str) -> str | None:
    """Return the input by which an operand is multiplied, if its formula is nothing else: ``A = s * A``."""
    value = dag.arguments(dag.feeds[name])[0]
    operands = [dag[node] for node in dag.arguments(value)]
    loads = [op.name for op in operands if isinstance(op, Load)]
    return loads[0] if dag[value] == Apply("mul") and Element(name) in operands and loads else None
