"""Regions as functors: each statement is an expression with the functions' C++."""

from __future__ import annotations

from evt.emission.expressions import REGISTER, literal
from evt.emission.text import FunctorText, StatementText
from evt.functions import TABLE
from evt.ir.dtype import B1, F32, I32, I64, DType
from evt.plan import Options
from evt.plan.epilogue.regions import Call, Constant, Copy, Operand, Region, Round, Statement


def functor(region: Region, options: Options) -> FunctorText:
    """Return the functor that computes a region."""
    parameters = tuple((REGISTER[value.dtype], value.name) for value in region.parameters)
    statements = (
        StatementText(REGISTER[each.result.dtype], each.result.name, _expression(each, options))
        for each in region.statements
    )
    return FunctorText(region.name, parameters, tuple(statements))


def stock_functor(function: str) -> str:
    """Return CUTLASS's functor of a function; without a function, the identity."""
    if not function:
        return "cutlass::epilogue::thread::Identity"
    found = TABLE[function].stock
    assert found is not None
    return found.name


def _expression(statement: Statement, options: Options) -> str:
    match statement:
        case Copy(result, operand):
            return _converted(operand, result.dtype)
        case Call():
            return _bare(_call(statement, options))
        case Round(_, dtype, operand):
            if operand.dtype == I64:
                return f"evt::narrow({_converted(operand, I64)})"
            if dtype in REGISTER and dtype != I32:
                return _bare(_converted(operand, dtype))
            return f"evt::round_to<{dtype.cutlass}>({_converted(operand, operand.dtype)})"


def _call(call: Call, options: Options) -> str:
    row = TABLE[call.function]
    words = [
        _converted(operand, B1 if slot in row.conditions else call.domain) for slot, operand in enumerate(call.operands)
    ]
    if call.domain != F32 and not row.source:
        return f"evt::fn::{call.function}({', '.join(words)})"
    if options.separate_products and call.function == "mul":
        return f"evt::product({', '.join(words)})"
    return (row.fast if options.fast_math and row.fast and call.domain == F32 else row.cxx).format(*words)


def _converted(operand: Operand, to: DType) -> str:
    """Return a value as an operand of type ``to``."""
    if isinstance(operand, Constant):
        return literal(operand.value, to)
    if operand.dtype == to:
        return operand.name
    return f"({operand.name} != 0)" if to == B1 else f"static_cast<{REGISTER[to]}>({operand.name})"


def _bare(expression: str) -> str:
    """Return ``(a + b)`` without its parentheses, which only operands need."""
    inner = expression[1:-1]
    if not expression.startswith("(") or "(" in inner or ")" in inner:
        return expression
    return inner
