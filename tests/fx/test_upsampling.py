"""Nearest upsampling inside the convolution that reads it: the equal convolution, and the graphs that stay."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._inductor.decomposition import select_decomp_table
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from evt.fx.backend import FusePass
from evt.fx.upsampling import fold_upsampling, is_upsampled, unfold
from tests.support.convolutions import last

Call = Callable[[Tensor, Tensor], Tensor]


def traced(call: Call, x: Tensor, weight: Tensor) -> torch.fx.GraphModule:
    return make_fx(call, decomposition_table=select_decomp_table(), tracing_mode="fake")(x, weight)


def operands(seed: int, dtype: torch.dtype = torch.float16) -> tuple[Tensor, Tensor]:
    """Return an image and a weight of whole numbers, which all types add exactly."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    channels, filters, height, width = 8 * draw.randint(1, 3), 8 * draw.randint(1, 3), *draw.sample(range(1, 12), 2)
    x = torch.randint(-3, 4, (draw.randint(1, 3), channels, height, width)).to(dtype)
    return last(x), last(torch.randint(-3, 4, (filters, channels, 3, 3)).to(dtype))


def upsampled(x: Tensor, weight: Tensor, mode: str = "nearest", factor: float = 2.0, **geometry: object) -> Tensor:
    return functional.conv2d(functional.interpolate(x, scale_factor=factor, mode=mode), weight, **geometry)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
@pytest.mark.parametrize("seed", range(6))
def test_the_convolution_of_the_small_image_is_equal(mode: str, seed: int) -> None:
    x, weight = operands(seed, (torch.float16, torch.bfloat16)[seed % 2])
    made = traced(lambda x, weight: upsampled(x, weight, mode, padding=1), x, weight)
    (node,) = fold_upsampling(made.graph, ("cpu",))
    assert is_upsampled(node)
    assert node.args[0] is next(iter(made.graph.nodes))
    made.recompile()
    want = upsampled(x.double(), weight.double(), mode, padding=1)
    assert torch.equal(made(x, weight).double(), want.to(x.dtype).double())
    made.graph.eliminate_dead_code()
    unfold(node)
    made.recompile()
    assert torch.equal(made(x, weight).double(), want.to(x.dtype).double())


def read_twice(x: Tensor, weight: Tensor) -> Tensor:
    large = functional.interpolate(x, scale_factor=2.0)
    return functional.conv2d(large, weight, padding=1) + large.sum()


STAYS: dict[str, Call] = {
    "bilinear": lambda x, w: upsampled(x, w, "bilinear", padding=1),
    "threefold": lambda x, w: upsampled(x, w, factor=3.0, padding=1),
    "not padded": lambda x, w: upsampled(x, w),
    "strided": lambda x, w: upsampled(x, w, padding=1, stride=2),
    "dilated": lambda x, w: upsampled(x, w, padding=2, dilation=2),
    "read twice": read_twice,
    "another image": lambda x, w: functional.conv2d(x.flip(2)[:, :, [0, 0, 1, 1]][..., [0, 0, 1, 1]], w, padding=1),
    "one tap": lambda x, w: upsampled(x, w[..., 1:2, 1:2], padding=1),
    "f32": lambda x, w: upsampled(x.float(), w.float(), padding=1),
}


@pytest.mark.parametrize("name", STAYS)
def test_other_convolutions_stay(name: str) -> None:
    torch.manual_seed(0)
    x, weight = last(torch.randn(2, 16, 6, 5).half()), last(torch.randn(8, 16, 3, 3).half())
    made = traced(STAYS[name], x, weight)
    assert fold_upsampling(made.graph, ("cpu",)) == []
    assert fold_upsampling(made.graph, ("cuda",)) == []


@pytest.mark.parametrize(("side", "operation"), [(64, "conv2d_dgrad"), (4, "conv2d")])
def test_the_rule_folds_where_it_gains(side: int, operation: str) -> None:
    """The convolution of a tiny image reads the large one, as before."""
    x, weight = (last(torch.zeros(shape).half()) for shape in ((1, 256, side, side), (256, 256, 3, 3)))
    made = traced(lambda x, w: torch.relu(upsampled(x, w, padding=1)), x, weight)
    (outcome,) = FusePass(devices=("cpu",)).choose(made.graph).outcomes
    fused = outcome.fused or outcome.possible
    assert fused is not None
    assert fused.region.product.operation == operation
