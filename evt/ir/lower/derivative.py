"""Derivatives of values, by the chain rule over the graph and the formulas of the function table."""

from __future__ import annotations

from collections.abc import Mapping

from evt.functions import BINARY, TABLE, UNARY, lookup
from evt.functions.formula import bound_arguments, parse_formula
from evt.ir.dag import Builder
from evt.ir.node import Apply, Cast, Const, Load
from evt.language import tree as syntax

#: The name of the variable of differentiation, which no input can have.
_VARIABLE = "'"
#: The largest number of choices in a factor that is distributed over a product, one product for each.
_MOST_CHOICES = 64


class NoDerivativeError(Exception):
    """A function without a derivative."""


class Derivatives:
    """Differentiation of values of a builder."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder

    def variable(self) -> int:
        """Return a node that represents the argument. Substitute it before the graph is finished."""
        return self.builder.add(Load(_VARIABLE))

    def derive(self, value: int, x: int) -> int:
        """Return the derivative of ``value`` with respect to ``x``. Casts count as the identity, as in autograd.

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
                    term = times(self.builder, partial(self.builder, op.function, slot, operands), slope)
                else:
                    raise NoDerivativeError(f"it is made of {op}")
                if self.builder[term] != zero:
                    total = term if total is None else self.builder.add(Apply("add"), total, term)
            slopes[node] = total
        found = slopes.get(value)
        return self.builder.add(zero) if found is None else found

    def substitute(self, value: int, x: int, by: int) -> int:
        """Return ``value`` with ``by`` substituted for the variable ``x``."""
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


def partial(builder: Builder, function: str, slot: int, operands: tuple[int, ...]) -> int:
    """Return the derivative of a function with respect to one operand. Raise NoDerivativeError."""
    row = TABLE[function]
    if not row.derivatives or not row.derivatives[slot]:
        raise NoDerivativeError(f"`{function}` was registered without a derivative")
    names = (parameter.name for parameter in row.parameters)
    return add_formula(builder, row.derivatives[slot], dict(zip(names, operands, strict=True)))


def times(builder: Builder, a: int, b: int) -> int:
    """Return a partial derivative times a slope: ``where(c, p, 0) * b -> where(c, p*b, 0)``.

    The form avoids 0 * infinity, because b may overflow.
    """
    one, zero = Const.of(1.0), Const.of(0.0)
    products: dict[int, int] = {}

    def product(node: int) -> int:
        if node in products:
            return products[node]
        if builder[node] == one or builder[b] == zero:
            return b
        if builder[b] == one or builder[node] == zero:
            return node
        return builder.add(Apply("mul"), node, b)

    if zero in (builder[a], builder[b]) or one in (builder[a], builder[b]):
        return product(a)
    choices = _choices(builder, a)
    if len(choices) > _MOST_CHOICES:
        is_zero, none = builder.add(Apply("eq"), a, builder.add(zero)), builder.add(zero)
        return builder.add(Apply("where"), is_zero, none, product(a))
    for node in choices:
        condition, *branches = builder.arguments(node)
        if any(branch in products or builder[branch] == zero for branch in branches):  # 0 under some conditions
            products[node] = builder.add(Apply("where"), condition, *map(product, branches))
    return product(a)


def _choices(builder: Builder, root: int) -> list[int]:
    """Return the choices in a value, operands first: at most one more than :data:`_MOST_CHOICES`."""
    found: set[int] = set()
    stack = [root]
    while stack and len(found) <= _MOST_CHOICES:
        node = stack.pop()
        if builder[node] == Apply("where") and node not in found:
            found.add(node)
            stack += builder.arguments(node)[1:]
    return sorted(found)


def add_formula(builder: Builder, text: str, values: Mapping[str, int]) -> int:
    """Return the node of a formula of the function table over named values."""
    root = parse_formula(text)
    results: dict[int, int] = {}
    for node in syntax.postorder(root):
        operands = [results[id(child)] for child in syntax.children(node)]
        match node:
            case syntax.Number(number):
                result = builder.add(Const.of(float(number)))
            case syntax.Name(name):
                result = values[name]
            case syntax.Unary("-") if isinstance(constant := builder[operands[0]], Const):
                result = builder.add(Const.of(-constant.value))
            case syntax.Unary(operator):
                result = builder.add(Apply(UNARY[operator]), *operands)
            case syntax.Binary(operator):
                result = builder.add(Apply(BINARY[operator]), *operands)
            case syntax.Call(function=function):
                row = lookup(function.text)
                assert row is not None
                bound = bound_arguments(node, row)
                assert bound is not None
                arguments = (
                    builder.add(Const.of(each)) if isinstance(each, float) else results[id(each)] for each in bound
                )
                result = builder.add(Apply(row.name), *arguments)
            case syntax.Element():
                raise ValueError(f"a formula of the table has no subscripts: {text}")
        results[id(node)] = result
    return results[id(root)]
