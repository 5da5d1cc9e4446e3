"""Values of columns in own kernels, on a GPU: a matrix of the same numbers gives the same bits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import evt

pytestmark = pytest.mark.gpu

FORMULAS = {
    "a quotient": "acc*rcp(silu({u}))",
    "a batch norm": "acc*rcp(sqrt(abs({u}) + 1e-5))",
    "a number": "acc*log(1 + exp({s}))",
    "values of values": "acc*(exp({u})/max(abs({v}), {s}))",
    "a function and its user": "acc*tanh({u}) + erf({v})*sigmoid({u})",
}


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, device="cuda", generator=torch.Generator("cuda").manual_seed(seed)).to(dtype)


def image(*shape: int, seed: int = 0) -> torch.Tensor:
    return random(*shape, seed=seed).contiguous(memory_format=torch.channels_last)


Kernel = tuple[Callable[[str], evt.Program], Callable[[], tuple[torch.Tensor, torch.Tensor]], tuple[int, int]]


def product(m: int, n: int, k: int, **keywords: Any) -> Kernel:
    return lambda text: evt.linear(text, **keywords), lambda: (random(m, k), random(n, k, seed=1)), (m, n)


def convolution(images: tuple[int, int, int, int], filters: tuple[int, int, int, int], groups: int = 1) -> Kernel:
    n, _, height, width = images
    return (
        lambda text: evt.conv2d(text, padding=filters[2] // 2, groups=groups, route="own"),
        lambda: (image(*images), image(*filters, seed=1)),
        (n * height * width, filters[0]),
    )


#: Programs of a formula, their operands, and the rows and columns of D.
KERNELS: dict[str, Kernel] = {
    "product": product(333, 200, 264, route="gemm-own-3x"),
    "large product": product(1029, 528, 136, route="gemm-own-3x"),
    "few rows": product(5, 203, 511, route="gemv-own-3x"),
    "convolution": convolution((3, 64, 19, 23), (72, 64, 3, 3)),
    "groups": convolution((2, 64, 19, 23), (64, 4, 3, 3), 16),
    "few channels": convolution((2, 3, 19, 23), (40, 3, 3, 3)),
    "depthwise": convolution((2, 64, 19, 23), (64, 1, 3, 3), 64),
    "filter gradient": (
        lambda text: evt.conv2d_wgrad(text, padding=1, kernel_size=3, route="conv-wgrad-3x"),
        lambda: (image(2, 72, 19, 23), image(2, 64, 19, 23, seed=1)),
        (72, 9 * 64),
    ),
}


@pytest.mark.parametrize("formula", FORMULAS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_column_and_a_matrix_have_the_same_bits(kernel: str, formula: str) -> None:
    make, operands, (m, n) = KERNELS[kernel]
    text = FORMULAS[formula]
    vectors = {"u": random(n, seed=2, dtype=torch.float32), "v": random(n, seed=3, dtype=torch.float32)}
    vectors = {name: value for name, value in vectors.items() if f"{{{name}}}" in text}
    number = {"s": 0.37} if "{s}" in text else {}
    inputs = [f"{name}: f32[{{shape}}]" for name in vectors] + [f"{name}: f32" for name in number]
    program = f"in {', '.join(inputs)}\nout D: f32[m, n]\nD = " + text.format(u="u", v="v", s="s")
    a, b = operands()
    results = []
    for shape in ("n", "m, n"):
        if number and not vectors and shape != "n":  # a number of each element
            program = f"in s: f32[m, n]\nout D: f32[m, n]\nD = {text.format(s='s')}"
            given: dict[str, Any] = {"s": torch.full((m, n), number["s"], device="cuda")}
        else:
            given = {name: value if shape == "n" else value.repeat(m, 1) for name, value in vectors.items()} | number
        op = make(program.replace("{shape}", shape))
        shapes = op.reference(a, b, **given).shape
        out = torch.full(shapes, math.nan, device="cuda").to(memory_format=torch.contiguous_format)
        out = out if out.dim() < 4 else out.contiguous(memory_format=torch.channels_last)
        results.append(op(a, b, out=out, **given).clone())
    assert not results[0].isnan().any()
    assert torch.equal(*results)


def test_pairs_of_columns() -> None:
    m, n, k = 333, 208, 264
    a, b = random(m, k), random(n, k, seed=1)
    vectors = {name: random(n, seed=seed, dtype=torch.float32) for name, seed in (("u", 2), ("v", 3))}
    results = []
    for shape in ("n", "m, n"):
        text = (
            f"in u: f32[{shape}], v: f32[{shape}]\nout D: f32[m, n/2]\n"
            "D = even(acc*tanh(u))*odd(acc*rcp(silu(v))) + odd(exp(u))"
        )
        given = {name: value if shape == "n" else value.repeat(m, 1) for name, value in vectors.items()}
        out = torch.full((m, n // 2), math.nan, device="cuda")
        results.append(evt.linear(text, route="gemm-own-3x")(a, b, out=out, **given))
    assert not results[0].isnan().any()
    assert torch.equal(*results)


def test_a_row_of_a_transposed_tile() -> None:
    """The operations' columns are the matrix's rows."""
    m, n, k = 333, 264, 512
    a, b = (random(rows, k, seed=rows).to(torch.float8_e4m3fn) for rows in (m, n))
    scales = {"sa": random(m, k // 128, seed=4).float(), "sb": random(-(-n // 128), k // 128, seed=5).float()}
    u = random(m, seed=6, dtype=torch.float32)
    results = []
    for shape, given in (("m", u), ("m, n", u[:, None].repeat(1, n))):
        text = (
            f"in sa: f32[m, k/128], sb: f32[n/128, k/128], u: f32[{shape}]\nout D: bf16[m, n]\n"
            "A = sa*A\nB = sb*B\nD = acc*rcp(silu(u))"
        )
        op = evt.linear(text, route="gemm-own-3x", config="own_rows_128x128x128")
        out = torch.full((m, n), math.nan, device="cuda", dtype=torch.bfloat16)
        results.append(op(a, b, out=out, u=given, **scales))
    assert not results[0].isnan().any()
    assert torch.equal(*results)
