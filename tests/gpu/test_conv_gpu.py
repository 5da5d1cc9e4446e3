"""Convolutions on a GPU: thirty problems, six epilogues, three types, by every route, against conv2d in float64."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import pytest
import torch

import evt
from evt.compilation import build
from evt.diagnostics import Source
from evt.ir.dtype import BF16, BY_NAME
from evt.reference.compare import relative_error, tolerance
from evt.runtime.arguments import bind
from evt.runtime.kernels import device_target, plan_kernels
from evt.runtime.plans import kernel_sources
from tests.support.one_config import with_config

pytestmark = pytest.mark.gpu

#: (N, C, H, W), (K, R, S), geometry.
PROBLEMS = {
    "3x3": ((2, 64, 14, 14), (64, 3, 3), {"padding": 1}),
    "3x3-valid": ((2, 64, 14, 14), (72, 3, 3), {}),
    "3x3-stride": ((3, 32, 15, 13), (64, 3, 3), {"padding": 1, "stride": 2}),
    "3x3-strides": ((2, 32, 15, 21), (40, 3, 3), {"padding": 1, "stride": (2, 3)}),
    "3x3-dilated": ((2, 32, 17, 19), (48, 3, 3), {"padding": 2, "dilation": 2}),
    "3x3-dilations": ((2, 32, 17, 19), (48, 3, 3), {"padding": (1, 3), "dilation": (1, 3)}),
    "3x3-same": ((2, 32, 11, 9), (64, 3, 3), {"padding": "same"}),
    "2x2-same": ((2, 32, 11, 9), (64, 2, 2), {"padding": "same"}),
    "asymmetric": ((2, 64, 12, 10), (64, 3, 3), {"padding": ((0, 1), (2, 0))}),
    "asymmetric-stride": ((2, 64, 12, 10), (64, 3, 3), {"padding": ((0, 1), (0, 1)), "stride": 2}),
    "non-square": ((2, 48, 31, 7), (56, 3, 3), {"padding": 1}),
    "1x3": ((2, 64, 9, 17), (64, 1, 3), {"padding": (0, 1)}),
    "3x1": ((2, 64, 9, 17), (64, 3, 1), {"padding": (1, 0), "stride": (2, 1)}),
    "5x5": ((2, 32, 13, 13), (64, 5, 5), {"padding": 2}),
    "5x5-stride": ((2, 32, 13, 13), (64, 5, 5), {"padding": 2, "stride": 3}),
    "7x7": ((1, 16, 19, 17), (64, 7, 7), {"padding": 3}),
    "7x7-stem": ((2, 8, 37, 33), (64, 7, 7), {"padding": 3, "stride": 2}),
    "1x1": ((3, 64, 9, 11), (128, 1, 1), {}),
    "1x1-narrow": ((3, 128, 9, 11), (24, 1, 1), {}),
    "1x1-stride": ((3, 64, 9, 11), (64, 1, 1), {"stride": 2}),
    "1x1-padded": ((2, 64, 9, 11), (64, 1, 1), {"padding": 1}),
    "one-image": ((1, 64, 17, 23), (64, 3, 3), {"padding": 1}),
    "one-pixel": ((5, 64, 3, 3), (64, 3, 3), {}),
    "wide": ((1, 256, 8, 8), (512, 3, 3), {"padding": 1}),
    "C1": ((2, 1, 29, 31), (32, 3, 3), {"padding": 1}),
    "C3": ((2, 3, 33, 35), (64, 7, 7), {"padding": 3, "stride": 2}),
    "C4": ((2, 4, 33, 35), (64, 3, 3), {"padding": 1}),
    "C8": ((2, 8, 21, 19), (64, 3, 3), {"padding": 1}),
    "K-odd": ((2, 32, 13, 11), (27, 3, 3), {"padding": 1}),
    "K-two": ((2, 32, 13, 11), (30, 3, 3), {"padding": 1}),
}
EPILOGUES = {
    "relu-add": "D = relu(acc + bias) + residual",
    "add-relu": "D = relu(acc + bias + residual)",
    "lincomb": "D = alpha*acc + beta*residual",
    "silu": "D = silu(s[n]*acc + bias)",
    "gelu": "D = gelu(acc + bias)",
    "stats": "out D, Z, mean: f32[n]\nZ = acc + bias\nD = hardswish(Z)\nmean = sum[m](Z)",
}
ROUTES = ("best", "own", "conv-evt-2x", "stock")
DTYPES = ("f16", "bf16", "f32")
BOUNDS = {
    **{name: tolerance(BY_NAME[name]) for name in DTYPES},
    **{name: tolerance(BF16, operand=BY_NAME[name]) for name in ("e4m3", "e5m2", "i8")},
}


@dataclass(frozen=True)
class Operator:
    """A gradient of a convolution, or one of another rank: its operation, the shapes of A and B, and its keywords."""

    operation: str
    a: tuple[int, ...]
    b: tuple[int, ...]
    keywords: dict[str, object]
    dtype: str = "f16"
    route: str | None = None


OPERATORS = {
    "conv1d": Operator("conv1d", (3, 64, 101), (72, 64, 5), {"padding": 2, "stride": 2}),
    "conv3d": Operator("conv3d", (2, 32, 7, 9, 8), (64, 32, 3, 3, 3), {"padding": 1}),
    "conv3d-2x": Operator("conv3d", (2, 32, 7, 9, 8), (64, 32, 3, 2, 3), {"stride": (1, 2, 2)}, "bf16", "conv-evt-2x"),
    "dgrad": Operator("conv2d_dgrad", (2, 64, 13, 11), (64, 32, 3, 3), {"padding": 1}),
    "dgrad-2x": Operator("conv2d_dgrad", (2, 64, 13, 11), (64, 40, 3, 3), {"dilation": 2}, "f16", "conv-evt-2x"),
    "dgrad-asymmetric": Operator(
        "conv2d_dgrad", (2, 64, 13, 11), (64, 40, 3, 3), {"padding": ((1, 0), (0, 2))}, "bf16"
    ),
    "dgrad-1x1": Operator("conv2d_dgrad", (2, 64, 13, 11), (64, 40, 1, 1), {}),
    "conv3d_dgrad": Operator("conv3d_dgrad", (1, 32, 5, 6, 7), (32, 64, 3, 3, 3), {"padding": 1}),
    "wgrad": Operator("conv2d_wgrad", (4, 64, 13, 11), (4, 32, 13, 11), {"padding": 1, "kernel_size": 3}),
    "wgrad-stride": Operator(
        "conv2d_wgrad", (4, 64, 7, 6), (4, 40, 13, 11), {"padding": 1, "kernel_size": 3, "stride": 2}
    ),
    "wgrad-1x1": Operator("conv2d_wgrad", (4, 64, 13, 11), (4, 32, 13, 11), {"kernel_size": 1}, "bf16"),
    "conv3d_wgrad": Operator("conv3d_wgrad", (1, 32, 5, 6, 7), (1, 64, 5, 6, 7), {"padding": 1, "kernel_size": 3}),
    "groups": Operator("conv2d", (2, 64, 13, 11), (128, 32, 3, 3), {"padding": 1, "groups": 2}),
    "groups-16": Operator("conv2d", (2, 64, 13, 11), (128, 8, 3, 3), {"padding": 1, "groups": 8}),
    "i8": Operator("conv2d", (2, 64, 13, 11), (64, 64, 3, 3), {"padding": 1}, "i8"),
    "i8-2x": Operator("conv2d", (2, 64, 13, 11), (64, 64, 3, 3), {"padding": 1}, "i8", "conv-evt-2x"),
    "e4m3": Operator("conv2d", (2, 64, 13, 11), (64, 64, 3, 3), {"padding": 1}, "e4m3"),
    "e4m3-2x": Operator("conv2d", (2, 64, 13, 11), (64, 64, 3, 3), {"padding": 1}, "e4m3", "conv-evt-2x"),
    "e5m2": Operator("conv2d", (2, 64, 13, 11), (64, 64, 3, 3), {"padding": 1}, "e5m2"),
    **{  # tiles of 160 columns; the last is not full
        f"160-columns-{dtype}": Operator(
            "conv2d", (3, 96, 13, 11), (304, 96, 3, 3), {"padding": 1}, dtype, "conv-evt-3x"
        )
        for dtype in ("f16", "bf16", "f32", "e4m3", "i8")
    },
}
#: A formula of scalars only: it serves every operator and shape.
PLAIN = "D = alpha*acc"


def random(shape, dtype: str, generator, scale: float = 1.0):
    """Return normal numbers, as tensor cores read them, or small integers."""
    if dtype == "i8":
        return torch.randint(-9, 10, shape, device="cuda", generator=generator).to(torch.int8)
    made = torch.randn(shape, device="cuda", generator=generator, dtype=torch.float64) * scale
    if dtype == "f32":
        return (made.float().view(torch.int32) & ~0x1FFF).view(torch.float32)
    return made.to(getattr(torch, BY_NAME[dtype].torch))


def last(tensor):
    return evt.channels_last(tensor)


def tensors(problem: str, epilogue: str, dtype: str):
    (images, channels, *pixels), (filters, *size), keywords = PROBLEMS[problem]
    generator = torch.Generator("cuda").manual_seed(len(problem) + len(epilogue))
    x = last(random((images, channels, *pixels), dtype, generator))
    w = last(random((filters, channels, *size), dtype, generator, (channels * size[0] * size[1]) ** -0.5))
    op = evt.conv2d(EPILOGUES[epilogue], **keywords)
    extents = (images, filters, *op.request.convolution.problem(x.shape, w.shape).results)
    made = {
        "bias": lambda: random((filters,), dtype, generator),
        "s": lambda: random((filters,), dtype, generator),
        "residual": lambda: last(random(extents, dtype, generator)),
        "alpha": lambda: 1.5,
        "beta": lambda: 0.75,
    }
    return x, w, {name: made[name]() for name in op.inputs}


def program(problem: str, epilogue: str, route: str) -> evt.Program:
    return evt.conv2d(EPILOGUES[epilogue], route=None if route == "best" else route, **PROBLEMS[problem][2])


def general(op, a, b, inputs):
    """Return the program in its general configuration alone, and its plan.

    If an own kernel is asked for, it has one width for all problems with equal planes.
    """
    plans = plan_kernels(op.request, bind(op.request, a, b, inputs, {}), device_target(0))
    (_, *filters), first = plans[0].config.tile, plans[0]
    name = first.config.name
    if op.request.settings.route == "own":
        name = f"halo_{'x'.join(map(str, (128, *filters)))}"
    return with_config(op, name), first


def call_of(item):
    """Return the program and arguments of a test, from its parameters."""
    params = item.callspec.params
    if "name" in params:
        case = OPERATORS[params["name"]]
        op = evt.Program(Source(PLAIN), case.operation, route=case.route, **case.keywords)
        generator = torch.Generator("cuda").manual_seed(7)
        return (
            op,
            last(random(case.a, case.dtype, generator)),
            last(random(case.b, case.dtype, generator, 0.05)),
            {"alpha": 1.5},
        )
    problem, epilogue = params["problem"], params["epilogue"]
    x, w, inputs = tensors(problem, epilogue, params["dtype"])
    return program(problem, epilogue, params["route"]), x, w, inputs


def _has_stock(problem: str, epilogue: str) -> bool:
    """Return whether CUTLASS has a kernel for few channels: only of an epilogue without a residual."""
    (_, channels, _, _), _, _ = PROBLEMS[problem]
    return channels > 8 or "residual" not in EPILOGUES[epilogue]


def cases():
    for problem in PROBLEMS:
        for epilogue in EPILOGUES:
            for dtype in DTYPES:
                for route in ROUTES:
                    if route == "stock" and (epilogue in ("silu", "stats") or not _has_stock(problem, epilogue)):
                        continue
                    if route == "own" and (problem, dtype) == ("C3", "f32"):
                        continue  # a step of its stride is 32 bytes of a padded copy
                    if route not in ("best", "own") and dtype != "f16" and epilogue != "relu-add":
                        continue
                    yield pytest.param(problem, epilogue, dtype, route, id=f"{problem}-{epilogue}-{dtype}-{route}")


@pytest.fixture(scope="session")
def built(request) -> None:
    """All kernels of the selected tests of this file, built at once."""
    sources = []
    for item in request.session.items:
        if item.function in (test_convolution, test_operators):
            with contextlib.suppress(evt.EvtError):  # the test itself will say so
                op, a, b, inputs = call_of(item)
                only, _ = general(op, a, b, inputs)
                sources += kernel_sources(
                    plan_kernels(only.request, bind(only.request, a, b, inputs, {}), device_target(0))
                )
    with contextlib.suppress(evt.BuildError):
        build(list(dict.fromkeys(sources)))


def poisoned(tensor):
    return torch.full_like(tensor, float("nan")) if tensor.is_floating_point() else torch.full_like(tensor, 0x55)


def check(op, a, b, inputs, bound: float) -> float:
    """Return the largest error against the oracle; outputs are written twice, poisoned, with the same bits."""
    fresh = op(a, b, **inputs)
    fresh = [fresh] if len(op.outputs) == 1 else list(fresh)
    want = op.reference(a, b, float64=True, **inputs)
    want = [want] if len(op.outputs) == 1 else list(want)
    buffers = [poisoned(last(each) if each.dim() > 2 else each) for each in fresh]
    for _ in range(2):
        op(a, b, out=tuple(buffers) if len(buffers) > 1 else buffers[0], **inputs)
        for buffer, single in zip(buffers, fresh, strict=True):
            assert torch.equal(buffer, single)
    errors = [relative_error(*pair) for pair in zip(buffers, want, strict=True)]
    assert max(errors) <= bound, errors
    return max(errors)


@pytest.mark.parametrize(("problem", "epilogue", "dtype", "route"), list(cases()))
def test_convolution(problem, epilogue, dtype, route, record, built) -> None:
    x, w, inputs = tensors(problem, epilogue, dtype)
    op, taken = general(program(problem, epilogue, route), x, w, inputs)
    found = check(op, x, w, inputs, BOUNDS[dtype])
    if route not in ("best", "own"):  # all routes agree; the own route is often the best one
        other, _ = general(program(problem, epilogue, "best"), x, w, inputs)
        best = other(x, w, **inputs)
        mine = op(x, w, **inputs)
        first = (best, mine) if len(op.outputs) == 1 else (best[0], mine[0])
        assert relative_error(*first) <= BOUNDS[dtype]
    record((problem, taken.family, dtype, f"{epilogue} {route}", f"{found:.1e} {taken.template}"))


@pytest.mark.parametrize("name", list(OPERATORS))
def test_operators(name, record, built, request) -> None:
    op, a, b, inputs = call_of(request.node)
    dtype = OPERATORS[name].dtype
    op, taken = general(op, a, b, inputs)
    found = check(op, a, b, inputs, BOUNDS[dtype])
    record((name, taken.family, dtype, OPERATORS[name].operation, f"{found:.1e} {taken.template}"))


def test_memory_formats() -> None:
    """PyTorch's rule: the result is channels_last where the input or the weight is; copies give the same numbers."""
    x, w, inputs = tensors("3x3", "relu-add", "f16")
    op, _ = general(program("3x3", "relu-add", "best"), x, w, inputs)
    want = op(x, w, **inputs)
    for x_like in (torch.contiguous_format, torch.channels_last):
        for w_like in (torch.contiguous_format, torch.channels_last):
            a, b = x.contiguous(memory_format=x_like), w.contiguous(memory_format=w_like)
            got = op(a, b, **{**inputs, "residual": inputs["residual"].contiguous()})
            eager = torch.nn.functional.conv2d(a, b, padding=1)
            assert got.stride() == eager.stride()
            assert torch.equal(got, want)


def test_pixels_with_a_pitch() -> None:
    """Channels of a larger tensor are read and written in place."""
    x, w, inputs = tensors("3x3", "relu-add", "f16")
    op, _ = general(program("3x3", "relu-add", "best"), x, w, inputs)
    want = op(x, w, **inputs)
    wide = last(torch.full((2, 192, 14, 14), float("nan"), device="cuda", dtype=torch.float16))
    wide[:, 64:128] = x
    out = last(torch.full((2, 192, 14, 14), float("nan"), device="cuda", dtype=torch.float16))
    op(wide[:, 64:128], w, out=out[:, 64:128], **inputs)
    assert torch.equal(out[:, 64:128], want)
    assert bool(out[:, :64].isnan().all() and out[:, 128:].isnan().all())


@pytest.mark.parametrize("feed", ["", "A = A*2\n"])
@pytest.mark.parametrize("taps", [(1, 1), (3, 1), (1, 3), (3, 2)])
@pytest.mark.parametrize("part", ["channels", "taps"])
@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_filters_with_a_pitch(dtype, part, taps, feed) -> None:
    """A part of a larger filter: CUTLASS walks the taps with the stride of the innermost."""
    generator = torch.Generator(device="cuda").manual_seed(3)
    x = last(random((2, 32, 9, 11), dtype, generator))
    shape = (48, 72, *taps) if part == "channels" else (48, 32, taps[0] + 1, taps[1] + 1)
    wide = last(torch.full(shape, float("nan"), device="cuda", dtype=x.dtype))
    w = wide[:, 8:40] if part == "channels" else wide[:, :, : taps[0], : taps[1]]
    w.copy_(random((48, 32, *taps), dtype, generator))
    for route in ("best",) if feed else ("best", "conv-evt-2x"):
        op = evt.conv2d(f"{feed}D = acc + 1", route=None if route == "best" else route)
        want = torch.nn.functional.conv2d(x.double() * (2 if feed else 1), w.double()) + 1
        assert relative_error(op(x, w), want) < BOUNDS[dtype], route


def test_filters_of_volumes_with_a_pitch() -> None:
    generator = torch.Generator(device="cuda").manual_seed(5)
    x = last(random((2, 32, 5, 6, 7), "f16", generator))
    wide = last(torch.full((48, 72, 3, 3, 1), float("nan"), device="cuda", dtype=x.dtype))
    w = wide[:, 8:40]
    w.copy_(random((48, 32, 3, 3, 1), "f16", generator))
    want = torch.nn.functional.conv3d(x.double(), w.double())
    for route in (None, "conv-evt-2x"):
        assert relative_error(evt.conv3d("D = acc", route=route)(x, w), want) < BOUNDS["f16"], route


@pytest.mark.parametrize("taps", [1, 3])
@pytest.mark.parametrize(
    "text",
    [
        "D = where(x <= 0, 0, acc) + y",
        "out D, Z, t: f32[n]\nZ = where(x <= 0, 0, acc)*y\nD = Z + x\nt = sum[m](Z)",
    ],
)
def test_matrices_of_a_dgrad(text, taps) -> None:
    """The matrices beside the first, which the collective loads, and outputs beside D."""
    generator = torch.Generator(device="cuda").manual_seed(6)
    op = evt.conv2d_dgrad(text, padding=taps // 2, route="conv-evt-3x")
    gradient = last(random((2, 64, 13, 11), "bf16", generator))
    w = last(random((64, 72, taps, taps), "bf16", generator, 0.05))
    inputs = {name: last(random((2, 72, 13, 11), "bf16", generator)) for name in ("x", "y")}
    check(op, gradient, w, inputs, BOUNDS["bf16"])


@pytest.mark.parametrize("width", [1, 5])
@pytest.mark.parametrize("part", ["channels", "pixels"])
def test_gradients_with_a_pitch(part, width) -> None:
    """A part of a larger output gradient: CUTLASS walks the pixels with the stride of the innermost."""
    generator = torch.Generator(device="cuda").manual_seed(4)
    x = last(random((3, 16, 9, width + 2), "f16", generator))
    shape = (3, 72, 7, width) if part == "channels" else (3, 32, 9, width + 2)
    wide = last(torch.full(shape, float("nan"), device="cuda", dtype=x.dtype))
    gradient = wide[:, 8:40] if part == "channels" else wide[:, :, 1:8, 1 : width + 1]
    gradient.copy_(random((3, 32, 7, width), "f16", generator))
    got = evt.conv2d_wgrad("D = acc", kernel_size=3)(gradient, x)
    want = torch.nn.grad.conv2d_weight(x.double(), (32, 16, 3, 3), gradient.double())
    assert relative_error(got, want) < BOUNDS["f16"]
