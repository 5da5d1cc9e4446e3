"""Derivatives of values, by the chain rule over the graph and the formulas of the function table."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from evt.functions import TABLE
from evt.ir.dag import Builder
from evt.ir.node import Apply, Cast, Const, Load

#: The name of the variable of differentiation; no input can have it.
_VARIABLE = "'"


class NoDerivativeError(Exception):
    """A function without a derivative."""


class Derivatives:
    """Differentiates values of a builder. ``formula(text, scope)`` adds a formula over named values."""

    def __init__(self, builder: Builder, formula: Callable[[str, Mapping[str, int]], int]) -> None:
        self.builder = builder
        self.formula = formula

    def variable(self) -> int:
        """Return a node that stands for the argument; substitute it before the graph is finished."""
        return self.builder.add(Load(_VARIABLE))

    def derive(self, value: int, x: int) -> int:
        """Return the derivative of ``value`` along ``x``. Casts are taken as the identity, as in autograd.

        Raise NoDerivativeError.
        """
        zero, one = Const.of(0.0), Const.of(1.0)
        slopes: dict[int, int | None] = {x: self.builder.add(one)}  # None: does not depend on x
        for node in self._between(value, x):
            op, operands = self.builder[node], self.builder.arguments(node)
            total: int | None = None
            for slot, operand in enumerate(operands):
                slope = slopes.get(operand)
                if slope is None:
                    continue
                if isinstance(op, Cast):
                    term = slope
                elif isinstance(op, Apply):
                    term = self._times(self._partial(op.function, slot, operands), slope)
                else:
                    raise NoDerivativeError(f"it is made of {op}")
                if self.builder[term] != zero:
                    total = term if total is None else self.builder.add(Apply("add"), total, term)
            slopes[node] = total
        found = slopes.get(value)
        return self.builder.add(zero) if found is None else found

    def substitute(self, value: int, x: int, by: int) -> int:
        """Return ``value`` with ``by`` in place of the variable ``x``."""
        renamed = {x: by}
        for node in self._between(value, x):
            operands = (renamed.get(operand, operand) for operand in self.builder.arguments(node))
            renamed[node] = self.builder.add(self.builder[node], *operands)
        return renamed.get(value, value)

    def _between(self, value: int, x: int) -> list[int]:
        """Return the nodes between ``x``, which is excluded, and ``value``, operands first."""
        needed: set[int] = set()
        stack = [value]
        while stack:
            node = stack.pop()
            if node not in needed and node != x:
                needed.add(node)
                stack.extend(self.builder.arguments(node))
        return sorted(needed)

    def _partial(self, function: str, slot: int, operands: tuple[int, ...]) -> int:
        row = TABLE[function]
        if not row.derivatives or not row.derivatives[slot]:
            raise NoDerivativeError(f"`{function}` was registered without one")
        names = (parameter.name for parameter in row.parameters)
        return self.formula(row.derivatives[slot], dict(zip(names, operands, strict=True)))

    def _times(self, a: int, b: int) -> int:
        """Return a partial derivative times a slope: ``where(c, p, 0) * b -> where(c, p*b, 0)``, as b may overflow."""
        one, zero = Const.of(1.0), Const.of(0.0)
        if self.builder[a] == one or self.builder[b] == zero:
            return b
        if self.builder[b] == one or self.builder[a] == zero:
            return a
        if self.builder[a] == Apply("where"):
            condition, x, y = self.builder.arguments(a)
            if zero in (self.builder[x], self.builder[y]):
                return self.builder.add(Apply("where"), condition, self._times(x, b), self._times(y, b))
        return self.builder.add(Apply("mul"), a, b)
