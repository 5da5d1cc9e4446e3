"""Regions: the operations that one functor of evt computes, as single-assignment statements over typed scalars.

::

    Statement = Call(function, domain, operands)    a function of evt.functions.TABLE, computed in ``domain``
              | Round(dtype, operand)               a cast: a real rounding point
              | Copy(operand)                       a value as it is

    Operand   = Value(name, dtype) | Constant(value, dtype)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from evt.functions import TABLE
from evt.ir import Apply, Cast, Const, TypedDag
from evt.ir.dtype import F32, DType
from evt.ir.value_types import domain


@dataclass(frozen=True, slots=True)
class Value:
    """A parameter or the result of a statement, in registers."""

    name: str
    dtype: DType

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Constant:
    """A number of type ``dtype``; emission converts it to the type of the operation that reads it."""

    value: float
    dtype: DType

    def __str__(self) -> str:
        return f"{self.value:g}"


Operand: TypeAlias = Value | Constant


@dataclass(frozen=True, slots=True)
class Call:
    result: Value
    function: str
    domain: DType
    operands: tuple[Operand, ...]

    def __str__(self) -> str:
        return f"{self.result} = {self.function}({', '.join(map(str, self.operands))})"


@dataclass(frozen=True, slots=True)
class Round:
    result: Value
    dtype: DType
    operand: Operand

    def __str__(self) -> str:
        return f"{self.result} = {self.dtype}({self.operand})"


@dataclass(frozen=True, slots=True)
class Copy:
    result: Value
    operand: Operand

    def __str__(self) -> str:
        return f"{self.result} = {self.operand}"


Statement: TypeAlias = Call | Round | Copy


@dataclass(frozen=True, slots=True)
class Region:
    """A region by its number in the kernel; its result is the result of the last statement."""

    number: int
    parameters: tuple[Value, ...]
    statements: tuple[Statement, ...]

    @property
    def name(self) -> str:
        return f"Region{self.number}"

    def __str__(self) -> str:
        return self.name


def single_function(dag: TypedDag, result: int, operands: list[int]) -> str:
    """Return the function of a region of a single f32 operation for which CUTLASS has as fast a functor, or "".

    The functor takes the operands of the region, ``operands``, in their order.
    """
    op = dag[result]
    if not isinstance(op, Apply) or list(dag.arguments(result)) != operands:
        return ""
    floats = all(dag.types[value].dtype.compute == F32 for value in (result, *operands))
    stock = TABLE[op.function].stock
    return op.function if floats and stock is not None and not (stock.members or stock.is_slow) else ""


def identity(number: int, dtype: DType) -> Region:
    """Return the region that returns its operand."""
    operand = Value("x", dtype)
    return Region(number, (operand,), (Copy(Value("t0", dtype), operand),))


def make_region(dag: TypedDag, number: int, result: int, parameters: Mapping[int, str]) -> Region:
    """Return the region that computes ``result`` from the values in ``parameters``, each with its name."""
    named = {value: Value(label, _register_type(dag, value)) for value, label in parameters.items()}
    given = tuple(named.values())
    if result in parameters or isinstance(dag[result], Const):  # nothing but a parameter or a number
        return Region(number, given, (Copy(Value("t0", _register_type(dag, result)), _operand(dag, result, named)),))
    needed: set[int] = set()
    stack = [result]
    while stack:
        value = stack.pop()
        if value not in needed and (value == result or value not in parameters):
            needed.add(value)
            stack.extend(dag.arguments(value))
    statements: list[Statement] = []
    for value in sorted(needed):
        if not isinstance(dag[value], Const):
            named[value] = Value(f"t{len(statements)}", _register_type(dag, value))
            statements.append(_statement(dag, value, named))
    return Region(number, given, tuple(statements))


def _register_type(dag: TypedDag, value: int) -> DType:
    """Return the type of a value in registers, once a region reads it."""
    return dag.types[value].dtype.compute


def _operand(dag: TypedDag, value: int, named: Mapping[int, Value]) -> Operand:
    constant = dag[value]
    if isinstance(constant, Const):
        return Constant(constant.value, _register_type(dag, value))
    return named[value]


def _statement(dag: TypedDag, value: int, named: Mapping[int, Value]) -> Statement:
    arguments = dag.arguments(value)
    operands = tuple(_operand(dag, operand, named) for operand in arguments)
    match dag[value]:
        case Apply(function):
            types = [dag.types[operand] for operand in arguments]
            return Call(named[value], function, domain(dag, function, types), operands)
        case Cast(dtype):
            return Round(named[value], dtype, operands[0])
        case op:
            raise AssertionError(op)
