"""Every configuration that is built for some program, at sizes that are no multiples of its tiles."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

import pytest
import torch

import evt
from evt.compilation import build
from evt.diagnostics import Source
from evt.ir.dtype import BF16, BY_NAME
from evt.plan import plan, survey
from evt.reference.compare import error, tolerance
from evt.request import typed_graph
from evt.runtime.arguments import bind
from evt.runtime.kernels import call_problem, device_target
from evt.runtime.plans import kernel_sources

pytestmark = pytest.mark.gpu

LIGHT = "D = relu(acc + bias + residual)"
STATISTICS = "out D, Z, mean: f32[n]\nZ = acc + bias\nD = hardswish(Z)\nmean = sum[m](Z)"
REDUCED = """
    out D, rows: f32[m], columns: f32[n], amax: f32, mask: b1[m, n]
    D = acc + bias
    rows = sum[n](D)
    columns = max[m](D)
    amax = max[m, n](abs(D))
    mask = D > 0
"""
PAIRED = """
    out D: bf16[m, n/2], scales: f32[m, n/32]
    D = silu(even(acc, 32)) * odd(acc, 32)
    scales = max[n%32](abs(acc))
"""


@dataclass(frozen=True)
class Case:
    """A program and the shapes of A and B, in PyTorch's order."""

    text: str
    operation: str
    a: tuple[int, ...]
    b: tuple[int, ...]
    dtype: str = "f16"
    keywords: dict[str, object] = field(default_factory=dict)


def convolution(text: str, channels: int, filters: int, size: int = 3, dtype: str = "f16", **keywords: object) -> Case:
    pixels = (3, channels, 13 + size, 15 + size)
    return Case(text, "conv2d", pixels, (filters, channels, size, size), dtype, {"padding": size // 2, **keywords})


CUTLASS = {"route": "conv-evt-3x"}
CASES = {
    # By the width of tiles that the filters fill best, and the depth that the channels fill best.
    **{
        f"conv-{filters}-of-{channels}": convolution(LIGHT, channels, filters)
        for filters, channels in ((56, 64), (88, 96), (120, 64), (152, 40), (184, 192), (504, 64))
    },
    **{
        f"conv-{filters}-of-{channels}-statistics": convolution(STATISTICS, channels, filters)
        for filters, channels in ((64, 64), (96, 96), (128, 64), (160, 64), (192, 64), (512, 64))
    },
    "conv-heavy": convolution("D = gelu(acc + bias)", 64, 56),
    "conv-bf16": convolution(LIGHT, 96, 88, 5, "bf16", stride=2),
    "conv-tf32": convolution(LIGHT, 24, 88, 3, "f32"),
    "conv-e4m3": convolution("D = relu(acc + bias)", 48, 184, 3, "e4m3"),
    "conv-i8": convolution("D = relu(acc + bias)", 96, 88, 3, "i8"),
    # More tiles than there are multiprocessors: a persistent thread block has several, and two may be under way.
    **{
        f"conv-many-{dtype}": Case(text, "conv2d", (9, 48, 61, 57), (248, 48, 3, 3), dtype, {"padding": 1, **CUTLASS})
        for dtype, text in (
            ("f16", STATISTICS),
            ("bf16", LIGHT),
            ("f32", LIGHT),
            ("e4m3", "D = relu(acc + bias)"),
            ("i8", "D = relu(acc + bias)"),
        )
    },
    "conv-many-192": Case(LIGHT, "conv2d", (17, 48, 61, 57), (184, 48, 3, 3), "f16", {"padding": 1, **CUTLASS}),
    "conv-many-dgrad": Case(
        "D = alpha*acc", "conv2d_dgrad", (9, 48, 61, 57), (48, 248, 3, 3), "f16", {"padding": 1, **CUTLASS}
    ),
    "conv-many-slices": Case(LIGHT, "conv3d", (3, 48, 9, 31, 33), (248, 48, 3, 3, 3), "f16", {"padding": 1, **CUTLASS}),
    # Few channels: a row of the filter is one tap of a padded copy.
    **{
        f"few-{channels}-{size}-{stride}": convolution(LIGHT, channels, 56, size, stride=stride)
        for channels, size, stride in ((1, 3, 1), (2, 5, 3), (3, 7, 2), (3, 3, 1), (4, 4, 4), (5, 3, 2), (8, 3, 1))
    },
    "few-asymmetric": convolution(LIGHT, 3, 56, 7, stride=(1, 2), padding=((1, 2), (0, 5)), dilation=(2, 1)),
    "few-many": Case(LIGHT, "conv2d", (9, 3, 61, 57), (120, 3, 7, 7), "f16", {"padding": 3, "route": "conv-padded-3x"}),
    "few-row": Case(LIGHT, "conv1d", (5, 3, 77), (72, 3, 9), "f16", {"padding": 4, "stride": 2}),
    "few-wide": convolution(STATISTICS, 3, 136, 11, stride=4, padding=2),
    "few-bf16": convolution("D = silu(acc + bias)", 3, 64, 7, "bf16", stride=2),
    "few-tf32": convolution(LIGHT, 3, 40, 3, "f32", stride=2),
    "few-e5m2": convolution("D = relu(acc + bias)", 3, 48, 3, "e5m2", stride=2),
    "few-i8": convolution("D = relu(acc + bias)", 3, 48, 5, "i8"),
    "padded-3x": convolution(STATISTICS, 65, 56, 3, stride=2),
    "padded-3x-slices": Case(LIGHT, "conv3d", (2, 3, 7, 9, 8), (64, 3, 3, 2, 3), "f16", {"padding": 1}),
    "padded-3x-dilated": convolution(LIGHT, 3, 56, 3, dilation=2, padding=2),
    "padded-2x": convolution(LIGHT, 65, 56, 3, route="conv-evt-2x"),
    "padded-2x-slices": Case(
        LIGHT, "conv3d", (2, 3, 7, 9, 8), (64, 3, 3, 2, 3), "f16", {"padding": 1, "route": "conv-evt-2x"}
    ),
    "padded-2x-stock": convolution("D = relu(acc + bias)", 21, 56, 3, "bf16", route="conv-stock-2x"),
    "padded-2x-i8": convolution("D = relu(acc + bias)", 7, 56, 3, "i8", route="conv-evt-2x"),
    "few-2x": convolution(LIGHT, 3, 56, 7, stride=2, route="conv-evt-2x"),
    "few-2x-5": convolution(LIGHT, 5, 136, 3, route="conv-evt-2x"),
    "few-2x-stock": convolution("D = relu(alpha*acc)", 3, 56, 7, stride=2, route="conv-stock-2x"),
    # Convolutions that are matrix products.
    "1x1-few-columns": convolution(LIGHT, 256, 56, 1),
    "1x1-shallow": convolution(LIGHT, 64, 264, 1),
    "1x1": convolution(LIGHT, 512, 136, 1),
    # Matrix products.
    **{
        f"gemm-{name}-{dtype}": Case(text, "linear", (333, 144), (320, 144), dtype)
        for name, text in (("light", LIGHT), ("reduced", REDUCED), ("paired", PAIRED))
        for dtype in ("f16", "f32", "e4m3", "i8")
    },
    "gemm-one-row": Case(LIGHT, "linear", (1, 1024), (520, 1024), "bf16"),
    "gemm-batched": Case(LIGHT, "gemm", (3, 200, 72), (3, 72, 136), "bf16"),
}
BOUNDS = {
    **{name: tolerance(BY_NAME[name]) for name in ("f16", "bf16", "f32")},
    **{name: tolerance(BF16, operand=BY_NAME[name]) for name in ("e4m3", "e5m2", "i8")},
}


def random(shape: tuple[int, ...], dtype: str, scale: float = 1.0, seed: int = 0):
    """Return normal numbers, as tensor cores read them, or small integers."""
    generator = torch.Generator("cuda").manual_seed(sum(shape) + seed)
    if dtype == "i8":
        return torch.randint(-9, 10, shape, device="cuda", generator=generator).to(torch.int8)
    made = torch.randn(shape, device="cuda", generator=generator, dtype=torch.float64) * scale
    if dtype == "f32":
        return (made.float().view(torch.int32) & ~0x1FFF).view(torch.float32)
    return made.to(getattr(torch, BY_NAME[dtype].torch))


def operands(name: str):
    case = CASES[name]
    k = case.a[-1] if "conv" not in case.operation else case.a[1] * 9
    a, b = random(case.a, case.dtype), random(case.b, case.dtype, k**-0.5, 1)
    return (evt.channels_last(a), evt.channels_last(b)) if "conv" in case.operation else (a, b)


def program(name: str, config: str | None = None) -> evt.Program:
    case = CASES[name]
    return evt.Program(Source(case.text), case.operation, config=config, **case.keywords)


def inputs_of(op: evt.Program, name: str, a, b) -> dict[str, object]:
    found: dict[str, object] = {}
    dtype = CASES[name].dtype
    for value in typed_graph(op.request, dtype, dtype).inputs:
        if value.name == "alpha":
            found["alpha"] = 1.5
        elif value.name == "bias":
            columns = b.shape[0] if op.request.operation != "gemm" else b.shape[-1]
            found["bias"] = random((columns,), value.dtype.name, seed=2)
        elif op.request.convolution is not None:
            problem = op.request.convolution.problem(a.shape, b.shape)
            shape = (problem.images, problem.filters, *problem.results)
            found[value.name] = evt.channels_last(random(shape, value.dtype.name, seed=3))
        else:
            rows, columns = a.shape[:-1], b.shape[0] if op.request.operation == "linear" else b.shape[-1]
            found[value.name] = random((*rows, columns), value.dtype.name, seed=3)
    return found


@cache
def configurations(name: str) -> tuple[str, ...]:
    """Return the families in which a case's kernel is built on the machine's GPU."""
    op = program(name)
    a, b = operands(name)
    problem = call_problem(op.request, bind(op.request, a, b, inputs_of(op, name, a, b), {}), device_target(0))
    return tuple(config.name for config in survey(problem, op.request.settings.route).chosen.default_configs)


@pytest.fixture(scope="session")
def built(request) -> None:
    """All kernels of the selected tests, built at once."""
    sources = []
    for item in request.session.items:
        if item.function is test_configurations:
            name = item.callspec.params["name"]
            op = program(name)
            a, b = operands(name)
            problem = call_problem(op.request, bind(op.request, a, b, inputs_of(op, name, a, b), {}), device_target(0))
            route = op.request.settings.route
            sources += kernel_sources([plan(problem, route, config) for config in configurations(name)])
    build(list(dict.fromkeys(sources)))


@pytest.mark.parametrize("name", CASES)
def test_configurations(name, record, built) -> None:
    case = CASES[name]
    a, b = operands(name)
    for config in configurations(name):
        op = program(name, config)
        inputs = inputs_of(op, name, a, b)
        fresh = op(a, b, **inputs)
        fresh = [fresh] if len(op.outputs) == 1 else list(fresh)
        want = op.reference(a, b, float64=True, **inputs)
        want = [want] if len(op.outputs) == 1 else list(want)
        buffers = [torch.full_like(each, float("nan") if each.dtype.is_floating_point else 0x55) for each in fresh]
        for _ in range(2):
            op(a, b, out=tuple(buffers) if len(buffers) > 1 else buffers[0], **inputs)
            for buffer, single in zip(buffers, fresh, strict=True):
                assert torch.equal(buffer, single)
        outputs = typed_graph(op.request, case.dtype, case.dtype).outputs
        errors = [error(got, right, output.dtype) for got, right, output in zip(buffers, want, outputs, strict=True)]
        record((name, config, case.dtype, "", " ".join(f"{each:.1e}" for each in errors)))
        bound = BOUNDS[case.dtype] if "paired" not in name else tolerance(BF16)
        assert max(errors) <= bound, (config, errors)


def test_zeros_of_a_padded_copy_meet_no_infinity() -> None:
    """Memory behind a window's taps, or a pixel's channels, is not multiplied, NaN included."""
    x = evt.channels_last(torch.randn(2, 3, 16, 16, device="cuda").half())
    x[:, :, :, 8] = float("inf")
    w = evt.channels_last(torch.randn(16, 3, 3, 3, device="cuda").half())
    got = evt.conv2d("D = acc", padding=1, route="evt")(x, w)
    want = torch.nn.functional.conv2d(x.double(), w.double(), padding=1)
    assert torch.equal(got.isfinite(), want.isfinite())
