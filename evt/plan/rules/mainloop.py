"""The rules of mainloop fusions: the main loops that have them, and the formula to write instead."""

from __future__ import annotations

from collections.abc import Mapping

from evt.ir import Apply, Const, Element, Extent, Load, TypedDag
from evt.ir.dtype import F64, I8, I64, U8
from evt.ir.factors import zero_point
from evt.ir.node import ELEMENT_MODES, base, divisor
from evt.ir.operand import factor_of, formula_of
from evt.plan.gemm import MAX_ROW_BYTES, PACKED_DEPTH
from evt.plan.problem import Problem
from evt.plan.rules.rule import rule
from evt.plan.verdict import HOLDS, Refusal, Verdict

#: The largest zero point that is part of a kernel.
_LARGEST_ZERO = 64


@rule("there is no mainloop fusion")
def no_work(problem: Problem) -> Verdict:
    """Refuse mainloop fusions, with the formula to write instead."""
    dag = problem.dag
    if problem.converts:
        a, b = dag.operands
        return Refusal(f"{b.name} is {b.dtype} and {a.name} is {a.dtype}: only evt's GEMM kernel converts it", b.span)
    if dag.scales:
        has = "has a factor" if len(dag.scales) == 1 else "have factors"
        return Refusal(f"{_operands(dag.scales)} {has} for each block of k", _first(dag.scales))
    return _no_formula(dag)


def _no_formula(dag: TypedDag) -> Verdict:
    if not dag.feeds:
        return HOLDS
    reason = f"{_operands(dag.feeds)} has a mainloop fusion, which this main loop cannot do; without it: "
    return Refusal(reason + _alternative(dag), _first(dag.feeds))


@rule("A and B have no mainloop fusion except factors: vectors, or values for blocks of k of 128 bytes")
def factors(problem: Problem) -> Verdict:
    """Check that a stage of the main loop has one factor, which multiplies the sums of floats."""
    dag = problem.dag
    zeros = _zero_points(problem)
    if isinstance(zeros, Refusal) or not (zeros or dag.scales):
        return zeros if isinstance(zeros, Refusal) else HOLDS
    operand = dag.operands[0]
    if not operand.dtype.is_float:
        return Refusal(f"{operand.name} is {operand.dtype}, and factors multiply sums of floats", operand.span)
    stage = PACKED_DEPTH if problem.packs else MAX_ROW_BYTES // problem.operand_bytes
    for node in (*zeros, *(node for name in dag.scales for node in factor_of(dag, name))):
        op = dag[node]
        if isinstance(op, Extent):
            return Refusal(f"the factor reads size({op.mode}): multiply `acc` by it", node)
        value = dag.input[op.name] if isinstance(op, Load) else None
        if value is None:
            continue
        if value.is_scalar or value.flexible:
            read = f"reads the single value `{value.name}`"
            if node in zeros:
                return Refusal(f"the zero point {read}: write a number or a vector", node)
            return Refusal(f"the factor {read}: multiply `acc` by it", node)
        if value.dtype in (F64, I64):
            return Refusal(f"`{value.name}` is {value.dtype}", node)
        if problem.ragged and any(base(mode) == "m" and divisor(mode) > 1 for mode in value.modes):
            return Refusal(f"`{value.name}` has blocks of rows, and groups of rows begin anywhere", node)
        if any(base(mode) == "k" and divisor(mode) % stage for mode in value.modes):
            reason = f"`{value.name}` is [{', '.join(value.modes)}], and a stage has {stage} elements of k"
            return Refusal(reason, node)
    return HOLDS


def _zero_points(problem: Problem) -> Refusal | list[int]:
    """Return the nodes of the zero point of a packed B; refuse other formulas of operands."""
    dag = problem.dag
    if not dag.feeds:
        return []
    known = zero_point(dag, "B", dag.arguments(dag.feeds["B"])[0]) if problem.packs and {*dag.feeds} == {"B"} else None
    if known is None:
        verdict = _no_formula(dag)
        assert isinstance(verdict, Refusal)
        return verdict
    found, adds = known
    op, dtype = dag[found], dag.operands[0].dtype
    value = dag.input[op.name] if isinstance(op, Load) else None
    if value is not None and value.dtype not in (I8, U8, dtype):
        return Refusal(f"the zero point `{value.name}` is {value.dtype}: expected i8, u8 or {dtype}", found)
    if value is not None:
        return [found]
    codes = dag.operands[1].dtype
    zero = (-op.value if adds else op.value) if isinstance(op, Const) and op.is_integer else None
    if zero is None or not codes.least <= zero <= _LARGEST_ZERO:
        wanted = f"a whole number from {int(codes.least)} to {_LARGEST_ZERO}"
        return Refusal(f"the zero point is neither an input nor {wanted}", found)
    return []


@rule("there is a mainloop fusion")
def work(problem: Problem) -> Verdict:
    if problem.dag.scales or problem.converts:
        return no_work.check(problem)
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
        reason = f"the mainloop fusion is on {_operands(dag.feeds)} of {convolution.operator}"
        return Refusal(reason, _first(dag.feeds))
    if convolution.rank == 3:
        return Refusal("it has three spatial dimensions")
    return Refusal("there are groups") if convolution.group_filters else HOLDS


def _first(roots: Mapping[str, int]) -> int | None:
    """Return the first operand's formula or factor."""
    return next(iter(roots.values()), None)


def _operands(roots: Mapping[str, int]) -> str:
    return " and ".join(f"`{name}`" for name in roots) or "nothing"


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
