"""Selections of elements of computed tensors, as ``gelu(x @ w).t().amax(-1)``, and their gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch.nn.functional import gelu, mish, silu, softplus

Tensor = torch.Tensor

#: Values of two products, whose last bits depend on the kernel that computes them.
BODIES: Mapping[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "gelu and tanh": lambda x, w, v: gelu(x @ w) + torch.tanh(x @ v),
    "mish": lambda x, w, v: mish(x @ w) * (x @ v) * 0.7,
    "transposed": lambda x, w, v: (gelu(x @ w) + 0.3 * (x @ v)).t(),
    "cast": lambda x, w, v: softplus(x @ w).float() + (x @ v),
}
#: Values that Inductor's kernels compute from library products, with views before and after.
LEFT: Mapping[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "transposed": lambda x, w, v: gelu(x @ w).t(),
    "sum, transposed": lambda x, w, v: (silu(x @ w) + 0.3 * (x @ v)).t(),
    "view": lambda x, w, v: (gelu(x @ w).view(2, 3, -1) * torch.tanh(x @ v).view(2, 3, -1)).transpose(0, 1),
    "heads": lambda x, w, v: gelu((x @ w).view(2, 3, 4, -1).permute(0, 2, 1, 3)),
    "cast": lambda x, w, v: gelu((x @ w).float()).to(x.dtype).float().t(),
    "slice": lambda x, w, v: (mish(x @ w)[1:, ::2] - v[0, ::2]).t().contiguous(),
}
SELECTIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "amax": lambda y: y.amax(-1),
    "amin, kept": lambda y: y.amin(0, keepdim=True),
    "of several axes": lambda y: y.reshape(2, 3, -1).amax((0, 2)),
    "max": lambda y: y.max(),
    "max of a dimension": lambda y: y.max(-1).values,
    "aminmax": lambda y: torch.aminmax(y, dim=-1).max - torch.aminmax(y, dim=-1).min,
    "infinity norm": lambda y: torch.linalg.vector_norm(y, float("inf"), -1),
    "median": lambda y: y.median(),
    "of a mask": lambda y: y.masked_fill(y < 0, -1e4).amax(-1),
    "normalised": lambda y: y / y.abs().amax(-1, keepdim=True),
    "clipped": lambda y: (y / y.abs().amax(-1, keepdim=True)).clamp(-1, 1),
    "equal": lambda y: y * (y == y.amax(-1, keepdim=True)),
    "largest two": lambda y: torch.where(y >= y.topk(2, -1).values[..., -1:], y, 0),
    "difference": lambda y: y * ((y - y.amax(-1, keepdim=True)) >= 0),
}


def operands(dtype: torch.dtype, device: str = "cpu", rows: int = 6) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = (rows, 16), (16, 24), (16, 24)
    return [torch.randn(*shape, generator=generator).to(device, dtype).requires_grad_() for shape in shapes]


def gradients(run: Callable[..., Tensor], given: list[Tensor]) -> list[Tensor]:
    """Return the gradients of a weighted sum of a result's elements; zeros for operands that it does not read."""
    result = run(*given).double()
    weights = torch.linspace(-1, 1, result.numel(), dtype=torch.float64, device=result.device).reshape(result.shape)
    total = (result * weights).sum() if result.dim() else result
    return list(torch.autograd.grad(total, given, allow_unused=True, materialize_grads=True))
