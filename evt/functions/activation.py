"""The activations of torch.nn.functional. `t` is `torch`, or its mirror `evt.functions.scalar`.

The formulas are the oracle, so they avoid cancellation: `erfc` in `gelu`, the sigmoid in `gelu_tanh`. Derivatives at
kinks equal PyTorch's autograd.
"""

from __future__ import annotations

import math
from typing import Any

from evt.functions.row import TRANSCENDENTAL, Fact, activation, aten, define, layer

_SELU_ALPHA = 1.6732632423543772
#: From here on, exp(-x * x / 2) is 0 in f64.
_FAR = 40.0
_SELU_SCALE = 1.0507009873554805
#: The sigmoid in `gelu_tanh`, which is `x` times this sigmoid.
_GATE = "sigmoid(1.5957691216057308 * x * (1 + 0.044715 * x * x))"


def _gelu_tanh_slope(t: Any, x: Any) -> Any:
    near = t.where(t.abs(x) < _FAR, x, 0.0)  # beyond, the second term is 0
    exponent = math.sqrt(8.0 / math.pi) * (x + 0.044715 * x * x * x)
    slope = math.sqrt(8.0 / math.pi) * (1.0 + 0.134145 * near * near)
    gate = t.sigmoid(exponent)
    return gate + gate * near * t.sigmoid(-exponent) * slope


ACTIVATIONS = (
    define(
        "relu(x)",
        "The rectifier `max(x, 0)`.",
        lambda t, x: t.relu(x),
        Fact.IDEMPOTENT,
        Fact.ZERO_TO_ZERO,
        Fact.NON_NEGATIVE,
        Fact.INTEGER,
        Fact.SELECTING,
        instructions=1,
        derivatives=("where(x <= 0, 0, 1)",),
        result_derivative="where(y <= 0, 0, 1)",
        targets=(*aten("relu"), "torch.nn.functional.relu", "torch.nn.ReLU"),
        stock=activation("ReLu"),
    ),
    define(
        "leaky_relu(x, negative_slope=0.01)",
        "`x` where positive, else `negative_slope * x`.",
        lambda t, x, negative_slope: t.where(x > 0.0, x, x * negative_slope),
        Fact.ZERO_TO_ZERO,
        instructions=1,
        derivatives=("where(x > 0, 1, negative_slope)", "where(x > 0, 0, x)"),
        targets=layer("leaky_relu", "LeakyReLU"),
        stock=activation("LeakyReLU", leaky_alpha="negative_slope"),
    ),
    define(
        "prelu(x, weight)",
        "`x` where positive, else `weight * x`.",
        lambda t, x, weight: t.where(x > 0.0, x, x * weight),
        Fact.ZERO_TO_ZERO,
        instructions=1,
        derivatives=("where(x > 0, 1, weight)", "where(x > 0, 0, x)"),
        targets=(*aten("prelu"), *layer("prelu", "PReLU", "_prelu_kernel")),
    ),
    define(
        "rrelu(x, lower=0.125, upper=0.3333333333333333)",
        "`x` where positive, else `(lower + upper) / 2 * x`: the randomised rectifier when it does not train.",
        lambda t, x, lower, upper: t.where(x > 0.0, x, x * ((lower + upper) * 0.5)),
        Fact.ZERO_TO_ZERO,
        instructions=1,
        derivatives=("where(x > 0, 1, 0.5 * (lower + upper))", "where(x > 0, 0, 0.5 * x)", "where(x > 0, 0, 0.5 * x)"),
        requires="lower <= upper",
        targets=[
            f"{target}(training=False)"
            for target in ("torch.rrelu", "torch.nn.functional.rrelu", "torch.ops.aten.rrelu.default")
        ],
    ),
    define(
        "relu6(x)",
        "`min(max(x, 0), 6)`.",
        lambda t, x: t.clamp(x, 0, 6),  # whole numbers, so that an i32 remains an i32
        Fact.IDEMPOTENT,
        Fact.ZERO_TO_ZERO,
        Fact.NON_NEGATIVE,
        Fact.INTEGER,
        Fact.CLOSED,
        instructions=1,
        derivatives=("where(x <= 0 || x >= 6, 0, 1)",),
        result_derivative="where(y <= 0 || y >= 6, 0, 1)",
        targets=layer("relu6", "ReLU6"),
        stock=activation("Clamp", lower_bound=0.0, upper_bound=6.0),
    ),
    define(
        "threshold(x, threshold, value)",
        "`value` where `x <= threshold`, else `x`.",
        lambda t, x, threshold, value: t.where(x <= threshold, value, x),
        Fact.JUMPS,
        Fact.INTEGER,
        instructions=1,
        derivatives=("where(x <= threshold, 0, 1)", "0", "where(x <= threshold, 1, 0)"),
        targets=("torch.threshold", *layer("threshold", "Threshold")),
    ),
    define(
        "elu(x, alpha=1)",
        "`x` where not negative, else `alpha * (exp(x) - 1)`.",
        lambda t, x, alpha: t.where(x < 0.0, alpha * t.expm1(x), x),
        Fact.ZERO_TO_ZERO,
        instructions=TRANSCENDENTAL,
        derivatives=("where(x <= 0, alpha * exp(x), 1)", "where(x <= 0, expm1(x), 0)"),
        targets=layer("elu", "ELU"),
        fast=True,
        eager="expm1(x) * alpha, and x where x > 0",
    ),
    define(
        "celu(x, alpha=1)",
        "`x` where not negative, else `alpha * (exp(x / alpha) - 1)`.",
        lambda t, x, alpha: t.where(x < 0.0, alpha * t.expm1(t.true_divide(x, alpha)), x),
        Fact.ZERO_TO_ZERO,
        instructions=TRANSCENDENTAL,
        derivatives=(
            "where(x <= 0, exp(x / alpha), 1)",
            "where(x <= 0, expm1(x / alpha) - x / alpha * exp(x / alpha), 0)",
        ),
        requires="alpha != 0",
        targets=("torch.celu", *layer("celu", "CELU")),
        fast=True,
        eager="expm1(x * (1 / alpha)) * alpha, and x where x > 0",
    ),
    define(
        "selu(x)",
        "`1.0507009873554805 * elu(x, 1.6732632423543772)`.",
        lambda t, x: _SELU_SCALE * t.where(x < 0.0, _SELU_ALPHA * t.expm1(x), x),
        Fact.ZERO_TO_ZERO,
        instructions=TRANSCENDENTAL,
        derivatives=("where(x <= 0, 1.7580993408473768 * exp(x), 1.0507009873554805)",),
        targets=("torch.selu", *layer("selu", "SELU")),
        fast=True,
        eager="expm1(x) * (alpha * scale), and x * scale where x > 0",
    ),
    define(
        "gelu(x)",
        "`x / 2 * (1 + erf(x / sqrt(2)))`.",
        lambda t, x: 0.5 * x * t.erfc(-x * math.sqrt(0.5)),
        Fact.ZERO_TO_ZERO,
        instructions=TRANSCENDENTAL,
        derivatives=("gelu_slope(x)",),
        targets=layer("gelu", "GELU"),
        fast=True,
        stock=activation("GELU", is_slow=True),  # by erff, which branches
        eager="x * 0.5 * (1 + erff(x * sqrt(0.5)))",
    ),
    define(
        "gelu_slope(x)",
        "The derivative of `gelu`: `(1 + erf(x / sqrt(2))) / 2 + x * exp(-x * x / 2) / sqrt(2 * pi)`.",
        lambda t, x: (
            0.5 * t.erfc(-x * math.sqrt(0.5))
            + t.where(t.abs(x) < _FAR, x, 0.0) * (t.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi))
        ),
        instructions=TRANSCENDENTAL,
        derivatives=("0.3989422804014327 * (2 - x * x) * exp(-0.5 * x * x)",),
        targets=(),
        eager="0.5 * (1 + erff(x * sqrt(0.5))) + x * (exp(-0.5 * x * x) / sqrt(2 * pi))",
    ),
    define(
        "gelu_tanh(x)",
        "`x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))`.",
        lambda t, x: x * t.sigmoid(math.sqrt(8.0 / math.pi) * (x + 0.044715 * x * x * x)),
        Fact.ZERO_TO_ZERO,
        instructions=TRANSCENDENTAL,
        derivatives=("gelu_tanh_slope(x)",),
        targets=[f"{target}(approximate='tanh')" for target in layer("gelu", "GELU")],
        fast=True,
        stock=None,  # GELU_taylor uses tanh.approx
        eager="0.5 * x * (1 + tanh(sqrt(2 / pi) * fma(0.044715, x * x * x, x)))",
    ),
    define(
        "gelu_tanh_slope(x)",
        "The derivative of `gelu_tanh`: `(1 + t) / 2 + x * (1 - t ** 2) * (0.3989423 + 0.0535161 * x ** 2)` with "
        "`t = tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3))`.",
        _gelu_tanh_slope,
        instructions=TRANSCENDENTAL,
        derivatives=(
            f"{_GATE} * (1 - {_GATE}) * (3.1915382432114616 + 0.8562577952712029 * x * x"
            f" + x * (1 - 2 * {_GATE}) * (1.5957691216057308 + 0.21406444881780073 * x * x) ** 2)",
        ),
        targets=(),
        eager="0.5 * (1 + t) + 0.5 * x * (1 - t * t) * (sqrt(2 / pi) * (1 + 3 * 0.044715 * x * x))",
    ),
    define(
        "sigmoid(x)",
        "`1 / (1 + exp(-x))`.",
        lambda t, x: t.sigmoid(x),
        Fact.NON_NEGATIVE,
        instructions=TRANSCENDENTAL,
        derivatives=("sigmoid(x) * (1 - sigmoid(x))",),
        targets=(*aten("sigmoid"), "torch.special.expit", "torch.nn.functional.sigmoid", "torch.nn.Sigmoid"),
        fast=True,
        # CUTLASS's Sigmoid and SiLu divide in full IEEE precision: on an H200 an epilogue took twice the time.
        eager="1 / (1 + exp(-x))",
    ),
    define(
        "logsigmoid(x)",
        "`log(sigmoid(x))`.",
        lambda t, x: t.where(x < 0.0, x, 0.0) - t.log1p(t.exp(-t.abs(x))),
        instructions=TRANSCENDENTAL,
        derivatives=("sigmoid(-x)",),
        targets=layer("logsigmoid", "LogSigmoid", "log_sigmoid"),
        fast=True,
        aliases=("log_sigmoid",),
        eager="min(0, x) - log1p(exp(-abs(x)))",
    ),
    define(
        "silu(x)",
        "`x * sigmoid(x)`.",
        lambda t, x: x * t.sigmoid(x),
        Fact.ZERO_TO_ZERO,
        instructions=TRANSCENDENTAL,
        derivatives=("sigmoid(x) * (1 + x * (1 - sigmoid(x)))",),
        targets=layer("silu", "SiLU"),
        fast=True,
        aliases=("swish",),
        eager="x / (1 + exp(-x))",
    ),
    define(
        "mish(x)",
        "`x * tanh(softplus(x))`.",
        lambda t, x: x * t.tanh(t.log1p(t.exp(x))),
        Fact.ZERO_TO_ZERO,
        instructions=24,
        derivatives=("tanh(softplus(x)) + x * sigmoid(x) * (1 - square(tanh(softplus(x))))",),
        targets=layer("mish", "Mish"),
        fast=True,
        eager="x * tanh(log1p(exp(x)))",
    ),
    define(
        "softplus(x, beta=1, threshold=20)",
        "`log(1 + exp(beta * x)) / beta`, and `x` itself where `beta * x > threshold`; kernels do not overflow.",
        lambda t, x, beta, threshold: t.where(x * beta > threshold, x, t.true_divide(t.log1p(t.exp(x * beta)), beta)),
        instructions=TRANSCENDENTAL,
        derivatives=(
            "where(x * beta > threshold, 1, sigmoid(x * beta))",
            "where(x * beta > threshold, 0, (x * sigmoid(x * beta) - softplus(x, beta, threshold)) / beta)",
            "0",
        ),
        targets=layer("softplus", "Softplus"),
        fast=True,
        eager="log1p(exp(x * beta)) / beta, and x where x * beta > threshold",
    ),
    define(
        "softsign(x)",
        "`x / (1 + |x|)`.",
        lambda t, x: x / (1.0 + t.abs(x)),
        Fact.ODD,
        Fact.ZERO_TO_ZERO,
        instructions=10,
        stalls=36,
        derivatives=("1 / square(1 + abs(x))",),
        targets=("torch.nn.functional.softsign", "torch.nn.Softsign"),
        fast=True,
    ),
    define(
        "tanh(x)",
        "The hyperbolic tangent of `x`.",
        lambda t, x: t.tanh(x),
        Fact.ODD,
        Fact.ZERO_TO_ZERO,
        instructions=TRANSCENDENTAL,
        derivatives=("1 - square(tanh(x))",),
        targets=(*aten("tanh"), "torch.nn.functional.tanh", "torch.nn.Tanh"),
        fast=True,
        stock=None,  # thread::Tanh is tanh.approx
    ),
    define(
        "hardtanh(x, min_val=-1, max_val=1)",
        "`x` limited to a range: `min(max(x, min_val), max_val)`.",
        lambda t, x, min_val, max_val: t.clamp(x, min_val, max_val),
        Fact.IDEMPOTENT,
        Fact.INTEGER,
        Fact.SELECTING,
        instructions=1,
        derivatives=(
            "where(x <= min_val || x >= max_val, 0, 1)",
            "where(min_val < max_val && x < min_val, 1, 0)",
            "where(x > max_val || max_val < min_val, 1, 0)",
        ),
        requires="min_val <= max_val",
        targets=layer("hardtanh", "Hardtanh"),
        stock=activation("Clamp", lower_bound="min_val", upper_bound="max_val"),
    ),
    define(
        "hardsigmoid(x)",
        "`min(max(x + 3, 0), 6) / 6`.",
        lambda t, x: t.clamp(x + 3.0, 0.0, 6.0) / 6.0,
        Fact.NON_NEGATIVE,
        instructions=1,
        derivatives=("where(x > -3 && x < 3, 0.16666666666666666, 0)",),
        eager="min(max(x + 3, 0), 6) * (1 / 6)",
        targets=layer("hardsigmoid", "Hardsigmoid"),
        aliases=("hard_sigmoid",),
    ),
    define(
        "hardswish(x)",
        "`x * min(max(x + 3, 0), 6) / 6`.",
        lambda t, x: x * t.clamp(x + 3.0, 0.0, 6.0) / 6.0,
        Fact.ZERO_TO_ZERO,
        instructions=1,
        derivatives=("where(x <= -3, 0, where(x < 3, x / 3 + 0.5, 1))",),
        targets=layer("hardswish", "Hardswish"),
        stock=activation("HardSwish"),
        aliases=("hard_swish",),
    ),
    define(
        "tanhshrink(x)",
        "`x - tanh(x)`.",
        lambda t, x: x - t.tanh(x),
        Fact.ZERO_TO_ZERO,
        instructions=TRANSCENDENTAL,
        derivatives=("square(tanh(x))",),
        targets=("torch.nn.functional.tanhshrink", "torch.nn.Tanhshrink"),
        fast=True,
    ),
    define(
        "hardshrink(x, lambd=0.5)",
        "0 where `|x| <= lambd`, else `x`.",
        lambda t, x, lambd: t.where((x >= -lambd) & (x <= lambd), 0.0, x),
        Fact.IDEMPOTENT,
        Fact.ZERO_TO_ZERO,
        instructions=2,
        derivatives=("where(x >= -lambd && x <= lambd, 0, 1)", "0"),
        targets=(*aten("hardshrink"), "torch.nn.functional.hardshrink", "torch.nn.Hardshrink"),
        aliases=("hard_shrink",),
    ),
    define(
        "softshrink(x, lambd=0.5)",
        "0 where `|x| <= lambd`, else `x` moved by `lambd` towards 0: `x - lambd` or `x + lambd`.",
        lambda t, x, lambd: t.where(x > lambd, x - lambd, t.where(x < -lambd, x + lambd, x * 0.0)),
        instructions=3,
        derivatives=(
            "where(x >= -lambd && x <= lambd, 0, 1)",
            "where(x > lambd, -1, where(x < -lambd, 1, 0))",
        ),
        requires="lambd >= 0",
        targets=layer("softshrink", "Softshrink"),
        aliases=("soft_shrink",),
    ),
)
