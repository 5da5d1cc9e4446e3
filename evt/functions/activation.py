"""The activations of torch.nn.functional. `t` is `torch`, or its mirror `evt.functions.scalar`.

They are the oracle: formulas that cancel nothing, hence `erfc` in `gelu` and the sigmoid in `gelu_tanh`.
"""

from __future__ import annotations

import math

from evt.functions.function import Fact, define

_SELU_ALPHA = 1.6732632423543772
_SELU_SCALE = 1.0507009873554805
_THREAD = "cutlass::epilogue::thread"

ACTIVATIONS = (
    define(
        "relu(x)",
        "The rectifier `max(x, 0)`.",
        lambda t, x: t.relu(x),
        Fact.IDEMPOTENT,
        Fact.ZERO_TO_ZERO,
        Fact.NON_NEGATIVE,
        stock=f"{_THREAD}::ReLu",
    ),
    define(
        "leaky_relu(x, negative_slope=0.01)",
        "`x` where positive, else `negative_slope * x`.",
        lambda t, x, negative_slope: t.where(x > 0.0, x, x * negative_slope),
        Fact.ZERO_TO_ZERO,
    ),
    define(
        "relu6(x)",
        "`min(max(x, 0), 6)`.",
        lambda t, x: t.clamp(x, 0.0, 6.0),
        Fact.IDEMPOTENT,
        Fact.ZERO_TO_ZERO,
        Fact.NON_NEGATIVE,
    ),
    define(
        "elu(x, alpha=1)",
        "`x` where not negative, else `alpha * (exp(x) - 1)`.",
        lambda t, x, alpha: t.where(x < 0.0, alpha * t.expm1(x), x),
        Fact.ZERO_TO_ZERO,
    ),
    define(
        "celu(x, alpha=1)",
        "`x` where not negative, else `alpha * (exp(x / alpha) - 1)`.",
        lambda t, x, alpha: t.where(x < 0.0, alpha * t.expm1(t.true_divide(x, alpha)), x),
        Fact.ZERO_TO_ZERO,
    ),
    define(
        "selu(x)",
        "`1.0507009873554805 * elu(x, 1.6732632423543772)`.",
        lambda t, x: _SELU_SCALE * t.where(x < 0.0, _SELU_ALPHA * t.expm1(x), x),
        Fact.ZERO_TO_ZERO,
    ),
    define(
        "gelu(x)",
        "`x / 2 * (1 + erf(x / sqrt(2)))`.",
        lambda t, x: 0.5 * x * t.erfc(-x * math.sqrt(0.5)),
        Fact.ZERO_TO_ZERO,
        stock=f"{_THREAD}::GELU",
    ),
    define(
        "gelu_tanh(x)",
        "`x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))`.",
        lambda t, x: x * t.sigmoid(math.sqrt(8.0 / math.pi) * (x + 0.044715 * x * x * x)),
        Fact.ZERO_TO_ZERO,
        stock=None,  # GELU_taylor is made of tanh.approx
    ),
    define(
        "sigmoid(x)",
        "`1 / (1 + exp(-x))`.",
        lambda t, x: t.sigmoid(x),
        Fact.NON_NEGATIVE,
        # CUTLASS's Sigmoid and SiLu divide in full IEEE precision: on an H200 an epilogue took twice the time.
    ),
    define(
        "logsigmoid(x)",
        "`log(sigmoid(x))`.",
        lambda t, x: t.where(x < 0.0, x, 0.0) - t.log1p(t.exp(-t.abs(x))),
        aliases=("log_sigmoid",),
    ),
    define(
        "silu(x)",
        "`x * sigmoid(x)`.",
        lambda t, x: x * t.sigmoid(x),
        Fact.ZERO_TO_ZERO,
        aliases=("swish",),
    ),
    define(
        "mish(x)",
        "`x * tanh(softplus(x))`.",
        lambda t, x: x * t.tanh(t.log1p(t.exp(x))),
        Fact.ZERO_TO_ZERO,
    ),
    define(
        "softplus(x, beta=1, threshold=20)",
        "`log(1 + exp(beta * x)) / beta`, and `x` itself where `beta * x > threshold`.",
        lambda t, x, beta, threshold: t.where(x * beta > threshold, x, t.true_divide(t.log1p(t.exp(x * beta)), beta)),
    ),
    define(
        "softsign(x)",
        "`x / (1 + |x|)`.",
        lambda t, x: x / (1.0 + t.abs(x)),
        Fact.ODD,
        Fact.ZERO_TO_ZERO,
    ),
    define(
        "tanh(x)",
        "The hyperbolic tangent of `x`.",
        lambda t, x: t.tanh(x),
        Fact.ODD,
        Fact.ZERO_TO_ZERO,
        stock=None,  # thread::Tanh is tanh.approx
    ),
    define(
        "hardtanh(x, min_val=-1, max_val=1)",
        "`x` limited to a range: `min(max(x, min_val), max_val)`.",
        lambda t, x, min_val, max_val: t.clamp(x, min_val, max_val),
        Fact.IDEMPOTENT,
    ),
    define(
        "hardsigmoid(x)",
        "`min(max(x + 3, 0), 6) / 6`.",
        lambda t, x: t.clamp(x + 3.0, 0.0, 6.0) / 6.0,
        Fact.NON_NEGATIVE,
        aliases=("hard_sigmoid",),
    ),
    define(
        "hardswish(x)",
        "`x * min(max(x + 3, 0), 6) / 6`.",
        lambda t, x: x * t.clamp(x + 3.0, 0.0, 6.0) / 6.0,
        Fact.ZERO_TO_ZERO,
        stock=f"{_THREAD}::HardSwish",
        aliases=("hard_swish",),
    ),
    define("tanhshrink(x)", "`x - tanh(x)`.", lambda t, x: x - t.tanh(x), Fact.ZERO_TO_ZERO),
)
