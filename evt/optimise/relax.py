"""Algebra of real numbers, opt-in: it changes roundings, and the results for NaN, infinities and -0.

No rule combines constants into one that overflows or loses digits, because 0 times infinity is NaN. Products, sums and
reciprocals of inputs that vary less than the result are assumed to stay within the type.
"""

from __future__ import annotations

from evt.ir.dag import TypedDag
from evt.ir.dtype import F32, F64
from evt.ir.node import Apply, Node
from evt.optimise.rewrite import Rule, TypedBuilder, chosen, constant_operand, on, rewrite
from evt.optimise.rounding import round_constant

_LEAST_NORMAL = 2.0**F32.format.least_exponent
#: ``f(g(x)) -> x``.
_INVERSE = {
    ("exp", "log"),
    ("log", "exp"),
    ("exp2", "log2"),
    ("log2", "exp2"),
    ("expm1", "log1p"),
    ("log1p", "expm1"),
    ("rcp", "rcp"),
    ("square", "sqrt"),
    ("sigmoid", "logit"),
    ("logit", "sigmoid"),
    ("tanh", "atanh"),
    ("atanh", "tanh"),
    ("sinh", "asinh"),
    ("asinh", "sinh"),
}
#: ``f(g(x)) -> h(x)``.
_COMPOSED = {
    ("rcp", "sqrt"): "rsqrt",
    ("sqrt", "rcp"): "rsqrt",
    ("rcp", "rsqrt"): "sqrt",
    ("sqrt", "square"): "abs",
    ("log", "sigmoid"): "logsigmoid",
}
#: Functions that propagate the magnitude of a constant to their result.
_ARITHMETIC = frozenset({"add", "sub", "mul", "div", "neg", "fma"})


def relax(dag: TypedDag) -> TypedDag:
    """Apply the rules to every operation on f32 or f64."""
    rules = (cancel, gather, scale_first, factor, reciprocal, power, composition, exponentials, choice)
    return rewrite(dag, *map(_over_floats, rules))


def _over_floats(rule: Rule) -> Rule:
    def guarded(builder: TypedBuilder, op: Apply, operands: tuple[int, ...]) -> int | None:
        if builder.domain(op.function, operands) not in (F32, F64):
            return None
        return None if all(builder.constant(x) is not None for x in operands) else rule.apply(builder, op, operands)

    return Rule(rule.keys, guarded)


@on("add", "sub", "mul", "div")
def cancel(builder: TypedBuilder, op: Node, operands: tuple[int, ...]) -> int | None:
    """Rewrite ``x + 0 -> x``, ``0 - x -> -x``, ``x * 0 -> 0``, ``0 / x -> 0``, ``x - x -> 0``, ``x / x -> 1``."""
    for value, x in constant_operand(builder, op, operands):
        if value == 0.0 and op in (Apply("add"), Apply("sub")):
            return x
        if value == 0.0 and op == Apply("mul"):
            return builder.number(0.0)
    if builder.constant(operands[0]) == 0.0:
        if op == Apply("sub"):
            return builder.apply("neg", operands[1])
        if op == Apply("div"):
            return builder.number(0.0)
    if op in (Apply("sub"), Apply("div")) and operands[0] == operands[1]:
        return builder.number(0.0 if op == Apply("sub") else 1.0)
    return None


@on("add", "sub", "mul", "div")
def gather(builder: TypedBuilder, op: Apply, operands: tuple[int, ...]) -> int | None:
    """Rewrite ``2 * (3 * x) -> 6 * x``, ``x / 3 -> x * (1/3)``, ``(x + 1) - 3 -> x + -2``, ``-x * 2 -> x * -2``."""
    dtype = builder.domain(op.function, operands)
    for value, x in constant_operand(builder, op, operands):
        match op:
            case Apply("div") if value:
                return _with(builder, "mul", x, round_constant(dtype, 1 / value))
            case Apply("sub"):
                return _with(builder, "add", x, -value)
            case Apply("mul") if builder[x] == Apply("neg"):
                return _with(builder, "mul", builder.arguments(x)[0], -value)
            case Apply("mul" | "add" as function) if builder[x] == op:
                for inner, y in constant_operand(builder, op, builder.arguments(x)):
                    result = value * inner if function == "mul" else value + inner
                    return _with(builder, function, y, round_constant(dtype, result))
    return None


def _with(builder: TypedBuilder, function: str, x: int, value: float) -> int | None:
    """Return ``x`` combined with a constant; None if the constant overflows or vanishes."""
    if value == 0.0 and function == "add":
        return x
    return builder.apply(function, x, builder.number(value)) if _is_normal(value) else None


def _is_normal(value: float) -> bool:
    """Return whether f32 represents the number with all its digits."""
    return _LEAST_NORMAL <= abs(value) <= F32.largest


def _is_moderate(builder: TypedBuilder, node: int, depth: int = 4) -> bool:
    """Return whether a value may be multiplied or added before others: it has no very large or very small constant."""
    value, op = builder.constant(node), builder[node]
    if value is not None:
        return not value or 2.0**-32 <= abs(value) <= 2.0**32
    if depth and isinstance(op, Apply) and op.function in _ARITHMETIC:
        return all(_is_moderate(builder, operand, depth - 1) for operand in builder.arguments(node))
    return not builder.types[node].constant


@on("mul")
def scale_first(builder: TypedBuilder, op: Node, operands: tuple[int, ...]) -> int | None:
    """Rewrite ``(acc * s) * t -> acc * (s * t)`` for scalars and vectors: values that vary less are multiplied
    first.
    """
    for product, t in (operands, operands[::-1]):
        if builder[product] != op:
            continue
        for x, s in (builder.arguments(product), builder.arguments(product)[::-1]):
            modes = {*builder.types[s].modes, *builder.types[t].modes}
            numbers = builder.constant(s) is not None and builder.constant(t) is not None  # see gather
            moderate = _is_moderate(builder, s) and _is_moderate(builder, t)
            if modes < set(builder.types[x].modes) and moderate and not numbers:
                return builder.apply("mul", x, builder.apply("mul", s, t))
    return None


@on("add", "sub")
def factor(builder: TypedBuilder, op: Apply, operands: tuple[int, ...]) -> int | None:
    """Rewrite ``a*x + b*x -> (a + b) * x``, ``a*x - x -> (a - 1) * x`` if ``a`` and ``b`` vary less than ``x``."""
    for x, a in _factors(builder, operands[0]):
        for y, b in _factors(builder, operands[1]):
            if x != y:
                continue
            factors = [each for each in (a, b) if each is not None]
            modes = {mode for each in factors for mode in builder.types[each].modes}
            if modes < set(builder.types[x].modes) and all(_is_moderate(builder, each) for each in factors):
                one = builder.number(1.0)
                total = builder.apply(op.function, one if a is None else a, one if b is None else b)
                return builder.apply("mul", x, total)
    return None


def _factors(builder: TypedBuilder, node: int) -> list[tuple[int, int | None]]:
    """Return the factorisations of a node into two factors, including itself without a second factor."""
    found: list[tuple[int, int | None]] = [(node, None)]
    if builder[node] == Apply("mul"):
        a, b = builder.arguments(node)
        found += [(a, b), (b, a)]
    return found


@on("div")
def reciprocal(builder: TypedBuilder, op: Node, operands: tuple[int, ...]) -> int | None:
    """Rewrite ``x / s -> x * rcp(s)`` if ``s`` is not a constant and varies less than ``x``; ``x / sqrt(y) ->
    x*rsqrt(y)``.
    """
    if any(builder.constant(x) is not None or builder.types[x].constant for x in operands):
        return None
    x, y = operands
    if builder[y] == Apply("sqrt"):
        return builder.apply("mul", x, builder.apply("rsqrt", *builder.arguments(y)))
    if set(builder.types[y].modes) < set(builder.types[x].modes):
        return builder.apply("mul", x, builder.apply("rcp", y))
    return None


@on("pow")
def power(builder: TypedBuilder, op: Node, operands: tuple[int, ...]) -> int | None:
    """Rewrite ``x ** 0.5 -> sqrt(x)``, ``x ** 4 -> square(square(x))``, ``x ** -2 -> rcp(square(x))``.

    Also ``pow(2, x) -> exp2(x)``.
    """
    x = operands[0]
    if builder.constant(x) == 2.0:
        return builder.apply("exp2", operands[1])
    match builder.constant(operands[1]):
        case 0.5:
            return builder.apply("sqrt", x)
        case -0.5:
            return builder.apply("rsqrt", x)
        case 1.5:
            return builder.apply("mul", x, builder.apply("sqrt", x))
        case 4.0:
            return builder.apply("square", builder.apply("square", x))
        case 5.0:
            return builder.apply("mul", x, builder.apply("square", builder.apply("square", x)))
        case -2.0:
            return builder.apply("rcp", builder.apply("square", x))
    return None


@on(*(outer for outer, _ in (*_INVERSE, *_COMPOSED)))
def composition(builder: TypedBuilder, op: Apply, operands: tuple[int, ...]) -> int | None:
    """Rewrite ``exp(log(x)) -> x``, ``rcp(sqrt(x)) -> rsqrt(x)``, ``sqrt(square(x)) -> abs(x)``."""
    inner = builder[operands[0]]
    if not isinstance(inner, Apply):
        return None
    arguments = builder.arguments(operands[0])
    if (op.function, inner.function) in _INVERSE:
        return arguments[0]
    composed = _COMPOSED.get((op.function, inner.function))
    return builder.apply(composed, *arguments) if composed else None


@on("mul", "div", "rcp", "square")
def exponentials(builder: TypedBuilder, op: Node, operands: tuple[int, ...]) -> int | None:
    """Rewrite ``exp(x) * exp(y) -> exp(x + y)``, ``exp(x) / exp(y) -> exp(x - y)``, ``rcp(exp(x)) -> exp(-x)``.

    Likewise for exp2.
    """
    for name in ("exp", "exp2"):
        if any(builder[operand] != Apply(name) for operand in operands):
            continue
        exponents = [builder.arguments(operand)[0] for operand in operands]
        match op:
            case Apply("mul"):
                return builder.apply(name, builder.apply("add", *exponents))
            case Apply("div"):
                return builder.apply(name, builder.apply("sub", *exponents))
            case Apply("rcp"):
                return builder.apply(name, builder.apply("neg", *exponents))
            case Apply("square"):
                return builder.apply(name, builder.apply("mul", *exponents, builder.number(2.0)))
    return None


@on("where")
def choice(builder: TypedBuilder, op: Node, operands: tuple[int, ...]) -> int | None:
    """Rewrite ``where(x > 0, x, 0) -> max(x, 0)``, ``where(x < y, x, y) -> min(x, y)``, which give NaN for NaN."""
    return chosen(builder, operands)
