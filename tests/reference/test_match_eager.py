"""``numerics="match_eager"``: the reference gives eager PyTorch's bits where the product is exact.

On the CPU, where PyTorch's kernels of half types compute in f32 and round, as its CUDA kernels do. One difference of
its CPU kernels is omitted: they round a number to the tensor's type before adding it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import evt

Tensor = torch.Tensor
F = torch.nn.functional
COLUMNS = torch.arange(64, dtype=torch.int32)
#: A formula over acc, C, r[n] and alpha, and a PyTorch user's code for it.
CASES: dict[str, tuple[str, Callable[[Tensor, Tensor, Tensor, float], Tensor]]] = {
    "residual": ("D = relu(alpha*acc + C) + C", lambda x, c, r, a: torch.relu(a * x + c) + c),
    "scale": ("D = (acc*r[n] - C)*alpha", lambda x, c, r, a: (x * r - c) * a),
    "quotient": ("D = acc/C + r[n]", lambda x, c, r, a: x / c + r),
    "number over a tensor": ("D = 3/C + acc", lambda x, c, r, a: 3 / c + x),
    "cube": ("D = C**3 + acc", lambda x, c, r, a: c**3 + x),
    "square": ("D = C**2 - acc", lambda x, c, r, a: c**2 - x),
    "threshold": ("D = where(C >= 0.1, acc, C)", lambda x, c, r, a: torch.where(c >= 0.1, x, c)),
    "equal": ("D = where(C == alpha, acc, r[n])", lambda x, c, r, a: torch.where(c == a, x, r)),
    "extremes": ("D = max(min(acc, C), r[n])*C", lambda x, c, r, a: torch.maximum(torch.minimum(x, c), r) * c),
    "pairs": (
        "D = relu(even(acc*C))*odd(acc + C)",
        lambda x, c, r, a: torch.relu((x * c)[:, 0::2]) * (x + c)[:, 1::2],
    ),
    "blocks": (
        "out D; D = acc*(max[n%16](abs(C))*C)",
        lambda x, c, r, a: x * (c.abs().unflatten(1, (-1, 16)).amax(2).repeat_interleave(16, 1) * c),
    ),
    "integers": ("D = acc + iota(n)**2*35 + C", lambda x, c, r, a: x + COLUMNS**2 * 35 + c),
    "an integer compared": (
        "D = where(iota(n)*1021 == f16(iota(n)*1021), acc, C)",
        lambda x, c, r, a: torch.where((COLUMNS * 1021).half() == COLUMNS * 1021, x, c),
    ),
    "cast": ("D = f32(acc*C) * r[n]", lambda x, c, r, a: ((x * c).float() * r).to(x.dtype)),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_bits_of_eager(name: str, dtype: torch.dtype) -> None:
    if (name, dtype) == ("cube", torch.float16):
        pytest.skip("PyTorch's CPU kernel does not round the square, as its CUDA kernel does")
    formula, eager = CASES[name]
    generator = torch.Generator().manual_seed(5)
    a, b = (torch.randint(-3, 4, shape, generator=generator).to(dtype) for shape in ((24, 8), (8, 64)))
    c = torch.randn(24, 64, generator=generator).to(dtype)
    c[::3, ::5] = torch.tensor(0.1, dtype=dtype)
    r = torch.randn(64, generator=generator).to(dtype)
    given = {"C": c, "r": r, "alpha": 0.1}
    op = evt.gemm(formula, numerics="match_eager")
    got = op(a, b, **{name: value for name, value in given.items() if name in op.inputs})
    assert torch.equal(got, eager(a @ b, c, r, 0.1))


def test_precise_rounds_less() -> None:
    formula, eager = CASES["residual"]
    a, b = torch.ones(8, 8).half(), torch.ones(8, 64).half()
    c = torch.randn(8, 64, generator=torch.Generator().manual_seed(1)).half()
    assert not torch.equal(evt.gemm(formula)(a, b, C=c, alpha=0.1), eager(a @ b, c, c, 0.1))


def test_one_value_a_batch_is_a_tensor() -> None:
    """It has a dimension, and so a say in the type; a scalar has none."""
    a, b = torch.ones(3, 8, 8), torch.ones(8, 16)
    v = torch.randn(3, generator=torch.Generator().manual_seed(2)).half()
    op = evt.gemm("in v: f16[l]; D = mish(v) + 0*acc", numerics="match_eager")
    assert torch.equal(op(a, b, v=v), F.mish(v)[:, None, None].expand(3, 8, 16).float())
