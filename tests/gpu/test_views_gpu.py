"""Kinds of tensors in a call: bytes, 64-bit integers and seeds, pitches, permuted batches; rotated pairs.

Both families, against the float64 oracle, into poisoned buffers, twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import evt
from evt.compilation import KernelSource
from evt.reference.compare import distance
from evt.request import typed_graph
from evt.runtime.arguments import bind
from evt.runtime.kernels import device_target, plan_kernels
from evt.runtime.plans import kernel_sources
from tests.gpu.builds import build_selected
from tests.support.one_config import general_config

pytestmark = pytest.mark.gpu

#: A, B, inputs and output buffers of a call; the buffers are views of poisoned memory.
Call = tuple[Any, Any, dict[str, Any], tuple[Any, ...]]


def normal(*shape: int, dtype: Any = None) -> Any:
    generator = torch.Generator("cuda").manual_seed(sum(shape))
    return torch.randn(shape, device="cuda", generator=generator).to(dtype or torch.float16)


def whole(*shape: int, low: int = -9, high: int = 10, dtype: Any = None) -> Any:
    generator = torch.Generator("cuda").manual_seed(sum(shape) + 1)
    return torch.randint(low, high, shape, device="cuda", generator=generator).to(dtype or torch.int64)


def poisoned(*shape: int, dtype: Any = None) -> Any:
    dtype = dtype or torch.float16
    return torch.full(shape, float("nan") if dtype.is_floating_point else 1, device="cuda", dtype=dtype)


def operands(m: int, n: int, k: int) -> tuple[Any, Any]:
    return normal(m, k) / 8, normal(k, n)


BYTES = """
in mask: bool[m, n], kept: bool[m], on: bool[], t: i64[m], u: i64[n], w: i64[m, n]
out D: f16[m, n], above: bool[m, n], any: bool[m]
D = where(mask && kept && on, acc, -1) + (iota(n) == t) + u*w
above = acc > 1
any = max[n](acc > 3)
"""


def call_of_bytes(m: int, n: int, k: int) -> Call:
    labels = whole(m, low=0, high=n)
    labels[::3] = -100
    labels[1::3] += 2**32  # which is no column
    inputs = {
        "mask": whole(m, n, low=0, high=2, dtype=torch.bool),
        "kept": whole(m, low=0, high=2, dtype=torch.bool),
        "on": torch.ones((), dtype=torch.bool, device="cuda"),
        "t": labels,
        "u": whole(n),
        "w": whole(m, n),
    }
    return *operands(m, n, k), inputs, (poisoned(m, n), poisoned(m, n, dtype=torch.bool), poisoned(m, dtype=torch.bool))


def call_of_seeds(m: int, n: int, k: int) -> Call:
    seed = torch.full((), -(2**62) + 12345, dtype=torch.int64, device="cuda")
    return *operands(m, n, k), {"p": 0.3, "seed": seed, "offset": 2**40 + 7}, (poisoned(m, n),)


def call_of_pitches(m: int, n: int, k: int) -> Call:
    table = normal(max(m, n), 3, dtype=torch.float32)
    inputs = {"s": table[:m, 0], "bias": table[:n, 1], "C": normal(m, 2 * n)[:, ::2]}
    return *operands(m, n, k), inputs, (poisoned(m, 2 * n)[:, ::2], poisoned(3 * n, 2 * m)[::3, 1::2].mT)


def call_of_rope(m: int, n: int, k: int) -> Call:
    angles, others = (normal(m, n // 2, dtype=torch.float32) for _ in range(2))
    inputs = {"c": angles.cos(), "s": angles.sin(), "p": others.cos(), "q": others.sin()}
    return *operands(m, n, k), inputs, (poisoned(m, n), poisoned(m, n, dtype=torch.float32))


def call_of_heads(m: int, n: int, k: int) -> Call:
    """[batch, heads, m, k] that lies as [batch, m, heads, k], with biases of every kind of batch."""
    batch, heads = 3, 5
    a = normal(batch, m, heads, k).transpose(1, 2) / 8
    b = normal(batch, n, heads, k).permute(0, 2, 3, 1)
    inputs = {"bias": normal(heads, m, n), "scale": normal(batch, 1, dtype=torch.float32), "v": normal(1, heads, n)}
    return a, b, inputs, (poisoned(batch, m, heads, n).transpose(1, 2), poisoned(batch, heads, m, dtype=torch.float32))


ROPE = """
in c: f32[m, n/2], s: f32[m, n/2], p: f32[m, n/2], q: f32[m, n/2]
out D: f16[m, n], far: f32[m, n]
x = even(acc); y = odd(acc)
D = interleave(x*c - y*s, x*s + y*c)
u = even(acc, 32); v = odd(acc, 32)
far = interleave(u*p - v*q, u*q + v*p, 32)
"""
CASES: dict[str, tuple[str, Callable[..., Call], tuple[tuple[int, int, int], ...]]] = {
    "bytes": (BYTES, call_of_bytes, ((200, 136, 80), (131, 72, 48))),
    "seeds": (
        "in p: f32[], seed: i64[], offset: i64[]\nD = dropout(acc, p, seed, offset)",
        call_of_seeds,
        ((200, 136, 80),),
    ),
    "pitches": (
        "in s: f32[m], bias: f32[n], C: f16[m, n]\nout D: f16[m, n], z: f16[m, n]\nz = s*acc + bias\nD = relu(z + C)",
        call_of_pitches,
        ((200, 136, 80), (131, 72, 48)),
    ),
    "rope": (ROPE, call_of_rope, ((200, 192, 80), (131, 64, 48))),
    "heads": (
        "in bias: f16[l, m, n], scale: f32[l], v: f16[l, n]\nout D: f16[m, n], rows: f32[m]\n"
        "D = scale*acc + bias + v\nrows = max[n](acc)",
        call_of_heads,
        ((136, 72, 48),),
    ),
}


def program(name: str, family: str) -> evt.Program:
    op = evt.gemm(CASES[name][0], route=f"evt-{family}")
    return general_config(op, "f16", "f16") if family == "3x" else op


def sources_of(name: str, family: str, size: tuple[int, int, int]) -> list[KernelSource]:
    op = program(name, family)
    a, b, inputs, buffers = CASES[name][1](*size)
    bound = bind(op.request, a, b, inputs, dict(zip(op.outputs, buffers, strict=True)))
    return kernel_sources(plan_kernels(op.request, bound, device_target(0))[:1])


@pytest.fixture(scope="session")
def refused(request):
    """Which kernels of the selected tests nvcc refuses, all built in one go."""
    return build_selected(request, test_views, sources_of)


@pytest.mark.parametrize(
    ("name", "family", "size"),
    [(name, family, size) for name, (_, _, sizes) in CASES.items() for family in ("3x", "2x") for size in sizes],
)
def test_views(name, family, size, record, refused) -> None:
    for source in sources_of(name, family, size):
        assert source not in refused, refused[source]
    op = program(name, family)
    a, b, inputs, buffers = CASES[name][1](*size)
    want = op.reference(a, b, float64=True, **inputs)
    want = [want] if len(op.outputs) == 1 else list(want)
    dtypes = [output.dtype for output in typed_graph(op.request, "f16", "f16").outputs]
    first = None
    for _ in range(2):  # twice on the same buffers
        op(a, b, out=buffers if len(buffers) > 1 else buffers[0], **inputs)
        errors = [
            distance(got, right, dtype, inside=dtype if dtype.bits == 16 else None)
            for got, right, dtype in zip(buffers, want, dtypes, strict=True)
        ]
        assert max(errors) <= 1.0, errors
        first = first or [each.clone() for each in buffers]
        assert all(torch.equal(buffer, earlier) for buffer, earlier in zip(buffers, first, strict=True))
    record((name, family, "f16", str(size), " ".join(f"{each:.2f}" for each in errors)))


@pytest.mark.parametrize("family", ["3x", "2x"])
def test_a_seed_by_value_is_the_seed_by_pointer(family, refused) -> None:
    op = program("seeds", family)
    a, b, inputs, _ = call_of_seeds(200, 136, 80)
    drawn = op(a, b, **inputs)
    by_value = {**inputs, "seed": int(inputs["seed"]) % 2**64}
    by_pointer = {**inputs, "offset": torch.full((1,), inputs["offset"], dtype=torch.int64, device="cuda")}
    assert torch.equal(drawn, op(a, b, **by_value))
    assert torch.equal(drawn, op(a, b, **by_pointer))
    assert not torch.equal(drawn, op(a, b, **{**inputs, "seed": by_value["seed"] ^ 2**40}))


@pytest.mark.parametrize("family", ["3x", "2x"])
def test_what_lies_between_the_elements_of_a_buffer_stays(family, refused) -> None:
    op = program("pitches", family)
    a, b, inputs, _ = call_of_pitches(200, 136, 80)
    around = poisoned(200, 272)
    op(a, b, out=(around[:, ::2], poisoned(200, 136)), **inputs)
    assert around[:, 1::2].isnan().all()
    assert not around[:, ::2].isnan().any()


@pytest.mark.parametrize("family", ["3x", "2x"])
def test_the_launches_of_a_batch_are_captured(family, refused) -> None:
    """Under CUDA graph capture, all launches of one call are replayed."""
    op = program("heads", family)
    a, b, inputs, buffers = call_of_heads(136, 72, 48)
    op(a, b, out=buffers, **inputs)
    expected = [buffer.clone() for buffer in buffers]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        op(a, b, out=buffers, **inputs)
    for buffer in buffers:
        buffer.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(buffer, want) for buffer, want in zip(buffers, expected, strict=True))
