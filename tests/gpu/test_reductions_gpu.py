"""Sizes, arithmetic after reductions, blocks of columns and reductions of pairs, against the float64 oracle."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
import torch

import evt
from evt.compilation import KernelSource
from evt.ir.dtype import BY_NAME
from evt.reference.compare import distance
from evt.request import typed_graph
from evt.runtime.arguments import bind
from evt.runtime.kernels import device_target, plan_kernels
from evt.runtime.plans import kernel_sources
from tests.gpu.builds import build_selected

pytestmark = pytest.mark.gpu

PAIRS = """
    out D[m, n/2], amax, total, rows: f32[m], columns: f32[n/2], most: f32[n/2], blocks: f32[m, n/128]
    D = silu(even(acc{0}))*odd(acc{0})
    amax = max[m, n](abs(D))
    total = sum[m, n](D)
    rows = mean[n](D)
    columns = mean[m](D)
    most = max[m](D)
    blocks = sum[n%64](D)
"""
SCALED = """
    in bias: f32[n]
    out D: e4m3[m, n], scale: f32[m, n/128], mean
    x = silu(acc + bias)
    amax = max[n%128](abs(x))
    scale = amax/448
    D = x*(448/max(amax, 1e-9))
    mean = mean[m, n](x)*size(k)
"""


MOMENTS = """
    out D, mu: f32[m], r: f32[m], c: f32[n], s: f32[n], a: f32
    x = acc + 500
    D = acc
    mu = mean[n](x)
    r = rsqrt(var[n](x) + 0.1)
    c = mean[m](x)
    s = sqrt(var[m](x, 0.5))
    a = var[m, n](x)
"""


@dataclass(frozen=True)
class Case:
    """A program, the type of A and B, and its routes; ``whole``: of whole numbers, many of them equal."""

    text: str
    dtype: str = "f16"
    routes: tuple[str, ...] = ("evt-3x", "evt-2x")
    batched: bool = False
    convolved: bool = False
    whole: bool = False


CASES = {
    "statistics": Case(
        """
        in eps: f32[] = 1e-5, w: f16[m], b: f32[n?]
        out D, rms: f32[m], mean, var: f32[n], std: f16[n], s: f32[m], last
        D = acc/size(k) + iota(n)/size(n)
        s = sum[n](acc*acc)
        rms = rsqrt(s/size(n) + eps)*w
        mean = mean[m, n](acc)
        var = sum[m](acc*acc)/size(m) - (sum[m](acc)/size(m))**2 + b
        std = sqrt(abs(var)) + iota(n)
        last = max[l, m, n](abs(acc))*size(l) + min[l, m, n](acc)
        """,
        batched=True,
    ),
    "moments": Case(MOMENTS),
    "moments-convolution": Case(MOMENTS, routes=("conv-evt-3x", "conv-evt-2x"), convolved=True),
    "pairs": Case(PAIRS.format(""), routes=("evt-2x",)),
    "pairs-32": Case(PAIRS.format(", 32")),
    "blocks": Case(
        """
        out D, a: f32[m, n/8], b: f32[m, n/64], rows: f32[m], columns: f32[n/64], evens: f32[m], odds: f32[n/2]
        x = sum[n%64](acc)
        a = max[n%8](abs(acc))
        b = x
        D = acc/(a + 1)
        rows = sum[n](x)
        columns = max[m](x)
        evens = sum[n](even(acc))
        odds = max[m](odd(acc))
        """
    ),
    "wide": Case(
        """
        out D: f64[m, n], amax: f32[m, n/128]
        D = acc + 0.5
        amax = max[n%128](abs(acc))
        """,
        routes=("evt-2x",),
        whole=True,
    ),
    "scaled": Case(SCALED, routes=("evt-2x",)),
    "scaled-e4m3": Case(SCALED, "e4m3", ("evt-3x",)),
    "places": Case(
        """
        in bias: f32[n]
        out D: f32[m, n], place: i32[m], best: f32[m], least: i32[n], next: i32[m]
        D = acc + bias
        place = argmax[n](D)
        best = max[n](D)
        least = argmin[m](D)
        next = 2*place + iota(m)
        """,
        whole=True,
    ),
    "kinds": Case(
        """
        in f: bool, g: bool[m], t: i64[m], u: i64
        out D, r: f32[m], s: f32[m], k: bool[m], j: bool[m]
        D = acc
        r = where(f && g, sum[n](acc), 0)
        s = sum[n](acc)*t + u
        k = max[n](acc > 1)
        j = sum[n](acc) > 1
        """,
        whole=True,
    ),
    "convolution": Case(SCALED, routes=("conv-evt-3x", "conv-evt-2x"), convolved=True),
}
#: l or None, m, n, k; columns are multiples of 128.
SIZES = ((None, 333, 384, 144), (3, 137, 256, 80))


def cases():
    for name, case in CASES.items():
        sizes = SIZES if case.batched else SIZES[:1]
        for route, size in itertools.product(case.routes, sizes):
            yield pytest.param(name, route, size, id=f"{name}-{route}-{'batched' if size[0] else 'one'}")


def random(shape, dtype: str, scale: float = 1.0, whole: bool = False):
    generator = torch.Generator("cuda").manual_seed(sum(shape))
    made = torch.randn(shape, device="cuda", generator=generator, dtype=torch.float64) * scale
    made = made.round() if whole else made
    return made.to(getattr(torch, BY_NAME[dtype].torch))


def call(name: str, route: str, size):
    case = CASES[name]
    batch, m, n, k = size
    if case.convolved:
        op = evt.conv2d(case.text, padding=1, route=route)
        a, b = (evt.channels_last(random(shape, case.dtype, 0.3)) for shape in ((2, 64, 11, 13), (n, 64, 3, 3)))
        m = 2 * 11 * 13
    else:
        op = evt.linear(case.text, route=route) if batch is None else evt.gemm(case.text, route=route)
        lead = () if batch is None else (batch,)
        a, b = random((*lead, m, k), case.dtype, k**-0.25), random((n, k), case.dtype, k**-0.25)
        b = b if batch is None else b.mT
    extents = {"m": m, "n": n}
    if case.whole:
        a, b = (2 * a).round(), (2 * b).round()
    inputs = {
        value.name: random([extents[mode] for mode in value.modes], str(value.dtype), whole=case.whole)
        for value in typed_graph(op.request, case.dtype, case.dtype).inputs
        if value.modes or value.default is None
    }
    return op, a, b, inputs


def sources_of(name: str, route: str, size) -> list[KernelSource]:
    op, a, b, inputs = call(name, route, size)
    return kernel_sources(plan_kernels(op.request, bind(op.request, a, b, inputs, {}), device_target(0), False)[:1])


@pytest.fixture(scope="session")
def refused(request):
    """Which kernels of the selected tests nvcc refuses, all built in one go."""
    return build_selected(request, test_reductions, sources_of)


def poisoned(tensor):
    return torch.full_like(tensor, float("nan") if tensor.dtype.is_floating_point else 0x55)


@pytest.mark.parametrize(("name", "route", "size"), list(cases()))
def test_reductions(name, route, size, record, refused) -> None:
    for source in sources_of(name, route, size):
        assert source not in refused, refused[source]
    case = CASES[name]
    op, a, b, inputs = call(name, route, size)
    buffers = [poisoned(each) for each in op(a, b, **inputs)]
    wanted = op.reference(a, b, float64=True, **inputs)
    dtypes = [output.dtype for output in typed_graph(op.request, case.dtype, case.dtype).outputs]
    operand = BY_NAME[case.dtype] if BY_NAME[case.dtype].bits == 8 else None
    first = None
    for _ in range(2):  # twice on the same buffers
        op(a, b, out=tuple(buffers), **inputs)
        errors = [
            distance(got, right, dtype, operand=operand, inside=dtype if dtype.bits == 16 else None)
            for got, right, dtype in zip(buffers, wanted, dtypes, strict=True)
        ]
        assert max(errors) <= 1.0, dict(zip(op.outputs, errors, strict=True))
        first = first or [each.clone() for each in buffers]
        for buffer, earlier in zip(buffers, first, strict=True):
            assert torch.equal(buffer.reshape(-1).view(torch.uint8), earlier.reshape(-1).view(torch.uint8))
    record((name, route, case.dtype, size, " ".join(f"{each:.2f}" for each in errors)))


def test_the_sizes_of_groups() -> None:
    op = evt.grouped_gemm("out D: f32[m, n]; D = acc/size(k) + 100*size(m)")
    sizes = [(37, 64, 32), (130, 64, 96)]
    a = [random((m, k), "f16") for m, _, k in sizes]
    b = [random((k, n), "f16") for _, n, k in sizes]
    for x, y, got in zip(a, b, op(a, b), strict=True):
        torch.testing.assert_close(got.double(), x.double() @ y.double() / x.shape[1] + 100.0 * x.shape[0])


@pytest.mark.parametrize("route", ["own", "evt-3x"])
def test_narrow_numbers_after_a_reduction(route) -> None:
    """Cubins once read 0 in place of a number of 16 bits."""
    op = evt.linear("in a: f16, b: bf16, c: f16; out r: f32[m]; r = sum[n](acc)*a + b - c", route=route)
    x, w = (torch.randint(-2, 3, (rows, 64), device="cuda").half() for rows in (100, 264))
    want = (x.double() @ w.double().t()).sum(-1) * 0.75 + 3.5 - 0.125
    assert torch.equal(op(x, w, a=0.75, b=3.5, c=0.125).double(), want)


@pytest.mark.parametrize("route", ["own", "evt-3x"])
def test_few_and_many_results(route) -> None:
    """Warps combine the parts of many results, and blocks combine the parts of few results."""
    text = "out r: f32[m], c: f32[n], s: f32, u: f32[m]; r = sum[n](acc); c = sum[m](acc); s = sum[m, n](acc)"
    op = evt.linear(f"{text}; u = 2*max[n](acc) + 1", route=route)
    for m, n, k in (
        (1, 4096, 64),
        (3, 2056, 64),
        (5, 8, 64),
        (1000, 328, 64),
        (4223, 1032, 16),
        (4225, 72, 16),
        (40000, 8, 16),
    ):
        x, w = (torch.randint(-1, 2, (rows, k), device="cuda").half() for rows in (m, n))
        product = x.double() @ w.double().t()
        found = op(x, w)
        for got, want in zip(
            found, (product.sum(1), product.sum(0), product.sum(), 2 * product.amax(1) + 1), strict=True
        ):
            assert torch.equal(got.double(), want), (m, n)
