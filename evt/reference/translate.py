"""A typed graph in PyTorch: ``translate(dag, dialect) -> outputs by name``.

This is the only walk over a graph that computes with torch. The dialect decides the arithmetic: the oracle
(:mod:`evt.reference.exact`) converts and rounds as kernels do; a baseline (:mod:`evt.eager.straight`) is written as a
PyTorch user would write it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from evt.ir.dag import TypedDag
from evt.ir.dtype import DType
from evt.ir.node import (
    Acc,
    Apply,
    Cast,
    Const,
    Element,
    Extent,
    Feed,
    Index,
    Input,
    Interleave,
    Load,
    Node,
    Operand,
    Output,
    Pick,
    Random,
    Reduce,
    ReduceBlocks,
    Scale,
    Store,
    ValueType,
    base,
    divisor,
)
from evt.ir.value_types import domain, interleaved_type

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Argument(Generic[Value]):
    """An operand of a node: the node that makes it, its value and type.

    ``whole`` means that it depends on the accumulator or an operand's elements, so it has all elements, in every batch.
    """

    op: Node
    value: Value
    type: ValueType
    whole: bool

    @property
    def width(self) -> int:
        """The number of columns for each column of the value; 0 if it does not vary over columns."""
        return next((divisor(mode) for mode in self.type.modes if base(mode) == "n"), 0)


class Dialect(ABC, Generic[Value]):
    """The PyTorch form of each kind of node."""

    @abstractmethod
    def accumulator(self, name: str) -> Value:
        """Return the product of A and ``name``, B or an input."""

    @abstractmethod
    def element(self, name: str) -> Value:
        """Return the elements of the operand A or B."""

    @abstractmethod
    def load(self, source: Input) -> Value: ...

    @abstractmethod
    def constant(self, op: Const) -> Value: ...

    @abstractmethod
    def apply(self, function: str, operands: Sequence[Value], domain: DType) -> Value:
        """Return the value of a function of the table that computes in ``domain``, for operands that broadcast."""

    @abstractmethod
    def repeat(self, value: Value, width: int) -> Value:
        """Return a value with one element per block of ``width`` columns, repeated for the block's columns."""

    @abstractmethod
    def cast(self, dtype: DType, x: Argument[Value]) -> Value: ...

    @abstractmethod
    def reduce(self, op: Reduce, x: Argument[Value]) -> Value: ...

    @abstractmethod
    def fold(self, op: ReduceBlocks, x: Argument[Value]) -> Value: ...

    @abstractmethod
    def pick(self, op: Pick, x: Argument[Value]) -> Value: ...

    @abstractmethod
    def interleave(self, op: Interleave, x: Argument[Value], y: Argument[Value], domain: DType) -> Value:
        """Return the columns of two values together, both in the type ``domain``."""

    @abstractmethod
    def index(self, mode: str) -> Value: ...

    @abstractmethod
    def extent(self, mode: str) -> Value: ...

    @abstractmethod
    def random(self, seed: Argument[Value], offset: Argument[Value]) -> Value: ...

    @abstractmethod
    def store(self, output: Output, x: Argument[Value]) -> Any:
        """Return an output's tensor."""

    @abstractmethod
    def feed(self, operand: Operand, x: Argument[Value]) -> Any:
        """Return the tensor that replaces A or B in the product."""

    def scale(self, x: Argument[Value]) -> Any:
        """Return the factor of an operand."""
        return x.value


def translate(dag: TypedDag, dialect: Dialect[Value], nodes: Iterable[int] | None = None) -> dict[str, Any]:
    """Compute a graph, or some nodes of it, operands first. Return the results by name, in that order."""
    chosen = range(len(dag)) if nodes is None else list(nodes)
    last_use = {operand: node for node in chosen for operand in dag.arguments(node)}
    known: dict[int, Argument[Value]] = {}
    results: dict[str, Any] = {}
    for node in chosen:
        op, operands = dag[node], [known[operand] for operand in dag.arguments(node)]
        match op:
            case Store(name):
                results[name] = dialect.store(dag.output[name], *operands)
            case Feed(name):
                operand = next(each for each in dag.operands if each.name == name)
                results[name] = dialect.feed(operand, *operands)
            case Scale(name):
                results[name] = dialect.scale(*operands)
            case _:
                whole = isinstance(op, Acc | Element) or any(operand.whole for operand in operands)
                known[node] = Argument(op, _value(dag, op, operands, dialect), dag.types[node], whole)
        for each in set(dag.arguments(node)):
            if last_use[each] == node:
                del known[each]
    return results


def _value(dag: TypedDag, op: Node, operands: Sequence[Argument[Value]], dialect: Dialect[Value]) -> Value:
    match op:
        case Acc(name):
            return dialect.accumulator(name)
        case Element(name):
            return dialect.element(name)
        case Load(name):
            return dialect.load(dag.input[name])
        case Const():
            return dialect.constant(op)
        case Apply(function):
            to = domain(dag, function, [operand.type for operand in operands])
            return dialect.apply(function, _aligned(operands, dialect), to)
        case Cast(dtype):
            return dialect.cast(dtype, *operands)
        case Reduce():
            return dialect.reduce(op, *operands)
        case ReduceBlocks():
            return dialect.fold(op, *operands)
        case Pick():
            return dialect.pick(op, *operands)
        case Interleave():
            x, y = operands
            return dialect.interleave(op, x, y, interleaved_type(dag, [x.type, y.type]))
        case Index(mode):
            return dialect.index(mode)
        case Extent(mode):
            return dialect.extent(mode)
        case Random():
            return dialect.random(*operands)
        case Store() | Feed() | Scale():
            raise AssertionError(op)


def _aligned(operands: Sequence[Argument[Value]], dialect: Dialect[Value]) -> list[Value]:
    """Return values that broadcast: a block value is repeated for the columns of its block that another value has."""
    finest = min((operand.width for operand in operands if operand.width), default=1)
    return [
        dialect.repeat(operand.value, operand.width // finest) if operand.width > finest else operand.value
        for operand in operands
    ]
