"""ATen operators that join a product's kernel: products, elementwise operators, views, reductions, types."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.torch_version import TorchVersion

from evt.fx.fuse import fuse, fusion

from .fusing import Function, compare, formulas, fused

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64


def of(*shape: int, dtype: Any = F32) -> torch.Tensor:
    """Return numbers that depend on nothing but the shape."""
    generator = torch.Generator().manual_seed(sum(shape))
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) > 0.5
    if not dtype.is_floating_point:
        return torch.randint(-9, 9, shape, generator=generator, dtype=dtype)
    return torch.randn(shape, generator=generator).to(dtype)


A, B = of(6, 5), of(5, 8)
#: Functions, their arguments, and the statements of the one region's program.
CASES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...], str]] = {
    # products
    "mm": (lambda a, b: torch.mm(a, b).relu(), (A, B), "D = relu(acc)"),
    "addmm": (lambda a, b, c: torch.addmm(c, a, b, beta=0.5, alpha=2), (A, B, of(8)), "D = acc*2 + x0*0.5"),
    "bmm": (lambda a, b: torch.bmm(a, b).neg(), (of(3, 6, 5), of(3, 5, 8)), "D = -acc"),
    "baddbmm": (*(torch.baddbmm, (of(3, 6, 8), of(3, 6, 5), of(3, 5, 8)), "D = acc + x0"),),
    "matmul-4d": (lambda a, b: a @ b * 2, (of(2, 3, 6, 5), of(2, 3, 5, 8)), "D = acc*2"),
    "matmul-one-b": (lambda a, b: a @ b * 2, (of(3, 6, 5), B), "D = acc*2"),
    "linear": (functional.linear, (of(2, 3, 5), of(8, 5), of(8)), "D = acc + x0"),
    "einsum": (
        lambda a, b, c: torch.einsum("bhmk,bhnk->bhmn", a, b) + c,
        *((of(2, 3, 6, 5), of(2, 3, 8, 5), of(1, 3, 6, 8)), "D = acc + x0"),
    ),
    "conv1d": (
        lambda x, w, b: functional.conv1d(x, w, b).tanh(),
        (of(2, 4, 9), of(6, 4, 3), of(6)),
        "D = tanh(acc + x0)",
    ),
    "conv2d-groups": (
        lambda x, w: functional.conv2d(x, w, groups=2, stride=2, padding=1, dilation=2).relu(),
        *((of(2, 4, 9, 8), of(6, 2, 3, 3)), "D = relu(acc)"),
    ),
    "conv2d-same": (
        lambda x, w: functional.conv2d(x, w, padding="same").relu(),
        *((of(2, 4, 9, 8), of(6, 4, 3, 3)), "D = relu(acc)"),
    ),
    "conv3d": (lambda x, w: functional.conv3d(x, w).relu(), (of(2, 4, 5, 5, 5), of(6, 4, 3, 3, 3)), "D = relu(acc)"),
    "conv-transpose": (
        lambda x, w, b: functional.conv_transpose2d(x, w, b, stride=2, output_padding=1).relu(),
        *((of(2, 4, 5, 5), of(4, 6, 3, 3), of(6)), "D = relu(acc + x0)"),
    ),
    "int-mm": (
        lambda a, b: torch._int_mm(a, b) * 2.0 + 1,
        *((of(32, 32, dtype=torch.int8), of(32, 24, dtype=torch.int8)), "D = f32(acc)*2 + 1"),
    ),
    # operators
    "both-orders": (lambda a, b, c: c + torch.relu(c + a @ b), (A, B, of(6, 8)), "D = x0 + relu(x0 + acc)"),
    "in-place": (lambda a, b: (a @ b).relu_().mul_(2).add_(1), (A, B), "D = relu(acc)*2 + 1"),
    "gelu-written": (
        lambda a, b: (x := a @ b) * 0.5 * (1.0 + torch.erf(x * 0.70710678)),
        *((A, B), "D = acc*0.5*(erf(acc*0.70710678) + 1)"),
    ),
    "swiglu-written": (
        lambda a, b, c: (x := a @ b) * torch.sigmoid(x) * c,
        *((A, B, of(6, 8)), "D = acc*sigmoid(acc)*x0"),
    ),
    "decomposed": (
        lambda a, b, c: torch.addcdiv(a @ b, c, c.abs() + 1),
        (A, B, of(6, 8)),
        "D = acc + x0*1/(abs(x0) + 1)",
    ),
    "masks": (
        lambda a, b, c, d: torch.where((a @ b > 0) & ~c | d, 1.0, 0.0),
        *((A, B, of(6, 8, dtype=torch.bool), of(8, dtype=torch.bool)), "D = where(acc > 0 && (!x0) || x1, 1, 0)"),
    ),
    "bool-output": (lambda a, b: a @ b > 0, (A, B), "D = acc > 0"),
    "masked-fill": (
        lambda a, b, m: (a @ b).masked_fill(m, float("-inf")),
        *((A, B, of(6, 8, dtype=torch.bool)), "D = where(x0, -inf, acc)"),
    ),
    "constant": (lambda a, b: a @ b * torch.tensor(2.5), (A, B), "D = acc*2.5"),
    "scalar-tensor": (lambda a, b, s: a @ b * s, (A, B, torch.tensor(2.5, dtype=F64)), "D = acc*f32(x0)"),
    # types
    "promoted": (lambda a, b, c: a @ b + c, (A.to(BF16), B.to(BF16), of(8)), "D = acc + x0"),
    "double": (lambda a, b, c: torch.tanh(a @ b) + c, (A.double(), B.double(), of(8)), "D = tanh(acc) + x0"),
    "cast": (lambda a, b: (a @ b).to(BF16).float() * 3, (A, B), "D = f32(bf16(acc))*3"),
    "to-int": (lambda a, b: (a @ b * 9).to(torch.int32), (A, B), "D = i32(trunc(acc*9))"),
    "quantised": (
        lambda a, b: (a @ b * 9).round().clamp(-128, 127).to(torch.int8),
        *((A, B), "D = i8(trunc(min(max(round(acc*9), -128), 127)))"),
    ),
    "int-added": (lambda a, b, c: a @ b + c, (A, B, of(6, 8, dtype=torch.int32)), "D = acc + x0"),
    # views
    "transposed": (lambda a, b, c: (a @ b).t() + c, (A, B, of(8, 6)), "D = acc + x0"),
    "heads": (
        lambda a, w, c: functional.linear(a, w).view(2, 3, 4, 2).permute(0, 2, 1, 3) + c,
        *((of(2, 3, 5), of(8, 5), of(2, 4, 3, 2)), "D = acc + x0"),
    ),
    "flattened": (
        lambda x, w, c: functional.conv2d(x, w).flatten(2).transpose(1, 2) + c,
        *((of(2, 4, 5, 5), of(6, 4, 3, 3), of(2, 9, 6)), "D = acc + x0"),
    ),
    "expanded": (lambda a, b, c: a @ b + c.expand(6, 8), (A, B, of(1, 8)), "D = acc + x0"),
    "batch-of-some": (
        lambda a, b, c: (a @ b.transpose(-1, -2)) * 0.5 + c,
        *((of(2, 3, 4, 5), of(2, 3, 6, 5), of(2, 1, 1, 6)), "D = acc*0.5 + x0"),
    ),
    "operands": (
        lambda a, b, c, d: a @ b * torch.sigmoid(c * 2) + (d > 0),
        *((A, B, of(6, 8), of(6, 8)), "D = acc*sigmoid(x0*2) + (x1 > 0)"),
    ),
    # reductions
    "row-sums": (lambda a, b: (a @ b).sum(1), (A, B), "D = sum[n](acc)"),
    "column-maxima": (lambda a, b: (a @ b).amax(0, keepdim=True), (A, B), "D = max[m](acc)"),
    "all": (lambda a, b: torch.relu(a @ b).sum(), (A, B), "D = sum[m, n](relu(acc))"),
    "variance": (lambda a, b: torch.var(a @ b, (0, 1), correction=0), (A, B), "D = var[m, n](acc)"),
    **{
        f"variance-{correction}": (
            partial(lambda a, b, correction: torch.var(a @ b, (0, 1), correction=correction), correction=correction),
            (A.double(), B.double()),
            f"v1 = 1*f64(size(m))*f64(size(n)); D = var[m, n](acc)*(v1/(v1 - {correction}))",
        )
        for correction in (1, 3, 0.5)
    },
    "mean-square": (
        lambda a, w: (x := functional.linear(a, w), (x * x).mean(-1)),
        *((of(2, 3, 5), of(8, 5)), "D = acc; D1 = mean[n](acc*acc)"),
    ),
}


@pytest.mark.filterwarnings("ignore:(Attempted to insert a get_attr Node|Node lifted_tensor)")  # old torch.export's own
@pytest.mark.parametrize("name", CASES)
def test_one_region(name: str) -> None:
    function, inputs, formula = CASES[name]
    found = fused(function, *inputs)
    assert formulas(found) == [formula]


#: Sizes of a padding operator, its other arguments, the convolution's own padding, and that of the region's program.
PADDED: dict[str, tuple[tuple[int, ...], tuple[Any, ...], Any, tuple[tuple[int, int], ...]]] = {
    "causal": ((1, 1, 1, 1, 2, 0), (), 0, ((2, 0), (1, 1), (1, 1))),
    "one-side": ((0, 1), (), 1, ((1, 1), (1, 1), (1, 2))),
    "rows": ((0, 0, 3, 2), ("constant", 0.0), (1, 0, 2), ((1, 1), (3, 2), (2, 2))),
    "ones": ((1, 1), ("constant", 1.0), 0, ((0, 0), (0, 0), (0, 0))),
    "replicated": ((1, 1, 1, 1, 2, 0), ("replicate",), 0, ((0, 0), (0, 0), (0, 0))),
    "cropped": ((-1, 1), (), 0, ((0, 0), (0, 0), (0, 0))),
    "channels": ((0, 0, 0, 0, 0, 0, 2, 0), (), 0, ((0, 0), (0, 0), (0, 0))),
}


@pytest.mark.filterwarnings("ignore:(Attempted to insert a get_attr Node|Node lifted_tensor)")  # old torch.export's own
@pytest.mark.parametrize("name", PADDED)
def test_zeros_around_the_input_are_padding(name: str) -> None:
    sizes, others, own, expected = PADDED[name]
    x, w = of(2, 2 if name == "channels" else 4, 5, 6, 7), of(6, 4, 3, 3, 3)
    found = fused(lambda x, w: functional.conv3d(functional.pad(x, sizes, *others), w, padding=own).relu(), x, w)
    (region,) = found.regions
    assert formulas(found) == ["D = relu(acc)"]
    assert region.program.request.convolution is not None
    assert region.program.request.convolution.padding == expected


def test_scaled_product() -> None:
    a, b = of(32, 32).to(torch.float8_e4m3fn), of(48, 32).to(torch.float8_e4m3fn).t()

    def run(a: torch.Tensor, b: torch.Tensor, s: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return torch._scaled_mm(a, b, s, t, out_dtype=BF16).relu()

    made = fuse(Function(run).eval(), (a, b, torch.tensor(0.5), torch.tensor(0.25)))
    assert formulas(fusion(made)) == ["D = relu(acc*x0*x1)"]
    got = made(a, b, torch.tensor(0.5), torch.tensor(0.25))
    expected = torch.relu(a.double() @ b.double() * 0.125).to(BF16)
    compare(expected, got, BF16)


@pytest.mark.parametrize(
    ("of_a", "of_b", "expected"),
    [
        ((32, 3), (3, 2), "A = x1*A; B = x2*B; D = relu(acc + x0)"),
        ((32, 3), (3, 200), "A = x1*A; B = x2*B; D = relu(acc + x0)"),
        ((1, 3), (3, 200), "A = x1*A; B = x2*B; D = relu(acc + x0)"),
    ],
)
def test_product_with_scales_of_blocks(of_a: tuple[int, int], of_b: tuple[int, int], expected: str) -> None:
    a, b = of(32, 304).to(torch.float8_e4m3fn), of(200, 304).to(torch.float8_e4m3fn).t()
    s, t, bias = of(*of_a).abs().float(), of(*of_b).abs().float(), of(200).to(BF16)

    def run(a: torch.Tensor, b: torch.Tensor, s: torch.Tensor, t: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch._scaled_mm(a, b, s, t, bias, out_dtype=BF16).relu()

    def spread(scale: torch.Tensor, sizes: tuple[int, int]) -> torch.Tensor:
        for dim, size in enumerate(sizes):
            if scale.shape[dim] != size:
                scale = scale.repeat_interleave(128, dim).narrow(dim, 0, size)
        return scale.double()

    found = fusion(fuse(Function(run).eval(), (a, b, s, t, bias)))
    assert formulas(found) == [expected]
    exact = (a.double() * spread(s, (32, 304))) @ (b.double() * spread(t, (304, 200))) + bias.double()
    (region,) = found.regions
    compare(exact.relu().to(BF16), region.program(a, b, x0=bias, x1=s, x2=t), BF16)


def test_two_products_meet() -> None:
    """The product of gate and value is computed with one of them, which reads the other."""
    gate, up, x = of(8, 5), of(8, 5) + 1, of(3, 5)
    found = fused(lambda x, g, u: functional.silu(functional.linear(x, g)) * functional.linear(x, u), x, gate, up)
    assert formulas(found) == ["D = silu(acc)*x0"]
    assert [each.code for each in found.reasons] == ["E1014", "E1013"]


def test_other_readers_make_outputs() -> None:
    found = fused(lambda a, b: (x := a @ b, y := x.relu(), torch.softmax(y, -1)), A, B)
    assert formulas(found) == ["D = relu(acc); D1 = acc"]


def test_statistics_are_outputs() -> None:
    """Operators that need the statistics for each element run after the kernel."""
    found = fused(lambda a, b: (x := a @ b) * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6), A, B)
    assert formulas(found) == ["D = acc; D1 = rsqrt(mean[n](acc**2) + 1e-06)"]
    assert [each.code for each in found.reasons] == ["E1009"]


def test_autocast() -> None:
    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=BF16):
            return functional.gelu(functional.linear(x, w))

    x, w = of(6, 5), of(8, 5)
    made = fuse(Function(run).eval(), (x, w))
    assert formulas(fusion(made)) == ["D = gelu(acc)"]
    compare(run(x, w), made(x, w), BF16)


def test_dynamic_shapes() -> None:
    """A graph for many sizes: views are written with the sizes of the call's tensors."""
    batch = torch.export.Dim("batch", min=2, max=64)

    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return functional.gelu(functional.linear(x, w)).reshape(-1, 7).mul(2).relu()

    made = fuse(Function(run).eval(), (of(4, 3, 5), of(7, 5)), dynamic_shapes=(({0: batch}, None),))
    assert formulas(fusion(made)) == ["D = relu(gelu(acc)*2)"]
    for count in (2, 9):
        compare(run(of(count, 3, 5), of(7, 5)), made(of(count, 3, 5), of(7, 5)))


@pytest.mark.skipif(
    (2, 9) <= TorchVersion(torch.__version__) < (2, 10),  # type: ignore[operator]
    reason="torch 2.9's export guards *args by a name it lacks",
)
def test_dynamic_batches_of_two_dimensions() -> None:
    batch = torch.export.Dim("batch", min=2, max=64)
    run = CASES["einsum"][0]
    made = fuse(Function(run).eval(), CASES["einsum"][1], dynamic_shapes=(({0: batch}, {0: batch}, None),))
    assert len(fusion(made).regions) == 1
    inputs = of(7, 3, 6, 5), of(7, 3, 8, 5), of(1, 3, 6, 8)
    compare(run(*inputs), made(*inputs))


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
def test_batch_norm(dtype: torch.dtype) -> None:
    """Its factors are folded into two vectors of float32; in fewer bits its result is rounded, as PyTorch's is."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(4, 6, 3), torch.nn.BatchNorm2d(6), torch.nn.ReLU()).eval()
    torch.nn.init.uniform_(model[1].running_mean)
    torch.nn.init.uniform_(model[1].running_var, 0.5, 2)
    rounded = {F32: "{}", F16: "f16({})", BF16: "bf16({})"}[dtype].format("(acc + x0)*x1 + x2")
    found = fused(model.to(dtype), of(2, 4, 6, 6, dtype=dtype))
    assert formulas(found) == [f"D = relu({rounded})"]


#: A product with its operator's boundaries, and the formula of the region.
EAGER: dict[str, tuple[Callable[..., Any], str]] = {
    "linear": (lambda a, b, c, d: torch.relu(functional.linear(a, b.t(), c)) * 0.71, "D = relu(bf16(acc + x0))*0.71"),
    "mm and add": (lambda a, b, c, d: torch.relu((a @ b + c) * 1.37), "D = relu((bf16(acc) + x0)*1.37)"),
    "addmm": (lambda a, b, c, d: torch.addmm(d, a, b).relu(), "D = relu(bf16(acc*1 + x0))"),
    "addmm with numbers": (
        lambda a, b, c, d: torch.addmm(d, a, b, alpha=0.5, beta=0.25).relu(),
        "D = relu(bf16(acc*0.5 + x0*0.25))",
    ),
    "add with alpha": (lambda a, b, c, d: torch.add(a @ b, d, alpha=0.5), "D = fma(x0, 0.5, bf16(acc))"),
    "sub with alpha": (lambda a, b, c, d: torch.sub(a @ b, d, alpha=0.5), "D = fma(x0, -0.5, bf16(acc))"),
    "addcmul": (
        lambda a, b, c, d: torch.addcmul(d, a @ b, d, value=0.5),
        "v1 = f32(x0); D = fma(f32(bf16(acc))*v1, 0.5, v1)",
    ),
    "a tensor of one element": (
        lambda a, b, c, d: (a @ b) / d[0, 0],
        "D = f32(bf16(acc))/f32(x0)",
    ),
}


@pytest.mark.parametrize("name", EAGER)
def test_eager_rounding_on_request(name: str) -> None:
    """With numerics="eager" the bits are eager's where the product is exact."""
    run, formula = EAGER[name]
    a, b, c, d = (torch.randint(-4, 4, shape).to(BF16) for shape in ((6, 5), (5, 8), (8,), (6, 8)))
    d[0, 0] = 3
    made = fuse(Function(run).eval(), (a, b, c, d), numerics="eager")
    found = formulas(fusion(made))[0]
    assert found in (formula, formula.replace("D = ", "D = bf16(") + ")")
    assert torch.equal(made(a, b, c, d), run(a, b, c, d))


def test_batch_norm_as_eager() -> None:
    """PyTorch's CUDA kernel multiplies by the weight first."""
    model = torch.nn.Sequential(torch.nn.Conv2d(4, 6, 3), torch.nn.BatchNorm2d(6), torch.nn.ReLU()).eval().to(BF16)
    torch.nn.init.uniform_(model[1].running_mean)
    found = fused(model, of(2, 4, 6, 6, dtype=BF16), numerics="eager")
    assert formulas(found) == ["D = relu(bf16(fma(x2*(f32(bf16(bf16(acc) + x0)) - x1), x3, x4)))"]
