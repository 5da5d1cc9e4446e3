"""The activations of torch.nn.functional. `t` is `torch`, or its mirror `evt.functions.scalar`.

They are the oracle: formulas that cancel nothing, hence `erfc` in `gelu` and the sigmoid in `gelu_tanh`.
Derivatives at kinks are those of PyTorch's autograd.
"""

from __future__ import annotations

import math

from evt.functions.row import Fact, aten, define, layer

_SELU_ALPHA = 1.6732632423543772
_SELU_SCALE = 1.0507009873554805
_THREAD = "cutlass::epilogue::thread"
#: The sigmoid that `gelu_tanh` is `x` times of.
_GATE = "sigmoid(1.5957691216057308 * x * (1 + 0.044715 * x * x))"

ACTIVATIONS = (
    define(
        "relu(x)",
        "The rectifier `max(x, 0)`.",
        lambda t, x: t.relu(x),
        Fact.IDEMPOTENT,
        Fact.ZERO_TO_ZERO,
        Fact.NON_NEGATIVE,
        Fact.INTEGER,
        derivatives=("where(x <= 0, 0, 1)",),
        targets=(*aten("relu"), "torch.nn.functional.relu", "torch.nn.ReLU"),
        stock=f"{_THREAD}::ReLu",
    ),
    define(
        "leaky_relu(x, negative_slope=0.01)",
        "`x` where positive, else `negative_slope * x`.",
        lambda t, x, negative_slope: t.where(x > 0.0, x, x * negative_slope),
        Fact.ZERO_TO_ZERO,
        derivatives=("where(x > 0, 1, negative_slope)", "where(x > 0, 0, x)"),
        targets=layer("leaky_relu", "LeakyReLU"),
    ),
    define(
        "prelu(x, weight)",
        "`x` where positive, else `weight * x`.",
        lambda t, x, weight: t.where(x > 0.0, x, x * weight),
        Fact.ZERO_TO_ZERO,
        derivatives=("where(x > 0, 1, weight)", "where(x > 0, 0, x)"),
        targets=(*aten("prelu"), *layer("prelu", "PReLU", "_prelu_kernel")),
    ),
    define(
        "rrelu(x, lower=0.125, upper=0.3333333333333333)",
        "`x` where positive, else `(lower + upper) / 2 * x`: the randomised rectifier when it does not train.",
        lambda t, x, lower, upper: t.where(x > 0.0, x, x * ((lower + upper) * 0.5)),
        Fact.ZERO_TO_ZERO,
        derivatives=("where(x > 0, 1, 0.5 * (lower + upper))", "where(x > 0, 0, 0.5 * x)", "where(x > 0, 0, 0.5 * x)"),
        targets=[
            f"{target}(training=False)"
            for target in ("torch.rrelu", "torch.nn.functional.rrelu", "torch.ops.aten.rrelu.default")
        ],
    ),
    define(
        "relu6(x)",
        "`min(max(x, 0), 6)`.",
        lambda t, x: t.clamp(x, 0, 6),  # whole numbers keep an i32 what it is
        Fact.IDEMPOTENT,
        Fact.ZERO_TO_ZERO,
        Fact.NON_NEGATIVE,
        Fact.INTEGER,
        derivatives=("where(x <= 0 || x >= 6, 0, 1)",),
        targets=layer("relu6", "ReLU6"),
    ),
    define(
        "threshold(x, threshold, value)",
        "`value` where `x <= threshold`, else `x`.",
        lambda t, x, threshold, value: t.where(x <= threshold, value, x),
        derivatives=("where(x <= threshold, 0, 1)", "0", "where(x <= threshold, 1, 0)"),
        targets=("torch.threshold", *layer("threshold", "Threshold")),
    ),
    define(
        "elu(x, alpha=1)",
        "`x` where not negative, else `alpha * (exp(x) - 1)`.",
        lambda t, x, alpha: t.where(x < 0.0, alpha * t.expm1(x), x),
        Fact.ZERO_TO_ZERO,
        derivatives=("where(x <= 0, alpha * exp(x), 1)", "where(x <= 0, expm1(x), 0)"),
        targets=layer("elu", "ELU"),
        fast=True,
    ),
    define(
        "celu(x, alpha=1)",
        "`x` where not negative, else `alpha * (exp(x / alpha) - 1)`.",
        lambda t, x, alpha: t.where(x < 0.0, alpha * t.expm1(t.true_divide(x, alpha)), x),
        Fact.ZERO_TO_ZERO,
        derivatives=(
            "where(x <= 0, exp(x / alpha), 1)",
            "where(x <= 0, expm1(x / alpha) - x / alpha * exp(x / alpha), 0)",
        ),
        targets=("torch.celu", *layer("celu", "CELU")),
        fast=True,
    ),
    define(
        "selu(x)",
        "`1.0507009873554805 * elu(x, 1.6732632423543772)`.",
        lambda t, x: _SELU_SCALE * t.where(x < 0.0, _SELU_ALPHA * t.expm1(x), x),
        Fact.ZERO_TO_ZERO,
        derivatives=("where(x <= 0, 1.7580993408473768 * exp(x), 1.0507009873554805)",),
        targets=("torch.selu", *layer("selu", "SELU")),
        fast=True,
    ),
    define(
        "gelu(x)",
        "`x / 2 * (1 + erf(x / sqrt(2)))`.",
        lambda t, x: 0.5 * x * t.erfc(-x * math.sqrt(0.5)),
        Fact.ZERO_TO_ZERO,
        derivatives=("0.5 * (1 + erf(0.7071067811865476 * x)) + 0.3989422804014327 * x * exp(-0.5 * x * x)",),
        targets=layer("gelu", "GELU"),
        fast=True,
        stock=f"{_THREAD}::GELU",
    ),
    define(
        "gelu_tanh(x)",
        "`x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))`.",
        lambda t, x: x * t.sigmoid(math.sqrt(8.0 / math.pi) * (x + 0.044715 * x * x * x)),
        Fact.ZERO_TO_ZERO,
        derivatives=(f"{_GATE} * (1 + x * (1 - {_GATE}) * (1.5957691216057308 + 0.21406444881780073 * x * x))",),
        targets=[f"{target}(approximate='tanh')" for target in layer("gelu", "GELU")],
        fast=True,
        stock=None,  # GELU_taylor is made of tanh.approx
    ),
    define(
        "sigmoid(x)",
        "`1 / (1 + exp(-x))`.",
        lambda t, x: t.sigmoid(x),
        Fact.NON_NEGATIVE,
        derivatives=("sigmoid(x) * (1 - sigmoid(x))",),
        targets=(*aten("sigmoid"), "torch.special.expit", "torch.nn.functional.sigmoid", "torch.nn.Sigmoid"),
        fast=True,
        # CUTLASS's Sigmoid and SiLu divide in full IEEE precision: on an H200 an epilogue took twice the time.
    ),
    define(
        "logsigmoid(x)",
        "`log(sigmoid(x))`.",
        lambda t, x: t.where(x < 0.0, x, 0.0) - t.log1p(t.exp(-t.abs(x))),
        derivatives=("sigmoid(-x)",),
        targets=layer("logsigmoid", "LogSigmoid", "log_sigmoid"),
        fast=True,
        aliases=("log_sigmoid",),
    ),
    define(
        "silu(x)",
        "`x * sigmoid(x)`.",
        lambda t, x: x * t.sigmoid(x),
        Fact.ZERO_TO_ZERO,
        derivatives=("sigmoid(x) * (1 + x * (1 - sigmoid(x)))",),
        targets=layer("silu", "SiLU"),
        fast=True,
        aliases=("swish",),
    ),
    define(
        "mish(x)",
        "`x * tanh(softplus(x))`.",
        lambda t, x: x * t.tanh(t.log1p(t.exp(x))),
        Fact.ZERO_TO_ZERO,
        derivatives=("tanh(softplus(x)) + x * sigmoid(x) * (1 - square(tanh(softplus(x))))",),
        targets=layer("mish", "Mish"),
        fast=True,
    ),
    define(
        "softplus(x, beta=1, threshold=20)",
        "`log(1 + exp(beta * x)) / beta`, and `x` itself where `beta * x > threshold`.",
        lambda t, x, beta, threshold: t.where(x * beta > threshold, x, t.true_divide(t.log1p(t.exp(x * beta)), beta)),
        derivatives=(
            "where(x * beta > threshold, 1, sigmoid(x * beta))",
            "where(x * beta > threshold, 0, (x * sigmoid(x * beta) - softplus(x, beta, threshold)) / beta)",
            "0",
        ),
        targets=layer("softplus", "Softplus"),
        fast=True,
    ),
    define(
        "softsign(x)",
        "`x / (1 + |x|)`.",
        lambda t, x: x / (1.0 + t.abs(x)),
        Fact.ODD,
        Fact.ZERO_TO_ZERO,
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
        derivatives=(
            "where(x <= min_val || x >= max_val, 0, 1)",
            "where(min_val < max_val && x < min_val, 1, 0)",
            "where(x > max_val || max_val < min_val, 1, 0)",
        ),
        targets=layer("hardtanh", "Hardtanh"),
    ),
    define(
        "hardsigmoid(x)",
        "`min(max(x + 3, 0), 6) / 6`.",
        lambda t, x: t.clamp(x + 3.0, 0.0, 6.0) / 6.0,
        Fact.NON_NEGATIVE,
        derivatives=("where(x > -3 && x < 3, 0.16666666666666666, 0)",),
        targets=layer("hardsigmoid", "Hardsigmoid"),
        aliases=("hard_sigmoid",),
    ),
    define(
        "hardswish(x)",
        "`x * min(max(x + 3, 0), 6) / 6`.",
        lambda t, x: x * t.clamp(x + 3.0, 0.0, 6.0) / 6.0,
        Fact.ZERO_TO_ZERO,
        derivatives=("where(x <= -3, 0, where(x < 3, x / 3 + 0.5, 1))",),
        targets=layer("hardswish", "Hardswish"),
        stock=f"{_THREAD}::HardSwish",
        aliases=("hard_swish",),
    ),
    define(
        "tanhshrink(x)",
        "`x - tanh(x)`.",
        lambda t, x: x - t.tanh(x),
        Fact.ZERO_TO_ZERO,
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
        derivatives=("where(x >= -lambd && x <= lambd, 0, 1)", "0"),
        targets=(*aten("hardshrink"), "torch.nn.functional.hardshrink", "torch.nn.Hardshrink"),
        aliases=("hard_shrink",),
    ),
    define(
        "softshrink(x, lambd=0.5)",
        "0 where `|x| <= lambd`, else `x` moved by `lambd` towards 0: `x - lambd` or `x + lambd`.",
        lambda t, x, lambd: t.where(x > lambd, x - lambd, t.where(x < -lambd, x + lambd, x * 0.0)),
        derivatives=(
            "where(x >= -lambd && x <= lambd, 0, 1)",
            "where(x > lambd, -1, where(x < -lambd, 1, 0))",
        ),
        targets=layer("softshrink", "Softshrink"),
        aliases=("soft_shrink",),
    ),
)
