"""The formulas that a stock epilogue computes: ``match_stock(dag) -> Stock``, or a refusal.

The stock epilogues of CUTLASS are all of one shape. From the accumulator outwards::

    last(first(alpha * acc + inner...) (+ or *) outer...)

where terms are vectors and tensors, each times a factor. A formula must have exactly this form, in this order: sums of
floats are not rearranged. :mod:`evt.plan.stock.operators` knows which class of CUTLASS computes which part of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from evt.functions import TABLE
from evt.ir import Acc, Apply, Cast, Const, Input, Load, Output, TypedDag
from evt.ir.dtype import F32
from evt.plan.verdict import Refusal


@dataclass(frozen=True, slots=True)
class Factor:
    """The factor of a term: the input ``name``, or the number ``value``."""

    name: str = ""
    value: float = 1.0

    @property
    def is_one(self) -> bool:
        return not self.name and self.value == 1


ONE = Factor()


@dataclass(frozen=True, slots=True)
class Term:
    """An input times a factor, which is added to a value or (``operation`` *) multiplies it."""

    name: str
    factor: Factor = ONE
    operation: Literal["+", "*"] = "+"


@dataclass(frozen=True, slots=True)
class Activation:
    """A functor of CUTLASS that computes a function of evt, and its (member, number) arguments."""

    functor: str = "cutlass::epilogue::thread::Identity"
    arguments: tuple[tuple[str, float], ...] = ()
    has_fast: bool = False
    is_slow: bool = False

    @property
    def is_identity(self) -> bool:
        return self == IDENTITY


IDENTITY = Activation()


@dataclass(frozen=True)
class Stock:
    """A formula in the form of stock epilogues; ``stored`` is a second output, the value before ``last``."""

    alpha: Factor = ONE
    inner: tuple[Term, ...] = ()
    first: Activation = IDENTITY
    outer: tuple[Term, ...] = ()
    last: Activation = IDENTITY
    stored: str = ""

    @property
    def terms(self) -> tuple[Term, ...]:
        return (*self.inner, *self.outer)

    @property
    def activations(self) -> tuple[Activation, Activation]:
        return self.first, self.last


class _MismatchError(Exception):
    """The reason why a formula is not a stock epilogue, and the node that is the cause."""

    def __init__(self, reason: str, node: int | None = None) -> None:
        super().__init__(reason)
        self.refusal = Refusal(reason, node)


def match_stock(dag: TypedDag) -> Stock | Refusal:
    """Return the formula in the form of stock epilogues, or a refusal."""
    try:
        return _Match(dag).stock()
    except _MismatchError as mismatch:
        return mismatch.refusal


#: One operation on the accumulator's value.
_Step = Factor | Term | Activation


class _Match:
    def __init__(self, dag: TypedDag) -> None:
        self.dag = dag
        self.on_path = [False] * len(dag)
        for node in range(len(dag)):
            self.on_path[node] = isinstance(dag[node], Acc) or any(self.on_path[x] for x in dag.arguments(node))

    def stock(self) -> Stock:
        dag = self.dag
        values: tuple[Input | Output, ...] = (*dag.inputs, *dag.outputs)
        for value in values:
            if value.is_indexed:
                how = "read" if value.name in dag.input else "stored"
                raise _MismatchError(f"`{value.name}` is {how} where an index says")
        root = dag.arguments(dag.stores[dag.primary.name])[0]
        path = self.path(root)
        if dag.types[root].dtype != F32:
            raise _MismatchError(f"{dag.primary.name} is computed in {dag.types[root].dtype}, not in f32", root)
        steps = [step for node in reversed(path) for step in self.steps(node)]
        found = self.shape(steps)
        others = [output.name for output in dag.outputs if output != dag.primary]
        if not others:
            return found
        stored = dag.arguments(dag.stores[others[0]])[0]
        before = path[1] if len(path) > 1 else -1
        if len(others) > 1 or stored != before or found.last.is_identity or found.outer:
            raise _MismatchError(f"`{others[-1]}` is a second output, and no value before an activation", stored)
        return replace(found, stored=others[0])

    def path(self, root: int) -> list[int]:
        """Return the nodes from a value to the accumulator, which must be used exactly once."""
        path = [root]
        while not isinstance(self.dag[path[-1]], Acc):
            operands = [x for x in dict.fromkeys(self.dag.arguments(path[-1])) if self.on_path[x]]
            if not operands:
                raise _MismatchError("D does not depend on `acc`", root)
            slots = sum(self.on_path[x] for x in self.dag.arguments(path[-1]))
            if slots > 1:
                raise _MismatchError("`acc` is used more than once", path[-1])
            path.append(operands[0])
        return path

    def steps(self, node: int) -> Iterator[_Step]:
        """Yield the operations of a node of the path."""
        op, operands = self.dag[node], self.dag.arguments(node)
        if self.is_sum(node):
            return
        if isinstance(op, Cast):
            raise _MismatchError(f"{op.dtype}(...) rounds in between", node)
        if not isinstance(op, Apply):
            raise _MismatchError(f"a {type(op).__name__.lower()} is no element-wise function", node)
        if self.dag.types[node].dtype != F32:
            raise _MismatchError(f"`{op.function}` is computed in {self.dag.types[node].dtype}, not in f32", node)
        inside = next(slot for slot, operand in enumerate(operands) if self.on_path[operand])
        match op.function:
            case "add":
                yield self.term(operands[1 - inside])
            case "sub" if inside == 0:
                yield self.negated(self.term(operands[1]))
            case "sub" if self.is_sum(operands[1]):
                yield Factor(value=-1.0)
                yield self.term(operands[0])
            case "neg" if self.is_sum(operands[0]):
                yield Factor(value=-1.0)
            case "mul":
                yield self.multiplied(operands[inside], operands[1 - inside])
            case "fma" if inside == 2:
                yield self.product(operands[0], operands[1])
            case "fma":
                yield self.multiplied(operands[inside], operands[1 - inside])
                yield self.term(operands[2])
            case name:
                yield self.activation(node, name, operands)

    def is_sum(self, node: int) -> bool:
        """Return whether a value is the accumulator, which stock epilogues convert to f32."""
        op = self.dag[node]
        return isinstance(op, Acc) or (op == Cast(F32) and isinstance(self.dag[self.dag.arguments(node)[0]], Acc))

    def activation(self, node: int, name: str, operands: tuple[int, ...]) -> Activation:
        row = TABLE[name]
        if row.stock is None or not row.stock.is_activation:
            raise _MismatchError(f"CUTLASS has no functor with the values of `{name}`", node)
        slots = {parameter.name: operand for parameter, operand in zip(row.parameters, operands, strict=True)}
        arguments = []
        for member, value in row.stock.members:
            if isinstance(value, str):
                given = self.dag[slots[value]]
                if not isinstance(given, Const) or not math.isfinite(given.value):
                    raise _MismatchError(f"`{value}` of `{name}` is no finite number", node)
                value = given.value
            arguments.append((member, value))
        return Activation(row.stock.name, tuple(arguments), row.fast is not None, row.stock.is_slow)

    def multiplied(self, value: int, by: int) -> _Step:
        """Return a factor of the accumulator itself, or a tensor that multiplies a value computed from it."""
        factor = self.factor(by)
        loaded = self.dag.input.get(factor.name)
        if loaded is not None and loaded.is_tile:
            return Term(factor.name, operation="*")
        if self.is_sum(value):
            return factor
        raise _MismatchError(f"{_shown(factor)} multiplies more than `acc`", by)

    def term(self, node: int) -> Term:
        """Return a vector or tensor, times a factor."""
        op = self.dag[node]
        if isinstance(op, Apply) and op.function == "mul":
            return self.product(*self.dag.arguments(node))
        if isinstance(op, Apply) and op.function == "neg":
            return self.negated(self.term(self.dag.arguments(node)[0]))
        if not isinstance(op, Load):
            shown = "a number" if isinstance(op, Const) else "a function of inputs"
            raise _MismatchError(f"{shown} is added, and no input times a factor", node)
        if self.dag.input[op.name].is_scalar:
            raise _MismatchError(f"the scalar `{op.name}` is added", node)
        return Term(op.name)

    def product(self, one: int, two: int) -> Term:
        """Return a factor times a term, given in either order."""
        for factor, term in ((one, two), (two, one)):
            op = self.dag[term]
            if isinstance(op, Load) and not self.dag.input[op.name].is_scalar:
                found = self.factor(factor)
                if not found.name or not self.dag.input[found.name].is_tile:
                    return Term(op.name, found)
        raise _MismatchError("what is added is no input times a factor", one)

    def factor(self, node: int) -> Factor:
        match self.dag[node]:
            case Const() as constant:
                return Factor(value=constant.value)
            case Load(name):
                return Factor(name)
        raise _MismatchError("a factor is neither a number nor an input", node)

    def negated(self, term: Term) -> Term:
        if term.factor.name:
            raise _MismatchError(f"`{term.factor.name} * {term.name}` is subtracted")
        return replace(term, factor=Factor(value=-term.factor.value))

    def leading_terms(self, steps: list[_Step], operations: str) -> tuple[Term, ...]:
        """Remove and return the terms at the front of ``steps``."""
        found: list[Term] = []
        while steps and isinstance(step := steps[0], Term) and step.operation in operations:
            found.append(step)
            steps.pop(0)
        return tuple(found)

    def shape(self, steps: list[_Step]) -> Stock:
        """Return the steps in the form of stock epilogues: a factor, terms, an activation, terms, an activation."""
        rest = list(steps)
        alpha = rest.pop(0) if rest and isinstance(rest[0], Factor) else ONE
        inner = self.leading_terms(rest, "+")
        first = rest.pop(0) if rest and isinstance(rest[0], Activation) else IDENTITY
        outer = self.leading_terms(rest, "+*")
        last = rest.pop(0) if rest and isinstance(rest[0], Activation) and outer else IDENTITY
        if rest:
            raise _MismatchError("stock epilogues end with terms and an activation, and this formula goes on")
        assert isinstance(alpha, Factor)
        assert isinstance(first, Activation)
        assert isinstance(last, Activation)
        if not outer:
            first, last = IDENTITY, first
        found = Stock(alpha, inner, first, outer, last)
        names = [term.name for term in found.terms]
        if len(set(names)) < len(names):
            raise _MismatchError("an input is used more than once")
        return found


def _shown(factor: Factor) -> str:
    return f"`{factor.name}`" if factor.name else f"{factor.value:g}"
