"""Arithmetic and the elementary functions. `t` is `torch`, or its mirror `evt.functions.scalar`."""

from __future__ import annotations

from evt.functions.function import Fact, define

ARITHMETIC = (
    define(
        "add(x, y)",
        "The sum `x + y`.",
        lambda t, x, y: x + y,
        Fact.COMMUTATIVE,
        cxx="({0} + {1})",
        stock="cutlass::plus",
    ),
    define(
        "sub(x, y)",
        "The difference `x - y`.",
        lambda t, x, y: x - y,
        cxx="({0} - {1})",
        stock="cutlass::minus",
        aliases=("subtract",),
    ),
    define(
        "mul(x, y)",
        "The product `x * y`.",
        lambda t, x, y: x * y,
        Fact.COMMUTATIVE,
        cxx="({0} * {1})",
        stock="cutlass::multiplies",
        aliases=("multiply",),
    ),
    define(
        "div(x, y)",
        "The quotient `x / y`, correctly rounded.",
        lambda t, x, y: t.true_divide(x, y),
        cxx="({0} / {1})",
        stock="cutlass::divides",
        aliases=("divide", "true_divide"),
    ),
    define(
        "neg(x)",
        "The negative `-x`.",
        lambda t, x: -x,
        Fact.INVOLUTION,
        Fact.ODD,
        Fact.ZERO_TO_ZERO,
        cxx="(-({0}))",  # parentheses: a negative literal must not make `--`
        stock="cutlass::negate",
        aliases=("negative",),
    ),
    define(
        "fma(a, b, c)",
        "The multiply-add `a * b + c`, rounded once.",
        lambda t, a, b, c: a * b + c,
        stock="cutlass::homogeneous_multiply_add",  # `a * b + c`, which nvcc contracts (-fmad=true)
    ),
    define(
        "pow(x, y)",
        "The power `x ** y`.",
        lambda t, x, y: t.pow(x, y),
        aliases=("power",),
    ),
    define(
        "min(x, y)",
        "The smaller of `x` and `y`, or NaN if either is NaN.",
        lambda t, x, y: t.minimum(x, y),
        Fact.COMMUTATIVE,
        Fact.ASSOCIATIVE,
        Fact.IDEMPOTENT_BINARY,
        stock="cutlass::minimum_with_nan_propagation",
        aliases=("minimum",),
    ),
    define(
        "max(x, y)",
        "The larger of `x` and `y`, or NaN if either is NaN.",
        lambda t, x, y: t.maximum(x, y),
        Fact.COMMUTATIVE,
        Fact.ASSOCIATIVE,
        Fact.IDEMPOTENT_BINARY,
        stock="cutlass::maximum_with_nan_propagation",
        aliases=("maximum",),
    ),
    define(
        "clamp(x, min, max)",
        "`x` limited to a range: `min(max(x, min), max)`.",
        lambda t, x, lower, upper: t.clamp(x, lower, upper),
        Fact.IDEMPOTENT,
        aliases=("clip",),
    ),
    define(
        "abs(x)",
        "The absolute value `|x|`.",
        lambda t, x: t.abs(x),
        Fact.IDEMPOTENT,
        Fact.EVEN,
        Fact.ZERO_TO_ZERO,
        Fact.NON_NEGATIVE,
        stock="cutlass::absolute_value_op",
        aliases=("absolute",),
    ),
    define(
        "sign(x)",
        "The sign of `x`: -1, 0 or 1, and 0 for NaN.",
        lambda t, x: t.sign(x),
        Fact.IDEMPOTENT,
        Fact.ZERO_TO_ZERO,
    ),
    define(
        "square(x)",
        "The square `x * x`.",
        lambda t, x: x * x,
        Fact.EVEN,
        Fact.ZERO_TO_ZERO,
        Fact.NON_NEGATIVE,
        stock="cutlass::square",
    ),
    define(
        "sqrt(x)",
        "The square root of `x`, correctly rounded.",
        lambda t, x: t.sqrt(x),
        Fact.ZERO_TO_ZERO,
    ),
    define(
        "rsqrt(x)",
        "The reciprocal square root `1 / sqrt(x)`.",
        lambda t, x: t.rsqrt(x),
        stock="cutlass::inverse_square_root",
    ),
    define(
        "rcp(x)",
        "The reciprocal `1 / x`, correctly rounded.",
        lambda t, x: t.reciprocal(x),
        Fact.ODD,
        stock=None,  # cutlass::reciprocal_approximate is rcp.approx
        aliases=("reciprocal",),
    ),
)

ELEMENTARY = (
    define(
        "exp(x)",
        "The exponential `e ** x`.",
        lambda t, x: t.exp(x),
        Fact.NON_NEGATIVE,
        stock="cutlass::fast_exp_op",  # in spite of its name: expf
    ),
    define("exp2(x)", "The power of two `2 ** x`.", lambda t, x: t.exp2(x), Fact.NON_NEGATIVE),
    define("expm1(x)", "`exp(x) - 1`, exact near 0.", lambda t, x: t.expm1(x), Fact.ZERO_TO_ZERO),
    define("log(x)", "The natural logarithm of `x`.", lambda t, x: t.log(x), aliases=("ln",)),
    define("log1p(x)", "`log(1 + x)`, exact near 0.", lambda t, x: t.log1p(x), Fact.ZERO_TO_ZERO),
    define("log2(x)", "The logarithm of `x` to the base 2.", lambda t, x: t.log2(x)),
    define("sin(x)", "The sine of `x` radians.", lambda t, x: t.sin(x), Fact.ODD, Fact.ZERO_TO_ZERO),
    define("cos(x)", "The cosine of `x` radians.", lambda t, x: t.cos(x), Fact.EVEN),
    define(
        "erf(x)",
        "The error function, `2 / sqrt(pi)` times the integral of `exp(-s * s)` from 0 to `x`.",
        lambda t, x: t.erf(x),
        Fact.ODD,
        Fact.ZERO_TO_ZERO,
    ),
    define(
        "floor(x)",
        "The largest whole number not above `x`.",
        lambda t, x: t.floor(x),
        Fact.IDEMPOTENT,
        Fact.ZERO_TO_ZERO,
    ),
    define(
        "ceil(x)",
        "The smallest whole number not below `x`.",
        lambda t, x: t.ceil(x),
        Fact.IDEMPOTENT,
        Fact.ZERO_TO_ZERO,
    ),
    define(
        "round(x)",
        "The whole number nearest to `x`; halves go to the even one.",
        lambda t, x: t.round(x),
        Fact.IDEMPOTENT,
        Fact.ODD,
        Fact.ZERO_TO_ZERO,
    ),
)
