"""Contiguous outputs of convolutions of one channel on the GPU: exact integers, in buffers with guards."""

from __future__ import annotations

import random
from functools import partial

import pytest
import torch

import evt
from evt.fx.backend import backend

pytestmark = pytest.mark.gpu

GUARD = 256


@pytest.mark.parametrize("dimensions", [2, 3])
@pytest.mark.parametrize("seed", [0, 1, 2, 6, 10, 11])
def test_planes(seed: int, dimensions: int) -> None:
    draw, generator = random.Random(seed), torch.Generator("cuda").manual_seed(seed)
    images, filters = draw.choice((1, 2, 3, 5, 7)), draw.choice((2, 3, 16, 17, 48, 63, 64, 65, 130, 200))
    taps, stride = draw.choice((2, 3, 3, 5, 7)), draw.choice((1, 1, 2, 3, 4))
    sizes = (*(draw.randint(taps, 9) for _ in range(dimensions - 2)), draw.randint(taps, 60), draw.randint(taps, 90))
    padding, dtype = draw.randrange(taps), draw.choice((torch.float16, torch.bfloat16))

    def integers(least: int, most: int, *shape: int) -> torch.Tensor:
        return torch.randint(least, most, shape, device="cuda", generator=generator).to(dtype)

    x, weight = integers(-2, 3, images, 1, *sizes), integers(-1, 2, filters, 1, *(taps,) * dimensions)
    bias = integers(-3, 4, filters)
    op = getattr(evt, f"conv{dimensions}d")("D = relu(acc + bias)", stride=stride, padding=padding)
    convolve = getattr(torch.nn.functional, f"conv{dimensions}d")
    want = torch.relu(convolve(x.double(), weight.double(), bias.double(), stride, padding))
    made = op(x, weight, bias=bias)
    assert made.is_contiguous()
    assert torch.equal(made.double(), want)
    memory = torch.full((want.numel() + 2 * GUARD,), torch.nan, device="cuda", dtype=dtype)
    op(x, weight, bias=bias, out=memory[GUARD:-GUARD].view(want.shape))
    assert torch.equal(memory[GUARD:-GUARD].view(want.shape).double(), want)
    assert memory[:GUARD].isnan().all()
    assert memory[-GUARD:].isnan().all()


def test_compiled_models_store_planes() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 24, 5, 2, 2), torch.nn.ReLU()).cuda().half().eval()
    x = torch.randn(3, 1, 61, 75, device="cuda", dtype=torch.float16)
    compiled = torch.compile(model, backend=partial(backend, options={"evt.rule": "always"}))
    with torch.no_grad():
        want, got = model(x), compiled(x)
    assert got.stride() == want.stride()
    assert torch.allclose(got, want, rtol=1e-2, atol=1e-2)
