"""Random convolutions for tests of the halo kernel, and how its headers take them."""

from __future__ import annotations

import random

from evt.ir.convolution import Convolution, ConvolutionProblem

#: The sizes of ConvolutionProblem in the order of evt::halo::Problem.
MEMBERS = (
    *("images", "height", "width", "channels", "filters"),
    *(f"{part}_{name}" for part in ("filter", "output", "pad", "stride", "dilation") for name in ("height", "width")),
)


def drawn(seed: int, unit: bool) -> ConvolutionProblem:
    """Return a small convolution of any dilation and padding, and of any stride if not ``unit``."""
    draw = random.Random(seed)

    def two(*choices: int) -> tuple[int, int]:
        return draw.choice(choices), draw.choice(choices)

    taps, dilation, stride = two(1, 2, 3, 3, 5), two(1, 1, 1, 2, 3), two(1, 1, 1, 2, 3)
    pads = tuple((draw.randrange(4), draw.randrange(4)) for _ in range(2))
    sizes = [draw.randrange(d * (t - 1) + 1, 24) for t, d in zip(taps, dilation, strict=True)]
    given = {"stride": 1 if unit else stride, "padding": pads, "dilation": dilation}
    return Convolution.of("conv2d", given).problem((3, 3, *sizes), (5, 3, *taps))
