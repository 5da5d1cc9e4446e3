"""Kernels on a GPU against the float64 oracle: every node kind, both families, all layouts, odd sizes."""

from __future__ import annotations

import itertools

import pytest
import torch

import evt
from evt.compilation import build
from evt.ir.dtype import BY_NAME
from evt.reference.compare import relative_error, tolerance
from evt.request import typed_graph
from evt.runtime.arguments import bind
from evt.runtime.kernels import device_target, plan_kernels
from evt.runtime.plans import kernel_sources
from tests.support.one_config import general_config

pytestmark = pytest.mark.gpu

FORMULAS = {
    "scale": "D = alpha*acc",
    "lincomb": "D = alpha*acc + beta*C",
    "relu-residual": "D = relu(alpha*acc + beta*C) + residual",
    "bias-gelu": "D = gelu(acc + bias)",
    "row-column": "in s: f32[m], t: f32[n]; D = s*(t*acc) + bias",
    "aux-store": "out D, Z; Z = acc + bias; D = silu(Z)",
    "topological": "out D, E: f32[m, n]; T = tanh(alpha*acc); D = T + C; E = T*R",
    "mixed-types": "in r: f32[m, n]; D = acc + C + r",
    "column-major-out": "out D[n, m]; D = acc + bias",
    "column-major-in": "in C[n, m]; D = relu(acc + C)",
    "batched-vectors": "in b[l, n], s: f32[l, m], g: f32[l]; D = g*acc*s + b",
    "raw-accumulator": "out D, Y: f32[m, n]; Y = acc; D = relu(acc)",
    "shared-bias": "D = tanh(acc + bias) + bias",
    "functions": "D = mish(acc) + softplus(C, beta=2)*hardswish(acc) - exp(-abs(acc))/(1 + square(C))",
    "transposed-aux": "out D, Zt: f32[n, m]; Zt = alpha*acc; D = leaky_relu(Zt, 0.2)",
    "casts": "out D, E: f32[m, n]; h = f16(acc); D = h*C + bf16(acc*0.1); E = bf16(h + C)",
    "four-tiles": "D = acc + C1*C2 + C3*C4",
    "many-outputs": "out D, E, F: f32[m, n], G; x = sigmoid(acc); D = x*C; E = x + 1; F = exp(x); G = F - x",
}
DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}
#: Rounding of the result, and for f32 of the operands to tf32 (which the hardware truncates), in the Frobenius norm.
BOUNDS = {name: tolerance(BY_NAME[name], operand=BY_NAME[name]) for name in DTYPES}
#: name: (l or None, m, n, k). Multiples of 8 where TMA needs them, never of a tile.
SIZES = {"aligned": (None, 333, 264, 136), "batched": (3, 136, 200, 72), "odd": (None, 201, 157, 83)}
FAMILIES = ("3x", "2x")


def cases():
    for name, family, dtype, size in itertools.product(FORMULAS, FAMILIES, DTYPES, SIZES):
        if (size == "odd" and family == "3x") or (name == "batched-vectors" and size != "batched"):
            continue
        yield pytest.param(name, family, dtype, size, id=f"{name}-{family}-{dtype}-{size}")


def layout_cases():
    majors = ["knnn", "kkmn", "mnnm", "mkmm", "knmm", "mknn"]  # the contiguous modes of A, B, C and D
    for family, dtype, major in itertools.product(FAMILIES, DTYPES, majors):
        yield pytest.param(family, dtype, *major, id=f"{family}-{dtype}-{major}")


def program(name: str, family: str) -> evt.Program:
    return evt.gemm(FORMULAS[name], route=f"evt-{family}")


def tensors(op: evt.Program, dtype: str, size: str, seed: int = 0):
    generator = torch.Generator("cuda").manual_seed(seed)
    batch, m, n, k = SIZES[size]
    if op.request.dag.output["D"].modes[-1] == "m" and size != "odd":
        m -= m % 8  # D is contiguous along m
    lead = () if batch is None else (batch,)
    element = DTYPES[dtype]

    def random(*shape):
        return torch.randn(shape, device="cuda", generator=generator)

    a, b = random(*lead, m, k).to(element) / k**0.25, random(*lead, k, n).to(element) / k**0.25
    extents = {"m": m, "n": n, "l": batch or 1}
    inputs = {}
    for value in typed_graph(op.request, dtype, dtype).inputs:
        shape = tuple(extents[mode] for mode in value.modes)
        if value.batchable and lead:
            shape = lead + shape
        if not shape:
            inputs[value.name] = 1.25
        else:
            inputs[value.name] = random(*shape).to(getattr(torch, value.dtype.torch))
    return a, b, inputs


def layout_tensors(dtype: str, a_major: str, b_major: str, c_major: str, d_major: str):
    m, n, k = 264, 392, 136
    element = DTYPES[dtype]

    def matrix(rows, columns, contiguous_columns):
        made = torch.randn(columns, rows, device="cuda").T if not contiguous_columns else None
        return (made if made is not None else torch.randn(rows, columns, device="cuda")).to(element)

    a = matrix(m, k, a_major == "k") / k**0.25
    b = matrix(k, n, b_major == "n") / k**0.25
    c = matrix(m, n, c_major == "n")
    d = torch.empty_like(matrix(m, n, d_major == "n")).fill_(float("nan"))
    return a, b, c, d


@pytest.fixture(scope="session", autouse=True)
def kernels(request) -> None:
    """Build the kernels of all selected tests of this file in one go."""
    sources = []
    target = device_target(0)
    for item in request.session.items:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        if item.function is test_formula:
            op = program(params["name"], params["family"])
            a, b, inputs = tensors(op, params["dtype"], params["size"])
            bound = bind(op.request, a, b, inputs, {})
        elif item.function is test_layouts:
            op = program("lincomb", params["family"])
            majors = (params[f"{each}_major"] for each in "abcd")
            a, b, c, d = layout_tensors(params["dtype"], *majors)
            bound = bind(op.request, a, b, {"alpha": 1.0, "beta": 1.0, "C": c}, {"D": d})
        else:
            continue
        sources += kernel_sources(plan_kernels(op.request, bound, target)[:1])
    build(list(dict.fromkeys(sources)))


@pytest.mark.parametrize(("name", "family", "dtype", "size"), list(cases()))
def test_formula(name, family, dtype, size, record) -> None:
    op = program(name, family)
    a, b, inputs = tensors(op, dtype, size)
    if family == "3x":
        op = general_config(op, dtype, dtype)
    fresh = op(a, b, **inputs)
    shapes = [fresh] if len(op.outputs) == 1 else list(fresh)
    buffers = [torch.full_like(each, float("nan")) for each in shapes]
    want = op.reference(a, b, float64=True, **inputs)
    want = [want] if len(op.outputs) == 1 else list(want)
    first = None
    for _ in range(2):  # twice on the same buffers
        op(a, b, out=tuple(buffers) if len(buffers) > 1 else buffers[0], **inputs)
        errors = [relative_error(got, expected) for got, expected in zip(buffers, want, strict=True)]
        assert max(errors) <= BOUNDS[dtype], errors
        first = first or [each.clone() for each in buffers]
    assert all(torch.equal(x, y) for x, y in zip(first, buffers, strict=True))
    assert all(torch.equal(x, y) for x, y in zip(first, shapes, strict=True))
    record((name, family, dtype, f"{size} {SIZES[size]}", " ".join(f"{each:.1e}" for each in errors)))


@pytest.mark.parametrize(("family", "dtype", "a_major", "b_major", "c_major", "d_major"), list(layout_cases()))
def test_layouts(family, dtype, a_major, b_major, c_major, d_major, record) -> None:
    op = program("lincomb", family)
    if family == "3x":
        op = general_config(op, dtype, dtype)
    a, b, c, d = layout_tensors(dtype, a_major, b_major, c_major, d_major)
    strides = d.stride()
    result = op(a, b, alpha=0.5, beta=2.0, C=c, D=d)
    assert result is d
    assert d.stride() == strides
    want = 0.5 * (a.double() @ b.double()) + 2.0 * c.double()
    assert relative_error(d, want) <= BOUNDS[dtype]
    majors = f"A {a_major} B {b_major} C {c_major} D {d_major}"
    record(("lincomb layouts", family, dtype, majors, f"{relative_error(d, want):.1e}"))


def test_no_new_shape_recompiles(monkeypatch):
    op = evt.gemm(FORMULAS["relu-residual"])
    built = []
    import evt.runtime.kernels as kernels_module

    real = kernels_module.build_and_use  # type: ignore[attr-defined]

    def build_and_use(sources, use):
        built.append(len(sources))
        return real(sources, use)

    monkeypatch.setattr(kernels_module, "build_and_use", build_and_use)
    for m, n, k in ((128, 128, 64), (136, 264, 72), (3000, 512, 256), (8, 8, 8), (1, 8, 8), (40000, 128, 64)):
        a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        b = torch.randn(k, n, device="cuda", dtype=torch.bfloat16)
        c, r = (torch.randn(m, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        got = op(a, b, alpha=1.0, beta=0.5, C=c, residual=r)
        want = op.reference(a, b, float64=True, alpha=1.0, beta=0.5, C=c, residual=r)
        assert relative_error(got, want) <= BOUNDS["bf16"]
    assert len(built) == 1


def test_streams_graphs_and_device_scalars() -> None:
    op = evt.gemm(FORMULAS["lincomb"], config="pingpong_128x128x64_1x2")
    a = torch.randn(264, 136, device="cuda", dtype=torch.float16) / 3
    b = torch.randn(136, 200, device="cuda", dtype=torch.float16)
    c = torch.randn(264, 200, device="cuda", dtype=torch.float16)
    alpha = torch.tensor([0.5], device="cuda")
    beta = torch.tensor(2.0, device="cuda")
    want = 0.5 * (a.double() @ b.double()) + 2 * c.double()
    d = torch.full((264, 200), float("nan"), device="cuda", dtype=torch.float16)
    op(a, b, alpha=alpha, beta=beta, C=c, out=d)
    assert relative_error(d, want) <= BOUNDS["f16"]

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        c2 = c * 2  # ready only after the sleep, on this stream
        d2 = op(a, b, alpha=alpha, beta=beta, C=c2)
    stream.synchronize()
    assert relative_error(d2, 0.5 * (a.double() @ b.double()) + 4 * c.double()) <= BOUNDS["f16"]

    graph = torch.cuda.CUDAGraph()
    d.fill_(float("nan"))
    with torch.cuda.graph(graph):
        op(a, b, alpha=alpha, beta=beta, C=c, out=d)
    alpha.fill_(3.0)
    graph.replay()
    torch.cuda.synchronize()
    assert relative_error(d, 3.0 * (a.double() @ b.double()) + 2 * c.double()) <= BOUNDS["f16"]


def test_in_place_and_overlap() -> None:
    op = evt.gemm(FORMULAS["lincomb"], config="pingpong_128x128x64_1x2")
    a = torch.randn(333, 136, device="cuda", dtype=torch.float16) / 3
    b = torch.randn(136, 264, device="cuda", dtype=torch.float16)
    c = torch.randn(333, 264, device="cuda", dtype=torch.float16)
    want = a.double() @ b.double() - c.double()
    assert relative_error(op(a, b, alpha=1.0, beta=-1.0, C=c, out=c), want) <= BOUNDS["f16"]
    big = torch.randn(400, 264, device="cuda", dtype=torch.float16)
    with pytest.raises(evt.ArgumentError, match="E0609"):
        op(a, b, alpha=1.0, beta=-1.0, C=big[:333], out=big[8:341])


def test_leading_strides_views_and_broadcast() -> None:
    op = evt.gemm("D = acc + C", config="pingpong_128x128x64_1x2")
    storage = torch.randn(2, 700, 512, device="cuda", dtype=torch.float16) / 4
    a, b = storage[0, :333, 8:144], storage[1, :136, :264]
    c = storage[0, 350:683, 200:464]
    want = a.double() @ b.double() + c.double()
    assert relative_error(op(a, b, C=c), want) <= BOUNDS["f16"]
    misaligned = storage[0, 350:683, 201:465]
    assert relative_error(op(a, b, C=misaligned), a.double() @ b.double() + misaligned.double()) <= BOUNDS["f16"]
    expanded = storage[0, 1, :264].expand(333, 264)
    assert relative_error(op(a, b, C=expanded), a.double() @ b.double() + expanded.double()) <= BOUNDS["f16"]
    batch = torch.randn(3, 136, 72, device="cuda", dtype=torch.float16) / 3
    weight = torch.randn(72, 264, device="cuda", dtype=torch.float16)
    shared = torch.randn(136, 264, device="cuda", dtype=torch.float16)
    want = batch.double() @ weight.double() + shared.double()
    assert relative_error(op(batch, weight, C=shared), want) <= BOUNDS["f16"]


def test_linear_folds_leading_dimensions() -> None:
    op = evt.linear("D = gelu(acc + bias)", config="pingpong_128x128x64_1x2")
    x = torch.randn(3, 50, 72, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(136, 72, device="cuda", dtype=torch.bfloat16)
    bias = torch.randn(136, device="cuda", dtype=torch.bfloat16)
    got = op(x, weight, bias=bias)
    want = torch.nn.functional.gelu(x.double() @ weight.double().T + bias.double())
    assert got.shape == (3, 50, 136)
    assert relative_error(got, want) <= BOUNDS["bf16"]


def test_empty_and_single() -> None:
    op = evt.gemm("D = acc + bias")
    for m, n, k in ((0, 16, 8), (16, 0, 8), (5, 7, 0), (1, 1, 1), (1, 8, 3)):
        a = torch.randn(m, k, device="cuda", dtype=torch.float16)
        b = torch.randn(k, n, device="cuda", dtype=torch.float16)
        bias = torch.randn(n, device="cuda", dtype=torch.float16)
        got = op(a, b, bias=bias)
        assert got.shape == (m, n)
        torch.testing.assert_close(got.double(), a.double() @ b.double() + bias.double(), atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("config", ["pingpong_192x128x64_1x2", "pingpong_64x128x64", "cooperative_128x256x64_2x1",
                                    "cooperative_256x128x64_1x2", "cooperative_128x128x64",
                                    "pingpong_128x128x64_2x1"])  # fmt: skip
def test_configurations(config, record) -> None:
    op = evt.gemm(FORMULAS["relu-residual"], config=config)
    a = torch.randn(1001, 136, device="cuda", dtype=torch.bfloat16) / 3
    b = torch.randn(136, 520, device="cuda", dtype=torch.bfloat16)
    c, r = (torch.randn(1001, 520, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    d = torch.full((1001, 520), float("nan"), device="cuda", dtype=torch.bfloat16)
    op(a, b, alpha=1.5, beta=-0.5, C=c, residual=r, out=d)
    want = op.reference(a, b, float64=True, alpha=1.5, beta=-0.5, C=c, residual=r)
    assert relative_error(d, want) <= BOUNDS["bf16"]
    record(("relu-residual", "3x", "bf16", config, f"{relative_error(d, want):.1e}"))
