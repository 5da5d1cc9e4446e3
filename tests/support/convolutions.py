"""Convolutions for tests: programs of them, and tensors with channels last in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional, grad

from evt.diagnostics import Source
from evt.program import Program
from evt.runtime.arguments import bind
from evt.runtime.bound import Bound

FPROP: Mapping[int, Callable[..., Tensor]] = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
TRANSPOSED: Mapping[int, Callable[..., Tensor]] = {
    1: functional.conv_transpose1d,
    2: functional.conv_transpose2d,
    3: functional.conv_transpose3d,
}
WGRAD: Mapping[int, Callable[..., Tensor]] = {1: grad.conv1d_weight, 2: grad.conv2d_weight, 3: grad.conv3d_weight}

#: Images, channels, filters, height and width of filter gradients whose tiles are streamed, by taps and configuration.
STREAMED: Mapping[tuple[int, str], tuple[tuple[int, int, int, int, int], ...]] = {
    (3, "wgrad_256x128"): ((100, 328, 640, 5, 40), (64, 1024, 256, 13, 11), (100, 640, 512, 5, 40)),
    (3, "wgrad_128x128"): ((100, 328, 640, 13, 11), (100, 1024, 128, 14, 14), (100, 2048, 256, 14, 14)),
    (1, "wgrad_128x128"): ((100, 2048, 520, 14, 14),),
}


def convolution(text: str, operation: str = "conv2d", **keywords: Any) -> Program:
    return Program(Source(text), operation, **keywords)


def last(tensor: Tensor) -> Tensor:
    """Return the same numbers with channels last in memory, made without evt."""
    return tensor.movedim(1, -1).contiguous().movedim(-1, 1)


def bound(op: Program, a: Tensor, b: Tensor, buffers: Mapping[str, Tensor] | None = None, **inputs: Any) -> Bound:
    return bind(op.request, a, b, inputs, buffers or {})


def half(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.float16)


X, WEIGHT = last(half(2, 16, 9, 7)), last(half(24, 16, 3, 3))
STOCK, TREE = "D = relu(acc + bias) + residual", "D = silu(acc)"
