"""``numerics="eager"``: the reference gives eager PyTorch's bits where the product is exact.

On the CPU, where PyTorch's kernels of half types compute in f32 and round, as its CUDA kernels do. One difference of
its CPU kernels is omitted: they round a number to the tensor's type before adding it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import evt
from tests.support.edges import differences

Tensor = torch.Tensor
F = torch.nn.functional
COLUMNS = torch.arange(64, dtype=torch.int32)


def addmm(x: Tensor, c: Tensor, alpha: float = 1.0, beta: float = 1.0) -> Tensor:
    """Return ``beta*c + alpha*x`` as torch.addmm computes it from the product x: in f32, rounded once."""
    single = torch.tensor((alpha, beta)).double()
    return (single[0] * x.double() + (single[1] * c.double()).float().double()).float().to(c.dtype)


#: A formula over acc, C, r[n] and alpha, and a PyTorch user's code for it.
CASES: dict[str, tuple[str, Callable[[Tensor, Tensor, Tensor, float], Tensor]]] = {
    "linear": ("D = relu(acc + r[n])*C", lambda x, c, r, a: torch.relu(addmm(x, r)) * c),
    "linear and a residual": ("D = r[n] + acc + C", lambda x, c, r, a: addmm(x, r) + c),
    "mm and a residual": ("D = acc + C", lambda x, c, r, a: x + c),
    "mm and a vector": ("in C: {}[m, n]; D = {}(acc) + r[n] + C", lambda x, c, r, a: x + r + c),
    "addmm": ("D = relu(alpha*acc + C) + C", lambda x, c, r, a: torch.relu(addmm(x, c, a)) + c),
    "addmm with beta": ("D = acc + C*alpha", lambda x, c, r, a: addmm(x, c, 1, a)),
    "addmm with both": ("D = 3*acc + 0.3*C", lambda x, c, r, a: addmm(x, c, 3, 0.3)),
    "addmm of ones": ("D = 1*acc + C", lambda x, c, r, a: addmm(x, c)),
    "an addmm and its product": ("D = (2*acc + r[n])*acc", lambda x, c, r, a: addmm(x, r, 2) * x),
    "mm and two numbers": ("D = 3*(alpha*acc) + C", lambda x, c, r, a: 3 * (a * x) + c),
    "scale": ("D = (acc*r[n] - C)*alpha", lambda x, c, r, a: (x * r - c) * a),
    "quotient": ("D = acc/C + r[n]", lambda x, c, r, a: x / c + r),
    "number over a tensor": ("D = 3/C + acc", lambda x, c, r, a: 3 / c + x),
    "cube": ("D = C**3 + acc", lambda x, c, r, a: c**3 + x),
    "roots": ("D = abs(C)**0.5 + acc", lambda x, c, r, a: c.abs() ** 0.5 + x),
    "reciprocal": ("D = C**-1 + acc", lambda x, c, r, a: c**-1 + x),
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
    formula = formula.replace("{}", str(dtype)[6:])
    generator = torch.Generator().manual_seed(5)
    a, b = (torch.randint(-3, 4, shape, generator=generator).to(dtype) for shape in ((24, 8), (8, 64)))
    c = torch.randn(24, 64, generator=generator).to(dtype)
    c[::3, ::5] = torch.tensor(0.1, dtype=dtype)
    r = torch.randn(64, generator=generator).to(dtype)
    given = {"C": c, "r": r, "alpha": 0.1}
    op = evt.gemm(formula, numerics="eager")
    got = op(a, b, **{name: value for name, value in given.items() if name in op.inputs})
    want = eager(a @ b, c, r, 0.1)
    if dtype == torch.float32:  # the reference's multiply-adds and PyTorch's CPU kernels round f32 otherwise
        torch.testing.assert_close(got, want, rtol=3e-7, atol=1e-6)
    else:
        assert torch.equal(got, want)


def test_composed_functions_round_at_each_operator() -> None:
    """torch.nn.functional.softsign is abs, add and div; x / number is a product with a reciprocal on the GPU."""
    c = torch.randn(8, 64, generator=torch.Generator().manual_seed(3)).half()
    a, b = torch.zeros(8, 8).half(), torch.zeros(8, 64).half()
    for text, want in {
        "D = softsign(C) + acc": F.softsign(c),
        "D = tanhshrink(C) + acc": F.tanhshrink(c),
        "D = C/3 + acc": (c.float() * (torch.tensor(1.0) / 3)).half(),
        "D = C**-2 + acc": (1 / (c * c).float()).half(),
        "D = abs(C)**0.3 + acc": (c.abs().float() ** float(torch.tensor(0.3).half())).half(),
    }.items():
        assert torch.equal(evt.gemm(text, numerics="eager")(a, b, C=c), want + 0), text


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_activations_with_numbers_at_the_edges(dtype: torch.dtype) -> None:
    assert not list(differences(dtype, "cpu"))


def test_a_convolution_rounds_before_its_bias() -> None:
    x = torch.randint(-3, 4, (2, 8, 6, 6)).half().to(memory_format=torch.channels_last)
    w, bias = torch.randint(-3, 4, (16, 8, 3, 3)).half(), torch.randn(16).half()
    got = evt.conv2d("D = relu(acc + bias)", numerics="eager")(x, w, bias=bias)
    assert torch.equal(got, torch.relu(F.conv2d(x.float(), w.float()).half() + bias[:, None, None]))


def test_scaled_products_round_once() -> None:
    a, b = torch.randn(16, 32).to(torch.float8_e4m3fn), torch.randn(24, 32).to(torch.float8_e4m3fn).t()
    sa, sb, bias = torch.rand(16), torch.rand(24), torch.randn(24).bfloat16()
    text = "gemm(A: e4m3[m, k], B: e4m3[k, n]); in sa: f32[m], sb: f32[n], bias: bf16[n]; out D: bf16[m, n]"
    got = evt.gemm(f"{text}; D = relu(sa*(sb*acc) + bias)", numerics="eager")(a, b, sa=sa, sb=sb, bias=bias)
    product = (a.double() @ b.double()).float()
    assert torch.equal(got, torch.relu((product * sb * sa[:, None] + bias).bfloat16()))


def test_match_eager_is_an_alias() -> None:
    assert evt.gemm("D = acc + C", numerics="match_eager") == evt.gemm("D = acc + C", numerics="eager")


def test_precise_rounds_less() -> None:
    formula, eager = CASES["addmm"]
    a, b = torch.ones(8, 8).half(), torch.ones(8, 64).half()
    c = torch.randn(8, 64, generator=torch.Generator().manual_seed(1)).half()
    assert not torch.equal(evt.gemm(formula)(a, b, C=c, alpha=0.1), eager(a @ b, c, c, 0.1))


def test_one_value_a_batch_is_a_tensor() -> None:
    """It has a dimension, and so a say in the type; a scalar has none."""
    a, b = torch.ones(3, 8, 8), torch.ones(8, 16)
    v = torch.randn(3, generator=torch.Generator().manual_seed(2)).half()
    op = evt.gemm("in v: f16[l]; D = mish(v) + 0*acc", numerics="eager")
    assert torch.equal(op(a, b, v=v), F.mish(v)[:, None, None].expand(3, 8, 16).float())


@pytest.mark.parametrize("dtype", ["f32", "i32", "i64"])
@pytest.mark.parametrize(
    ("formula", "eager"),
    [
        ("count*1.5*acc", lambda x, count: count * 1.5 * x),
        ("acc*(count + 4)**1.5", lambda x, count: x * (count + 4) ** 1.5),
        ("acc*sqrt(count + 4) - 3", lambda x, count: x * (count + 4) ** 0.5 - 3),
        ("acc/(count/4)", lambda x, count: x / (count / 4)),
        ("where(acc > count - 0.9, acc, count)", lambda x, count: torch.where(x > count - 0.9, x, count)),
    ],
)
def test_a_number_of_any_type_does_not_promote(dtype: str, formula: str, eager: Callable[..., Tensor]) -> None:
    g = torch.Generator().manual_seed(3)
    a, b = torch.randint(-8, 9, (8, 16), generator=g).half(), (torch.randint(-8, 9, (16, 64), generator=g) / 8).half()
    op = evt.gemm(f"in count: {dtype}; out D: f32[m, n]; D = {formula}", numerics="eager")
    assert torch.equal(op(a, b, count=5), eager(a @ b, 5).float())


def test_a_cast_is_a_tensor() -> None:
    """A cast in a formula has a say in the type, also one that changes no type."""
    a, b = torch.ones(8, 8).half(), torch.full((8, 16), 0.1).half()
    for dtype in ("i32", "i64"):
        op = evt.gemm(f"in count: {dtype}; out D: f32[m, n]; D = i32(count)*1.1 - acc", numerics="eager")
        expected = torch.full((), 5, dtype=torch.int32).reshape(1, 1) * 1.1 - a @ b
        assert expected.dtype == torch.float32
        assert torch.equal(op(a, b, count=5), expected)
