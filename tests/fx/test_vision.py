"""ResNets and a vision transformer: the fused regions, and the numbers."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from evt.fx.fuse import Fusion, fuse, fusion

from . import vision
from .fusing import compare, formulas

BATCH_NORM = "acc*x0 + x1"


def fused(model: torch.nn.Module, x: torch.Tensor) -> Fusion:
    made = fuse(model, (x,))
    with torch.no_grad():
        compare(model(x), made(x), x.dtype)
    return fusion(made)


@pytest.mark.parametrize(
    ("name", "alone", "residual", "bare"),
    [("resnet18", 9, 8, 3), pytest.param("resnet50", 33, 16, 4, marks=pytest.mark.slow)],
)
def test_resnet(name: str, alone: int, residual: int, bare: int) -> None:
    """Every convolution is fused with its batch norm, and with relu and the residual where there are any."""
    torch.manual_seed(0)
    found = fused(getattr(vision, name)(), torch.randn(2, 3, 32, 32))
    convolutions = [text for text, region in zip(formulas(found), found.regions, strict=True) if is_conv(region)]
    assert Counter(convolutions) == {
        f"D = relu({BATCH_NORM})": alone,
        f"D = relu({BATCH_NORM} + x2)": residual,
        f"D = {BATCH_NORM}": bare,
    }
    assert len(found.regions) == len(found.outcomes) == alone + residual + bare + 1


def is_conv(region: object) -> bool:
    operation: str = region.program.request.operation  # type: ignore[attr-defined]
    return operation == "conv2d"


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_resnet_of_fewer_bits(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 32, 32, dtype=dtype).to(memory_format=torch.channels_last)
    found = fused(vision.resnet18().to(dtype), x)
    assert len(found.regions) == 21


def test_vision_transformer() -> None:
    """Each layer is four products: bias, bias and residual, gelu, bias and residual."""
    torch.manual_seed(0)
    found = fused(vision.vit(), torch.randn(2, 3, 32, 32))
    assert Counter(formulas(found)) == {"D = acc + x0": 5, "D = x1 + (acc + x0)": 6, "D = gelu(acc + x0)": 3}
    assert len(found.outcomes) == 14
