"""A region as a C++ functor: single-assignment statements over typed scalars."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evt.functions import TABLE
from evt.functions.single import round_f32, shortest
from evt.ir import Apply, Cast, Const, TypedDag
from evt.ir.dtype import B1, F32, F64, I32, DType
from evt.ir.infer import domain
from evt.plan.options import Options

#: The C++ types that values of a compute type have.
SCALAR = {F32: "float", F64: "double", I32: "int32_t", B1: "bool"}


@dataclass(frozen=True, slots=True)
class Statement:
    type: str
    name: str
    expression: str


@dataclass(frozen=True, slots=True)
class Functor:
    """A generated functor ``name`` over ``parameters``, (type, name) each; the last statement is the result."""

    name: str
    parameters: tuple[tuple[str, str], ...]
    statements: tuple[Statement, ...]


def stock_functor(dag: TypedDag, result: int, operands: Sequence[int]) -> str | None:
    """CUTLASS's own functor for a region of a single f32 operation whose operands are the region's, in order."""
    op = dag[result]
    if not isinstance(op, Apply) or list(dag.arguments(result)) != list(operands):
        return None
    floats = all(dag.types[value].dtype.compute == F32 for value in (result, *operands))
    stock = TABLE[op.function].stock
    return stock.name if floats and stock is not None and not stock.members else None


def identity(name: str, scalar: str) -> Functor:
    """The functor that hands its operand on."""
    return Functor(name, ((scalar, "x"),), (Statement(scalar, "t0", "x"),))


def make_functor(dag: TypedDag, name: str, result: int, parameters: Mapping[int, str], options: Options) -> Functor:
    """The functor that computes ``result`` from the values in ``parameters``, each named by its C++ name."""
    needed: set[int] = set()
    stack = [result]
    while stack:
        value = stack.pop()
        if value not in needed and (value == result or value not in parameters):
            needed.add(value)
            stack.extend(dag.arguments(value))
    names = dict(parameters)
    statements: list[Statement] = []
    for value in sorted(needed):
        if isinstance(dag[value], Const):
            continue
        names[value] = f"t{len(statements)}"
        expression = _bare(_expression(dag, value, names, options))
        statements.append(Statement(scalar_type(dag, value), names[value], expression))
    typed = tuple((scalar_type(dag, value), label) for value, label in parameters.items())
    return Functor(name, typed, tuple(statements))


def scalar_type(dag: TypedDag, value: int) -> str:
    """The C++ type of a value in registers, once it is read by a functor."""
    return SCALAR[dag.types[value].dtype.compute]


def _expression(dag: TypedDag, value: int, names: Mapping[int, str], options: Options) -> str:
    operands = dag.arguments(value)
    match dag[value]:
        case Apply(function):
            row = TABLE[function]
            to = domain(dag, function, [dag.types[operand] for operand in operands])
            words = [
                _converted(dag, operand, names, B1 if slot in row.conditions else to)
                for slot, operand in enumerate(operands)
            ]
            if to != F32 and not row.source:
                return f"evt::fn::{function}({', '.join(words)})"
            if options.separate_products and function == "mul":
                return f"evt::product({', '.join(words)})"
            return (row.fast if options.fast_math and row.fast and to == F32 else row.cxx).format(*words)
        case Cast(dtype):
            if dtype in SCALAR and dtype != I32:
                return _converted(dag, operands[0], names, dtype)
            word = _converted(dag, operands[0], names, dag.types[operands[0]].dtype.compute)
            return f"evt::round_to<{dtype.cutlass}>({word})"
        case op:
            raise AssertionError(op)


def _converted(dag: TypedDag, value: int, names: Mapping[int, str], to: DType) -> str:
    """A value as an operand of type ``to``."""
    if isinstance(constant := dag[value], Const):
        return literal(constant.value, to)
    have = dag.types[value].dtype.compute
    if have == to:
        return names[value]
    return f"({names[value]} != 0)" if to == B1 else f"static_cast<{SCALAR[to]}>({names[value]})"


def _bare(expression: str) -> str:
    """``(a + b)`` without its parentheses, which only operands need."""
    inner = expression[1:-1]
    if not expression.startswith("(") or "(" in inner or ")" in inner:
        return expression
    return inner


def literal(value: float, dtype: DType = F32) -> str:
    """The shortest C++ literal of a compute type that reads back as the same value, rounded to the type."""
    if dtype == B1:
        return "true" if value else "false"
    if dtype == I32:
        number = round(value)
        return "(-2147483647 - 1)" if number == -(2**31) else f"({number})" if number < 0 else str(number)
    value = value if dtype == F64 else round_f32(value)
    if math.isfinite(value):
        text = repr(value) if dtype == F64 else _shortest_f32(value)
    else:
        text = "NAN" if math.isnan(value) else "INFINITY" if value > 0 else "-INFINITY"
        text = text if dtype == F32 else f"static_cast<double>({text})"
    return f"({text})" if text.startswith("-") else text


def _shortest_f32(value: float) -> str:
    text = shortest(value)
    return f"{text}f" if "e" in text or "." in text else f"{text}.0f"
