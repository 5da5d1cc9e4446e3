"""Grouped kernels on a GPU, against the float64 oracle of every group."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import evt
from evt.compilation import build
from evt.grouped import grouped_gemm
from evt.ir.dtype import B1, BF16, BY_NAME, E4M3, F16, F32
from evt.ir.node import base, divisor
from evt.measured import Store
from evt.plan import Problem, find_target, natural_signature, plan, survey
from evt.reference.compare import error, relative_error, tolerance
from evt.request import optimised_graph, typed_graph
from evt.runtime.plans import kernel_sources
from tests.gpu.synchronisation import no_synchronisation

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0), reason="grouped kernels are sm90's"
    ),
]

LINEAR = "D = relu(alpha*acc + beta*C) * gamma"
CASES = {
    "bare": ("D = acc", "bf16"),
    "linear": (LINEAR, "bf16"),
    "vectors": ("in s: f32[m], bias: bf16[n]\nD = gelu(acc + bias)*s", "bf16"),
    "flexible": ("in s: f32[m?], t: f16[n?]\nD = s*acc + t", "f16"),
    "residual": ("D = relu(alpha*acc + C) + residual", "f16"),
    "outputs": ("out D, z: f32[m, n]\nz = acc + bias\nD = silu(z)", "f16"),
    "gated": ("D = silu(even(acc))*odd(acc)", "bf16"),
    "gated-32": ("out D, full: f16[m, n]\nfull = acc\nD = silu(even(acc, 32))*odd(acc, 32)", "f16"),
    "mask": ("out D, mask: b1[m, n]\nz = acc + bias\nmask = z > 0\nD = relu(z)", "f16"),
    "block-scales": ("out D: f16[m, n], a: f32[m, n/32]\nv = max[n%32](abs(acc))\na = v\nD = acc/max(v, 1e-6)", "f16"),
    "causal": ("D = where(iota(n) <= iota(m) + 3, acc, -1)", "f16"),
    "transposed": ("in C: f16[n, m]\nout D[n, m], E: f32[n, m]\nD = acc + C\nE = acc", "f16"),
    "e4m3": ("in s: f32[m?], t: f32[n?]\nout D: bf16[m, n]\nD = s*(t*acc) + bias", "e4m3"),
    "e4m3-C": ("in C: bf16[m, n]\nout D: bf16[m, n]\nD = alpha*acc + C", "e4m3"),
    "i8": ("in azp: i32[m], adj: i32[n], q: f32\nD = q*(acc - azp*adj)", "i8"),
    "f32": ("D = relu(acc + C)", "f32"),
}
#: (m, n, k) of each group; some have nothing to compute, one has more than a tile, one a part of one.
GROUPS = (
    (1, 192, 64), (0, 192, 128), (300, 192, 32), (129, 320, 144), (64, 64, 4096), (16, 128, 0), (1024, 512, 256),
    (7, 64, 16), (250, 128, 96),
)  # fmt: skip
#: f32: sums of up to 4096 products.
BOUNDS = {"f32": 10 * tolerance(F32), "f16": tolerance(F16, inside=F16), "bf16": tolerance(BF16, operand=E4M3)}


def random(shape, dtype, generator, scale=1.0):
    if dtype in ("i8", "i32"):
        made = torch.randint(-9, 10, shape, device="cuda", generator=generator)
    else:
        made = torch.randn(shape, device="cuda", generator=generator, dtype=torch.float64) * scale
    return made.to(getattr(torch, BY_NAME[dtype].torch))


def tensors(name, groups=GROUPS):
    text, dtype = CASES[name]
    op = grouped_gemm(text)
    generator = torch.Generator("cuda").manual_seed(len(name))
    aligned = [(m - m % 8 if name == "transposed" else m, n, k) for m, n, k in groups]
    a = [random((m, k), dtype, generator, max(k, 1) ** -0.25) for m, n, k in aligned]
    b = [random((n, k), dtype, generator, max(k, 1) ** -0.25) for m, n, k in aligned]
    if dtype == "f32":  # exact in tf32
        a, b = ([x.bfloat16().float() for x in each] for each in (a, b))
    if dtype not in ("e4m3", "i8", "f32"):
        b = [x.mT.contiguous().mT for x in b]  # along n, as [k, n] is packed
    inputs = {}
    for value in typed_graph(op.request, dtype, dtype).inputs:
        made: list[Any] = []
        for m, n, _ in aligned:
            shape = tuple({"m": m, "n": n}[base(mode)] // divisor(mode) for mode in value.modes)
            made.append(random(shape, str(value.dtype), generator) if shape else 1.25 + len(made))
        inputs[value.name] = made
    return op, a, [x.mT for x in b], inputs


def problem_of(dag):
    return Problem(dag, natural_signature(dag), find_target("sm90"), grouped=True)


@pytest.fixture(scope="session", autouse=True)
def _built(request) -> None:
    """Build the default kernels of the selected cases, side by side."""
    plans = []
    chosen = {item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")}
    for text, dtype in (CASES[name] for name in CASES if name in chosen):
        dag = optimised_graph(grouped_gemm(text).request, dtype)
        if dtype != "f32":
            plans.append(plan(problem_of(dag)))
    build(kernel_sources(plans))


def check(op, dtype, got, a, b, inputs):
    want = op.reference(a, b, float64=True, **inputs)
    got, want = ([got], [want]) if len(op.outputs) == 1 else (list(got), list(want))
    worst = 0.0
    for output, mine, theirs in zip(typed_graph(op.request, dtype, dtype).outputs, got, want, strict=True):
        for index, (x, y) in enumerate(zip(mine, theirs, strict=True)):
            assert x.shape == y.shape, (output.name, index)
            if x.numel() == 0:
                continue
            far = error(x, y, output.dtype)
            if output.dtype == B1:
                assert far < tolerance(B1), (output.name, index, far)
                continue
            assert bool(torch.isfinite(x.double()).all()), (output.name, index)
            assert far <= BOUNDS[str(output.dtype)], (output.name, index, far)
            worst = max(worst, far)
    return worst


@pytest.mark.parametrize("name", CASES)
def test_every_group(name, record) -> None:
    op, a, b, inputs = tensors(name)
    dtype = CASES[name][1]
    first = op(a, b, **inputs)
    worst = check(op, dtype, first, a, b, inputs)
    again = op(a, b, **inputs)
    for mine, other in zip(*([first], [again]) if len(op.outputs) == 1 else (first, again), strict=True):
        assert all(torch.equal(x.view(torch.uint8), y.view(torch.uint8)) for x, y in zip(mine, other, strict=True))
    record((name, "grouped", dtype, f"{len(a)} groups", f"{worst:.2e}"))


@pytest.mark.parametrize("scalar", ["number", "numbers", "tensor", "tensors", "one"])
def test_values_of_groups(scalar) -> None:
    op, a, b, inputs = tensors("linear")
    values = torch.arange(1.0, len(a) + 1, device="cuda")
    inputs["alpha"] = {
        "number": 1.5, "numbers": values.tolist(), "tensor": values, "tensors": list(values), "one": values[3],
    }[scalar]  # fmt: skip
    check(op, "bf16", op(a, b, **inputs), a, b, inputs)


def test_offsets() -> None:
    op = grouped_gemm("in s: f32[m], bias: bf16[n]\nout D, z: f32[m, n]\nz = acc + bias\nD = relu(z)*s")
    generator = torch.Generator("cuda").manual_seed(5)
    rows = [5, 0, 128, 1, 300, 17]
    offsets = [0, *torch.tensor(rows).cumsum(0).tolist()]
    a = random((offsets[-1], 256), "bf16", generator)
    b = random((len(rows), 256, 192), "bf16", generator, 0.1)
    s, bias = random((offsets[-1],), "f32", generator), random((len(rows), 192), "bf16", generator)
    got = op(a, b, offsets=offsets, s=s, bias=bias)
    want = op.reference(a, b, offsets=offsets, float64=True, s=s, bias=bias)
    for mine, theirs, bound in zip(got, want, (tolerance(BF16, inside=BF16), tolerance(F32)), strict=True):
        whole = torch.cat(theirs)
        assert relative_error(mine, whole) < bound


def test_many_groups_and_what_lies_around_them() -> None:
    op = grouped_gemm("D = alpha*acc + C")
    generator = torch.Generator("cuda").manual_seed(9)
    rows = torch.randint(0, 200, (400,)).tolist()
    offsets = [0, *torch.tensor(rows).cumsum(0).tolist()]
    a = random((offsets[-1], 64), "f16", generator)
    b = random((len(rows), 64, 72), "f16", generator, 0.2)
    whole = torch.full((offsets[-1] + 64, 96), 7.0, device="cuda", dtype=torch.float16)
    out = whole[32:-32, 8:80]
    c = random((offsets[-1], 72), "f16", generator)
    alpha = torch.rand(len(rows), device="cuda")
    assert op(a, b, offsets=offsets, alpha=alpha, C=c, out=out) is out
    want = torch.cat(op.reference(a, b, offsets=offsets, float64=True, alpha=alpha, C=c))
    assert relative_error(out, want) < tolerance(F16, inside=F16)
    frame = whole.clone()
    frame[32:-32, 8:80] = 7.0
    assert bool((frame == 7.0).all())


CONFIGS = survey(problem_of(optimised_graph(evt.gemm(LINEAR).request, "bf16"))).chosen.configs


@pytest.mark.parametrize("config", [each.name for each in CONFIGS])
def test_every_configuration(config) -> None:
    _, a, b, inputs = tensors("linear")
    op = grouped_gemm(LINEAR, config=config)
    check(op, "bf16", op(a, b, **inputs), a, b, inputs)


def test_streams_do_not_share_a_workspace() -> None:
    op, a, b, inputs = tensors("vectors")
    want = op(a, b, **inputs)
    streams = [torch.cuda.Stream() for _ in range(4)]
    torch.cuda.synchronize()
    results = []
    for _ in range(20):
        for stream in streams:
            with torch.cuda.stream(stream):
                results.append(op(a, b, **inputs))
    torch.cuda.synchronize()
    for got in results:
        assert all(torch.equal(x, y) for x, y in zip(got, want, strict=True))


def test_a_captured_graph_keeps_its_groups() -> None:
    op, a, b, inputs = tensors("vectors")
    out = [torch.zeros_like(x) for x in op(a, b, **inputs)]
    busy = [i for i in range(len(a)) if min(*a[i].shape, b[i].shape[1]) > 0]
    pick = {name: [given[i] for i in busy] for name, given in {"a": a, "b": b, "out": out, **inputs}.items()}
    given = {name: pick[name] for name in inputs}
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        op(pick["a"], pick["b"], out=pick["out"], **given)
    op([x[:1] for x in a], b, **{**inputs, "s": [x[:1] for x in inputs["s"]]})  # another table in the meantime
    for x in pick["a"]:
        x.mul_(-0.5)
    graph.replay()
    torch.cuda.synchronize()
    check(op, "bf16", pick["out"], pick["a"], pick["b"], given)


def test_a_loop_does_what_the_kernel_does() -> None:
    op, a, b, inputs = tensors("vectors")
    loop = grouped_gemm(CASES["vectors"][0], route="loop")
    check(loop, "bf16", loop(a, b, **inputs), a, b, inputs)
    odd = [x[:, :13] for x in a[2:5]], [x[:13] for x in b[2:5]]
    given = {name: values[2:5] for name, values in inputs.items()}
    check(loop, "bf16", loop(*odd, **given), *odd, given)
    with pytest.raises(evt.TargetError, match=r'aligned[^$]*route="loop"'):
        op(*odd, **given)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_no_call_waits_for_the_device() -> None:
    """Nor do groups without products, which the reference answers."""
    for name in ("linear", "outputs"):
        op, a, b, inputs = tensors(name)
        op(a, b, **inputs)
        with no_synchronisation():
            got = op(a, b, **inputs)
        check(op, CASES[name][1], got, a, b, inputs)


@pytest.mark.parametrize("name", ["linear", "outputs"])
def test_tune(name) -> None:
    op, a, b, inputs = tensors(name)
    dtype = CASES[name][1]
    check(op, dtype, op(a, b, **inputs), a, b, inputs)
    found = op.tune(a, b, **inputs)
    try:
        assert found.chosen is not None, found
        assert not [row for row in found.rows if row.failure], found
        assert [row.route for row in found.rows].count("loop") == 1
        assert len(found.rows) > 4
        assert found.chosen.ms <= min(row.ms for row in found.rows) * 1.02
        check(op, dtype, op(a, b, **inputs), a, b, inputs)
        (kernels,) = op._caller._kernels.values()
        assert list(kernels.choices.values()) == [found.chosen]
        if found.chosen.route != "loop":
            assert found.chosen.config in kernels.made
        shapes = [(x.shape, y.shape) for x, y in zip(a, b, strict=True)]
        explained = op.explain("sm90", dtype, dtype, shapes=shapes)
        assert (explained.chosen_by, explained.gpus) == ("measurement", (torch.cuda.get_device_name(),))
        assert [route.name for route in explained.routes if route.chosen] == [found.chosen.route]
    finally:
        Store().clear()  # other tests share the cache
