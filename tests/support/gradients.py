"""Programs whose gradients are tested, and their gradients by autograd through PyTorch's own functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

import evt
from evt.ir import Cast, Dag, TypedDag, infer
from evt.ir.dag import Builder
from evt.ir.dtype import F64, DType
from evt.program import program_of
from evt.request import Request
from evt.runtime.arguments import outline
from evt.runtime.autograd import run_in_pytorch


def widened(request: Request, dag: TypedDag) -> evt.Program:
    """Return a program with f64 in the place of every floating-point type, and without rounding."""
    builder, renamed = Builder(), list[int]()
    for op, operands in dag.table:
        rounds = isinstance(op, Cast) and op.dtype.is_float and dag.types[operands[0]].dtype.is_float
        new = [renamed[each] for each in operands]
        op = Cast(F64) if isinstance(op, Cast) and op.dtype.is_float else op
        renamed.append(new[0] if rounds else builder.add(op, *new))
    wide: Any = lambda dtype: F64 if isinstance(dtype, DType) and dtype.is_float else dtype  # noqa: E731
    wide_operands = [replace(each, dtype=F64) for each in dag.operands]
    inputs = [replace(each, dtype=wide(each.dtype)) for each in dag.inputs]
    outputs = [replace(each, dtype=wide(each.dtype)) for each in dag.outputs]
    made: Dag = builder.finish(dag.operation, wide_operands, inputs, outputs)
    infer(made)
    return program_of(Request(made, request.settings, request.convolution))


def plainly(op: evt.Program, a: torch.Tensor, b: torch.Tensor, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return a program's outputs, recorded by autograd operation by operation."""
    bound = outline(op.request, a, b, inputs)
    return dict(zip(op.outputs, run_in_pytorch(op.request, bound, a, b, inputs), strict=True))


Shapes = Mapping[str, tuple[int, ...]]
#: Programs that differ in the needs of their gradients: text, operation, geometry, shapes of A, B and the inputs.
CASES: dict[str, tuple[str, str, dict[str, Any], Shapes]] = {
    "gelu": ("D = gelu(acc + bias)", "gemm", {}, {"A": (7, 16), "B": (16, 8), "bias": (8,)}),
    "scalars": (
        "in alpha: f64, beta: f64; D = relu(alpha*acc + beta*C) + residual",
        "gemm",
        {},
        {"A": (7, 16), "B": (16, 8), "alpha": (), "beta": (1,), "C": (7, 8), "residual": (7, 8)},
    ),
    "gated": ("D = silu(even(acc))*odd(acc)", "gemm", {}, {"A": (7, 16), "B": (16, 8)}),
    "rotated": (
        "D = interleave(even(acc)*c - odd(acc)*s, even(acc)*s + odd(acc)*c); in c: f64[m, n/2], s: f64[m, n/2]",
        "gemm",
        {},
        {"A": (5, 6), "B": (6, 8), "c": (5, 4), "s": (5, 4)},
    ),
    "rows": ("D = tanh(acc + bias)", "linear", {}, {"A": (2, 3, 16), "B": (8, 16), "bias": (8,)}),
    "one row": ("D = tanh(acc + bias)", "linear", {}, {"A": (16,), "B": (8, 16), "bias": (8,)}),
    "batches": (
        "D = tanh(acc*s[m]) + residual",
        "gemm",
        {},
        {"A": (3, 1, 4, 6), "B": (2, 6, 8), "s": (4,), "residual": (3, 2, 4, 8)},
    ),
    "one B": ("D = tanh(acc) + C[m, n]", "gemm", {}, {"A": (2, 4, 6), "B": (6, 8), "C": (4, 8)}),
    "transposed": (
        "gemm(A: f64[k, m], B: f64[n, k]); in C: f64[n, m]; out D: f64[n, m]; D = sigmoid(acc*C)",
        "gemm",
        {},
        {"A": (6, 5), "B": (8, 6), "C": (8, 5)},
    ),
    "statistics": (
        "out D, s: f64[m], a: f64; D = acc*w[n]; s = rsqrt(sum[n](acc*acc)/size(n) + 1e-6); a = max[m, n](abs(acc))",
        "gemm",
        {},
        {"A": (5, 6), "B": (6, 8), "w": (8,)},
    ),
    "moments": (
        "out D, mu: f64[m], r: f64[m], c: f64[n], e: f64[m], a: f64, w: f64[m, n/8]\n"
        "x = acc*g[n]; D = x; mu = mean[n](x); r = rsqrt(var[n](x) + 0.01); c = sqrt(var[m](x, 1))\n"
        "e = var[n](even(acc)); a = mean[m, n](x); w = var[n%8](acc)",
        "gemm",
        {},
        {"A": (5, 6), "B": (6, 8), "g": (8,)},
    ),
    "blocks": (
        "out D, a: f64[m, n/8]; a = max[n%8](abs(acc)); D = acc/a",
        "gemm",
        {},
        {"A": (5, 6), "B": (6, 16)},
    ),
    "mainloop": (
        "A = relu(s[k]*A + t[k]); D = acc + bias",
        "gemm",
        {},
        {"A": (5, 6), "B": (6, 8), "s": (6,), "t": (6,), "bias": (8,)},
    ),
    "conv": (
        "D = tanh(acc + bias[n] + r)",
        "conv2d",
        {"padding": ((1, 0), (0, 2)), "stride": (1, 2)},
        {"A": (2, 2, 3, 4), "B": (3, 2, 3, 3), "bias": (3,), "r": (2, 3, 2, 2)},
    ),
    "groups": (
        "D = tanh(acc + bias[n])",
        "conv2d",
        {"padding": 1, "groups": 2, "dilation": 2},
        {"A": (1, 4, 4, 5), "B": (2, 2, 3, 3), "bias": (2,)},
    ),
    "conv1d": ("D = tanh(acc + bias[n])", "conv1d", {}, {"A": (2, 4, 7), "B": (8, 4, 3), "bias": (8,)}),
    "dgrad": (
        "D = tanh(acc + bias[n] + r)",
        "conv2d_dgrad",
        {"stride": 2, "padding": 1, "output_padding": 1},
        {"A": (1, 3, 2, 3), "B": (3, 2, 3, 3), "bias": (2,), "r": (1, 2, 4, 6)},
    ),
    "wgrad": (
        "D = tanh(acc + r)",
        "conv2d_wgrad",
        {"kernel_size": 3, "padding": 1},
        {"A": (2, 3, 3, 4), "B": (2, 2, 3, 4), "r": (3, 2, 3, 3)},
    ),
}
#: Programs whose gradients a kernel can compute beside the product.
ONE_KERNEL = [name for name in CASES if name not in ("statistics", "moments", "blocks")]


def drawn(shapes: Shapes, seed: int = 0) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    made = {name: torch.rand(shape, generator=generator, dtype=torch.float64) - 0.5 for name, shape in shapes.items()}
    return {name: each.requires_grad_() for name, each in made.items()}


def made(name: str, **keywords: Any) -> tuple[evt.Program, dict[str, Any]]:
    text, operation, geometry, shapes = CASES[name]
    return evt.Program(text, operation, **geometry, **keywords), drawn(shapes)


def call(op: evt.Program, values: Mapping[str, Any]) -> Any:
    inputs = dict(values)
    return op(inputs.pop("A"), inputs.pop("B"), **inputs)


def gradients(run: Callable[[Mapping[str, Any]], Any], values: Mapping[str, Any]) -> list[Any]:
    found = run(values)
    total = sum(
        (each * (1 + place)).square().sum()
        for place, each in enumerate(found if isinstance(found, tuple) else (found,))
    )
    return list(torch.autograd.grad(total, list(values.values())))
