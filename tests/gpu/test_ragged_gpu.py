"""Grouped products with offsets on a GPU, against the float64 product of each group."""

from __future__ import annotations

import random

import pytest
import torch

import evt
from evt.ir.dtype import BY_NAME
from evt.ir.node import base, blocks_of
from evt.plan import survey
from evt.reference.compare import relative_error
from evt.request import grouped_problem, typed_graph
from tests.gpu.synchronisation import no_synchronisation

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0), reason="own kernels are sm90's"
    ),
]

ALONG_K = "gemm(A: {0}[m, k], B: {0}[n, k])\n"
CASES = {
    "bare": ("D = acc", "bf16"),
    "bare-f16": (ALONG_K.format("f16") + "D = acc", "f16"),
    "vectors": (ALONG_K.format("bf16") + "in w: f32[m], bias: bf16[n]\nD = w*gelu(alpha*acc + bias)", "bf16"),
    "flexible": ("in s: f32[m?], t: f16[n?]\nD = s*acc + t", "f16"),
    "residual": (ALONG_K.format("bf16") + "D = relu(acc + C) + residual", "bf16"),
    "gated": (ALONG_K.format("bf16") + "out D: bf16[m, n/2]\nD = silu(even(acc))*odd(acc)", "bf16"),
    "gated-bytes": (ALONG_K.format("bf16") + "in q: f32\nout D: e4m3[m, n/2]\nD = q*silu(even(acc))*odd(acc)", "bf16"),
    "gated-e4m3": (
        ALONG_K.format("e4m3") + "in s: f32[m], t: f32[n]\nout D: bf16[m, n/2]\nx = s*t*acc\nD = silu(even(x))*odd(x)",
        "e4m3",
    ),
    "gated-block-scales": (
        ALONG_K.format("e4m3") + "in sa: f32[m, k/128], sb: f32[n/128, k/128]\nA = sa*A\nB = sb*B\n"
        "out D: bf16[m, n/2]\nD = silu(even(acc))*odd(acc)",
        "e4m3",
    ),
    "mask": ("out D, mask: b1[m, n]\nz = acc + bias\nmask = z > 0\nD = relu(z)", "f16"),
    "blocks": ("out D: f16[m, n], a: f32[m, n/16]\nv = max[n%16](abs(acc))\na = v\nD = acc/max(v, 1e-6)", "f16"),
    "f32": ("out D: f32[m, n]\nD = acc + bias", "bf16"),
    "e4m3": (ALONG_K.format("e4m3") + "in s: f32[m], t: f32[n]\nout D: bf16[m, n]\nD = s*(t*acc)", "e4m3"),
    "i8": (ALONG_K.format("i8") + "in s: f32[m], t: f32[n]\nout D: bf16[m, n]\nD = s*(t*acc)", "i8"),
}
#: The rows of each group.
GROUPS = {
    "uneven": (3, 0, 129, 1, 64, 0, 0, 200, 31),
    "empty": (0, 0, 0),
    "one": (70,),
    "last": (0, 0, 5),
    "many": tuple(i * 7 % 40 for i in range(150)),
}
SIZES = {"even": (256, 128), "odd": (336, 208), "narrow": (48, 64)}
#: The error of a result; one of e4m3 has three bits after the first.
BOUND, BOUND_OF_BYTES = 0.01, 0.04


def randomly(shape, dtype, generator):
    if dtype in ("i8", "i32"):
        made = torch.randint(-9, 10, shape, device="cuda", generator=generator)
    else:
        made = torch.randn(shape, device="cuda", generator=generator)
    return made.to(getattr(torch, BY_NAME[dtype].torch))


def made(case: str, rows: tuple[int, ...], n: int, k: int, beyond: int = 0, **keywords):
    """Return a program, its operands, inputs and offsets; ``beyond`` rows belong to no group."""
    text, dtype = CASES[case]
    op = evt.grouped_gemm(text, **keywords)
    generator = torch.Generator("cuda").manual_seed(len(case) + n)
    total, groups = sum(rows) + beyond, len(rows)
    a = randomly((total, k), dtype, generator)
    along_k = op.request.operand_modes[1] == ("n", "k")
    b = randomly((groups, n, k) if along_k else (groups, k, n), dtype, generator)
    inputs = {}
    for value in typed_graph(op.request, dtype, dtype).inputs:
        extents = {"m": total, "n": n, "k": k}
        shape = tuple(blocks_of(mode, extents[base(mode)]) for mode in value.modes)
        inputs[value.name] = randomly((*(() if "m" in value.modes else (groups,)), *shape), str(value.dtype), generator)
    ends = torch.tensor(rows, device="cuda").cumsum(0).to(torch.int32)
    return op, a, b, inputs, ends


def expected(op, a, b, inputs, rows):
    """Return the float64 results of each group, by output."""
    found, first = [], 0
    for group, count in enumerate(rows):
        part = slice(first, first + count)
        mine = {
            name: value[part] if "m" in op.request.dag.input[name].modes else value[group]
            for name, value in inputs.items()
        }
        if count:
            result = op._member.reference(a[part], b[group], float64=True, **mine)
            found.append(result if isinstance(result, tuple) else (result,))
        first += count
    return [torch.cat(each) for each in zip(*found, strict=True)]


def check(call, rows):
    """Compare a call into poisoned buffers; rows of no group keep their values."""
    op, a, b, inputs, ends = call
    fresh = op(a, b, offsets=ends, **inputs)
    fresh = fresh if isinstance(fresh, tuple) else (fresh,)
    total = sum(rows)
    buffers = [torch.full_like(each, 0 if each.dtype in (torch.uint8, torch.int8) else float("nan")) for each in fresh]
    for each in buffers:
        each[total:] = 3
    op(a, b, offsets=ends, out=dict(zip(op.outputs, buffers, strict=True)), **inputs)
    if not total:
        return
    for name, mine, first, wanted in zip(op.outputs, buffers, fresh, expected(op, a, b, inputs, rows), strict=True):
        assert bool((mine[total:] == 3).all()), name
        assert torch.equal(first[:total].view(torch.uint8), mine[:total].view(torch.uint8)), name
        if wanted.dtype == torch.uint8:
            assert (mine[:total] != wanted).float().mean() < 0.01
        else:
            bound, most = BOUND_OF_BYTES if mine.dtype == torch.float8_e4m3fn else BOUND, torch.finfo(mine.dtype).max
            assert relative_error(mine[:total].double(), wanted.double().clamp(-most, most)) < bound, name


@pytest.mark.parametrize("rows", GROUPS)
@pytest.mark.parametrize("case", CASES)
def test_results(case, rows) -> None:
    for n, k in SIZES.values():
        check(made(case, GROUPS[rows], n, k, beyond=5 if n == 336 else 0), GROUPS[rows])


@pytest.mark.parametrize("case", ["vectors", "residual", "gated", "e4m3"])
def test_random_groups(case) -> None:
    draw = random.Random(case)
    for _ in range(12):
        count = draw.choice((1, 3, 8, 40, 300))
        rows = tuple(draw.choice((0, 1, draw.randint(0, 3000 // count))) for _ in range(count))
        check(made(case, rows, 16 * draw.randint(1, 60), 16 * draw.randint(1, 20), beyond=draw.randint(0, 99)), rows)


@pytest.mark.parametrize("case", ["vectors", "e4m3", "bare", "gated", "gated-e4m3"])
def test_every_configuration(case) -> None:
    rows = (300, 0, 1, 257, 40)
    text, dtype = CASES[case]
    op = evt.grouped_gemm(text, route="gemm-own-ragged")
    for config in survey(grouped_problem(op.request, "sm90", dtype, dtype)).defaults:
        check(made(case, rows, 400, 192, config=config.config.name), rows)


def test_graph_with_other_groups() -> None:
    """A captured call follows the offsets' values, and nothing waits for the device."""
    rows = (40, 0, 100, 20)
    op, a, b, inputs, ends = made("vectors", rows, 256, 128)
    out = torch.full((160, 256), float("nan"), device="cuda", dtype=torch.bfloat16)
    op(a, b, offsets=ends, out=out, **inputs)
    with no_synchronisation():
        op(a, b, offsets=ends, out=out, **inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        op(a, b, offsets=ends, out=out, **inputs)
    for other in (rows, (0, 0, 0, 160), (1, 1, 157, 1), (160, 0, 0, 0), (0, 33, 0, 127)):
        ends.copy_(torch.tensor(other, device="cuda").cumsum(0))
        out.fill_(float("nan"))
        graph.replay()
        (wanted,) = expected(op, a, b, inputs, other)
        assert relative_error(out.double(), wanted.double()) < BOUND


def test_rows_of_d_named_by_an_index() -> None:
    rows = (40, 0, 100, 20)
    _, a, b, _, ends = made("bare", rows, 256, 128)
    op = evt.grouped_gemm("in place: i32[m], w: f32[m]\nout D: bf16[place[m], n]\nD = w*acc")
    generator = torch.Generator("cuda").manual_seed(1)
    place = torch.randperm(200, device="cuda", generator=generator)[:160].to(torch.int32)
    w = torch.randn(160, device="cuda", generator=generator)
    out = torch.full((200, 256), 3.0, device="cuda", dtype=torch.bfloat16)
    op(a, b, offsets=ends, place=place, w=w, out=out)
    (wanted,) = expected(evt.grouped_gemm("in w: f32[m]\nD = w*acc"), a, b, {"w": w}, rows)
    assert relative_error(out[place.long()].double(), wanted.double()) < BOUND
    left = torch.ones(200, dtype=torch.bool, device="cuda")
    left[place.long()] = False
    assert bool((out[left] == 3).all())


def test_wrong_offsets_stay_in_bounds() -> None:
    op, a, b, inputs, ends = made("bare", (8, 8, 8, 8), 64, 64)
    out = torch.zeros((32, 64), device="cuda", dtype=torch.bfloat16)
    for values in ((-5, 900, 3, 2**31 - 1), (32, 16, 8, 0), (-1, -1, -1, -1)):
        ends.copy_(torch.tensor(values, device="cuda"))
        op(a, b, offsets=ends, out=out, **inputs)
        torch.cuda.synchronize()


def test_equals_grouped_mm_of_torch() -> None:
    if not hasattr(torch, "_grouped_mm"):
        pytest.skip("this PyTorch has no _grouped_mm")
    rows = (100, 0, 28, 128)
    op, a, b, _, ends = made("bare", rows, 256, 512)
    assert torch.equal(op(a, b, offsets=ends), torch._grouped_mm(a, b, offs=ends))
    transposed = b.mT.contiguous().mT
    assert torch.equal(op(a, transposed, offsets=ends), torch._grouped_mm(a, transposed, offs=ends))


def test_compiled_experts() -> None:
    """torch.compile fuses torch._grouped_mm; one compiled graph serves other groups, and gradients are eager's."""
    if not hasattr(torch, "_grouped_mm"):
        pytest.skip("this PyTorch has no _grouped_mm")
    generator = torch.Generator("cuda").manual_seed(0)
    weight = torch.randn((4, 512, 256), device="cuda", generator=generator).bfloat16() / 16
    x = torch.randn((300, 256), device="cuda", generator=generator).bfloat16()
    chances = torch.rand(300, device="cuda", generator=generator)

    class Experts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(weight)

        def forward(self, x, ends, chances):
            found = torch.nn.functional.silu(torch._grouped_mm(x, self.weight.mT, offs=ends))
            return found * chances[:, None].to(found.dtype)

    experts = Experts()
    compiled = torch.compile(experts, backend="evt", options={"evt.rule": "always"})
    for rows in ((100, 0, 150, 50), (0, 300, 0, 0)):
        ends = torch.tensor(rows, device="cuda").cumsum(0).to(torch.int32)
        grads = []
        for call in (experts, compiled):
            given, experts.weight.grad = x.clone().requires_grad_(), None
            found = call(given, ends, chances)
            found.float().square().mean().backward()
            grads.append([found, given.grad, experts.weight.grad])
        for mine, theirs in zip(*grads, strict=True):
            assert relative_error(theirs.double(), mine.double()) < 2 * BOUND
    assert evt.report(compiled).fused
