"""Random convolutions for tests of the halo kernel, and their lines for programs over its headers."""

from __future__ import annotations

import random

import torch
from torch.nn.functional import conv2d, conv3d, conv_transpose2d, conv_transpose3d, pad

from evt.ir.convolution import Convolution, ConvolutionProblem

#: The sizes of ConvolutionProblem in the order of evt::kit::Problem.
MEMBERS = (
    *("images", "height", "width", "channels", "filters"),
    *(f"{part}_{name}" for part in ("filter", "output", "pad", "stride", "dilation") for name in ("height", "width")),
)
OF_DEPTH = tuple(f"{part}depth" for part in ("", "filter_", "output_", "pad_", "stride_", "dilation_"))
#: The channels of a block.
PLANE = 16


def line_of(sizes: dict[str, int], pixels: int, backwards: bool, residues: bool = False, windows: bool = False) -> str:
    depth = [sizes.get(name, int("pad" not in name)) for name in OF_DEPTH]
    last = (int(windows), pixels, PLANE, 2, int(backwards), int("depth" in sizes), int(residues))
    return " ".join(map(str, (*(sizes[name] for name in MEMBERS), *depth, *last)))


def tensors(problem: ConvolutionProblem) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return whole numbers: the input, the gradient of the output, the weight."""
    torch.manual_seed(sum(problem.pixels))
    shapes = (problem.images, problem.channels, *problem.pixels), (problem.images, problem.filters, *problem.results)
    weight = problem.filters, problem.channels, *problem.filter_size
    x, y, w = (torch.randint(-4, 5, shape).double() for shape in (*shapes, weight))
    return x, y, w


def expected(problem: ConvolutionProblem, operator: str) -> torch.Tensor:
    """Return the convolution of a problem's tensors, or the gradient of its input."""
    x, y, weight = tensors(problem)
    steps = {"stride": problem.geometry.stride, "dilation": problem.geometry.dilation}
    volumes = len(problem.pixels) == 3
    if operator == "fprop":
        padded = pad(x, [size for pads in reversed(problem.pads) for size in pads])
        return (conv3d if volumes else conv2d)(padded, weight, **steps)
    found = (conv_transpose3d if volumes else conv_transpose2d)(y, weight, **steps)
    for axis, (size, (before, _)) in enumerate(zip(problem.pixels, problem.pads, strict=True), 2):
        found = pad(found, [0, 0] * (found.dim() - 1 - axis) + [0, max(0, before + size - found.shape[axis])])
        found = found.narrow(axis, before, size)
    return found


def drawn(seed: int, unit: bool, dimensions: int = 2) -> ConvolutionProblem:
    """Return a small convolution of any dilation and padding, and of any stride if not ``unit``."""
    draw = random.Random(seed)

    def some(*choices: int) -> tuple[int, ...]:
        return tuple(draw.choice(choices) for _ in range(dimensions))

    taps, dilation, stride = some(1, 2, 3, 3, 5), some(1, 1, 1, 2, 3), some(1, 1, 1, 2, 3)
    pads = tuple((draw.randrange(4), draw.randrange(4)) for _ in range(dimensions))
    sizes = [draw.randrange(d * (t - 1) + 1, 24 if dimensions < 3 else 14) for t, d in zip(taps, dilation, strict=True)]
    given = {"stride": 1 if unit else stride, "padding": pads, "dilation": dilation}
    return Convolution.of(f"conv{dimensions}d", given).problem((3, 20, *sizes), (5, 20, *taps))
