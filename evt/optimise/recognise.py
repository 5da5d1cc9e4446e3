"""Recognition of expanded activations: ``0.5*x*(1 + erf(x/sqrt(2))) -> gelu(x)`` in any arrangement.

The rules are formulas. A candidate and a rule are compared in a normal form that does not depend on the arrangement:
both are expanded to polynomials over atoms (``x``, ``erf(p)``, ``1/(p)``, ...) whose arguments are polynomials again.
Coefficients are compared to six digits. The pass inspects neighbourhoods of a few nodes only, so it is linear.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from itertools import product
from typing import TypeAlias

from evt.ir.dag import Dag, TypedDag
from evt.ir.node import Apply, Const
from evt.optimise.rewrite import TypedBuilder

#: Expanded formulas and their functions; `x` is the wildcard.
RULES = (
    ("1 / (1 + exp(-x))", "sigmoid"),
    ("0.5 * (1 + tanh(0.5 * x))", "sigmoid"),
    ("x / (1 + exp(-x))", "silu"),
    ("0.5 * x * (1 + tanh(0.5 * x))", "silu"),
    ("0.5 * x * (1 + erf(x * 0.70710678118654752))", "gelu"),
    ("0.5 * (1 + erf(x * 0.70710678118654752)) + x * exp(x * x * -0.5) * 0.39894228040143268", "gelu_slope"),
    ("0.5 * x * (1 + tanh(0.79788456080286536 * (x + 0.044715 * x**3)))", "gelu_tanh"),
    (
        "0.5 * (1 + tanh(0.79788456080286536 * (x + 0.044715 * x**3)))"
        " + 0.5 * x * (1 - tanh(0.79788456080286536 * (x + 0.044715 * x**3))**2)"
        " * 0.79788456080286536 * (1 + 0.134145 * x**2)",
        "gelu_tanh_slope",
    ),
    ("x * sigmoid(1.5957691216057308 * (x + 0.044715 * x**3))", "gelu_tanh"),
    ("x * tanh(softplus(x))", "mish"),
    ("x * tanh(log1p(exp(x)))", "mish"),
    ("x * tanh(log(1 + exp(x)))", "mish"),
    ("x * relu6(x + 3) / 6", "hardswish"),
    ("relu6(x + 3) / 6", "hardsigmoid"),
)
#: The functions that locate a rule, and the distance from one of them up to the root of the rule.
_ANCHORS = frozenset({"exp", "erf", "tanh", "relu6", "sigmoid", "hardsigmoid"})
#: Functions of rules below an anchor.
_ATOMS = _ANCHORS | {"softplus", "log", "log1p"}
_ROOTS = frozenset({"add", "mul", "div", "rcp"})
_CLIMB, _DESCEND, _TERMS = 5, 5, 12

#: (atom, power) pairs; a polynomial maps monomials to coefficients.
Monomial: TypeAlias = frozenset[tuple[object, int]]
Polynomial: TypeAlias = dict[Monomial, float]
Form: TypeAlias = frozenset[tuple[Monomial, str]]
_ONE: Monomial = frozenset()


class _TooLargeError(Exception):
    """The expansion has more terms than any rule."""


def recognise(dag: TypedDag) -> TypedDag:
    """Replace each expanded activation by its function."""
    found: dict[int, tuple[str, int]] = {}
    for anchor in range(len(dag)):
        op = dag[anchor]
        if isinstance(op, Apply) and op.function in _ANCHORS:
            candidates = _below(dag, anchor)
            for root in _above(dag, anchor):
                if root not in found and (match := _match(dag, root, candidates)):
                    found[root] = match
    if not found:
        return dag
    builder, renamed = TypedBuilder(dag), list[int]()
    for node in builder.walk(dag):
        if node in found:
            function, x = found[node]
            renamed.append(builder.add(Apply(function), renamed[x]))
        else:
            renamed.append(builder.add(dag[node], *(renamed[operand] for operand in dag.arguments(node))))
    return builder.typed()


def _match(dag: TypedDag, root: int, candidates: list[int]) -> tuple[str, int] | None:
    for x in candidates:
        if x < root and dag.types[x].dtype.is_float:  # integer arithmetic wraps
            form = normal_form(dag, root, x)
            if form is not None and (function := _rules().get(form)):
                return function, x
    return None


def _above(dag: Dag, anchor: int) -> list[int]:
    """Return possible roots above an anchor, outermost first."""
    level, roots = [anchor], []
    for _ in range(_CLIMB):
        level = list(dict.fromkeys(user for node in level for user in dag.users[node][:4]))[:8]
        roots += [node for node in level if isinstance(op := dag[node], Apply) and op.function in _ROOTS]
    return list(dict.fromkeys(reversed(roots)))


def _below(dag: Dag, anchor: int) -> list[int]:
    """Return possible wildcards below an anchor."""
    level, found = [anchor], list[int]()
    for _ in range(_DESCEND):
        level = list(dict.fromkeys(operand for node in level for operand in dag.arguments(node)))[:8]
        found += [node for node in level if not isinstance(dag[node], Const)]
    return list(dict.fromkeys(found))


@cache
def _rules() -> dict[Form, str]:
    from evt.ir.lower import lower
    from evt.language import parse

    forms: dict[Form, str] = {}
    for formula, function in RULES:
        dag = lower(parse(f"x = acc; D = {formula}"))
        form = normal_form(dag, dag.arguments(dag.stores["D"])[0], 0)
        assert form is not None, formula
        forms[form] = function
    return forms


def normal_form(dag: Dag, root: int, x: int) -> Form | None:
    """Return the normal form of ``root`` over the wildcard ``x``; None if it is larger than any rule."""
    try:
        return _freeze(_expand(dag, root, x, {}, 0))
    except _TooLargeError:
        return None


def _freeze(polynomial: Polynomial) -> Form:
    return frozenset((monomial, f"{c:.5e}") for monomial, c in polynomial.items() if c)


def _expand(dag: Dag, node: int, x: int, known: dict[int, Polynomial], depth: int) -> Polynomial:
    if node in known:
        return known[node]
    if depth > 12:
        raise _TooLargeError
    op = dag[node]

    def operand(slot: int) -> Polynomial:
        return _expand(dag, dag.arguments(node)[slot], x, known, depth + 1)

    result: Polynomial
    if node == x:
        result = _atom("x")
    elif isinstance(op, Const) and math.isfinite(op.value):
        result = {_ONE: op.value}
    elif isinstance(op, Apply) and op.function in _ARITHMETIC:
        result = _ARITHMETIC[op.function](operand)
    elif isinstance(op, Apply) and op.function in _ATOMS:
        result = _atom((op.function, *(_freeze(operand(slot)) for slot in range(len(dag.arguments(node))))))
    else:
        raise _TooLargeError  # no rule has another operation
    known[node] = result
    return result


def _atom(atom: object) -> Polynomial:
    return {frozenset({(atom, 1)}): 1.0}


def _plus(a: Polynomial, b: Polynomial, sign: float = 1.0) -> Polynomial:
    result = dict(a)
    for monomial, coefficient in b.items():
        result[monomial] = result.get(monomial, 0.0) + sign * coefficient
    if len(result) > _TERMS:
        raise _TooLargeError
    return result


def _times(a: Polynomial, b: Polynomial) -> Polynomial:
    result: Polynomial = {}
    for (left, c), (right, d) in product(a.items(), b.items()):
        powers = dict(left)
        for atom, power in right:
            powers[atom] = powers.get(atom, 0) + power
        result = _plus(result, {frozenset(powers.items()): c * d})
    return result


def _inverse(p: Polynomial) -> Polynomial:
    if set(p) == {_ONE} and p[_ONE]:
        return {_ONE: 1 / p[_ONE]}
    return _atom(("inverse", _freeze(p)))


def _sigmoid(p: Polynomial) -> Polynomial:
    exponential = _atom(("exp", _freeze(_plus({}, p, -1.0))))
    return _inverse(_plus({_ONE: 1.0}, exponential))


def _hardsigmoid(p: Polynomial) -> Polynomial:
    return _times({_ONE: 1 / 6}, _atom(("relu6", _freeze(_plus(p, {_ONE: 3.0})))))


_Operand = Callable[[int], Polynomial]
_ARITHMETIC: dict[str, Callable[[_Operand], Polynomial]] = {
    "add": lambda p: _plus(p(0), p(1)),
    "sub": lambda p: _plus(p(0), p(1), -1.0),
    "neg": lambda p: _plus({}, p(0), -1.0),
    "mul": lambda p: _times(p(0), p(1)),
    "div": lambda p: _times(p(0), _inverse(p(1))),
    "rcp": lambda p: _inverse(p(0)),
    "square": lambda p: _times(p(0), p(0)),
    "fma": lambda p: _plus(_times(p(0), p(1)), p(2)),
    "pow": lambda p: _power(p(0), p(1)),
    "sigmoid": lambda p: _sigmoid(p(0)),
    "hardsigmoid": lambda p: _hardsigmoid(p(0)),
}


def _power(base: Polynomial, exponent: Polynomial) -> Polynomial:
    if set(exponent) == {_ONE} and exponent[_ONE] in (1.0, 2.0, 3.0, 4.0):
        result = base
        for _ in range(int(exponent[_ONE]) - 1):
            result = _times(result, base)
        return result
    raise _TooLargeError
