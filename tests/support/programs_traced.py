"""Calls of every kind of program, for the tests of PyTorch's tracing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

import evt


@dataclass
class Call:
    """A program and the tensors of one call; ``rows`` are the dimensions that may vary, by tensor."""

    program: evt.Program
    a: torch.Tensor
    b: torch.Tensor
    inputs: Mapping[str, Any] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=lambda: {"a": 0})

    def __call__(self, **buffers: Any) -> Any:
        return self.program(self.a, self.b, **self.inputs, **buffers)

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        return {name: value for name, value in self.inputs.items() if isinstance(value, torch.Tensor)}

    def numbers(self) -> dict[str, Any]:
        return {name: value for name, value in self.inputs.items() if not isinstance(value, torch.Tensor)}


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def last(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous(memory_format=torch.channels_last)


M, N, K = 6, 16, 8
A, B, C = random(M, K), random(K, N), random(M, N)
X, W, R = random(7, 8, 6, 5), random(16, 8, 3, 3), random(7, 16, 6, 5)
_ROWS = {"a": 0, "C": 0, "s": 0, "v": 0}


def _gemm(text: str, **inputs: Any) -> Call:
    return Call(evt.gemm(text), A, B, inputs, _ROWS)


def _conv(text: str, x: torch.Tensor = X, w: torch.Tensor = W, **inputs: Any) -> Call:
    return Call(evt.conv2d(text, padding=1), x, w, inputs, {"a": 0, "C": 0})


CALLS: dict[str, Callable[[], Call]] = {
    "product": lambda: _gemm("D = acc"),
    "inputs": lambda: _gemm(
        "in s: f32[m]\nD = relu(alpha*acc + beta*C + bias)*s", alpha=1.5, beta=2, C=C, bias=random(N), s=random(M)
    ),
    "scalar tensor": lambda: _gemm("D = alpha*acc", alpha=torch.tensor(2.0)),
    "left out": lambda: _gemm("in C: f32[m, n] = 0\nD = acc + C"),
    "several": lambda: _gemm("out D: f16[m, n], Z: f32[m, n]; Z = acc; D = relu(Z)"),
    "copy of an input": lambda: _gemm("out D, Z: f32; D = acc + C; Z = C", C=C),
    "reductions": lambda: _gemm(
        "out D, r: f32[m], c: f32[n], t: f32; D = acc; r = sum[n](acc); c = max[m](acc); t = sum[m, n](acc)"
    ),
    "without D": lambda: _gemm("out t: f32; t = max[m, n](abs(acc))"),
    "rows": lambda: _gemm("in v: f32[m]\nout D, r: f16[m]; D = acc; r = v*2", v=random(M)),
    "blocks": lambda: _gemm("out D, s: f32[m, n/16]; D = acc; s = max[n%16](abs(acc))"),
    "half width": lambda: _gemm("D = silu(even(acc))*odd(acc)"),
    "bits": lambda: _gemm("out D, mask: b1[m, n]; D = relu(acc); mask = acc > 0"),
    "transposed": lambda: _gemm("out D: f16[n, m]; D = acc"),
    "dropout": lambda: _gemm("D = dropout(acc, 0.5, seed, offset)", seed=7, offset=9),
    "f16": lambda: Call(evt.gemm("D = gelu(acc)"), A.half(), B.half(), {}, _ROWS),
    "batched": lambda: Call(evt.gemm("D = relu(acc + C)"), random(3, M, K), B, {"C": random(3, M, N)}, _ROWS),
    "batches": lambda: Call(evt.gemm("D = acc"), random(2, 3, M, K), random(3, K, N), {}, {"a": 2}),
    "linear": lambda: Call(
        evt.linear("D = gelu(acc + bias) + C"),
        random(2, 3, K),
        random(N, K),
        {"bias": random(N), "C": random(2, 3, N)},
        _ROWS,
    ),
    "conv": lambda: _conv("D = relu(acc + bias + C)", bias=random(16), C=R),
    "conv channels last": lambda: _conv("D = relu(acc + bias + C)", last(X), last(W), bias=random(16), C=last(R)),
    "conv outputs": lambda: _conv("out D, Z: f16[m, n], r: f32[n]; Z = acc; D = relu(acc); r = sum[m](acc)", last(X)),
    "conv1d": lambda: Call(evt.conv1d("D = acc", stride=2), random(7, 8, 9), random(16, 8, 3)),
    "conv3d": lambda: Call(evt.conv3d("D = acc"), random(2, 8, 4, 4, 5), random(16, 8, 3, 3, 3)),
    "grouped conv": lambda: Call(evt.conv2d("D = acc", groups=2, padding="same"), X, random(16, 4, 3, 3)),
    "dgrad": lambda: Call(evt.conv2d_dgrad("D = acc", stride=2, output_padding=1), X, random(8, 16, 3, 3)),
    "wgrad": lambda: Call(evt.conv2d_wgrad("D = acc", kernel_size=3, padding=1), R, X, {}, {}),
}
#: Programs that need a buffer: rows without an index keep its values.
SCATTERED = evt.gemm("in index: i32[m]\nout D[index[m], n]\nD = acc")


def same(got: Any, want: Any) -> bool:
    """Return whether results are the same bits in the same memory format, of the same type."""
    if isinstance(want, tuple):
        return type(got) is type(want) and all(map(same, got, want))
    exact = torch.equal(got.nan_to_num(), want.nan_to_num()) and got.dtype == want.dtype
    return exact and got.stride() == want.stride()
