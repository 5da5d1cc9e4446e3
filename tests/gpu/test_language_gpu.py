"""The whole language on a GPU: every type, node and kind of output, both families, against the float64 oracle."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
import torch

import evt
from evt.compilation import KernelSource
from evt.ir.dtype import BY_NAME
from evt.ir.node import base, divisor
from evt.reference.compare import distance
from evt.request import typed_graph
from evt.runtime.arguments import bind
from evt.runtime.kernels import device_target, plan_kernels
from evt.runtime.plans import kernel_sources
from tests.gpu.builds import build_selected
from tests.support.one_config import general_config

pytestmark = pytest.mark.gpu


@dataclass(frozen=True)
class Case:
    """A program, the types of A and B, and the families that run it."""

    text: str
    a: str = "f16"
    b: str = ""
    families: tuple[str, ...] = ("3x", "2x")
    sizes: tuple[str, ...] = ("aligned", "batched")
    absent: tuple[str, ...] = ()
    keywords: tuple[tuple[str, object], ...] = ()


DEF = "def hardmish(x) = x / 2 * min(2, max(0, x + 2))\n"
AZP = "in s: f32[m?], t: f32[n?], azp: i32[m], adj: i32[n], bias: bf16[n] = 0\nD = s*(t*(acc - azp*adj)) + bias"
ODD = ("aligned", "batched", "odd")
CASES = {
    # language
    "where": Case("D = where(acc > 0 && acc < C, acc, -0.5*acc)", sizes=ODD),
    "def": Case(DEF + "D = hardmish(alpha*acc) + bias"),
    "derivative": Case("D = gelu'(acc)*C"),
    "second-derivative": Case("D = sigmoid''(acc)"),
    "optional-given": Case("in C: f16[m, n] = 0, bias: f32[n] = 0, s: f32[m] = 1\nD = s*acc + C + bias"),
    "optional-absent": Case(
        "in C: f16[m, n] = 0, bias: f32[n] = 0, s: f32[m] = 1\nD = s*acc + C + bias", absent=("C", "s")
    ),
    "flexible": Case("in s: f32[m?], t: f16[n?]\nD = s*acc + t", sizes=ODD),
    "scalars": Case("in p: f16, q: i32\nD = p*acc + q"),
    "fast-math": Case("D = tanh(acc) + silu(C)", keywords=(("fast_math", True),)),
    "relaxed": Case("D = 2*(3*(alpha*acc)*beta) + C/alpha", keywords=(("relaxed", True),)),
    # operand types
    "i8": Case("D = alpha*acc + bias", "i8"),
    "u8": Case("D = alpha*acc + bias", "u8"),
    "i8-u8": Case("D = alpha*acc", "i8", "u8"),
    "i8-azp": Case(AZP, "i8"),
    "i8-out-i8": Case("out D: i8[m, n]\nD = alpha*acc + C", "i8"),
    "i8-out-i32": Case("in bias: i32[n]\nout D: i32[m, n]\nD = 2*acc + bias", "i8"),
    "e4m3": Case("in s: f32[m], t: f32[n]\nD = s*(t*acc) + bias", "e4m3"),
    "e5m2": Case("D = alpha*acc + bias", "e5m2"),
    "e4m3-e5m2": Case("D = alpha*acc", "e4m3", "e5m2"),
    "e5m2-e4m3": Case("D = alpha*acc", "e5m2", "e4m3"),
    "e4m3-out-e4m3": Case(
        "in C: bf16[m, n]\nout D: e4m3[m, n], amax: f32\nD = alpha*acc + C\namax = max[m, n](abs(D))", "e4m3"
    ),
    "f64": Case("in s: f32[m]\nD = tanh(alpha*acc)*s + beta*C + 0.1", "f64", families=("2x",), sizes=ODD),
    # types in memory
    "stores": Case(
        "out D, E: f32[m, n], F: bf16[m, n], G: e4m3[m, n], H: e5m2[m, n], P: i8[m, n], Q: u8[m, n], R: i32[m, n]\n"
        "D = acc; x = 20*acc + 3; E = x; F = x; G = x; H = x; P = x; Q = x; R = x",
        sizes=("batched", "odd"),
    ),
    **{
        f"d-{t}": Case(f"out D: {t}[m, n]\nD = 20*acc + C", sizes=("batched", "odd"))
        for t in ("e4m3", "i8", "i32", "f32")
    },
    "loads": Case(
        "in A1: f32[m, n], A2: bf16[m, n], A3: e4m3[m, n], A4: e5m2[m, n], A5: i8[m, n], A6: u8[m, n], A7: i32[m, n]\n"
        "in r1: e4m3[n], r2: i8[n], r3: bf16[n], c1: i32[m], c2: f16[m]\nout D: f32[m, n]\n"
        "D = acc + A1 - A2 + A3*A4 + 0.5*A5*A6 + A7 + r1*c1 + r2*c2 + r3",
        sizes=("batched", "odd"),
    ),
    "integer-tiles": Case("in p: i8[m, n], q: u8[m, n]\nout D: f32[m, n]\nD = acc*(p*q - 3)", sizes=("aligned", "odd")),
    # reductions
    "reductions": Case(
        "out D, s: f32[m], t: f32[n], amax: f32, a: f16[n], b: bf16[m], c: f32\nD = acc + bias\n"
        "s = sum[n](D); t = sum[m](D*D); amax = max[m, n](abs(D))\n"
        "a = max[m](acc); b = min[n](acc); c = min[m, n](acc)",
        sizes=ODD,
    ),
    "product-sums": Case(
        "in y: f16[m, n], w: f32[n]\nout D, dw: f32[n], db: f32[n]\nD = acc*w + C; dw = sum[m](acc*y); db = sum[m](D)",
        sizes=("aligned", "odd"),
    ),
    "over-batch": Case(
        "out D, s: f32[n], t: f32\nD = acc; s = sum[l, m](acc); t = sum[l, m, n](acc*acc)", sizes=("batched",)
    ),
    "integer-sums": Case(
        "out D, s: i32[m], t: i32[n], x: i32\nD = alpha*acc; s = sum[n](acc); t = max[m](acc); x = min[m, n](acc)", "i8"
    ),
    "atomic": Case(
        "out D, s: f32[m], t: f32[n], u: f32, v: f32\nD = acc\n"
        "s = sum[n](acc); t = max[m](acc); u = sum[m, n](acc); v = min[m, n](acc)",
        keywords=(("deterministic", False),),
        sizes=("batched", "odd"),
    ),
    "reduced-d": Case("in w: f32[n]\nD = sum[n](acc*w)", sizes=("batched", "odd")),
    # bits, coordinates, random numbers
    "masks": Case(
        "in given: b1[m, n]\nout D, found: b1[m, n]\nD = where(given, acc, 0.1*acc); found = acc > 0",
        sizes=("batched", "odd"),
    ),
    "mask-only": Case("out D: b1[m, n]\nD = acc > C", sizes=("aligned", "odd")),
    "coordinates": Case("D = where(iota(n) <= iota(m) + 3, acc, -1) + iota(l)", sizes=("batched", "odd")),
    "dropout": Case("D = dropout(acc + bias, 0.25, seed, offset)", sizes=("batched", "odd")),
    # pairs and blocks of columns
    "gated": Case("D = silu(even(acc)) * odd(acc)"),
    "gated-32": Case("out D, full: f32[m, n]\nfull = acc; D = silu(even(acc + bias, 32)) * odd(acc + bias, 32)"),
    "gated-load": Case("in r: f16[m, n/2]\nout D: f32[m, n/2]\nD = even(acc, 8)*odd(acc, 8) + r"),
    "blocks": Case(
        "out D: e4m3[m, n], sf: f32[m, n/32], sums: f16[m, n/16]\n"
        "a = max[n%32](abs(acc)); sf = a/448; D = acc * (448/max(a, 1e-9)); sums = sum[n%16](acc)"
    ),
    # layouts
    "transposed": Case(
        "in C: f32[n, m]\nout D[n, m], E: f32[n, m], s: f32[m]\nD = acc + C; E = acc; s = sum[n](acc)",
        sizes=("aligned", "odd"),
    ),
}
#: (l or None, m, n, k); n is a multiple of 64 for pairs and blocks.
SIZES = {"aligned": (None, 333, 320, 144), "batched": (3, 136, 192, 80), "odd": (None, 201, 157, 83)}


def cases():
    for name, case in CASES.items():
        for family, size in itertools.product(case.families, case.sizes):
            if not (size == "odd" and family == "3x"):
                yield pytest.param(name, family, size, id=f"{name}-{family}-{size}")


def program(name: str, family: str) -> evt.Program:
    """Return the program with its general configuration; the choice between configurations has its own test."""
    case = CASES[name]
    op = evt.gemm(case.text, route=f"evt-{family}", **dict(case.keywords))
    return general_config(op, case.a, case.b or case.a) if family == "3x" else op


def random(shape, dtype: str, generator, scale: float = 1.0):
    if dtype in ("i8", "u8", "i32", "b1"):
        low, high = {"i8": (-9, 10), "u8": (0, 10), "i32": (-50, 50), "b1": (0, 256)}[dtype]
        made = torch.randint(low, high, shape, device="cuda", generator=generator)
    else:
        made = torch.randn(shape, device="cuda", generator=generator, dtype=torch.float64) * scale
    return made.to(getattr(torch, BY_NAME[dtype].torch))


def tensors(name: str, op: evt.Program, size: str):
    case = CASES[name]
    generator = torch.Generator("cuda").manual_seed(len(name))
    batch, m, n, k = SIZES[size]
    types = case.a, case.b or case.a
    if size == "odd" and BY_NAME[case.a].bits == 8:
        k -= k % 4
    if op.request.dag.output["D"].modes[-1] == "m" and size != "odd":
        m -= m % 8
    lead = () if batch is None else (batch,)
    a = random((*lead, m, k), types[0], generator, k**-0.25)
    b = random((*lead, k, n), types[1], generator, k**-0.25)
    if BY_NAME[case.a].bits == 8:
        b = b.mT.contiguous().mT
    extents = {"m": m, "n": n, "l": batch or 1}
    inputs = {}
    for value in typed_graph(op.request, *types).inputs:
        shape = tuple(extents[base(mode)] // divisor(mode) for mode in value.modes)
        if value.name in case.absent:
            continue
        if str(value.dtype) == "b1":
            shape = (*shape[:-1], -(-shape[-1] // 8))
        if value.batchable and lead:
            shape = lead + shape
        if not shape:
            inputs[value.name] = 3 if str(value.dtype) == "i32" else 0.0625 if case.a in ("i8", "u8") else 1.25
        else:
            inputs[value.name] = random(shape, str(value.dtype), generator)
    return a, b, inputs


def sources_of(name: str, family: str, size: str) -> list[KernelSource]:
    op = program(name, family)
    a, b, inputs = tensors(name, op, size)
    atomic = op.request.settings.deterministic is False
    return kernel_sources(plan_kernels(op.request, bind(op.request, a, b, inputs, {}), device_target(0), atomic)[:1])


@pytest.fixture(scope="session")
def refused(request):
    """Which kernels of the selected tests nvcc refuses, all built in one go."""
    return build_selected(request, test_language, sources_of)


def bits(tensor):
    """Return the bytes of a packed tensor: NaN is equal to itself."""
    return tensor.reshape(-1).view(torch.uint8)


def poisoned(tensor):
    """Return a buffer like an output, of NaN, or of a pattern that is unlikely."""
    return torch.full_like(tensor, float("nan") if tensor.dtype.is_floating_point else 0x55)


@pytest.mark.parametrize(("name", "family", "size"), list(cases()))
def test_language(name, family, size, record, refused) -> None:
    case = CASES[name]
    for source in sources_of(name, family, size):
        assert source not in refused, refused[source]
    op = program(name, family)
    a, b, inputs = tensors(name, op, size)
    types = case.a, case.b or case.a
    fresh = op(a, b, **inputs)
    shapes = [fresh] if len(op.outputs) == 1 else list(fresh)
    buffers = [poisoned(each) for each in shapes]
    want = op.reference(a, b, float64=True, **inputs)
    want = [want] if len(op.outputs) == 1 else list(want)
    dtypes = [output.dtype for output in typed_graph(op.request, *types).outputs]
    # Tensor cores sum products of 8-bit floats in fewer bits than f32; the sums here are exact in both.
    operand = BY_NAME[case.a] if BY_NAME[case.a].bits == 8 else None
    first = None
    for _ in range(2):  # twice on the same buffers
        op(a, b, out=tuple(buffers) if len(buffers) > 1 else buffers[0], **inputs)
        errors = [
            distance(got, right, dtype, operand=operand, inside=dtype if dtype.bits == 16 else None)
            for got, right, dtype in zip(buffers, want, dtypes, strict=True)
        ]
        assert max(errors) <= (20.0 if ("fast_math", True) in case.keywords else 1.0), errors
        first = first or [each.clone() for each in buffers]
        for buffer, earlier, single in zip(buffers, first, shapes, strict=True):
            if op.request.settings.deterministic is not False:
                assert torch.equal(bits(buffer), bits(earlier))
                assert torch.equal(bits(buffer), bits(single))
    record((name, family, case.a, size, " ".join(f"{each:.2f}" for each in errors)))
