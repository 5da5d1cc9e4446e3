"""A region as a C++ functor: single-assignment statements over f32 scalars."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from evt.functions import TABLE
from evt.ir import Apply, Cast, Const, TypedDag


@dataclass(frozen=True, slots=True)
class Statement:
    name: str
    expression: str


@dataclass(frozen=True, slots=True)
class Functor:
    """A generated functor ``name`` over ``parameters``; the last statement is the result."""

    name: str
    parameters: tuple[str, ...]
    statements: tuple[Statement, ...]


def stock_functor(dag: TypedDag, result: int, operands: list[int]) -> str | None:
    """CUTLASS's own functor for a region of a single operation whose operands are the region's, in order."""
    op = dag[result]
    if isinstance(op, Apply) and list(dag.arguments(result)) == operands:
        return TABLE[op.function].stock
    return None


def make_functor(dag: TypedDag, name: str, result: int, parameters: Mapping[int, str]) -> Functor:
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
        op = dag[value]
        if isinstance(op, Const):
            names[value] = literal(op.value)
            continue
        names[value] = f"t{len(statements)}"
        statements.append(Statement(names[value], _bare(_expression(dag, value, names))))
    return Functor(name, tuple(parameters.values()), tuple(statements))


def _expression(dag: TypedDag, value: int, names: Mapping[int, str]) -> str:
    operands = [names[operand] for operand in dag.arguments(value)]
    match dag[value]:
        case Apply(function):
            return TABLE[function].cxx.format(*operands)
        case Cast(dtype):
            return f"static_cast<float>(static_cast<{dtype.cutlass}>({operands[0]}))"
        case op:
            raise AssertionError(op)


def _bare(expression: str) -> str:
    """``(a + b)`` without its parentheses, which only operands need."""
    inner = expression[1:-1]
    if not expression.startswith("(") or "(" in inner or ")" in inner:
        return expression
    return inner


def literal(value: float) -> str:
    """The shortest C++ float literal that reads back as the same f32."""
    exact = struct.pack("<f", value)
    for digits in range(1, 10):
        text = f"{value:.{digits}g}"
        with contextlib.suppress(OverflowError):  # rounded up beyond the largest f32
            if struct.pack("<f", float(text)) == exact:
                break
    if "e" not in text and "." not in text:
        text += ".0"
    return f"({text}f)" if text.startswith("-") else f"{text}f"
