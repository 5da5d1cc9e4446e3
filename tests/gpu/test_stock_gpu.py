"""Stock epilogues on a GPU: they agree with visitor trees, and both with the float64 oracle."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import evt
from evt.compilation import build
from evt.diagnostics import Source
from evt.ir.dtype import BF16, BY_NAME, E4M3
from evt.program import Program
from evt.reference.compare import relative_error, tolerance
from evt.request import typed_graph
from evt.runtime.arguments import bind
from evt.runtime.kernels import device_target, plan_kernels
from evt.runtime.plans import kernel_sources
from tests.support.one_config import general_config

pytestmark = pytest.mark.gpu

#: Formulas by the generations that have a class for them.
FORMULAS = {
    "bare": ("D = acc", "2x 3x"),
    "scale": ("D = alpha*acc", "2x 3x"),
    "source": ("D = relu(alpha*acc - 0.5*C)", "2x 3x"),
    "lincomb": ("D = alpha*acc + beta*C", "2x"),
    "bias-gelu": ("D = gelu(acc + bias)", "2x 3x"),
    "bias-f32": ("in bias: f32[n]; D = hardswish(alpha*acc + bias)", "2x 3x"),
    "bias-clamp": ("D = clamp(acc + bias, -0.5, 0.75)", "2x 3x"),
    "bias-source": ("D = relu(acc + bias + C)", "2x 3x"),
    "bias-source-leaky": ("in bias: f32[n]; D = leaky_relu(acc + bias + 2*C, 0.2)", "3x"),
    "source-bias": ("D = leaky_relu(acc + 2*C + bias, 0.2)", "2x"),
    "residual": ("D = relu(acc + bias) + beta*C", "2x"),
    "gate": ("D = gelu(alpha*acc + bias) * C", "2x"),
    "two-residuals": ("D = relu(relu(acc + bias) + C + R)", "2x"),
    "gate-residual": ("D = relu(acc)*C + R", "2x"),
    "stored": ("out D, Z: f32[m, n]; Z = acc + 0.5*C + bias; D = relu(Z)", "2x"),
    "stored-aux": ("out D, Z: f32[m, n]; Z = acc + bias + 0.5*C; D = gelu(Z)", "3x"),
    "row-bias": ("in b: f32[m]; D = relu(acc + b + C)", "3x"),
    "column-major": ("in b[m]; out D[n, m]; D = relu(acc + b)", "2x 3x"),
    "row-factors": ("in s: f32[m], t: f32[m], b[m]; D = relu(s*acc + b + t*C)", "3x"),
    "column-factors": ("in s: f32[n], t: f32[n]; D = gelu(s*acc + bias + t*C)", "3x"),
    "column-residual": ("in s: f32[n], t: f32[n]; D = relu(s*acc + bias) + t*C", "3x"),
}
BOUNDS = {
    **{name: tolerance(BY_NAME[name], operand=BY_NAME[name]) for name in ("f16", "bf16", "f32")},
    "e4m3": tolerance(BF16, operand=E4M3),
}
#: Stock and visitors differ by the order of two roundings in f32, which may tip the result's own.
AGREEMENT = {"f16": 4e-4, "bf16": 3e-3, "f32": 1e-6, "e4m3": 3e-3}
#: (l or None, m, n, k).
SIZES = {"aligned": (None, 333, 264, 144), "batched": (3, 136, 208, 80), "odd": (None, 201, 157, 83)}


def cases():
    for (name, (_, families)), dtype, size in itertools.product(FORMULAS.items(), BOUNDS, SIZES):
        for family in families.split():
            if (size == "odd" and family == "3x") or (size != "aligned" and dtype == "e4m3"):
                continue
            if name == "column-residual" and dtype == "f32":
                continue  # computed as the transposed problem, whose columns are rows
            yield pytest.param(name, family, dtype, size, id=f"{name}-{family}-{dtype}-{size}")


def program(name: str, kind: str, family: str, dtype: str) -> evt.Program:
    op = (evt.linear if dtype == "e4m3" else evt.gemm)(FORMULAS[name][0], route=f"{kind}-{family}")
    return general_config(op, dtype, dtype) if family == "3x" else op


def tensors(op: evt.Program, dtype: str, size: str):
    generator = torch.Generator("cuda").manual_seed(7)
    batch, m, n, k = SIZES[size]
    if op.request.dag.output["D"].modes[-1] == "m" and size != "odd":
        m -= m % 8  # D is contiguous along m
    lead = () if batch is None else (batch,)
    element = {"e4m3": torch.float8_e4m3fn, "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}[dtype]

    def random(*shape):
        return torch.randn(shape, device="cuda", generator=generator)

    a, b = (random(*shape) / k**0.25 for shape in ((*lead, m, k), (n, k) if dtype == "e4m3" else (*lead, k, n)))
    extents = {"m": m, "n": n}
    inputs: dict[str, object] = {}
    for value in typed_graph(op.request, dtype, dtype).inputs:
        shape = tuple(extents[mode] for mode in value.modes)
        made = random(*(lead if value.batchable and shape else ()), *shape)
        inputs[value.name] = made.to(getattr(torch, value.dtype.torch)) if shape else 1.25
    return a.to(element), b.to(element), inputs


@pytest.fixture(scope="session", autouse=True)
def kernels(request) -> None:
    """Build the kernels of all selected tests of this file in one go."""
    sources = []
    for item in request.session.items:
        if item.function is not test_stock_and_visitors_agree:
            continue
        params = item.callspec.params
        for kind in ("stock", "evt"):
            op = program(params["name"], kind, params["family"], params["dtype"])
            a, b, inputs = tensors(op, params["dtype"], params["size"])
            sources += kernel_sources(
                plan_kernels(op.request, bind(op.request, a, b, inputs, {}), device_target(0))[:1]
            )
    build(list(dict.fromkeys(sources)))


def outputs(op: evt.Program, result) -> list[Any]:
    return [result] if len(op.outputs) == 1 else list(result)


@pytest.mark.parametrize(("name", "family", "dtype", "size"), list(cases()))
def test_stock_and_visitors_agree(name, family, dtype, size, record) -> None:
    stock, visitors = (program(name, kind, family, dtype) for kind in ("stock", "evt"))
    a, b, inputs = tensors(stock, dtype, size)
    fresh = outputs(stock, stock(a, b, **inputs))
    buffers = [torch.full_like(each, float("nan")) for each in fresh]
    stock(a, b, out=tuple(buffers) if len(buffers) > 1 else buffers[0], **inputs)
    assert all(torch.equal(one, two) for one, two in zip(fresh, buffers, strict=True))
    want = outputs(stock, stock.reference(a, b, float64=True, **inputs))
    other = outputs(visitors, visitors(a, b, **inputs))
    errors = [relative_error(*pair) for pair in zip(fresh, want, strict=True)]
    apart = [relative_error(*pair) for pair in zip(fresh, other, strict=True)]
    assert max(errors) <= BOUNDS[dtype], errors
    assert max(apart) <= AGREEMENT[dtype], apart
    record((f"stock {name}", family, dtype, f"{size} {SIZES[size]}", " ".join(f"{each:.1e}" for each in errors)))


@pytest.mark.parametrize("family", ["2x", "3x"])
def test_nan_and_infinities_pass(family) -> None:
    op = evt.gemm("D = relu(acc + bias + C)", route=f"stock-{family}")
    a, b, inputs = tensors(op, "f16", "aligned")
    inputs["C"][0, :4] = torch.tensor([float("nan"), float("inf"), float("-inf"), 0.0])
    inputs["bias"][9] = float("nan")
    got, want = op(a, b, **inputs), op.reference(a, b, **inputs)
    assert torch.equal(got.isnan(), want.isnan())
    assert got[0, :3].tolist()[1:] == [float("inf"), 0.0]


def test_a_factor_of_zero_does_not_hide_nan() -> None:
    op = evt.gemm("D = alpha*acc + beta*C", route="stock-2x")
    a, b, inputs = tensors(op, "f16", "aligned")
    inputs["C"][5, 6] = float("nan")
    assert op(a, b, **{**inputs, "beta": 0.0}).isnan().nonzero().tolist() == [[5, 6]]


def test_scalars_are_read_on_the_device() -> None:
    for family, formula in (("2x", "D = alpha*acc + beta*C"), ("3x", "D = alpha*acc + C")):
        op = evt.gemm(formula, route=f"stock-{family}")
        a, b, inputs = tensors(op, "bf16", "aligned")
        numbers = {name: 0.5 for name in inputs if name != "C"}
        pointers = {name: torch.tensor([0.5], device="cuda") for name in numbers}
        assert torch.equal(op(a, b, **{**inputs, **numbers}), op(a, b, **{**inputs, **pointers}))


def test_a_residual_is_overwritten_in_place() -> None:
    for family in ("2x", "3x"):
        op = evt.gemm("D = relu(acc + bias + C)", route=f"stock-{family}")
        a, b, inputs = tensors(op, "f16", "aligned")
        want = op(a, b, **inputs)
        assert op(a, b, **inputs, out=inputs["C"]) is inputs["C"]
        assert torch.equal(inputs["C"], want)


#: (operation, shapes of A and B, geometry) of stock epilogues that visitors lack, or compute otherwise.
CONVOLUTIONS = {
    "residual": ("conv2d", (2, 64, 13, 11), (72, 64, 3, 3), {"padding": 1}, "D = relu(acc + bias) + C"),
    "stored": ("conv2d", (2, 64, 13, 11), (72, 64, 3, 3), {}, "out D, Z; Z = acc + C + bias; D = relu(Z)"),
    "volume": ("conv3d", (2, 32, 5, 6, 7), (64, 32, 3, 3, 3), {"padding": 1}, "D = relu(acc + bias + C)"),
    "groups": ("conv2d", (2, 64, 13, 11), (128, 32, 3, 3), {"padding": 1, "groups": 2}, "D = gelu(acc + bias)"),
    "dgrad": ("conv2d_dgrad", (2, 64, 13, 11), (64, 40, 3, 3), {"padding": 1}, "D = relu(alpha*acc + 0.5*C)"),
    "dgrad-stride": (
        *("conv2d_dgrad", (2, 64, 7, 6), (64, 40, 3, 3)),
        *({"padding": 1, "stride": 2, "output_padding": (0, 1)}, "D = relu(acc + bias)"),
    ),
    "dgrad-stride-source": (
        *("conv2d_dgrad", (2, 64, 5, 6), (64, 40, 5, 5), {"padding": 2, "stride": (3, 2)}, "D = acc + C"),
    ),
    "dgrad-gaps": ("conv2d_dgrad", (2, 64, 7, 6), (64, 32, 1, 1), {"stride": 2}, "D = relu(acc + bias)"),
    "volume-dgrad-stride": (
        *("conv3d_dgrad", (1, 32, 4, 5, 6), (32, 64, 3, 3, 3)),
        *({"padding": 1, "stride": 2}, "D = relu(acc + bias)"),
    ),
    "wgrad": (
        *("conv2d_wgrad", (4, 64, 13, 11), (4, 24, 13, 11)),
        *({"padding": 1, "kernel_size": 3}, "D = alpha*acc + 0.5*C"),
    ),
}


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name, dtype, record):
    operation, a_shape, b_shape, geometry, formula = CONVOLUTIONS[name]
    op = Program(Source(formula), operation, route="conv-stock-2x", **geometry)
    generator = torch.Generator("cuda").manual_seed(3)
    element = getattr(torch, {"f16": "float16", "bf16": "bfloat16"}[dtype])

    def random(shape, scale=1.0):
        made = torch.randn(shape, device="cuda", generator=generator) * scale
        return evt.channels_last(made.to(element)) if len(shape) > 2 else made.to(element)

    a, b = random(a_shape), random(b_shape, 0.05)
    shape = Program(Source("D = acc"), operation, **geometry).reference(a, b).shape
    channels = shape[1]
    made = {"bias": lambda: random((channels,)), "C": lambda: random(tuple(shape)), "alpha": lambda: 1.5}
    inputs = {each: made[each]() for each in op.inputs}
    fresh = outputs(op, op(a, b, **inputs))
    want = outputs(op, op.reference(a, b, float64=True, **inputs))
    errors = [relative_error(*pair) for pair in zip(fresh, want, strict=True)]
    assert max(errors) <= BOUNDS[dtype], errors
    record((f"stock conv {name}", "2x", dtype, str(a_shape), " ".join(f"{each:.1e}" for each in errors)))
