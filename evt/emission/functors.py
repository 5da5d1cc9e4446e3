"""Regions as functors: each statement is an expression with the functions' C++."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from evt.emission.expressions import REGISTER, comment, fragment_element, literal
from evt.emission.text import FunctorText, StatementText
from evt.functions import TABLE
from evt.ir.dtype import B1, F32, I32, I64, DType
from evt.plan import Options, Plan
from evt.plan.epilogue.program import EpilogueProgram
from evt.plan.epilogue.regions import Call, Constant, Copy, Operand, Region, Round, Statement
from evt.plan.quotients import divides_in_f64


def functors(plan: Plan) -> tuple[FunctorText, ...]:
    """Return the functors that compute a plan's regions, by their numbers."""
    origins = {work.region: work.origin for work in plan.work}
    origins |= {factor.region: factor.origin for factor in plan.factors}
    origins |= dict(plan.epilogue.regions) if isinstance(plan.epilogue, EpilogueProgram) else {}
    results = {result.region for result in plan.results}
    of_elements = (
        {region for region, _ in plan.epilogue.regions} if isinstance(plan.epilogue, EpilogueProgram) else set()
    )
    in_f64 = divides_in_f64(plan.mainloop, plan.config, plan.operand_bits)
    found = []
    for region in plan.regions:
        of_result, origin = region in results, comment(origins.get(region, ""))
        rounded = _rounded_on_sm90 if plan.family == "own" and not of_result else _rounded
        spelling = _Spelling(plan.options, rounded, in_f64 and region in of_elements and not of_result)
        found.append(_functor(region, spelling, origin, of_result))
    return tuple(found)


#: The operators of eager numerics that no instruction joins with another one, by their functions in rounded.hpp.
_ROUNDED = {"add": "sum", "sub": "difference", "mul": "product"}
#: The functions that are quotients, with the dividend of a reciprocal.
_QUOTIENTS: Mapping[str, tuple[str, ...]] = {"div": (), "rcp": ("1.0f",)}


class _Spelling(NamedTuple):
    """The options, the spelling of a value rounded to a type, and whether quotients are computed in f64."""

    options: Options
    rounded: Callable[[Operand, DType], str]
    divides_in_f64: bool


def _functor(region: Region, spelling: _Spelling, origin: str, of_result: bool) -> FunctorText:
    """Return the functor that computes a region."""
    parameters = tuple((REGISTER[value.dtype], value.name) for value in region.parameters)
    statements = (
        StatementText(REGISTER[each.result.dtype], each.result.name, _expression(each, spelling))
        for each in region.statements
    )
    return FunctorText(region.name, parameters, tuple(statements), origin, of_result)


def _rounded(operand: Operand, dtype: DType) -> str:
    return f"evt::round_to<{dtype.cutlass}>({_converted(operand, operand.dtype)})"


def _rounded_on_sm90(operand: Operand, dtype: DType) -> str:
    """Return an operand rounded to a type by element.hpp, which has no type of truth values."""
    if dtype.compute == B1:
        return _bare(_converted(operand, B1))
    return f"evt::element::round_to<{fragment_element(dtype)}>({_converted(operand, operand.dtype)})"


def _expression(statement: Statement, spelling: _Spelling) -> str:
    match statement:
        case Copy(result, operand):
            return _converted(operand, result.dtype)
        case Call():
            return _bare(_call(statement, spelling))
        case Round(_, dtype, operand):
            if operand.dtype == I64:
                return f"evt::narrow({_converted(operand, I64)})"
            if dtype in REGISTER and dtype != I32:
                return _bare(_converted(operand, dtype))
            return spelling.rounded(operand, dtype)


def _call(call: Call, spelling: _Spelling) -> str:
    row, options = TABLE[call.function], spelling.options
    words = [
        _converted(operand, B1 if slot in row.conditions else call.domain) for slot, operand in enumerate(call.operands)
    ]
    if call.domain != F32 and not row.source:
        return f"evt::fn::{call.function}({', '.join(words)})"
    if options.eager and call.function in _ROUNDED:
        return f"evt::rounded::{_ROUNDED[call.function]}({', '.join(words)})"
    if call.domain != F32:
        return row.cxx.format(*words)
    fast = row.fast if options.fast_math else None
    if spelling.divides_in_f64 and call.function in _QUOTIENTS and not fast:
        return f"evt::quotient({', '.join((*_QUOTIENTS[call.function], *words))})"
    return (fast or (row.cxx_eager if options.eager else row.cxx)).format(*words)


def _converted(operand: Operand, to: DType) -> str:
    """Return a value as an operand of type ``to``."""
    if isinstance(operand, Constant):
        return literal(operand.value, to)
    if operand.dtype == to:
        return operand.name
    return f"({operand.name} != 0)" if to == B1 else f"static_cast<{REGISTER[to]}>({operand.name})"


def _bare(expression: str) -> str:
    """Return ``(a + b)`` without the outer parentheses, which only an operand needs."""
    inner = expression[1:-1]
    if not expression.startswith("(") or "(" in inner or ")" in inner:
        return expression
    return inner
